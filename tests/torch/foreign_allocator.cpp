// An allocator of another library, as users write one for torch.cuda.MemPool: two C functions over the driver, which
// count what they do. Compiled by test_mempool.py.
#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>

namespace {

template <class Function>
Function driver(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return library != nullptr ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
}

int live = 0;
size_t live_bytes = 0;

}  // namespace

extern "C" {

int foreign_live() { return live; }
size_t foreign_bytes() { return live_bytes; }

void* foreign_malloc(ptrdiff_t bytes, int, void*) {
  unsigned long long address = 0;
  if (driver<int (*)(unsigned long long*, size_t)>("cuMemAlloc_v2")(&address, static_cast<size_t>(bytes)) != 0)
    return nullptr;
  ++live;
  live_bytes += static_cast<size_t>(bytes);
  return reinterpret_cast<void*>(address);
}

void foreign_free(void* pointer, ptrdiff_t bytes, int, void*) {
  if (driver<int (*)(unsigned long long)>("cuMemFree_v2")(reinterpret_cast<unsigned long long>(pointer)) != 0) abort();
  --live;
  live_bytes -= static_cast<size_t>(bytes);
}
}
