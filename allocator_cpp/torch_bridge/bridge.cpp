// The bridge's one translation unit and its C entry points. Compiled on the user's machine against the user's torch by
// pyalloc/bridge_build.py and loaded with ctypes: no Python.h, no pybind, no nvcc, and nothing of pyalloc is linked.
#include <string>

#include "allocator.h"

#ifndef PYALLOC_BRIDGE_KEY
#error "PYALLOC_BRIDGE_KEY must name what this library is compiled for (pyalloc/bridge_build.py sets it)"
#endif

#define PYALLOC_BRIDGE_API extern "C" __attribute__((visibility("default")))

namespace pyalloc_bridge {
namespace {

void install(const pyalloc_api* api) {
  TORCH_CHECK(core == nullptr, "the pyalloc bridge is already installed in this process");
  TORCH_CHECK(api != nullptr && api->version == PYALLOC_ABI_VERSION && api->size >= sizeof(pyalloc_api),
              "libpyalloc.so speaks another version of the C ABI than this bridge (", PYALLOC_ABI_VERSION, ")");
  // Torch reads its own configuration variable late, and with "backend:native" in it then insists on its own allocator:
  // read it now.
  cca::CUDAAllocatorConfig::instance();

  core = api;
  static auto* allocator =
      new std::shared_ptr<Allocator>(std::make_shared<Allocator>());  // for ever: tensors outlive static objects
  try {
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(*allocator);
  } catch (...) {
    core = nullptr;
    throw;
  }
  c10::SetAllocator(c10::kCUDA, allocator->get(), 1);  // torch.accelerator looks here
  check(api->add_reclaimer(&run_free_memory_callbacks, nullptr, PYALLOC_TORCH_CALLBACKS));
  check(api->add_oom_observer(&observe_out_of_memory, nullptr));
}

}  // namespace
}  // namespace pyalloc_bridge

// What this library was compiled for; the loader refuses another torch's.
PYALLOC_BRIDGE_API const char* pyalloc_bridge_key() { return PYALLOC_BRIDGE_KEY; }

// Whether torch has initialised its current allocator; then it takes no other.
PYALLOC_BRIDGE_API int pyalloc_bridge_cuda_in_use() { return pyalloc_bridge::cca::get()->initialized() ? 1 : 0; }

// Makes pyalloc torch's CUDA allocator. Null when done; else why not, and nothing has changed. Call it before CUDA is
// initialised.
PYALLOC_BRIDGE_API const char* pyalloc_bridge_install(const pyalloc_api* api) {
  static std::string message;
  try {
    pyalloc_bridge::install(api);
    return nullptr;
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message.c_str();
}

// Keeps the stack of one block for about every so many bytes allocated; 0: of none.
PYALLOC_BRIDGE_API void pyalloc_bridge_sample_stacks(uint64_t bytes) { pyalloc_bridge::samples.every(bytes); }

// The live sampled blocks as JSON (samples.h); returns the length it needs, without the final 0.
PYALLOC_BRIDGE_API size_t pyalloc_bridge_samples_json(char* buffer, size_t capacity) {
  const std::string text = pyalloc_bridge::samples.json();
  if (capacity != 0) {
    const size_t fits = std::min(text.size(), capacity - 1);
    text.copy(buffer, fits);
    buffer[fits] = '\0';
  }
  return text.size();
}
