// cudaGetLastError and its relatives; the names and texts of the runtime's errors.
#include "runtime/driver_link.h"

namespace simgpu::runtime {
namespace {

struct Text {
  int value;
  const char* name;
  const char* text;
};

constexpr Text kTexts[] = {
#define RUNTIME_ERROR(value, name, text) {value, #name, text},
#include "runtime/errors.def"
#undef RUNTIME_ERROR
};

const Text* find(int error) {
  for (const Text& one : kTexts) {
    if (one.value == error) return &one;
  }
  return nullptr;
}

}  // namespace

SIMGPU_RUNTIME_API Error cudaGetLastError() { return take_last_error(); }
SIMGPU_RUNTIME_API Error cudaPeekAtLastError() { return peek_last_error(); }

SIMGPU_RUNTIME_API const char* cudaGetErrorName(Error error) {
  const Text* found = find(error);
  return found != nullptr ? found->name : "unrecognized error code";
}

SIMGPU_RUNTIME_API const char* cudaGetErrorString(Error error) {
  const Text* found = find(error);
  return found != nullptr ? found->text : "unrecognized error code";
}

}  // namespace simgpu::runtime
