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
constexpr size_t kLargestRequest = size_t{1} << 50;  // beyond any device; keeps sums from wrapping

Status attribute(cuda::Device device, cuda::DeviceAttribute which, int& value) {
  cuda::Result result = driver().device_attribute(&value, which, device);
  return result == cuda::kSuccess ? kOk
                                  : driver_failure("cuDeviceGetAttribute", result, "asking what the device can do");
}

// Blocks of the packed pools all lie in what counts as large segments.
Kind kind_of(const Pool& pool, size_t bytes) {
  return bytes > kMiB || pool.policy.packed || pool.policy.contiguous ? kLarge : kSmall;
}

Status no_vmm(int ordinal) {
  return fail(PYALLOC_NO_VMM,
              "device %d has no virtual memory management, which pyalloc needs; run without pyalloc (remove enable() "
              "and PYALLOC_CONF) on this device",
              ordinal);
}

}  // namespace

Status DeviceHeap::check_device(int ordinal) {
  cuda::Device device = 0;
  int has_vmm = 1;
  // Before cuInit, or for an ordinal that does not exist, nothing can be said yet: open() will.
  if (driver().device_get(&device, ordinal) != cuda::kSuccess) return kOk;
  if (driver().device_attribute(&has_vmm, cuda::kAttrVirtualMemoryManagement, device) != cuda::kSuccess) return kOk;
  return has_vmm != 0 ? kOk : no_vmm(ordinal);
}

Status DeviceHeap::open(int ordinal, const HeapOptions& options, MappingObservers& observers,
                        std::unique_ptr<DeviceHeap>& heap) {
  cuda::Result result = driver().init(0);
  if (result != cuda::kSuccess) return driver_failure("cuInit", result, "opening the driver");
  cuda::Device device = 0;
  result = driver().device_get(&device, ordinal);
  if (result != cuda::kSuccess) return driver_failure("cuDeviceGet", result, "opening a device");
  int has_vmm = 0;
  Status status = attribute(device, cuda::kAttrVirtualMemoryManagement, has_vmm);
  if (status != kOk) return status;
  if (has_vmm == 0 && options.caching) return no_vmm(ordinal);
  size_t total = 0;
  result = driver().device_total(&total, device);
  if (result != cuda::kSuccess) return driver_failure("cuDeviceTotalMem", result, "asking for the device's memory");
  cuda::Context context = nullptr;
  result = driver().primary_retain(&context, device);
  if (result != cuda::kSuccess)
    return driver_failure("cuDevicePrimaryCtxRetain", result, "taking the device's primary context");
  ContextScope scope(context);
  // A container's limit shows here only: what the driver says may be had is what there is.
  size_t free = 0, allowed = 0;
  if (driver().memory_info(&free, &allowed) == cuda::kSuccess && allowed > 0) total = std::min(total, allowed);
  size_t granularity = 0;
  cuda::AllocationProp prop = granule_properties(ordinal);
  result = has_vmm == 0 ? cuda::kSuccess : driver().granularity(&granularity, &prop, cuda::kGranularityMinimum);
  if (result != cuda::kSuccess) {
    driver().primary_release(device);
    return driver_failure("cuMemGetAllocationGranularity", result, "asking for the device's granularity");
  }
  size_t granule = granularity == 0 ? kGranule : align_up(kGranule, granularity);
  std::unique_ptr<DeviceHeap> opened(new DeviceHeap(ordinal, options, observers, context, granule, total));
  Pool* general = nullptr;
  status = options.caching ? opened->open_pool(kGeneralPool, general) : kOk;
  if (status != kOk) return status;
  if (options.caching && !options.guard && options.lora_reserve > 0) opened->open_reserve(options.lora_reserve);
  heap = std::move(opened);
  return kOk;
}

DeviceHeap::DeviceHeap(int ordinal, const HeapOptions& options, MappingObservers& observers, cuda::Context context,
                       size_t granule_bytes, uint64_t total)
    : device_(ordinal),
      context_(context),
      granule_bytes_(granule_bytes),
      oracle_(driver().oracle_alloc != nullptr && driver().oracle_free != nullptr && driver().oracle_record != nullptr),
      guard_(options.guard),
      caching_(options.caching),
      lora_overflow_(options.lora_overflow),
      predict_(options.predict_lifetimes && !options.guard),
      kv_slabs_(options.kv_large_threshold > 0),
      slabs_from_(kv_slabs_ ? std::max(options.kv_large_threshold, kLargestFine + 1) : 4 * kMiB),
      check_(options.check),
      news_(observers, ordinal),
      backing_(ordinal, granule_bytes, clocks_, block_counters_, counters_, news_),
      fraction_(options.memory_fraction) {
  std::copy(options.pool_limits.begin(), options.pool_limits.end(), pool_limits_);
  backing_.policy() = {options.slack, options.cross_stream_wait, options.limit, options.memory_fraction, total,
                       !options.guard};
}

