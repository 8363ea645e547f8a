// The allocator torch sees: a CUDAPluggableAllocator whose every virtual goes to the core.
//
// The base class keeps a mutex and a hash map of blocks for its own allocate and free; none of them runs here. The hot
// path (blocks.h) is: the current device and stream from c10, one look at what is watched, one call of the core, two
// checks that nobody listens to torch's own reports. No lock, no allocation. Torch calls every method from any thread.
// One instance exists, made by bridge.cpp, and it is never destroyed.
#pragma once
#include <atomic>

#include "blocks.h"
#include "checkpoint.h"
#include "history_snapshot.h"
#include "ipc.h"
#include "peers.h"

namespace pyalloc_bridge {

using TorchAllocator = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

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
    pyalloc_bridge::device_count = device_count;
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
    if (watches(kForeign)) {
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
    for (int device = 0; device < device_count.load(); ++device) {
      const pyalloc_status status = core->private_pool_trim(device, key_of(pool), nullptr);
      if (status != PYALLOC_WRONG_STATE) check(status);  // a MemPool's destructor may not throw
    }
  }
  void enable(bool value) override {
    watch(kUncached, !value);
    if (!value) emptyCache({0, 0});
  }
  bool isEnabled() const override { return !watches(kUncached); }

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
  cca::SnapshotInfo snapshot(Pool pool, bool include_traces) override { return take_snapshot(pool, include_traces); }
  // Torch's kind of growing segment does not exist here.
  std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override { return {}; }
  void attachOutOfMemoryObserver(Observer observer) override {
    observers.attach(observers.out_of_memory, std::move(observer));
  }

  // --- several devices ---
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override { peers.enable(device, peer); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                          bool peer_access) override {
    return copy_between_devices(to, to_device, from, from_device, bytes, stream, peer_access);
  }

  // --- several processes ---
  cca::ShareableHandle shareIpcHandle(void* pointer) override { return share_block(pointer); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return open_shared(handle); }

  // --- allocation history ---
  bool isHistoryEnabled() override { return watches(kHistory); }
  void recordHistory(bool enabled, cca::CreateContextFn gather, size_t most, cca::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    History::instance().record(enabled, gather, most, when, clear, skip);
  }
  void attachAllocatorTraceTracker(cca::AllocatorTraceTracker tracker) override {
    History::instance().attach(std::move(tracker));
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& facts) override {
    if (watches(kHistory)) History::instance().stages.add(facts);
  }
  void pushCompileContext(std::string& text) override { compile_contexts.push_back(text); }
  void popCompileContext() override {
    if (!compile_contexts.empty()) compile_contexts.pop_back();
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

  // Older torch releases lack these, so `override` cannot be written; the checks below the class stand in for it.
  c10::DataPtr allocateWithAddress(size_t bytes, void* address) {
    if (bytes == 0) return allocate(0);
    const c10::DeviceIndex device = current_device();
    const Stream stream = stream_of(c10::cuda::getCurrentCUDAStream(device));
    const pyalloc_status status = core->allocate_at(device, stream.handle, stream.flags, bytes, address);
    if (status != PYALLOC_OK) raise_not_allocated(status, device, bytes);
    report_allocated(address, device);
    note_or_free(address, bytes);
    return {address, address, &delete_block, cuda_device(device)};
  }
  void attachOomRejectionObserver(Observer observer) { observers.attach(observers.rejection, std::move(observer)); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) { return stack_of(pointer); }
  bool supportsUserMetadata() { return true; }
  void setUserMetadata(const std::string& text) { user_metadata = text; }
  std::string getUserMetadata() { return user_metadata; }
  void annotateMemory(const void* pointer, const std::string& text) { annotate(pointer, text); }

 private:
  // torch's own default is right for: getMemoryInfo copy_data is_simple_data_ptr markCaptureBegin markCaptureEnd.
  // `pyalloc doctor` reports the virtuals of the installed torch that this file does not name.
};

// Where this torch has the virtual, our method must have its signature, or it would stand beside it instead of
// overriding it.
template <class Base>
constexpr bool overrides_newer_virtuals() {
  bool same = true;
#define PYALLOC_SAME(name, ...) \
  if constexpr (requires { &Base::name; }) same = same && std::is_same_v<decltype(&Base::name), __VA_ARGS__>;
  PYALLOC_SAME(allocateWithAddress, c10::DataPtr (Base::*)(size_t, void*))
  PYALLOC_SAME(attachOomRejectionObserver, void (Base::*)(Observer))
  PYALLOC_SAME(getContextForPointer, std::shared_ptr<c10::GatheredContext> (Base::*)(const void*))
  PYALLOC_SAME(supportsUserMetadata, bool (Base::*)())
  PYALLOC_SAME(setUserMetadata, void (Base::*)(const std::string&))
  PYALLOC_SAME(getUserMetadata, std::string (Base::*)())
  PYALLOC_SAME(annotateMemory, void (Base::*)(const void*, const std::string&))
#undef PYALLOC_SAME
  return same;
}
static_assert(overrides_newer_virtuals<cca::CUDAAllocator>(), "a virtual of this torch changed its signature");

}  // namespace pyalloc_bridge
