// The C ABI of torch's private pools (pyalloc.h): checks arguments, finds the heap, calls it.
#include "api/registry.h"

using namespace pyalloc;

namespace {

PoolKey key_of(pyalloc_pool_key key) { return {key.first, key.second}; }

// Calls `use(heap)` where the device's heap is open; a device without one has no private pools.
template <class Use>
Status where_open(int device, Use&& use) {
  Registry& registry = Registry::instance();
  Status status = registry.usable();
  if (status == kOk) status = registry.check_device(device);
  if (status != kOk) return status;
  DeviceHeap* heap = registry.open_heap(device);
  return heap != nullptr ? use(*heap) : kOk;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

pyalloc_status pyalloc_private_pool_retain(int device, pyalloc_pool_key key, int* pool) {
  if (key.first == 0 && key.second == 0)
    return fail(PYALLOC_INVALID_ARGUMENT, "(0, 0) names the default pool; expected the id of a private one");
  Status status = kOk;
  DeviceHeap* heap = Registry::instance().heap(device, status);
  if (heap == nullptr) return status;
  PoolId id = 0;
  status = heap->retain_pool(key_of(key), id);
  if (status == kOk && pool != nullptr) *pool = id;
  return status;
}

pyalloc_status pyalloc_private_pool_release(int device, pyalloc_pool_key key) {
  return where_open(device, [&](DeviceHeap& heap) { return heap.release_pool(key_of(key)); });
}

pyalloc_status pyalloc_private_pool_uses(int device, pyalloc_pool_key key, int* uses) {
  if (uses == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_private_pool_uses: uses is null");
  *uses = 0;
  return where_open(device, [&](DeviceHeap& heap) {
    *uses = heap.pool_uses(key_of(key));
    return kOk;
  });
}

pyalloc_status pyalloc_private_pool_lend(int device, pyalloc_pool_key key, int lends) {
  return where_open(device, [&](DeviceHeap& heap) { return heap.lend_pool(key_of(key), lends != 0); });
}

pyalloc_status pyalloc_private_pool_trim(int device, pyalloc_pool_key key, uint64_t* released) {
  uint64_t given = 0;
  Status status = where_open(device, [&](DeviceHeap& heap) {
    given = heap.trim_pool(key_of(key));
    return kOk;
  });
  if (released != nullptr) *released = given;
  return status;
}

pyalloc_status pyalloc_private_pools(int device, void* context, pyalloc_private_pool_fn fn) {
  if (fn == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_private_pools: fn is null");
  return where_open(device, [&](DeviceHeap& heap) {
    for (const auto& [key, one] : heap.private_pools()) {
      pyalloc_private_pool view{{key.first, key.second}, one.uses, one.pool != nullptr && one.pool->captured, {}};
      constexpr int kKindOf[] = {PYALLOC_KIND_SMALL, PYALLOC_KIND_LARGE, PYALLOC_KIND_ALL};
      for (int kind = 0; kind <= kKinds; ++kind) {
        const History& from = one.reserved[kind];
        view.reserved_bytes[kKindOf[kind]] = {from.current, from.peak, from.allocated, from.freed};
      }
      fn(context, &view);
    }
    return kOk;
  });
}

pyalloc_status pyalloc_note_stream(int device, void* stream, uint32_t stream_flags) {
  return where_open(device, [&](DeviceHeap& heap) {
    return heap.note_stream(static_cast<cuda::Stream>(stream), (stream_flags & PYALLOC_STREAM_OWNED) != 0);
  });
}

}  // extern "C"
#pragma GCC visibility pop
