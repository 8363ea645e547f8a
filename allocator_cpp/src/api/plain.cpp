// Plain registration: the pair of functions torch.cuda.memory.CUDAPluggableAllocator takes, and its hooks. torch's
// wrapper cannot take an error, so a failure becomes a null pointer and a message on stderr. It does not say which
// streams torch owns, nor when it wants peer access: every device that can has it.
#include "api/registry.h"
#include "base/log.h"
#include "pyalloc/pyalloc.h"

#pragma GCC visibility push(default)
extern "C" {

void* pyalloc_malloc(ptrdiff_t bytes, int device, void* stream) {
  void* pointer = nullptr;
  pyalloc::Registry::instance().share_with_peers();
  if (bytes < 0 || pyalloc_allocate(device, stream, 0, static_cast<size_t>(bytes), &pointer) != PYALLOC_OK) {
    pyalloc::log_line("%s", bytes < 0 ? "a negative number of bytes was asked for" : pyalloc_last_error());
    return nullptr;
  }
  return pointer;
}

void pyalloc_free(void* pointer, ptrdiff_t, int, void*) {
  if (pyalloc_deallocate(pointer, nullptr) != PYALLOC_OK) pyalloc::log_line("%s", pyalloc_last_error());
}

void pyalloc_plain_init(int device_count) {
  if (pyalloc_init(device_count) != PYALLOC_OK) pyalloc::log_line("%s", pyalloc_last_error());
}

void pyalloc_plain_reset(void) { pyalloc_trim(-1, nullptr); }

void pyalloc_plain_set_memory_fraction(double fraction, int device) {
  if (pyalloc_set_memory_fraction(device, fraction) != PYALLOC_OK) pyalloc::log_line("%s", pyalloc_last_error());
}

void* pyalloc_plain_base_alloc(void* pointer, size_t* bytes) {
  pyalloc_block_info info{};
  info.size = sizeof info;
  bool found = pyalloc_find_block(pointer, &info) == PYALLOC_OK;
  if (bytes != nullptr) *bytes = found ? info.segment_bytes : 0;
  return found ? info.segment : pointer;
}

void pyalloc_plain_record_stream(void* pointer, void* stream) {
  if (pyalloc_record_stream(pointer, stream, 0) != PYALLOC_OK) pyalloc::log_line("%s", pyalloc_last_error());
}

}  // extern "C"
#pragma GCC visibility pop
