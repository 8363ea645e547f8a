// Torch's private pools (MemPool, CUDA graphs): which allocations go to which, and pools whose memory a foreign
// allocator gives.
//
// A route is open from beginAllocateToPool to endAllocateToPool: an allocation whose stream its filter accepts goes to
// its pool, the route opened last first. Torch's filters say "this thread" (use_mem_pool) or "this capture" (graphs).
// They are called with no lock held, on a list that is replaced and never changed. The pools themselves are the core's;
// what the core does not know is a foreign allocator's block, which is freed by the allocator that gave it, found by
// address, also when its pool is gone.
//
// The hot path comes here only where watch.h says kRoutes or kForeign.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "stats.h"
#include "watch.h"

namespace pyalloc_bridge {

namespace cca = c10::cuda::CUDACachingAllocator;
using Pool = c10::cuda::MempoolId_t;
using Foreign = std::shared_ptr<cca::CUDAAllocator>;

inline pyalloc_pool_key key_of(Pool id) { return {id.first, id.second}; }

struct Route {
  c10::DeviceIndex device;
  Pool id;
  int number;  // the core's
  std::function<bool(cudaStream_t)> filter;
  Foreign foreign;  // null: the core's memory
};

struct ForeignBlock {
  Foreign owner;
  c10::DeviceIndex device;
  Pool id;
  size_t bytes;
  cudaStream_t stream;
};

class PrivatePools {
 public:
  // Where a block for `stream` goes now; null: to no private pool.
  std::shared_ptr<const Route> route(c10::DeviceIndex device, cudaStream_t stream) {
    std::shared_ptr<const Routes> open;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open = routes_;
    }
    for (const auto& one : *open)
      if (one->device == device && one->filter(stream)) return one;
    return nullptr;
  }

  void begin(c10::DeviceIndex device, Pool id, std::function<bool(cudaStream_t)> filter, Stream current) {
    TORCH_CHECK(filter, "beginAllocateToPool: no filter was given for pool (", id.first, ", ", id.second, ")");
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(find(device, id) == routes_->end(), "beginAllocateToPool: already recording to mempool_id (", id.first,
                ", ", id.second, ") on device ", static_cast<int>(device), "; end that first");
    int number = 0;
    check(core->private_pool_retain(device, key_of(id), &number));
    if (const pyalloc_status status = core->note_stream(device, current.handle, current.flags); status != PYALLOC_OK) {
      const std::string why = core->last_error();
      core->private_pool_release(device, key_of(id));
      TORCH_CHECK(false, why);
    }
    auto changed = std::make_shared<Routes>(*routes_);
    changed->insert(changed->begin(),
                    std::make_shared<Route>(Route{device, id, number, std::move(filter), foreign_of(device, id)}));
    replace(std::move(changed));
  }

