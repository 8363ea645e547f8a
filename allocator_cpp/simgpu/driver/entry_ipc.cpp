// Entry points: memory of cuMemAlloc and events handed to other processes of the session.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "simulation.h"

using namespace simgpu;

namespace {

// What travels in the 64 bytes of a handle. The exporter keeps the memory alive, as CUDA demands, so its file can be opened by name.
struct MemoryTicket {
  char magic[8];
  int pid, fd;
  uint64_t bytes, serial;
};
struct EventTicket {
  char magic[8];
  int pid, slot, device;
};
static_assert(sizeof(MemoryTicket) <= sizeof(IpcHandle) && sizeof(EventTicket) <= sizeof(IpcHandle),
              "a ticket fits a handle");
constexpr char kMemoryMagic[8] = "simgpum", kEventMagic[8] = "simgpue";

}  // namespace

SIMGPU_API Result cuIpcGetMemHandle(IpcHandle* handle, DevicePtr address) {
  SIMGPU_BEGIN(cuIpcGetMemHandle);
  Region* region = sim.space.find_device(address, 1);
  if (handle == nullptr || region == nullptr || region->kind != RegionKind::kPlain || region->pool != 0)
    return kInvalidValue;
  if (region->ipc_references > 0) return kInvalidValue;  // only its owner hands it on
  if (!sim.memory.make_shareable(*region->owned)) return kOutOfMemory;
  MemoryTicket ticket{};
  std::memcpy(ticket.magic, kMemoryMagic, sizeof(ticket.magic));
  ticket.pid = getpid();
  ticket.fd = region->owned->fd;
  ticket.bytes = region->bytes;
  ticket.serial = region->serial;
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle->bytes, &ticket, sizeof(ticket));
  return kSuccess;
}

SIMGPU_API Result cuIpcOpenMemHandle_v2(DevicePtr* address, IpcHandle handle, unsigned flags) {
  SIMGPU_BEGIN(cuIpcOpenMemHandle_v2);
  constexpr unsigned kLazyPeerAccess = 1;
  MemoryTicket ticket;
  std::memcpy(&ticket, handle.bytes, sizeof(ticket));
  if (address == nullptr || (flags & ~kLazyPeerAccess) != 0) return kInvalidValue;
  if (std::memcmp(ticket.magic, kMemoryMagic, sizeof(ticket.magic)) != 0) return kInvalidValue;
  if (ticket.pid == getpid()) return kInvalidContext;  // a process cannot open its own
  std::string key(reinterpret_cast<const char*>(handle.bytes), sizeof(handle.bytes));
  auto known = sim.opened.find(key);
  if (known != sim.opened.end()) {
    Region* region = sim.space.find(known->second);
    if (region != nullptr && region->start == known->second && region->ipc_references > 0) {
      ++region->ipc_references;
      *address = region->start;
      return kSuccess;
    }
    sim.opened.erase(known);
  }
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", ticket.pid, ticket.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return kInvalidValue;
  std::unique_ptr<Physical> physical = sim.memory.adopt(fd);
  close(fd);
  if (physical == nullptr) return kOutOfMemory;
  Region* region = sim.space.add_plain(std::move(physical), ticket.bytes);
  if (region == nullptr) return kOutOfMemory;
  region->ipc_references = 1;
  sim.opened[key] = region->start;
  *address = region->start;
  return kSuccess;
}

SIMGPU_API Result cuIpcCloseMemHandle(DevicePtr address) {
  SIMGPU_BEGIN(cuIpcCloseMemHandle);
  Region* region = sim.space.find(address);
  if (region == nullptr || region->start != address || region->ipc_references == 0) return kInvalidValue;
  if (--region->ipc_references > 0) return kSuccess;
  int device = region->device;
  Result result = sim.scheduler.wait_device(device);
  sim.oracle.on_host_wait_device(device);
  sim.oracle.on_plain_free(region->start, region->bytes);
  sim.space.free_plain(region);
  return result;
}

SIMGPU_API Result cuIpcGetEventHandle(IpcHandle* handle, Event event) {
  SIMGPU_BEGIN(cuIpcGetEventHandle);
  EventObject* object = sim.events.find(event);
  if (object == nullptr) return kInvalidHandle;
  if (handle == nullptr || object->shared_slot < 0) return kInvalidValue;
  EventTicket ticket{};
  std::memcpy(ticket.magic, kEventMagic, sizeof(ticket.magic));
  ticket.pid = getpid();
  ticket.slot = object->shared_slot;
  ticket.device = sim.devices[static_cast<size_t>(object->device)].number;
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle->bytes, &ticket, sizeof(ticket));
  return kSuccess;
}

SIMGPU_API Result cuIpcOpenEventHandle(Event* event, IpcHandle handle) {
  SIMGPU_BEGIN(cuIpcOpenEventHandle);
  EventTicket ticket;
  std::memcpy(&ticket, handle.bytes, sizeof(ticket));
  if (event == nullptr || std::memcmp(ticket.magic, kEventMagic, sizeof(ticket.magic)) != 0) return kInvalidValue;
  if (ticket.pid == getpid()) return kInvalidContext;
  if (sim.session.event_recorded(ticket.slot) == nullptr) return kInvalidValue;
  auto object = std::make_unique<EventObject>();
  object->device = entered.device().ordinal;
  for (const DeviceState& device : sim.devices) {
    if (device.number == ticket.device) object->device = device.ordinal;
  }
  object->flags = kEventInterprocess | kEventDisableTiming;
  object->shared_slot = ticket.slot;
  object->imported = true;
  sim.session.event_retain(ticket.slot);
  *event = reinterpret_cast<Event>(sim.events.insert(std::move(object)));
  return kSuccess;
}
