// Copies and fills. The driver tells host from device by address, so the direction a program names is only checked for
// being one.
#include "runtime/driver_link.h"
#include "runtime/symbols.h"

namespace simgpu::runtime {
namespace {

bool is_kind(int kind) { return kind >= kCopyHostToHost && kind <= kCopyDefault; }

}  // namespace

SIMGPU_RUNTIME_API Error cudaMemcpy(void* target, const void* source, size_t bytes, int kind) {
  return with_context([&](const Driver& d) -> int {
    if (!is_kind(kind)) return kInvalidMemcpyDirection;
    return bytes == 0 ? kSuccess : d.copy(address_of(target), address_of(source), bytes);
  });
}

SIMGPU_RUNTIME_API Error cudaMemcpyAsync(void* target, const void* source, size_t bytes, int kind, Stream stream) {
  return with_context([&](const Driver& d) -> int {
    if (!is_kind(kind)) return kInvalidMemcpyDirection;
    return bytes == 0 ? kSuccess : d.copy_async(address_of(target), address_of(source), bytes, stream);
  });
}

SIMGPU_RUNTIME_API Error cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source, size_t source_pitch,
                                           size_t width, size_t height, int kind, Stream stream) {
  return with_context([&](const Driver& d) -> int {
    if (!is_kind(kind)) return kInvalidMemcpyDirection;
    if (width > target_pitch || width > source_pitch) return kInvalidPitchValue;
    if (width == 0 || height == 0) return kSuccess;
    DriverCopy2D copy = unified_copy(source, source_pitch, target, target_pitch, width, height);
    return d.copy_2d_async(&copy, stream);
  });
}

SIMGPU_RUNTIME_API Error cudaMemcpyPeerAsync(void* target, int target_device, const void* source, int source_device,
                                             size_t bytes, Stream stream) {
  return with_context([&](const Driver& d) -> int {
    if (bytes == 0) return kSuccess;
    Context target_context = nullptr;
    Context source_context = nullptr;
    if (Error error = primary_context(target_device, &target_context)) return error;
    if (Error error = primary_context(source_device, &source_context)) return error;
    return d.copy_peer_async(address_of(target), target_context, address_of(source), source_context, bytes, stream);
  });
}

SIMGPU_RUNTIME_API Error cudaMemset(void* pointer, int value, size_t bytes) {
  return with_context([&](const Driver& d) -> int {
    return bytes == 0 ? kSuccess : d.set(address_of(pointer), static_cast<unsigned char>(value), bytes);
  });
}

SIMGPU_RUNTIME_API Error cudaMemsetAsync(void* pointer, int value, size_t bytes, Stream stream) {
  return with_context([&](const Driver& d) -> int {
    return bytes == 0 ? kSuccess : d.set_async(address_of(pointer), static_cast<unsigned char>(value), bytes, stream);
  });
}

SIMGPU_RUNTIME_API Error cudaMemcpyToSymbol(const void* symbol, const void* source, size_t bytes, size_t offset,
                                            int kind) {
  return with_context([&](const Driver& d) -> int {
    if (!is_kind(kind)) return kInvalidMemcpyDirection;
    SymbolPlace place{};
    if (Error error = find_symbol(symbol, &place)) return error;
    if (offset > place.bytes || bytes > place.bytes - offset) return kInvalidValue;
    return bytes == 0 ? kSuccess : d.copy(place.address + offset, address_of(source), bytes);
  });
}

SIMGPU_RUNTIME_API Error cudaGetSymbolAddress(void** out, const void* symbol) {
  return with_context([&](const Driver&) -> int {
    SymbolPlace place{};
    if (Error error = find_symbol(symbol, &place)) return error;
    *out = reinterpret_cast<void*>(place.address);
    return kSuccess;
  });
}

}  // namespace simgpu::runtime