DeviceHeap::~DeviceHeap() {
  ContextScope scope(context_);
  each_space([](Space& space) { remove_from_address_map(space); });
  if (driver().context_synchronize() !=
      cuda::kSuccess) {  // then stream by stream, slots of slabs that were kept included
    for (StreamIndex stream = 1; stream < clocks_.end(); ++stream) {
      clocks_.free_position(stream);
      clocks_.synchronize(stream);
    }
  }
  for (Pool& pool : pools_) pool.sleep.copy.drop();
  imports_.close();
  backing_.close();
  each_space([](Space& space) { space.memory().free_reservation(); });
  for (const auto& [address, block] : direct_) driver().plain_free(address);
  clocks_.close();
  driver().primary_release(device_);
}

void DeviceHeap::abandon() { clocks_.abandon(); }

// --- allocation ---

uint64_t DeviceHeap::block_address(const Space& space, const Range& range) const {
  uint64_t address = space.address(range);
  // A guarded block ends where its last granule ends, so that the first byte beyond it faults.
  return guard_ ? address + committed(space, range).bytes - align_up(range.requested, kUnit) : address;
}

size_t DeviceHeap::block_bytes(const Range& range) const {
  return guard_ ? align_up(range.requested, kUnit) : size_t{range.length} * kUnit;
}

// The memory behind a place: whole slabs in large pages; all but the last granule of a guarded block.
DeviceHeap::Piece DeviceHeap::committed(const Space& space, uint32_t start, uint32_t units) const {
  uint64_t offset = uint64_t{start} * kUnit, end = offset + uint64_t{units} * kUnit;
  if (!space.large_pages()) return {offset, end - offset - (guard_ && space.coarse() ? granule_bytes_ : 0)};
  uint64_t slab = uint64_t{space.slab_units()} * kUnit;
  return {align_down(offset, slab), align_up(end, slab) - align_down(offset, slab)};
}

Status DeviceHeap::find_and_allocate(PoolId id, bool chosen, cuda::Stream stream, bool owned, size_t bytes,
                                     void** pointer) {
  if (bytes > kLargestRequest) {
    refused_by(kNoPool, false);
    return fail(PYALLOC_OUT_OF_MEMORY, "no device has that much memory");
  }
  if (!caching_) return allocate_direct(stream, bytes, pointer);
  bool followed = predict_ && !chosen && id == kGeneralPool && bytes > kLargestSmall;
  return followed ? allocate_followed(stream, owned, bytes, pointer) : allocate_in(id, stream, owned, bytes, pointer);
}

Status DeviceHeap::allocate_followed(cuda::Stream stream, bool owned, size_t bytes, void** pointer) {
  Pool* pool = nullptr;
  Status status = open_pool(kGeneralPool, pool);
  if (status != kOk) return status;
  Lane* lane = lane_of(*pool, stream, owned, false);
  if (lane == nullptr) return PYALLOC_INVALID_ARGUMENT;
  uint64_t birth = lane->lifetimes->tick();
  auto allocate = [&] {
    return bytes <= kLargestFine ? lane->allocate(bytes, pointer, birth)
                                 : allocate_coarse(*lane, lane->pool().coarse, bytes, pointer, birth);
  };
  Lane* general = lane;
  if (lane->lifetimes->dies_young((bytes + kUnit - 1) / kUnit) && open_pool(PYALLOC_POOL_WORKSPACE, pool) == kOk &&
      (lane = lane_of(*pool, stream, owned, false)) != nullptr) {
    status = allocate();
    if (status != PYALLOC_OUT_OF_MEMORY) return status;
  }
  lane = general;
  return allocate();
}

