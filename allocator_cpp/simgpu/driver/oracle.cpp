#include "oracle.h"

#include <algorithm>

#include "simulation.h"

namespace simgpu {

void Oracle::merge(VectorClock* into, const VectorClock& from) {
  if (into->size() < from.size()) into->resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) (*into)[i] = std::max((*into)[i], from[i]);
}

// Brings the stream's clock to its present end: its own ticks, what the host has waited for, and the legacy stream's order.
void Oracle::refresh(StreamObject& stream) {
  merge(&stream.clock, host_);
  if (stream.blocking) {
    simulation_->scheduler.for_each([&](StreamObject& other) {
      if (&other == &stream || other.device != stream.device || !other.blocking) return;
      if (!stream.legacy && !other.legacy) return;
      merge(&stream.clock, other.clock);
      if (stream.clock.size() <= other.id) stream.clock.resize(other.id + 1);
      stream.clock[other.id] = std::max(stream.clock[other.id], other.tick);
    });
  }
  if (stream.clock.size() <= stream.id) stream.clock.resize(stream.id + 1);
  stream.clock[stream.id] = stream.tick;
}

std::shared_ptr<VectorClock> Oracle::on_record(StreamObject& stream) {
  if (!enabled_) return nullptr;
  refresh(stream);
  return std::make_shared<VectorClock>(stream.clock);
}

void Oracle::on_wait(StreamObject& stream, const VectorClock* clock) {
  if (enabled_ && clock != nullptr) merge(&stream.clock, *clock);
}

void Oracle::on_host_wait(const VectorClock* clock) {
  if (enabled_ && clock != nullptr) merge(&host_, *clock);
}

void Oracle::on_host_wait(StreamObject& stream) {
  if (!enabled_) return;
  refresh(stream);
  merge(&host_, stream.clock);
}

void Oracle::on_host_wait_device(int device) {
  if (!enabled_) return;
  simulation_->scheduler.for_each([&](StreamObject& stream) {
    if (stream.device == device) on_host_wait(stream);
  });
}

bool Oracle::covers(const VectorClock& clock, const Uses& uses, uint32_t* stream) {
  for (const auto& use : uses) {
    if (use.first < clock.size() && clock[use.first] >= use.second) continue;
    *stream = use.first;
    return false;
  }
  return true;
}

void Oracle::erase(Ranges* ranges, uint64_t at, uint64_t bytes) {
  uint64_t end = at + bytes;
  auto it = ranges->lower_bound(at);
  if (it != ranges->begin()) {
    auto before = std::prev(it);
    uint64_t before_end = before->first + before->second.bytes;
    if (before_end > at) {
      if (before_end > end) {
        Range tail = before->second;
        tail.address += end - before->first;
        tail.bytes = before_end - end;
        (*ranges)[end] = tail;
      }
      before->second.bytes = at - before->first;
    }
  }
  for (it = ranges->lower_bound(at); it != ranges->end() && it->first < end; it = ranges->erase(it)) {
    uint64_t range_end = it->first + it->second.bytes;
    if (range_end <= end) continue;
    Range tail = it->second;
    tail.address += end - it->first;
    tail.bytes = range_end - end;
    ranges->erase(it);
    (*ranges)[end] = tail;
    return;
  }
}

namespace {

// Visits the ranges that overlap [at, at + bytes).
template <typename Ranges, typename F>
void overlapping(Ranges& ranges, uint64_t at, uint64_t bytes, F visit) {
  auto it = ranges.upper_bound(at);
  if (it != ranges.begin()) --it;
  for (; it != ranges.end() && it->first < at + bytes; ++it) {
    if (it->first + it->second.bytes > at) visit(it->first, it->second);
  }
}

}  // namespace

void Oracle::alloc(uint64_t address, uint64_t bytes, StreamObject& stream) {
  if (!enabled_ || bytes == 0) return;
  refresh(stream);
  Violations& violations = simulation_->violations;
  overlapping(live_, address, bytes, [&](uint64_t at, const Block& block) {
    violations.add("block 0x%llx+%llu handed out over the live block 0x%llx+%llu", (unsigned long long)address,
                   (unsigned long long)bytes, (unsigned long long)at, (unsigned long long)block.bytes);
  });
  std::vector<Piece> pieces;
  if (simulation_->space.translate(address, bytes, AddressSpace::kAnyDevice, true, &pieces) != Fault::kNone &&
      asleep_on(address) < 0) {
    violations.add("block 0x%llx+%llu handed out but not fully mapped", (unsigned long long)address,
                   (unsigned long long)bytes);
  }
  uint32_t late = 0;
  bool flagged = false;
  for (const Piece& piece : pieces) {
    uint64_t at = piece.physical->address + piece.offset;
    overlapping(by_physical_, at, piece.bytes, [&](uint64_t, const Range& range) {
      if (flagged || covers(stream.clock, range.uses, &late)) return;
      flagged = true;
      violations.add("block 0x%llx+%llu reused on stream %u before its last use at 0x%llx on stream %u is ordered",
                     (unsigned long long)address, (unsigned long long)bytes, stream.id,
                     (unsigned long long)range.address, late);
    });
    erase(&by_physical_, at, piece.bytes);
  }
  erase(&by_address_, address, bytes);
  live_[address] = {bytes, {stream.id}, {}};
}

void Oracle::record(uint64_t address, uint64_t bytes, StreamObject& stream) {
  if (!enabled_) return;
  auto it = live_.find(address);
  if (it == live_.end()) {
    simulation_->violations.add("record of 0x%llx+%llu, which is no live block", (unsigned long long)address,
                                (unsigned long long)bytes);
    return;
  }
  std::vector<uint32_t>& streams = it->second.streams;
  if (std::find(streams.begin(), streams.end(), stream.id) == streams.end()) streams.push_back(stream.id);
}

