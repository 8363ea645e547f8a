#include "heap/device_heap.h"

#include <algorithm>

#include "base/bits.h"
#include "base/clock.h"
#include "base/log.h"
#include "driver/context_scope.h"
#include "heap/address_map.h"

namespace pyalloc {
namespace {

constexpr size_t kGranule = 2 * kMiB;
constexpr uint64_t kAddressesPerByte = 4;            // addresses reserved per byte of device memory, for each space
constexpr uint64_t kFewestAddresses = 16 * kGiB;
constexpr size_t kLargestRequest = size_t{1} << 50;  // beyond any device; keeps sums from wrapping

std::atomic<uint64_t> next_serial{1};

// A thread's lanes seen last, so that the hot path takes no lock to find one. Only streams that keep their identity are cached.
struct CachedLane {
  uint64_t serial = 0;
  cuda::Stream stream = nullptr;
  Lane* lane = nullptr;
};
constexpr size_t kCachedLanes = 8;
thread_local CachedLane cached_lanes[kCachedLanes];

size_t cache_index(uint64_t serial, cuda::Stream stream) {
  return ((reinterpret_cast<uintptr_t>(stream) >> 4) * 0x9E3779B97F4A7C15ull >> 40 ^ serial) % kCachedLanes;
}

Status attribute(cuda::Device device, cuda::DeviceAttribute which, int& value) {
  cuda::Result result = driver().device_attribute(&value, which, device);
  return result == cuda::kSuccess ? kOk : driver_failure("cuDeviceGetAttribute", result, "asking what the device can do");
}

}  // namespace

Status DeviceHeap::open(int ordinal, const HeapOptions& options, std::unique_ptr<DeviceHeap>& heap) {
  cuda::Result result = driver().init(0);
  if (result != cuda::kSuccess) return driver_failure("cuInit", result, "opening the driver");
  cuda::Device device = 0;
  result = driver().device_get(&device, ordinal);
  if (result != cuda::kSuccess) return driver_failure("cuDeviceGet", result, "opening a device");
  int has_vmm = 0;
  Status status = attribute(device, cuda::kAttrVirtualMemoryManagement, has_vmm);
  if (status != kOk) return status;
  if (has_vmm == 0 && options.caching) {
    return fail(PYALLOC_NO_VMM, "device %d has no virtual memory management, which pyalloc needs; run without pyalloc (remove enable() and PYALLOC_CONF) on this device", ordinal);
  }
  size_t total = 0;
  result = driver().device_total(&total, device);
  if (result != cuda::kSuccess) return driver_failure("cuDeviceTotalMem", result, "asking for the device's memory");
  cuda::Context context = nullptr;
  result = driver().primary_retain(&context, device);
  if (result != cuda::kSuccess) return driver_failure("cuDevicePrimaryCtxRetain", result, "taking the device's primary context");
  ContextScope scope(context);
  size_t granularity = 0;
  cuda::AllocationProp prop = granule_properties(ordinal);
  result = has_vmm == 0 ? cuda::kSuccess : driver().granularity(&granularity, &prop, cuda::kGranularityMinimum);
  if (result != cuda::kSuccess) {
    driver().primary_release(device);
    return driver_failure("cuMemGetAllocationGranularity", result, "asking for the device's granularity");
  }
  size_t granule = granularity == 0 ? kGranule : align_up(kGranule, granularity);
  std::unique_ptr<DeviceHeap> opened(new DeviceHeap(ordinal, options, context, granule, total));
  status = options.caching ? opened->reserve_spaces() : kOk;
  if (status != kOk) return status;
  heap = std::move(opened);
  return kOk;
}

DeviceHeap::DeviceHeap(int ordinal, const HeapOptions& options, cuda::Context context, size_t granule_bytes, uint64_t total)
    : device_(ordinal),
      context_(context),
      granule_bytes_(granule_bytes),
      oracle_(driver().oracle_alloc != nullptr && driver().oracle_free != nullptr && driver().oracle_record != nullptr),
      guard_(options.guard),
      caching_(options.caching),
      check_(options.check),
      backing_(ordinal, granule_bytes, clocks_, block_counters_, counters_),
      fine_(*this, 0, false, granule_bytes),
      coarse_(*this, 1, true, granule_bytes),
      fraction_(options.memory_fraction),
      serial_(next_serial.fetch_add(1)) {
  backing_.policy() = {options.slack, options.cross_stream_wait, options.limit, options.memory_fraction, total};
}

Status DeviceHeap::reserve_spaces() {
  uint64_t wanted = std::max(kFewestAddresses, kAddressesPerByte * total_bytes());
  for (Space* space : {&fine_, &coarse_}) {
    Status status = space->create(wanted, total_bytes());
    if (status != kOk) return status;
    backing_.add_space(space->memory());
    add_to_address_map(*space);
  }
  return kOk;
}

DeviceHeap::~DeviceHeap() {
  ContextScope scope(context_);
  for (Space* space : {&fine_, &coarse_}) {
    if (space->memory().bytes() != 0) remove_from_address_map(*space);
  }
  if (driver().context_synchronize() != cuda::kSuccess) {  // then stream by stream, slots of slabs that were kept included
    for (StreamIndex stream = 1; stream < clocks_.end(); ++stream) {
      clocks_.free_position(stream);
      clocks_.synchronize(stream);
    }
  }
  backing_.close();
  for (Space* space : {&fine_, &coarse_}) space->memory().free_reservation();
  for (const auto& [address, block] : direct_) driver().plain_free(address);
  clocks_.close();
  driver().primary_release(device_);
}

void DeviceHeap::abandon() { clocks_.abandon(); }

// --- lanes ---

Lane* DeviceHeap::lane_of(cuda::Stream stream, bool owned) {
  owned = owned || reinterpret_cast<uintptr_t>(stream) <= 2;
  CachedLane& cached = cached_lanes[cache_index(serial_, stream)];
  if (owned && cached.serial == serial_ && cached.stream == stream) return cached.lane;
  Lock making(lanes_mutex_);
  StreamIndex index = 0;
  {
    Lock lock(mutex_);
    index = clocks_.index_of(stream, owned);
    if (index != 0 && lanes_by_stream_.size() <= index) lanes_by_stream_.resize(index + size_t{1});
  }
  if (index == 0) {
    fail(PYALLOC_INVALID_ARGUMENT, "more than 65,535 streams on device %d; reuse streams instead of creating new ones", device_);
    return nullptr;
  }
  if (lanes_by_stream_[index] == nullptr) lanes_by_stream_[index] = &lanes_.emplace_back(*this, block_counters_, stream, index, owned);
  if (owned) cached = {serial_, stream, lanes_by_stream_[index]};
  return lanes_by_stream_[index];
}

Status DeviceHeap::take_slab(Lane& lane, int size_class_index, Slab*& slab) {
  Lock lock(mutex_);
  NodeId id = kNoNode;
  auto units = static_cast<uint32_t>(slab_bytes(size_class_index) / kUnit);
  Status status = place(fine_, units, Space::kFineCell / kUnit, lane.index(), RangeState::kSlab, 0, id);
  observe();
  if (status != kOk) return status;
  if (unused_slabs_ == nullptr) {
    slab = &slabs_.emplace_back();
  } else {
    slab = unused_slabs_;
    unused_slabs_ = slab->next;
  }
  const Range& range = fine_.extents().range(id);
  slab->reset(&lane, fine_.address(range), id, size_class_index);
  fine_.set_slab(range, slab);
  return kOk;
}

void DeviceHeap::give_slab(Slab& slab) {
  Lock lock(mutex_);
  ContextScope scope(context_);
  StreamIndex user = slab.lane->index();
  fine_.set_slab(fine_.extents().range(slab.range), nullptr);
  release_extent(fine_, slab.range, user, clocks_.free_position(user));
  slab.lane = nullptr;
  slab.next = unused_slabs_;
  unused_slabs_ = &slab;
  observe();
}

// --- allocation ---

uint64_t DeviceHeap::block_address(const Space& space, const Range& range) const {
  uint64_t address = space.address(range);
  // A guarded block ends where its last granule ends, so that the first byte beyond it faults.
  return guard_ ? address + committed_bytes(range) - align_up(range.requested, kUnit) : address;
}

size_t DeviceHeap::block_bytes(const Range& range) const { return guard_ ? align_up(range.requested, kUnit) : size_t{range.length} * kUnit; }

size_t DeviceHeap::committed_bytes(const Range& range) const { return size_t{range.length} * kUnit - (guard_ ? granule_bytes_ : 0); }

Status DeviceHeap::allocate(cuda::Stream stream, bool owned, size_t bytes, void** pointer) {
  if (bytes > kLargestRequest) {
    refused_by_limit_.store(false, std::memory_order_relaxed);
    return fail(PYALLOC_OUT_OF_MEMORY, "no device has that much memory");
  }
  if (!caching_) return allocate_direct(stream, bytes, pointer);
  Lane* lane = lane_of(stream, owned);
  if (lane == nullptr) return PYALLOC_INVALID_ARGUMENT;
  return bytes <= kSmallestExtent && !guard_ ? lane->allocate(bytes, pointer) : allocate_extent(*lane, bytes, pointer);
}

Status DeviceHeap::allocate_extent(Lane& lane, size_t bytes, void** pointer) {
  if (pending_count_.load(std::memory_order_relaxed) != 0) poll_pending();
  size_t rounded = align_up(bytes, kUnit);
  Space& space = rounded > kMiB || guard_ ? coarse_ : fine_;
  size_t wanted = guard_ ? align_up(rounded, granule_bytes_) + granule_bytes_ : rounded;
  auto granule_units = static_cast<uint32_t>(granule_bytes_ / kUnit);
  Kind kind = rounded > kMiB ? kLarge : kSmall;
  if (wanted > space.memory().bytes()) {
    refused_by_limit_.store(false, std::memory_order_relaxed);
    return fail(PYALLOC_OUT_OF_MEMORY, "it is more than the device has");
  }
  Usage usage{1, static_cast<int64_t>(rounded), static_cast<int64_t>(bytes)};
  bool counted = false;
  {
    Lock lock(mutex_);
    NodeId id = kNoNode;
    Status status = place(space, static_cast<uint32_t>(wanted / kUnit), guard_ ? granule_units : 1, lane.index(), RangeState::kLive, bytes, id);
    observe();
    if (status != kOk) return status;
    const Range& range = space.extents().range(id);
    uint64_t address = block_address(space, range);
    space.set_start(address, id);
    counted = block_counters_.extents().counters.hand_out(kind, usage);
    *pointer = reinterpret_cast<void*>(address);
    note_alloc(address, rounded, lane.stream());
    self_check();
  }
  if (!counted) block_counters_.settle(&block_counters_.extents(), kind, usage);
  return kOk;
}

Status DeviceHeap::allocate_direct(cuda::Stream stream, size_t bytes, void** pointer) {
  Usage usage{1, static_cast<int64_t>(bytes), static_cast<int64_t>(bytes)};
  Kind kind = bytes > kMiB ? kLarge : kSmall;
  bool counted = false;
  {
    Lock lock(mutex_);
    ContextScope scope(context_);
    if (direct_bytes_ + bytes > backing_.limit_bytes()) {
      refused_by_limit_.store(true, std::memory_order_relaxed);
      return fail(PYALLOC_OUT_OF_MEMORY, "the limit set for pyalloc is reached");
    }
    refused_by_limit_.store(false, std::memory_order_relaxed);
    cuda::DevicePtr address = 0;
    cuda::Result result = driver().plain_alloc(&address, bytes);
    if (result != cuda::kSuccess) return driver_failure("cuMemAlloc", result, "allocating without a cache");
    count(counters_.num_device_alloc);
    direct_[address] = {bytes, bytes, stream};
    direct_bytes_ += bytes;
    direct_count_.store(direct_.size(), std::memory_order_relaxed);
    counted = block_counters_.extents().counters.hand_out(kind, usage);
    *pointer = reinterpret_cast<void*>(address);
    observe();
  }
  if (!counted) block_counters_.settle(&block_counters_.extents(), kind, usage);
  return kOk;
}

// --- frees ---

Status DeviceHeap::bad_free(uint64_t address) {
  count(counters_.bad_frees);
  return fail(PYALLOC_UNKNOWN_POINTER, "0x%llx is not the start of a live pyalloc block on device %d: it was freed already, or is not from pyalloc",
              static_cast<unsigned long long>(address), device_);
}

Status DeviceHeap::deallocate(Space& space, uint64_t address, pyalloc_freed* freed) {
  if (Slab* slab = space.slab_at(address)) {
    Lane* lane = slab->lane;
    return lane != nullptr ? lane->deallocate(*slab, address, freed) : bad_free(address);
  }
  return deallocate_extent(space, address, freed);
}

Status DeviceHeap::deallocate_extent(Space& space, uint64_t address, pyalloc_freed* freed) {
  Lock lock(mutex_);
  NodeId id = space.start_in_cell(address);
  if (id == kNoNode || space.extents().range(id).state != RangeState::kLive || block_address(space, space.extents().range(id)) != address) return bad_free(address);
  Range& range = space.extents().range(id);
  StreamIndex user = range.owner;
  size_t bytes = block_bytes(range);
  Kind kind = bytes > kMiB ? kLarge : kSmall;
  Usage usage{1, static_cast<int64_t>(bytes), static_cast<int64_t>(range.requested)};
  if (freed != nullptr) *freed = {device_, clocks_.stream(user), range.requested, bytes};
  if (range.recorded) {
    ContextScope scope(context_);
    range.state = RangeState::kPending;
    range.recorded = false;
    block_counters_.extents().counters.take_back_pending(kind, usage);
    block_counters_.pending_started(kind, usage);
    PendingFree pending;
    pending.space = &space;
    pending.range = id;
    pending.kind = kind;
    pending.bytes = usage.bytes;
    pending.waits = stamp_recorded(address, bytes, clocks_.stream(user));
    pending_.push_back(std::move(pending));
    pending_count_.store(pending_.size(), std::memory_order_relaxed);
    return kOk;
  }
  block_counters_.extents().counters.take_back(kind, usage);
  note_free(address, bytes, clocks_.stream(user));
  space.set_start(address, kNoNode);
  uint64_t position = 0;
  {
    // Only a stream not owned needs the driver here: its event is recorded now.
    ContextScope scope(context_, !clocks_.owned(user));
    position = clocks_.free_position(user);
  }
  release_extent(space, id, user, position);
  if (guard_) {
    ContextScope scope(context_);
    backing_.poll_streams();
    backing_.give_back(INT64_MAX, SIZE_MAX);  // unmapped as soon as may be: a late access should fault
  }
  observe();
  self_check();
  return kOk;
}

bool DeviceHeap::deallocate_direct(uint64_t address, pyalloc_freed* freed, Status& status) {
  if (direct_count_.load(std::memory_order_relaxed) == 0) return false;
  Lock lock(mutex_);
  auto found = direct_.find(address);
  if (found == direct_.end()) return false;
  ContextScope scope(context_);
  Direct block = found->second;
  cuda::Result result = driver().plain_free(address);
  if (result != cuda::kSuccess) {
    status = driver_failure("cuMemFree", result, "freeing without a cache");
    return true;
  }
  count(counters_.num_device_free);
  direct_.erase(found);
  direct_bytes_ -= block.bytes;
  direct_count_.store(direct_.size(), std::memory_order_relaxed);
  Kind kind = block.bytes > kMiB ? kLarge : kSmall;
  block_counters_.extents().counters.take_back(kind, {1, static_cast<int64_t>(block.bytes), static_cast<int64_t>(block.requested)});
  if (freed != nullptr) *freed = {device_, block.stream, block.requested, block.bytes};
  observe();
  status = kOk;
  return true;
}

Status DeviceHeap::find_block(Space& space, uint64_t address, pyalloc_block_info& info) {
  auto unknown = [&] { return fail(PYALLOC_UNKNOWN_POINTER, "0x%llx is not inside a live pyalloc block on device %d", static_cast<unsigned long long>(address), device_); };
  Slab* slab = space.slab_at(address);
  if (slab != nullptr && (slab->lane == nullptr || !slab->lane->describe(*slab, address, info))) return unknown();
  Lock lock(mutex_);
  if (slab == nullptr) {
    NodeId id = space.covering(address);
    if (id == kNoNode || space.extents().range(id).state != RangeState::kLive) return unknown();
    const Range& range = space.extents().range(id);
    info.block = reinterpret_cast<void*>(block_address(space, range));
    info.stream = clocks_.stream(range.owner);
    info.requested = range.requested;
    info.allocated = block_bytes(range);
  }
  info.device = device_;
  const AddressSpace& memory = space.memory();
  auto first = static_cast<uint32_t>(space.offset(address) / granule_bytes_), end = first + 1;
  while (first > 0 && memory.slot(first - 1).handle != 0) --first;
  while (end < memory.slots() && memory.slot(end).handle != 0) ++end;
  info.segment = reinterpret_cast<void*>(memory.address(first));
  info.segment_bytes = uint64_t{end - first} * granule_bytes_;
  return kOk;
}

// --- record_stream ---

Status DeviceHeap::record_stream(Space& space, uint64_t address, cuda::Stream stream, bool owned) {
  Lane* lane = lane_of(stream, owned);
  if (lane == nullptr) return PYALLOC_INVALID_ARGUMENT;
  auto unknown = [&] {
    return fail(PYALLOC_UNKNOWN_POINTER, "record_stream: 0x%llx is not the start of a live pyalloc block on device %d", static_cast<unsigned long long>(address), device_);
  };
  if (Slab* slab = space.slab_at(address)) {
    Lane* home = slab->lane;
    if (home == nullptr) return unknown();
    if (home->index() == lane->index()) return kOk;  // its own stream: stream order already protects it
    if (home->mark_recorded(*slab, address) != kOk) return unknown();
  }
  Lock lock(mutex_);
  if (space.slab_at(address) == nullptr) {
    NodeId id = space.start_in_cell(address);
    if (id == kNoNode || space.extents().range(id).state != RangeState::kLive || block_address(space, space.extents().range(id)) != address) return unknown();
    if (space.extents().range(id).owner == lane->index()) return kOk;
    space.extents().range(id).recorded = true;
  }
  std::vector<StreamIndex>& streams = recorded_[address];
  if (std::find(streams.begin(), streams.end(), lane->index()) == streams.end()) streams.push_back(lane->index());
  return kOk;
}

// Notes the free of a recorded block, then puts events on every stream it was recorded on; with the heap's lock held and the context
// current.
std::vector<std::pair<StreamIndex, uint64_t>> DeviceHeap::stamp_recorded(uint64_t address, size_t bytes, cuda::Stream home) {
  std::vector<StreamIndex> streams;
  if (auto found = recorded_.find(address); found != recorded_.end()) {
    streams = std::move(found->second);
    recorded_.erase(found);
  }
  if (oracle_) {
    for (StreamIndex stream : streams) driver().oracle_record(address, bytes, clocks_.stream(stream));
  }
  note_free(address, bytes, home);
  std::vector<std::pair<StreamIndex, uint64_t>> waits;
  for (StreamIndex stream : streams) waits.emplace_back(stream, clocks_.stamp_use(stream));
  return waits;
}

void DeviceHeap::slot_pending(Slab& slab, unsigned slot) {
  Lock lock(mutex_);
  ContextScope scope(context_);
  PendingFree pending;
  pending.slab = &slab;
  pending.slot = slot;
  pending.bytes = static_cast<int64_t>(slab.slot_bytes());
  pending.waits = stamp_recorded(slab.address(slot), slab.slot_bytes(), slab.lane->stream());
  pending_.push_back(std::move(pending));
  pending_count_.store(pending_.size(), std::memory_order_relaxed);
}

bool DeviceHeap::poll_pending() {
  if (pending_count_.load(std::memory_order_relaxed) == 0) return false;
  std::vector<PendingFree> slots;
  bool any = false;
  {
    Lock lock(mutex_);
    ContextScope scope(context_);
    std::vector<bool> polled(clocks_.end());
    auto complete = [&](const PendingFree& one) {
      for (const auto& [stream, position] : one.waits) {
        if (!clocks_.passed(stream, position) && !polled[stream]) {
          polled[stream] = true;
          clocks_.poll(stream);
        }
        if (!clocks_.passed(stream, position)) return false;
      }
      return true;
    };
    std::vector<PendingFree> left;
    for (PendingFree& one : pending_) {
      if (!complete(one)) {
        left.push_back(std::move(one));
      } else if (one.slab != nullptr) {
        slots.push_back(std::move(one));  // their lane's lock comes before the heap's
      } else {
        any = true;
        StreamIndex user = one.space->extents().range(one.range).owner;
        one.space->set_start(block_address(*one.space, one.space->extents().range(one.range)), kNoNode);
        block_counters_.pending_ended(one.kind, {1, one.bytes, 0});
        release_extent(*one.space, one.range, user, clocks_.free_position(user));
      }
    }
    pending_.swap(left);
    pending_count_.store(pending_.size(), std::memory_order_relaxed);
    observe();
  }
  for (const PendingFree& one : slots) one.slab->lane->finish_pending(*one.slab, one.slot);
  return any || !slots.empty();
}

// Checks that cost more than an operation, as `check:full` asks; lanes are checked by validate() only.
void DeviceHeap::self_check() {
  if (check_ != Check::kFull) return;
  std::string reason;
  if (fine_.validate(reason) && coarse_.validate(reason) && backing_.validate(reason)) return;
  log_line("check:full found a broken heap on device %d: %s", device_, reason.c_str());
}

}  // namespace pyalloc