Status DeviceHeap::allocate_in(PoolId id, cuda::Stream stream, bool owned, size_t bytes, void** pointer) {
  Pool* pool = nullptr;
  Status status = open_pool(id, pool);
  if (status != kOk) return status;
  bool arena = pool->policy.arena && !guard_;
  Lane* lane = lane_of(*pool, stream, owned, arena);
  if (lane == nullptr) return PYALLOC_INVALID_ARGUMENT;
  if (arena) return lane->allocate(bytes, pointer);
  if (id == PYALLOC_POOL_LORA && lora_reserve_.bytes > 0) return allocate_adapter(*lane, stream, owned, bytes, pointer);
  if (pool->policy.contiguous && !guard_)
    return allocate_coarse(*lane, bytes < granule_bytes_ ? *pool->large_pages : pool->coarse, bytes, pointer);
  if (pool->large_pages != nullptr && bytes >= slabs_from_ && bytes <= pool->policy.slab_bytes) {
    status = allocate_coarse(*lane, *pool->large_pages, bytes, pointer);
    if (status != PYALLOC_OUT_OF_MEMORY) return status;  // no room for a slab, but perhaps for the block
  }
  bool fine = bytes <= kLargestFine && !guard_ && !pool->policy.packed;
  return fine ? lane->allocate(bytes, pointer) : allocate_coarse(*lane, pool->coarse, bytes, pointer);
}

Status DeviceHeap::allocate_coarse(Lane& lane, Space& space, size_t bytes, void** pointer, uint64_t birth) {
  poll_pending();
  Pool& pool = lane.pool();
  size_t rounded = align_up(bytes, kUnit);
  if (space.whole_blocks()) rounded = align_up(bytes, granule_bytes_);
  size_t wanted = guard_ ? align_up(rounded, granule_bytes_) + granule_bytes_ : rounded;
  auto alignment = static_cast<uint32_t>(guard_ ? granule_bytes_ / kUnit : 1);
  Kind kind = kind_of(pool, rounded);
  if (wanted > space.memory().bytes()) return too_large();
  Usage usage{1, static_cast<int64_t>(rounded), static_cast<int64_t>(bytes)};
  bool counted = false;
  {
    Lock lock(mutex_);
    if (pool.sleep.rest != Rest::kAwake) return refuse_asleep(pool);
    NodeId id = kNoNode;
    auto units = static_cast<uint32_t>(wanted / kUnit);
    bool reserve = pool.id == PYALLOC_POOL_LORA && lora_reserve_.bytes > 0;
    Status status = reserve                ? place_mapped(space, units, lane.index(), bytes, id)
                    : space.whole_blocks() ? place_whole(space, units, lane.index(), bytes, id)
                                           : place(space, units, alignment, lane.index(), RangeState::kLive, bytes, id);
    observe();
    if (status != kOk) return status;
    space.extents().range(id).stamp = birth;
    *pointer = reinterpret_cast<void*>(block_address(space, space.extents().range(id)));
    counted = enter_coarse(space, id, kind, usage);
    self_check();
  }
  if (!counted) block_counters_.settle(&block_counters_.extents(), kind, usage);
  tell_news();
  return kOk;
}

// The books of a block that was just placed. False: its usage is yet to be counted, by settle().
bool DeviceHeap::enter_coarse(Space& space, NodeId id, Kind kind, const Usage& usage) {
  const Range& range = space.extents().range(id);
  uint64_t address = block_address(space, range);
  space.set_start(address, id);
  space.pool().live_coarse += usage;
  space.pool().handed_out_coarse += usage.requested;
  note_alloc(address, block_bytes(range), clocks_.stream(range.owner));
  return block_counters_.extents().counters[kind].hand_out(usage);
}

Status DeviceHeap::too_large() {
  refused_by(kNoPool, false);
  return fail(PYALLOC_OUT_OF_MEMORY, "it is more than the device has");
}

Status DeviceHeap::allocate_direct(cuda::Stream stream, size_t bytes, void** pointer) {
  Usage usage{1, static_cast<int64_t>(bytes), static_cast<int64_t>(bytes)};
  Kind kind = bytes > kMiB ? kLarge : kSmall;
  bool counted = false;
  {
    Lock lock(mutex_);
    ContextScope scope(context_);
    if (direct_bytes_ + bytes > backing_.limit_bytes()) {
      refused_by(kNoPool, true);
      return fail(PYALLOC_OUT_OF_MEMORY, "the limit set for pyalloc is reached");
    }
    refused_by(kNoPool, false);
    cuda::DevicePtr address = 0;
    cuda::Result result = driver().plain_alloc(&address, bytes);
    if (result != cuda::kSuccess) return driver_failure("cuMemAlloc", result, "allocating without a cache");
    count(counters_.num_device_alloc);
    direct_[address] = {bytes, bytes, stream};
    direct_bytes_ += bytes;
    direct_count_.store(direct_.size(), std::memory_order_relaxed);
    counted = block_counters_.extents().counters[kind].hand_out(usage);
    *pointer = reinterpret_cast<void*>(address);
    observe();
  }
  if (!counted) block_counters_.settle(&block_counters_.extents(), kind, usage);
  return kOk;
}

// --- frees ---

