// record_stream and the frees that wait because of it, and looking a block up by any address inside it.
#include <algorithm>

#include "driver/context_scope.h"
#include "heap/device_heap.h"

namespace pyalloc {

bool DeviceHeap::describe(Space& space, uint64_t address, bool inside, pyalloc_block_view& block) {
  if (space.lane() != nullptr) return space.lane()->describe(address, inside, block);
  Lock lock(mutex_);
  NodeId id = inside ? space.covering(address) : space.start_in_cell(address);
  if (id == kNoNode) return false;
  const Range& range = space.extents().range(id);
  if (range.state != RangeState::kLive && range.state != RangeState::kPending) return false;
  if (!inside && block_address(space, range) != address) return false;
  block = {reinterpret_cast<void*>(block_address(space, range)),
           block_bytes(range),
           range.requested,
           range.state == RangeState::kLive ? PYALLOC_BLOCK_LIVE : PYALLOC_BLOCK_PENDING,
           clocks_.stream(range.owner),
           range.tag};
  return true;
}

Status DeviceHeap::find_block(Space& space, uint64_t address, pyalloc_block_info& info) {
  pyalloc_block_view block{};
  if (!describe(space, address, true, block) || block.state != PYALLOC_BLOCK_LIVE)
    return fail(PYALLOC_UNKNOWN_POINTER, "0x%llx is not inside a live pyalloc block on device %d",
                static_cast<unsigned long long>(address), device_);
  info.device = device_;
  info.block = block.address;
  info.stream = block.stream;
  info.requested = block.requested;
  info.allocated = block.bytes;
  Lock lock(mutex_);
  const AddressSpace& memory = space.memory();
  auto first = static_cast<uint32_t>(space.offset(address) / granule_bytes_), end = first + 1;
  bool asleep = memory.slot(first).handle == 0;
  while (!asleep && first > 0 && memory.slot(first - 1).handle != 0) --first;
  while (!asleep && end < memory.slots() && memory.slot(end).handle != 0) ++end;
  info.segment = reinterpret_cast<void*>(memory.address(first));
  info.segment_bytes = asleep ? 0 : uint64_t{end - first} * granule_bytes_;
  return kOk;
}

Status DeviceHeap::record_stream(Space& space, uint64_t address, cuda::Stream stream, bool owned) {
  Lane* user = lane_of(space.pool(), stream, owned, space.arena());
  if (user == nullptr) return PYALLOC_INVALID_ARGUMENT;
  auto unknown = [&] {
    return fail(PYALLOC_UNKNOWN_POINTER, "record_stream: 0x%llx is not the start of a live pyalloc block on device %d",
                static_cast<unsigned long long>(address), device_);
  };
  if (space.lane() == user) return kOk;  // its own stream: stream order already protects it
  if (space.lane() != nullptr && !space.lane()->mark_recorded(address)) return unknown();
  Lock lock(mutex_);
  if (space.lane() == nullptr) {
    NodeId id = live_coarse_at(space, address);
    if (id == kNoNode) return unknown();
    if (space.extents().range(id).owner == user->index()) return kOk;
    space.extents().range(id).recorded = true;
  }
  std::vector<StreamIndex>& streams = recorded_[address];
  if (std::find(streams.begin(), streams.end(), user->index()) == streams.end()) streams.push_back(user->index());
  return kOk;
}

// Notes the free of a recorded block, then puts an event on every stream it was recorded on. With the heap's lock held.
void DeviceHeap::stamp_recorded(PendingFree& pending, uint64_t address, cuda::Stream home) {
  std::vector<StreamIndex> streams;
  if (auto found = recorded_.find(address); found != recorded_.end()) {
    streams = std::move(found->second);
    recorded_.erase(found);
  }
  auto bytes = static_cast<size_t>(pending.bytes);
  if (oracle_) {
    for (StreamIndex stream : streams) driver().oracle_record(address, bytes, clocks_.stream(stream));
  }
  note_free(address, bytes, home);
  ContextScope scope(context_);
  for (StreamIndex stream : streams) pending.waits.emplace_back(stream, clocks_.stamp_use(stream));
}

void DeviceHeap::free_later(PendingFree pending, uint64_t address, cuda::Stream home) {
  Lock lock(mutex_);
  stamp_recorded(pending, address, home);
  pending_.push_back(std::move(pending));
  pending_count_.fetch_add(1, std::memory_order_relaxed);
}

bool DeviceHeap::poll_pending() {
  if (pending_count_.load(std::memory_order_relaxed) == 0) return false;
  Lock round(pending_mutex_);  // who asks next finds that everything this round takes off the list is free
  std::vector<PendingFree> in_lanes;
  bool any = false;
  {
    Lock lock(mutex_);
    ContextScope scope(context_);
    std::vector<bool> polled(clocks_.end());
    auto complete = [&](const PendingFree& one) {
      return std::all_of(one.waits.begin(), one.waits.end(), [&](const auto& wait) {
        const auto& [stream, position] = wait;
        if (!clocks_.passed(stream, position) && !polled[stream]) {
          polled[stream] = true;
          clocks_.poll(stream);
        }
        return clocks_.passed(stream, position);
      });
    };
    std::vector<PendingFree> left;
    for (PendingFree& one : pending_) {
      if (!complete(one)) {
        left.push_back(std::move(one));
      } else if (one.space->lane() != nullptr) {
        in_lanes.push_back(std::move(one));  // their lane's lock comes before the heap's
      } else {
        any = true;
        Space& coarse = *one.space;
        coarse.set_start(block_address(coarse, coarse.extents().range(one.range)), kNoNode);
        block_counters_.pending_ended(one.kind, {1, one.bytes, 0});
        release_coarse(coarse, one.range);
      }
    }
    pending_.swap(left);
    finishing_ = static_cast<int64_t>(in_lanes.size());
    pending_count_.store(pending_.size() + in_lanes.size(), std::memory_order_relaxed);
    observe();
  }
  for (const PendingFree& one : in_lanes) one.space->lane()->finish_pending(one.slab, one.slot, one.range);
  if (!in_lanes.empty()) {
    Lock lock(mutex_);
    finishing_ = 0;
    pending_count_.store(pending_.size(), std::memory_order_relaxed);
  }
  return any || !in_lanes.empty();
}

}  // namespace pyalloc
