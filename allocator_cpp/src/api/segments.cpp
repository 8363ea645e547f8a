// Pools of pyalloc behind torch's own MemPools (mode:pools): the functions that a MemPool's allocator takes its segments
// from and gives them back to. One function a pool, so that a segment is of its MemPool's pool whatever scope the thread
// is in that makes torch ask for it.
//
// Torch calls them with its allocator's lock held: nobody else's code may run here, as it might wait for that lock.
#include <array>
#include <utility>

#include "api/registry.h"
#include "base/log.h"
#include "heap/pool_names.h"
#include "pyalloc/pyalloc.h"

using namespace pyalloc;

namespace {

// What torch is not given it makes a torch.OutOfMemoryError of, after a second try; other failures are said here.
void* allocate_segment(PoolId pool, ptrdiff_t bytes, int device, void* stream) {
  if (bytes < 0) {
    log_line("a segment of a negative number of bytes was asked for");
    return nullptr;
  }
  Registry::instance().share_with_peers();  // torch does not say when it wants peer access
  Status status = kOk;
  void* pointer = nullptr;
  if (DeviceHeap* heap = Registry::heap(device, status); heap != nullptr && bytes > 0) {
    WithoutCallbacks quiet;
    status = Registry::allocate(*heap, pool, true, static_cast<cuda::Stream>(stream), false, static_cast<size_t>(bytes),
                                &pointer);
  }
  if (status != kOk && status != PYALLOC_OUT_OF_MEMORY) log_line("%s", last_error());
  return status == kOk ? pointer : nullptr;
}

template <size_t pool>
void* allocate_from(ptrdiff_t bytes, int device, void* stream) {
  return allocate_segment(static_cast<PoolId>(pool), bytes, device, stream);
}

template <size_t... pools>
constexpr std::array<pyalloc_malloc_fn, sizeof...(pools)> functions(std::index_sequence<pools...>) {
  return {&allocate_from<pools>...};
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

pyalloc_malloc_fn pyalloc_segment_malloc(int pool) {
  static constexpr auto of_pool = functions(std::make_index_sequence<kMostPools>());
  return pool < 0 || pool >= pool_count() ? nullptr : of_pool[static_cast<size_t>(pool)];
}

void pyalloc_segment_free(void* pointer, ptrdiff_t, int device, void*) {
  Registry& registry = Registry::instance();
  if (pointer == nullptr || registry.dead()) return;
  DeviceHeap* heap = registry.open_heap(device);
  if ((heap != nullptr && heap->synchronize_context() != kOk) || pyalloc_deallocate(pointer, nullptr) != PYALLOC_OK)
    log_line("%s", last_error());
}

}  // extern "C"
#pragma GCC visibility pop
