#include "execute.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "simulation.h"

namespace simgpu {
namespace {

std::string describe(const char* what, uint64_t address, uint64_t bytes, Fault fault, int device) {
  char text[256];
  std::snprintf(text, sizeof(text), "%s of %llu bytes at 0x%llx on device %d: %s", what, (unsigned long long)bytes,
                (unsigned long long)address, device, fault_text(fault));
  return text;
}

// Finds the pieces behind a range, as the device would; a fault is recorded and false returned.
bool reach(Simulation& sim, const char* what, uint64_t address, uint64_t bytes, int device, bool write,
           std::vector<Piece>* pieces) {
  pieces->clear();
  Fault fault = sim.space.translate(address, bytes, device, write, pieces);
  if (fault == Fault::kNone) return true;
  sim.device_fault(device < 0 ? 0 : device, describe(what, address, bytes, fault, device < 0 ? 0 : device));
  return false;
}

// Which device's access rights apply to one side of a copy: a peer copy reaches each side from its own device.
int access_device(Simulation& sim, const CopyWork& copy, uint64_t address, int stream_device) {
  if (!copy.peer) return stream_device;
  std::vector<Piece> pieces;
  if (sim.space.translate(address, 1, AddressSpace::kAnyDevice, false, &pieces) != Fault::kNone) return stream_device;
  return pieces[0].physical->device;
}

bool copy_row(Simulation& sim, const CopyWork& copy, uint64_t target, uint64_t source, const char* staged,
              uint64_t bytes, int device) {
  if (bytes == 0) return true;
  std::vector<Piece>&to = sim.pieces, &from = sim.more_pieces;
  bool done = true;
  if (!copy.target_host &&
      !reach(sim, "write by a copy", target, bytes, access_device(sim, copy, target, device), true, &to)) {
    return false;
  }
  bool from_host = copy.source_host || staged != nullptr;
  if (!from_host &&
      !reach(sim, "read by a copy", source, bytes, access_device(sim, copy, source, device), false, &from))
    return false;
  const char* host_source = staged != nullptr ? staged : reinterpret_cast<const char*>(source);
  char* host_target = reinterpret_cast<char*>(target);
  if (from_host && copy.target_host) {
    std::memmove(host_target, host_source, bytes);
  } else if (from_host) {
    for (const Piece& piece : to) {
      done = done && sim.memory.write(*piece.physical, piece.offset, host_source, piece.bytes);
      host_source += piece.bytes;
    }
  } else if (copy.target_host) {
    for (const Piece& piece : from) {
      done = done && sim.memory.read(*piece.physical, piece.offset, host_target, piece.bytes);
      host_target += piece.bytes;
    }
  } else {
    size_t i = 0, j = 0;
    uint64_t skip_to = 0, skip_from = 0;
    while (i < to.size()) {
      uint64_t n = std::min(to[i].bytes - skip_to, from[j].bytes - skip_from);
      done = done &&
             sim.memory.copy(*to[i].physical, to[i].offset + skip_to, *from[j].physical, from[j].offset + skip_from, n);
      if ((skip_to += n) == to[i].bytes) ++i, skip_to = 0;
      if ((skip_from += n) == from[j].bytes) ++j, skip_from = 0;
    }
  }
  if (!done) sim.device_fault(device, "a copy's host address is not accessible, or the host is out of memory");
  return done;
}

void run(Simulation& sim, StreamObject& stream, CopyWork& copy) {
  for (uint64_t row = 0; row < copy.rows; ++row) {
    const char* staged = copy.staged != nullptr ? copy.staged->data() + row * copy.width : nullptr;
    uint64_t target = copy.target + row * copy.target_pitch, source = copy.source + row * copy.source_pitch;
    if (!copy_row(sim, copy, target, source, staged, copy.width, stream.device)) return;
  }
}

void run(Simulation& sim, StreamObject& stream, FillWork& fill) {
  uint8_t pattern[4];
  std::memcpy(pattern, &fill.value, 4);
  for (uint64_t row = 0; row < fill.rows; ++row) {
    uint64_t address = fill.target + row * fill.pitch, phase = 0;
    if (fill.target_host) {
      for (uint64_t i = 0; i < fill.width; ++i) reinterpret_cast<uint8_t*>(address)[i] = pattern[i % fill.element];
      continue;
    }
    if (!reach(sim, "memset", address, fill.width, stream.device, true, &sim.pieces)) return;
    for (const Piece& piece : sim.pieces) {
      if (!sim.memory.fill(*piece.physical, piece.offset, piece.bytes, pattern, fill.element, phase)) {
        return sim.device_fault(stream.device, "memset: the host is out of memory");
      }
      phase += piece.bytes;
    }
  }
}

// A kernel reaches another device's plain memory only with peer access; copies need none.
bool reach_by_kernel(Simulation& sim, const char* what, const Span& span, int device, bool write) {
  if (!reach(sim, what, span.address, span.bytes, device, write, &sim.pieces)) return false;
  for (const Piece& piece : sim.pieces) {
    int owner = piece.physical->device;
    bool plain = piece.physical->handle == 0;
    if (!plain || owner == device || (sim.devices[static_cast<size_t>(device)].peers >> owner & 1) != 0) continue;
    sim.device_fault(device, std::string(what) + " on device " + std::to_string(device) + " of memory on device " +
                                 std::to_string(owner) + ": peer access is not enabled");
    return false;
  }
  return true;
}

void run(Simulation& sim, StreamObject& stream, SpanWork& kernel) {
  for (const Span& span : kernel.reads) {
    if (!reach_by_kernel(sim, "read by a kernel", span, stream.device, false)) return;
  }
  for (const Span& span : kernel.writes) {
    if (!reach_by_kernel(sim, "write by a kernel", span, stream.device, true)) return;
    for (const Piece& piece : sim.pieces) {
      if (!sim.memory.fill(*piece.physical, piece.offset, piece.bytes, &kernel.value, 1, 0)) {
        return sim.device_fault(stream.device, "kernel: the host is out of memory");
      }
    }
  }
}

void run(Simulation& sim, StreamObject& stream, HostWork& host) {
  std::mutex& mutex = simulation_mutex();
  Result status = sim.devices[stream.device].fault;
  mutex.unlock();
  in_host_function() = true;
  if (host.callback != nullptr) {
    host.callback(reinterpret_cast<Stream>(host.stream), status, host.user_data);
  } else {
    host.function(host.user_data);
  }
  in_host_function() = false;
  mutex.lock();
}

void run(Simulation& sim, StreamObject&, RecordWork& record) {
  EventObject* event = sim.events.find(record.event);
  if (event == nullptr) return;
  if (record.record == event->record) event->completed_at = sim.scheduler.now();
  if (event->shared_slot < 0) return;
  std::atomic<uint64_t>* completed = sim.session.event_completed(event->shared_slot);
  if (record.record > *completed) *completed = record.record;
}

void run(Simulation& sim, StreamObject&, FreeWork& free) {
  Region* region = sim.space.find(free.address);
  if (region == nullptr || region->kind != RegionKind::kPlain) return;
  if (PoolObject* pool = sim.pools.find(region->pool)) pool->used -= region->bytes;
  sim.oracle.on_plain_free(region->start, region->bytes);
  sim.space.free_plain(region);
}

void run(Simulation&, StreamObject&, EmptyWork&) {}
void run(Simulation&, StreamObject&, KernelWork&) {}
void run(Simulation&, StreamObject&, WaitWork&) {}

}  // namespace

void execute(Simulation& sim, StreamObject& stream, Operation& operation) {
  Result& fault = sim.devices[stream.device].fault;
  bool bookkeeping = std::holds_alternative<RecordWork>(operation.work) ||
                     std::holds_alternative<FreeWork>(operation.work) ||
                     std::holds_alternative<HostWork>(operation.work);
  if (fault != kSuccess && !bookkeeping) return;  // a faulted device does no more work
  if (operation.doomed) {
    fault = kIllegalAddress;
    return;
  }
  std::visit([&](auto& work) { run(sim, stream, work); }, operation.work);
}

bool read_device(Simulation& sim, uint64_t address, void* host, uint64_t bytes) {
  sim.pieces.clear();
  if (sim.space.translate(address, bytes, AddressSpace::kAnyDevice, false, &sim.pieces) != Fault::kNone) return false;
  char* at = static_cast<char*>(host);
  for (const Piece& piece : sim.pieces) {
    if (!sim.memory.read(*piece.physical, piece.offset, at, piece.bytes)) return false;
    at += piece.bytes;
  }
  return true;
}

bool write_device(Simulation& sim, uint64_t address, const void* host, uint64_t bytes) {
  sim.pieces.clear();
  if (sim.space.translate(address, bytes, AddressSpace::kAnyDevice, true, &sim.pieces) != Fault::kNone) return false;
  const char* at = static_cast<const char*>(host);
  for (const Piece& piece : sim.pieces) {
    if (!sim.memory.write(*piece.physical, piece.offset, at, piece.bytes)) return false;
    at += piece.bytes;
  }
  return true;
}

namespace {

void add_span(uint64_t address, uint64_t pitch, uint64_t width, uint64_t rows, std::vector<Span>* out) {
  if (width > 0 && rows > 0) out->push_back({address, (rows - 1) * pitch + width});
}

}  // namespace

void touched_spans(const Work& work, std::vector<Span>* out) {
  if (const auto* copy = std::get_if<CopyWork>(&work)) {
    if (!copy->target_host) add_span(copy->target, copy->target_pitch, copy->width, copy->rows, out);
    if (!copy->source_host) add_span(copy->source, copy->source_pitch, copy->width, copy->rows, out);
  } else if (const auto* fill = std::get_if<FillWork>(&work)) {
    if (!fill->target_host) add_span(fill->target, fill->pitch, fill->width, fill->rows, out);
  } else if (const auto* kernel = std::get_if<SpanWork>(&work)) {
    out->insert(out->end(), kernel->reads.begin(), kernel->reads.end());
    out->insert(out->end(), kernel->writes.begin(), kernel->writes.end());
  }
}

}  // namespace simgpu
