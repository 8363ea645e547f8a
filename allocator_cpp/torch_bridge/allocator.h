// The allocator torch sees: a CUDAPluggableAllocator whose every virtual goes to the core, and that raises one clear
// message for what the core cannot do yet.
//
// The base class keeps a mutex and a hash map of blocks for its own allocate and free; none of them runs here. The hot
// path (allocate, delete_block) is: the current device and stream from c10, a check that no private pool is open (or, in
// a free, that no foreign block lives), one call of the core, two checks that reporting is off. No lock, no allocation. Torch calls every method from any thread. One instance exists, made by
// bridge.cpp, and it is never destroyed.
#pragma once
#include <atomic>

#include "checkpoint.h"
#include "out_of_memory.h"
#include "private_pools.h"
#include "report.h"
#include "snapshot.h"
#include "stats.h"

namespace pyalloc_bridge {

using TorchAllocator = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

// False between torch.cuda.memory.caching_allocator_enable(False) and (True): freed memory then goes straight back to
// the driver.
inline std::atomic<bool> caching{true};

inline pyalloc_status free_block(void* pointer) {
  if (C10_UNLIKELY(foreign_blocks.load(std::memory_order_relaxed) != 0) && free_foreign(pointer)) return PYALLOC_OK;
  pyalloc_freed freed{};
  const pyalloc_status status = core->deallocate(pointer, &freed);
  if (status != PYALLOC_OK) return status;
  if (C10_UNLIKELY(!caching.load(std::memory_order_relaxed))) core->trim(freed.device, nullptr);
  report_freed(pointer, freed);
  return PYALLOC_OK;
}

// The deleter of every DataPtr of ours; torch compares it by address. It must not throw: a bad free is counted by the
// core and told once. In the wrong state the process is going down, and there is nothing to tell.
inline void delete_block(void* pointer) noexcept {
  try {
    const pyalloc_status status = free_block(pointer);
    if (C10_LIKELY(status == PYALLOC_OK) || status == PYALLOC_WRONG_STATE) return;
    static std::atomic<bool> told{false};
    if (!told.exchange(true))
      log_line("a tensor's memory could not be freed (told once; see bad_frees)", core->last_error());
  } catch (const std::exception& error) {
    log_line("reporting a free failed", error.what());
  }
}

[[noreturn]] inline void raise_not_allocated(pyalloc_status status, int device, size_t bytes) {
  if (status == PYALLOC_OUT_OF_MEMORY) {
    const std::string message = core->last_error();  // before reporting, which may call the core
    rethrow_observer_error();
    report_out_of_memory(bytes, device);
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  }
  TORCH_CHECK(false, core->last_error());
}

inline void* allocate_in_pool(const Route& route, Stream stream, size_t bytes) {
  if (route.foreign != nullptr) return private_pools.allocate_foreign(route, stream.handle, bytes);
  void* pointer = nullptr;
  const pyalloc_status status =
      core->allocate_in(route.device, route.number, stream.handle, stream.flags, bytes, &pointer);
  if (status != PYALLOC_OK) raise_not_allocated(status, route.device, bytes);
  report_allocated(pointer, route.device);
  return pointer;
}

inline void* allocate_block(c10::DeviceIndex device, Stream stream, size_t bytes) {
  if (C10_UNLIKELY(open_routes.load(std::memory_order_relaxed) != 0)) {
    if (const auto route = private_pools.route(device, stream.handle)) return allocate_in_pool(*route, stream, bytes);
  }
  void* pointer = nullptr;
  const pyalloc_status status = core->allocate(device, stream.handle, stream.flags, bytes, &pointer);
  if (C10_UNLIKELY(status != PYALLOC_OK)) raise_not_allocated(status, device, bytes);
  report_allocated(pointer, device);
  return pointer;
}

class Allocator final : public TorchAllocator {
 public:
  // The base wants functions for the paths overridden here; they are never called.
  Allocator()
      : TorchAllocator([](size_t, int, cudaStream_t) -> void* { return nullptr; },
                       [](void*, size_t, int, cudaStream_t) {}) {}

  std::string name() override { return "pyalloc"; }

  // --- life ---
  void init(int device_count) override {
    check(core->init(device_count));
    device_count_ = device_count;
    initialized_ = true;
  }
  bool initialized() override { return initialized_; }