StreamObject* Oracle::home(uint64_t address) const {
  auto found = live_.find(address);
  return found != live_.end() ? simulation_->scheduler.stream(found->second.streams.front()) : nullptr;
}

Oracle::Uses Oracle::uses_until_now(const Block& block) const {
  Uses uses;
  for (uint32_t id : block.streams) uses.push_back({id, ++simulation_->scheduler.stream(id)->tick});
  return uses;
}

void Oracle::free(uint64_t address, uint64_t bytes, StreamObject& stream) {
  if (!enabled_ || bytes == 0) return;
  auto it = live_.find(address);
  if (it == live_.end()) {
    simulation_->violations.add("free of 0x%llx+%llu, which is no live block", (unsigned long long)address,
                                (unsigned long long)bytes);
    return;
  }
  record(address, bytes, stream);
  Uses uses = uses_until_now(it->second);
  live_.erase(it);
  erase(&by_address_, address, bytes);
  Range* run = nullptr;
  for (uint64_t at = address, end; at < address + bytes; at = end) {  // by granules
    end = std::min(address + bytes, (at / kGranularity + 1) * kGranularity);
    if (auto slept = asleep_.find(at / kGranularity * kGranularity); slept != asleep_.end() && slept->second.unmapped) {
      run = nullptr;
      continue;
    }
    if (run == nullptr) run = &(by_address_[at] = {0, at, uses});
    run->bytes += end - at;
    std::vector<Piece> pieces;
    simulation_->space.translate(at, end - at, AddressSpace::kAnyDevice, true, &pieces);
    for (const Piece& piece : pieces) {
      uint64_t behind = piece.physical->address + piece.offset;
      erase(&by_physical_, behind, piece.bytes);
      by_physical_[behind] = {piece.bytes, at, uses};
      at += piece.bytes;
    }
  }
}

void Oracle::sleep(uint64_t address, uint64_t bytes, bool asleep) {
  if (!enabled_) return;
  for (uint64_t at = address; at < address + bytes; at += kGranularity) {
    if (!asleep) {
      asleep_.erase(at);
      continue;
    }
    std::vector<Piece> pieces;
    bool mapped = simulation_->space.translate(at, 1, AddressSpace::kAnyDevice, false, &pieces) == Fault::kNone;
    asleep_[at] = {mapped ? pieces[0].physical->device : std::max(0, asleep_on(at)), false};
  }
  if (!asleep) return;
  overlapping(live_, address, bytes, [&](uint64_t, Block& block) { block.before_sleep = uses_until_now(block); });
}

int Oracle::asleep_on(uint64_t address) const {
  auto found = asleep_.find(address / kGranularity * kGranularity);
  return found != asleep_.end() ? found->second.device : -1;
}

void Oracle::on_unmap(uint64_t address, uint64_t bytes) {
  if (!enabled_) return;
  Violations& violations = simulation_->violations;
  bool on_purpose = true;
  for (uint64_t at = address; at < address + bytes; at += kGranularity) on_purpose &= asleep_.count(at) > 0;
  uint32_t late = 0;
  overlapping(live_, address, bytes, [&](uint64_t at, const Block& block) {
    if (on_purpose && covers(host_, block.before_sleep, &late)) return;
    if (on_purpose) {
      violations.add("0x%llx+%llu asleep before the last use of 0x%llx+%llu on stream %u is known to be complete",
                     (unsigned long long)address, (unsigned long long)bytes, (unsigned long long)at,
                     (unsigned long long)block.bytes, late);
      return;
    }
    violations.add("0x%llx+%llu unmapped under the live block 0x%llx+%llu", (unsigned long long)address,
                   (unsigned long long)bytes, (unsigned long long)at, (unsigned long long)block.bytes);
  });
  overlapping(by_address_, address, bytes, [&](uint64_t at, const Range& range) {
    if (covers(host_, range.uses, &late)) return;
    violations.add("0x%llx+%llu unmapped before the last use of 0x%llx+%llu on stream %u is known to be complete",
                   (unsigned long long)address, (unsigned long long)bytes, (unsigned long long)at,
                   (unsigned long long)range.bytes, late);
  });
  erase(&by_address_, address, bytes);
  for (uint64_t at = address; on_purpose && at < address + bytes; at += kGranularity) asleep_[at].unmapped = true;
}

void Oracle::on_release(const Physical& physical) {
  if (!enabled_) return;
  uint32_t late = 0;
  bool flagged = false;
  overlapping(by_physical_, physical.address, physical.bytes, [&](uint64_t, const Range& range) {
    if (flagged || covers(host_, range.uses, &late)) return;
    flagged = true;
    simulation_->violations.add("memory released before its last use at 0x%llx on stream %u is known to be complete",
                                (unsigned long long)range.address, late);
  });
  erase(&by_physical_, physical.address, physical.bytes);
}

void Oracle::on_plain_free(uint64_t address, uint64_t bytes) {
  if (!enabled_) return;
  overlapping(live_, address, bytes, [&](uint64_t at, const Block& block) {
    simulation_->violations.add("0x%llx freed under the live block 0x%llx+%llu", (unsigned long long)address,
                                (unsigned long long)at, (unsigned long long)block.bytes);
  });
  std::vector<Piece> pieces;
  simulation_->space.translate(address, bytes, AddressSpace::kAnyDevice, true, &pieces);
  for (const Piece& piece : pieces) erase(&by_physical_, piece.physical->address + piece.offset, piece.bytes);
  erase(&by_address_, address, bytes);
}

}  // namespace simgpu