Status DeviceHeap::bad_free(uint64_t address) {
  count(counters_.bad_frees);
  return fail(PYALLOC_UNKNOWN_POINTER,
              "0x%llx is not the start of a live pyalloc block on device %d: it was freed already, or is not from "
              "pyalloc",
              static_cast<unsigned long long>(address), device_);
}

void DeviceHeap::set_tag(Space& space, uint64_t address, TagId tag) {
  if (space.lane() != nullptr) {
    space.lane()->set_tag(address, tag);
    return;
  }
  Lock lock(mutex_);
  NodeId id = live_coarse_at(space, address);
  if (id == kNoNode) return;
  Range& range = space.extents().range(id);
  range.tag = tag;
  tag_account(tag).charge(static_cast<int64_t>(range.requested));
}

NodeId DeviceHeap::live_coarse_at(const Space& space, uint64_t address) const {
  NodeId id = space.start_in_cell(address);
  if (id == kNoNode) return kNoNode;
  const Range& range = space.extents().range(id);
  return range.state == RangeState::kLive && block_address(space, range) == address ? id : kNoNode;
}

Status DeviceHeap::deallocate_coarse(Space& space, uint64_t address, pyalloc_freed* freed) {
  Lock lock(mutex_);
  NodeId id = live_coarse_at(space, address);
  if (id == kNoNode) return bad_free(address);
  Range& range = space.extents().range(id);
  cuda::Stream stream = clocks_.stream(range.owner);
  size_t bytes = block_bytes(range);
  Kind kind = kind_of(space.pool(), bytes);
  Usage usage{1, static_cast<int64_t>(bytes), static_cast<int64_t>(range.requested)};
  if (freed != nullptr) *freed = {device_, stream, range.requested, bytes};
  space.pool().live_coarse -= usage;
  if (range.tag != kNoTag) tag_account(range.tag).discharge(usage.requested);
  if (range.stamp != 0) lifetimes_[range.owner]->died(range.length, range.stamp);
  if (range.recorded) {
    range.state = RangeState::kPending;
    range.recorded = false;
    block_counters_.extents().counters[kind].take_back_pending(usage);
    block_counters_.pending_started(kind, usage);
    PendingFree pending{&space, id, nullptr, 0, kind, usage.bytes, {}};
    stamp_recorded(pending, address, stream);
    pending_.push_back(std::move(pending));
    pending_count_.fetch_add(1, std::memory_order_relaxed);
    return kOk;
  }
  block_counters_.extents().counters[kind].take_back(usage);
  if (space.pool().id == PYALLOC_POOL_LORA) adapter_loads_.gave_back(bytes);
  note_free(address, bytes, stream);
  space.set_start(address, kNoNode);
  release_coarse(space, id);
  if (guard_) {
    ContextScope scope(context_);
    backing_.poll_streams();
    backing_.give_back(INT64_MAX, SIZE_MAX);  // unmapped as soon as may be: a late access should fault
  }
  observe();
  self_check();
  lock.unlock();
  if (guard_) undo_departures();
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
  block_counters_.extents().counters[kind].take_back(
      {1, static_cast<int64_t>(block.bytes), static_cast<int64_t>(block.requested)});
  if (freed != nullptr) *freed = {device_, block.stream, block.requested, block.bytes};
  observe();
  status = kOk;
  return true;
}

bool DeviceHeap::find_direct(uint64_t address, pyalloc_block_info& info) {
  if (direct_count_.load(std::memory_order_relaxed) == 0) return false;
  Lock lock(mutex_);
  auto after = direct_.upper_bound(address);
  if (after == direct_.begin()) return false;
  const auto& [start, block] = *std::prev(after);
  if (address - start >= block.bytes) return false;
  info.device = device_;
  info.stream = block.stream;
  info.block = info.segment = reinterpret_cast<void*>(start);
  info.requested = block.requested;
  info.allocated = info.segment_bytes = block.bytes;
  return true;
}

// What can be checked with the heap's lock alone; validate() checks the rest.
void DeviceHeap::self_check() {
  if (check_ == Check::kOff) return;
  std::string reason;
  const Granules& granules = backing_.granules();
  if (mapped_[kSmall].slots + mapped_[kLarge].slots + granules.on_shelf() != granules.held()) {
    reason = "mapped and shelved granules are not all that are held";
  } else {
    bool good = true;
    for (const Pool& pool : pools_) good = good && (check_ == Check::kCheap || pool.coarse.validate(reason));
    if (good) return;
  }
  log_line("check:%s found a broken heap on device %d: %s", check_ == Check::kFull ? "full" : "cheap", device_,
           reason.c_str());
}

}  // namespace pyalloc