  // --- blocks ---
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex device = current_device();
    void* pointer = nullptr;
    if (C10_LIKELY(bytes != 0))
      pointer = allocate_block(device, stream_of(c10::cuda::getCurrentCUDAStream(device)), bytes);
    return {pointer, pointer, &delete_block, cuda_device(device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }

  void* raw_alloc(size_t bytes) override {
    if (bytes == 0) return nullptr;
    const c10::DeviceIndex device = current_device();
    return allocate_block(device, stream_of(c10::cuda::getCurrentCUDAStream(device)), bytes);
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    if (bytes == 0) return nullptr;
    const c10::DeviceIndex device = current_device();
    return allocate_block(device, stream_of(stream, device), bytes);
  }
  void raw_delete(void* pointer) override {
    if (pointer != nullptr) check(free_block(pointer));
  }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    if (data.get() == nullptr || data.get_deleter() != &delete_block) return;  // empty, or memory of someone else
    if (foreign_blocks.load(std::memory_order_relaxed) != 0) {
      const auto foreign = private_pools.foreign();
      if (const auto found = foreign.find(data.get()); found != foreign.end())
        return found->second.owner->recordStream(data, stream);
    }
    const Stream use = stream_of(stream);
    check(core->record_stream(data.get(), use.handle, use.flags));
  }

  void* getBaseAllocation(void* pointer, size_t* bytes) override {
    for (const auto& [start, block] : private_pools.foreign()) {
      if (pointer < start || static_cast<char*>(pointer) >= static_cast<char*>(start) + block.bytes) continue;
      if (bytes != nullptr) *bytes = block.bytes;
      return start;
    }
    pyalloc_block_info info{};
    info.size = sizeof info;
    check(core->find_block(pointer, &info));
    if (bytes != nullptr) *bytes = info.segment_bytes;
    return info.segment;
  }

  // --- limits and returning memory ---
  double getMemoryFraction(c10::DeviceIndex device) override {
    double fraction = 1.0;
    check(core->get_memory_fraction(device, &fraction));
    return fraction;
  }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    check(core->set_memory_fraction(device, fraction));
  }
  void emptyCache(Pool pool) override {
    if (!initialized_) return;
    if (pool == Pool{0, 0}) return check(core->trim(-1, nullptr));
    for (int device = 0; device < device_count_; ++device) {
      const pyalloc_status status = core->private_pool_trim(device, key_of(pool), nullptr);
      if (status != PYALLOC_WRONG_STATE) check(status);  // a MemPool's destructor may not throw
    }
  }
  void enable(bool value) override {
    caching.store(value, std::memory_order_relaxed);
    if (!value) emptyCache({0, 0});
  }
  bool isEnabled() const override { return caching.load(std::memory_order_relaxed); }