  void end(c10::DeviceIndex device, Pool id) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto open = find(device, id);
    TORCH_CHECK(open != routes_->end(), "endAllocatePool: not currently recording to mempool_id (", id.first, ", ",
                id.second, ") on device ", static_cast<int>(device));
    auto changed = std::make_shared<Routes>(*routes_);
    changed->erase(changed->begin() + (open - routes_->begin()));
    replace(std::move(changed));
  }

  void create(c10::DeviceIndex device, Pool id, Foreign allocator) {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(allocator == nullptr || uses(device, id) == 0, "the pool (", id.first, ", ", id.second,
                ") exists; an allocator can only be given to a new one");
    check(core->private_pool_retain(device, key_of(id), nullptr));
    if (allocator != nullptr) foreign_[{device, id}] = std::move(allocator);
  }

  void release(c10::DeviceIndex device, Pool id) {
    Foreign last;  // let go of without the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const pyalloc_status status = core->private_pool_release(device, key_of(id));
    if (status == PYALLOC_WRONG_STATE)
      return;  // called by a destructor while the process goes down, or in a forked child
    check(status);
    if (uses(device, id) > 0) return;
    if (const auto found = foreign_.find({device, id}); found != foreign_.end()) {
      last = std::move(found->second);
      foreign_.erase(found);
    }
  }

  static int uses(c10::DeviceIndex device, Pool id) {
    int uses = 0;
    const pyalloc_status status = core->private_pool_uses(device, key_of(id), &uses);
    if (status == PYALLOC_WRONG_STATE) return 1;  // MemPool's destructor insists on its own use, and may not throw
    check(status);
    return uses;
  }

  // --- blocks of foreign allocators ---
  void* allocate_foreign(const Route& route, cudaStream_t stream, size_t bytes) {
    const c10::DeviceGuard guard(cuda_device(route.device));
    void* pointer = route.foreign->raw_alloc_with_stream(bytes, stream);
    if (pointer == nullptr) {  // it asks the driver, which may lack what is idle here
      check(core->trim(route.device, nullptr));
      pointer = route.foreign->raw_alloc_with_stream(bytes, stream);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, pointer != nullptr, "CUDA out of memory. The allocator of pool (",
                     route.id.first, ", ", route.id.second, ") gave no memory for ", bytes, " bytes on device ",
                     static_cast<int>(route.device));
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[pointer] = {route.foreign, route.device, route.id, bytes, stream};
    watch(kForeign, true);
    return pointer;
  }

  // Takes the block off the books; owner is null when it is not a foreign one.
  ForeignBlock take_foreign(void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(pointer);
    if (found == blocks_.end()) return {};
    ForeignBlock block = std::move(found->second);
    blocks_.erase(found);
    return block;
  }

  // Copies of all blocks, by address.
  std::map<void*, ForeignBlock> foreign() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {blocks_.begin(), blocks_.end()};
  }

 private:
  using Routes = std::vector<std::shared_ptr<const Route>>;  // opened last first

  Routes::const_iterator find(c10::DeviceIndex device, Pool id) const {
    return std::find_if(routes_->begin(), routes_->end(),
                        [&](const auto& one) { return one->device == device && one->id == id; });
  }
  void replace(std::shared_ptr<Routes> changed) {
    watch(kRoutes, !changed->empty());
    routes_ = std::move(changed);
  }
  Foreign foreign_of(c10::DeviceIndex device, Pool id) const {
    const auto found = foreign_.find({device, id});
    return found != foreign_.end() ? found->second : nullptr;
  }

  std::mutex mutex_;
  std::shared_ptr<const Routes> routes_ = std::make_shared<Routes>();
  std::map<std::pair<c10::DeviceIndex, Pool>, Foreign> foreign_;
  std::unordered_map<void*, ForeignBlock> blocks_;
};

inline PrivatePools& private_pools = *new PrivatePools;  // for ever: tensors outlive static objects

// Frees a foreign allocator's block; false when it is none.
inline bool free_foreign(void* pointer) {
  const ForeignBlock block = private_pools.take_foreign(pointer);
  if (block.owner == nullptr) return false;
  const c10::DeviceGuard guard(cuda_device(block.device));
  block.owner->raw_delete(pointer);
  return true;
}

// --- what readers see of private pools ---

// Torch's statistics by pool, where this torch has them.
template <class TorchStats>
void add_private_pools(TorchStats& to, c10::DeviceIndex device) {
  if constexpr (requires { to.reserved_bytes_by_private_pools; }) {
    using ByPool = decltype(to.reserved_bytes_by_private_pools);
    auto add = [](void* context, const pyalloc_private_pool* pool) {
      auto& stats = (*static_cast<ByPool*>(context))[Pool{pool->key.first, pool->key.second}];
      copy_group(pool->reserved_bytes, stats);
    };
    check(core->private_pools(device, &to.reserved_bytes_by_private_pools, add));
  }
}

// Foreign blocks as segments of one block each.
inline void add_foreign_segments(std::vector<c10::CachingDeviceAllocator::SegmentInfo>& segments, Pool only) {
  for (const auto& [pointer, block] : private_pools.foreign()) {
    if (only != Pool{0, 0} && only != block.id) continue;
    c10::CachingDeviceAllocator::SegmentInfo& segment = segments.emplace_back();
    segment.device = block.device;
    segment.address = reinterpret_cast<size_t>(pointer);
    segment.total_size = segment.requested_size = segment.allocated_size = segment.active_size = block.bytes;
    segment.stream = block.stream;
    segment.is_large = block.bytes > (1u << 20);
    segment.owner_private_pool_id = block.id;
    c10::CachingDeviceAllocator::BlockInfo& only_block = segment.blocks.emplace_back();
    only_block.size = only_block.requested_size = block.bytes;
    only_block.allocated = only_block.active = true;
  }
}

}  // namespace pyalloc_bridge