  // The largest block worth asking for: what the driver has free, plus our idle memory, which can be remapped into one
  // run; or a run that is free as it is.
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    const pyalloc_device_stats stats = read_stats(device);
    uint64_t free_run = 0;
    check(core->largest_free(device, &free_run));
    const auto [driver_free, total] = getMemoryInfo(device);
    const auto idle = static_cast<size_t>(stats.idle_bytes + stats.shelf_bytes);
    const auto held = static_cast<size_t>(stats.reserved_bytes[PYALLOC_KIND_ALL].current + stats.shelf_bytes);
    const auto allowed = static_cast<size_t>(getMemoryFraction(device) * static_cast<double>(total));
    const size_t may_create = std::min(driver_free, allowed > held ? allowed - held : 0);
    *largest = std::max({*largest, may_create + idle, static_cast<size_t>(free_run)});
  }

  // --- statistics ---
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    auto stats = torch_stats<c10::CachingDeviceAllocator::DeviceStats>(read_stats(device));
    add_private_pools(stats, device);
    return stats;
  }
  void resetPeakStats(c10::DeviceIndex device) override { check(core->reset_peak_stats(device)); }
  void resetAccumulatedStats(c10::DeviceIndex device) override { check(core->reset_accumulated_stats(device)); }
  cca::SnapshotInfo snapshot(Pool pool, bool) override { return take_snapshot(device_count_, pool); }
  // Torch's kind of growing segment does not exist here.
  std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override { return {}; }
  void attachOutOfMemoryObserver(Observer observer) override {
    observers.attach(observers.out_of_memory, std::move(observer));
  }

  // --- several devices ---
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override {
    check(core->enable_peer_access(device, peer));
    // For memory of other libraries, which torch may copy as well.
    const c10::DeviceGuard guard(cuda_device(device));
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(error);
    }
  }
  // Mapped memory of another device is out of reach of cudaMemcpyAsync until peer access is on.
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                          bool peer_access) override {
    if (to_device == from_device || peer_access)
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
  }

  // --- allocation history: said to be off ---
  bool isHistoryEnabled() override { return false; }
  void recordHistory(bool enabled, cca::CreateContextFn, size_t, cca::RecordContext, bool,
                     const std::vector<std::string>&) override {
    if (enabled) unsupported("recording memory history (torch.cuda.memory._record_memory_history)");
  }
  void attachAllocatorTraceTracker(cca::AllocatorTraceTracker) override {
    unsupported("allocation trace trackers (TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK)");
  }

  // --- private pools: MemPool, CUDA graphs ---
  void beginAllocateToPool(c10::DeviceIndex device, Pool pool, std::function<bool(cudaStream_t)> filter) override {
    private_pools.begin(device, pool, std::move(filter), stream_of(c10::cuda::getCurrentCUDAStream(device)));
  }
  void endAllocateToPool(c10::DeviceIndex device, Pool pool) override { private_pools.end(device, pool); }
  void releasePool(c10::DeviceIndex device, Pool pool) override { private_pools.release(device, pool); }
  void createOrIncrefPool(c10::DeviceIndex device, Pool pool, std::shared_ptr<cca::CUDAAllocator> allocator) override {
    private_pools.create(device, pool, allocator.get() == this ? nullptr : std::move(allocator));
  }
  int getPoolUseCount(c10::DeviceIndex device, Pool pool) override { return PrivatePools::uses(device, pool); }
  void setUseOnOOM(c10::DeviceIndex device, Pool pool, bool use_on_oom) override {
    const pyalloc_status status = core->private_pool_lend(device, key_of(pool), use_on_oom ? 1 : 0);
    if (use_on_oom) check(status);  // a MemPool's destructor says no, and may not throw
  }
  // Blocks of all pools share segments, and each is freed by itself: nothing that holds a part of a segment keeps the
  // rest.
  void setNoSplit(c10::DeviceIndex, Pool) override {}

  bool checkPoolLiveAllocations(c10::DeviceIndex device, Pool pool,
                                const std::unordered_set<void*>& expected) override {
    return only_live(device, pool, expected);
  }
  std::shared_ptr<cca::AllocatorState> getCheckpointState(c10::DeviceIndex device, Pool pool) override {
    return take_checkpoint(device, pool);
  }
  cca::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                              std::shared_ptr<cca::AllocatorState> state) override {
    return restore_checkpoint(device, state, &delete_block);
  }

  // --- what pyalloc does not cover yet ---
  cca::ShareableHandle shareIpcHandle(void*) override { unsupported(kIpc); }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { unsupported(kIpc); }

  // Older torch releases lack these two, so `override` cannot be written; the checks below the class stand in for it.
  c10::DataPtr allocateWithAddress(size_t bytes, void* address) {
    if (bytes == 0) return allocate(0);
    const c10::DeviceIndex device = current_device();
    const Stream stream = stream_of(c10::cuda::getCurrentCUDAStream(device));
    const pyalloc_status status = core->allocate_at(device, stream.handle, stream.flags, bytes, address);
    if (status != PYALLOC_OK) raise_not_allocated(status, device, bytes);
    report_allocated(address, device);
    return {address, address, &delete_block, cuda_device(device)};
  }
  void attachOomRejectionObserver(Observer observer) { observers.attach(observers.rejection, std::move(observer)); }

 private:
  // torch's own default is right for: getMemoryInfo copy_data is_simple_data_ptr getContextForPointer
  // supportsUserMetadata setUserMetadata getUserMetadata annotateMemory recordAnnotation pushCompileContext
  // popCompileContext markCaptureBegin markCaptureEnd. `pyalloc doctor` reports the virtuals of the installed torch
  // that this file does not name.
  static constexpr const char* kIpc = "sharing CUDA tensors between processes (CUDA IPC)";

  std::atomic<int> device_count_{0};
};

// Where this torch has the virtual, our method must have its signature, or it would stand beside it instead of
// overriding it.
template <class Base>
constexpr bool overrides_newer_virtuals() {
  bool same = true;
  if constexpr (requires { &Base::allocateWithAddress; }) {
    same = same && std::is_same_v<decltype(&Base::allocateWithAddress), c10::DataPtr (Base::*)(size_t, void*)>;
  }
  if constexpr (requires { &Base::attachOomRejectionObserver; }) {
    same = same && std::is_same_v<decltype(&Base::attachOomRejectionObserver), void (Base::*)(Observer)>;
  }
  return same;
}
static_assert(overrides_newer_virtuals<cca::CUDAAllocator>(), "a virtual of this torch changed its signature");

}  // namespace pyalloc_bridge
