// Entry points: copies and memsets.
//
// Host memory that is not pinned behaves as with NVIDIA's driver: a small asynchronous source is staged at the call, a large one is
// copied before the call returns, and a pageable target is complete when the call returns.
#include <cstring>

#include "simulation.h"

using namespace simgpu;

namespace {

constexpr uint64_t kStagedBytes = 64 << 10;

enum class Side { kAny, kHost, kDevice };

struct CopyRequest {
  uint64_t target, source;
  Side target_side = Side::kAny, source_side = Side::kAny;
  uint64_t width, rows = 1, target_pitch = 0, source_pitch = 0;
  bool peer = false;
};

bool is_device(Simulation& sim, uint64_t address) {
  Region* region = sim.space.find(address);
  return region != nullptr && region->kind != RegionKind::kHost;
}

bool is_pinned(Simulation& sim, uint64_t address) {
  Region* region = sim.space.find(address);
  return region != nullptr && region->kind == RegionKind::kHost;
}

// Whether the side is host memory; an address claimed to be a device's that no reservation or allocation holds is refused.
Result find_side(Simulation& sim, uint64_t address, Side side, bool* host) {
  bool device = is_device(sim, address);
  *host = !device;
  if (side == Side::kDevice && !device && !is_pinned(sim, address)) {
    sim.violations.add("a copy or memset names 0x%llx, which is no device address", (unsigned long long)address);
    return kInvalidValue;
  }
  if (side == Side::kHost && device) return kInvalidValue;
  return kSuccess;
}

Result copy(Simulation& sim, const CopyRequest& request, StreamObject& stream, bool blocking) {
  if (request.width == 0 || request.rows == 0) return kSuccess;
  CopyWork work;
  work.target = request.target;
  work.source = request.source;
  work.width = request.width;
  work.rows = request.rows;
  work.target_pitch = request.target_pitch;
  work.source_pitch = request.source_pitch;
  work.peer = request.peer;
  if (work.rows > 1 && work.width == work.target_pitch &&
      work.width == work.source_pitch) {  // contiguous on both sides
    work.width *= work.rows;
    work.rows = 1;
  }
  if (Result error = find_side(sim, work.target, request.target_side, &work.target_host)) return error;
  if (Result error = find_side(sim, work.source, request.source_side, &work.source_host)) return error;
  bool pageable_source = work.source_host && !is_pinned(sim, work.source);
  bool pageable_target = work.target_host && !is_pinned(sim, work.target);
  bool wait = (blocking && (work.source_host || work.target_host)) || pageable_target;
  if (stream.capture == nullptr && pageable_source && sim.scheduler.mode() != StreamMode::kImmediate && !wait) {
    if (work.width * work.rows > kStagedBytes) {
      wait = true;
    } else {
      work.staged = std::make_shared<std::vector<char>>(work.width * work.rows);
      for (uint64_t row = 0; row < work.rows; ++row) {
        std::memcpy(work.staged->data() + row * work.width,
                    reinterpret_cast<const char*>(work.source + row * work.source_pitch), work.width);
      }
    }
  }
  Result result = submit(sim, stream, kNodeMemcpy, std::move(work));
  if (result != kSuccess || !wait || stream.capture != nullptr) return result;
  result = sim.scheduler.wait_stream(stream);
  sim.oracle.on_host_wait(stream);
  return result;
}

Result copy_async(Simulation& sim, const CopyRequest& request, Stream handle) {
  StreamObject* stream = find_stream(sim, handle);
  return stream != nullptr ? copy(sim, request, *stream, false) : kInvalidHandle;
}

Result copy_blocking(Enter& entered, const CopyRequest& request) {
  Simulation& sim = entered.sim();
  return copy(sim, request, *legacy_stream(sim, entered.device()), true);
}

CopyRequest flat(uint64_t target, Side target_side, uint64_t source, Side source_side, uint64_t bytes) {
  CopyRequest request{};
  request.target = target;
  request.source = source;
  request.target_side = target_side;
  request.source_side = source_side;
  request.width = bytes;
  request.rows = 1;
  return request;
}

uint64_t number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

Result from_2d(const Copy2dParams* params, CopyRequest* out) {
  if (params == nullptr) return kInvalidValue;
  auto side = [&](const Copy2dSide& from, uint64_t* address, Side* which, uint64_t* pitch) {
    if (from.type == kMemoryArray) return kNotSupported;
    *which = from.type == kMemoryHost ? Side::kHost : from.type == kMemoryDevice ? Side::kDevice : Side::kAny;
    *pitch = from.pitch != 0 ? from.pitch : params->width_bytes;
    if (*pitch < from.x_bytes + params->width_bytes && params->height > 1) return kInvalidValue;
    uint64_t base = from.type == kMemoryHost ? number(from.host) : from.device;
    *address = base + from.y * *pitch + from.x_bytes;
    return kSuccess;
  };
  *out = {};
  if (Result error = side(params->source, &out->source, &out->source_side, &out->source_pitch)) return error;
  if (Result error = side(params->target, &out->target, &out->target_side, &out->target_pitch)) return error;
  out->width = params->width_bytes;
  out->rows = params->height;
  return kSuccess;
}

Result fill(Simulation& sim, StreamObject* stream, DevicePtr target, uint32_t value, unsigned element, uint64_t count,
            uint64_t rows, uint64_t pitch) {
  if (stream == nullptr) return kInvalidHandle;
  if (count == 0 || rows == 0) return kSuccess;
  if (target % element != 0) return kInvalidValue;
  FillWork work;
  work.target = target;
  work.value = value;
  work.element = element;
  work.width = count * element;
  work.rows = rows;
  work.pitch = pitch;
  if (Result error = find_side(sim, target, Side::kDevice, &work.target_host)) return error;
  return submit(sim, *stream, kNodeMemset, work);
}

Result fill_blocking(Enter& entered, DevicePtr target, uint32_t value, unsigned element, uint64_t count,
                     uint64_t rows = 1, uint64_t pitch = 0) {
  Simulation& sim = entered.sim();
  return fill(sim, legacy_stream(sim, entered.device()), target, value, element, count, rows, pitch);
}

}  // namespace

SIMGPU_API Result cuMemcpy(DevicePtr target, DevicePtr source, size_t bytes) {
  SIMGPU_BEGIN(cuMemcpy);
  return copy_blocking(entered, flat(target, Side::kAny, source, Side::kAny, bytes));
}

SIMGPU_API Result cuMemcpyAsync(DevicePtr target, DevicePtr source, size_t bytes, Stream stream) {
  SIMGPU_BEGIN(cuMemcpyAsync);
  return copy_async(sim, flat(target, Side::kAny, source, Side::kAny, bytes), stream);
}

SIMGPU_API Result cuMemcpyHtoD_v2(DevicePtr target, const void* source, size_t bytes) {
  SIMGPU_BEGIN(cuMemcpyHtoD_v2);
  return copy_blocking(entered, flat(target, Side::kDevice, number(source), Side::kHost, bytes));
}

SIMGPU_API Result cuMemcpyDtoH_v2(void* target, DevicePtr source, size_t bytes) {
  SIMGPU_BEGIN(cuMemcpyDtoH_v2);
  return copy_blocking(entered, flat(number(target), Side::kHost, source, Side::kDevice, bytes));
}

SIMGPU_API Result cuMemcpyDtoD_v2(DevicePtr target, DevicePtr source, size_t bytes) {
  SIMGPU_BEGIN(cuMemcpyDtoD_v2);
  return copy_blocking(entered, flat(target, Side::kDevice, source, Side::kDevice, bytes));
}

SIMGPU_API Result cuMemcpyHtoDAsync_v2(DevicePtr target, const void* source, size_t bytes, Stream stream) {
  SIMGPU_BEGIN(cuMemcpyHtoDAsync_v2);
  return copy_async(sim, flat(target, Side::kDevice, number(source), Side::kHost, bytes), stream);
}

SIMGPU_API Result cuMemcpyDtoHAsync_v2(void* target, DevicePtr source, size_t bytes, Stream stream) {
  SIMGPU_BEGIN(cuMemcpyDtoHAsync_v2);
  return copy_async(sim, flat(number(target), Side::kHost, source, Side::kDevice, bytes), stream);
}

SIMGPU_API Result cuMemcpyDtoDAsync_v2(DevicePtr target, DevicePtr source, size_t bytes, Stream stream) {
  SIMGPU_BEGIN(cuMemcpyDtoDAsync_v2);
  return copy_async(sim, flat(target, Side::kDevice, source, Side::kDevice, bytes), stream);
}

SIMGPU_API Result cuMemcpyPeer(DevicePtr target, Context target_context, DevicePtr source, Context source_context,
                               size_t bytes) {
  SIMGPU_BEGIN(cuMemcpyPeer);
  if (context_device(sim, target_context) == nullptr || context_device(sim, source_context) == nullptr)
    return kInvalidContext;
  CopyRequest request = flat(target, Side::kDevice, source, Side::kDevice, bytes);
  request.peer = true;
  return copy_blocking(entered, request);
}

SIMGPU_API Result cuMemcpyPeerAsync(DevicePtr target, Context target_context, DevicePtr source, Context source_context,
                                    size_t bytes, Stream stream) {
  SIMGPU_BEGIN(cuMemcpyPeerAsync);
  if (context_device(sim, target_context) == nullptr || context_device(sim, source_context) == nullptr)
    return kInvalidContext;
  CopyRequest request = flat(target, Side::kDevice, source, Side::kDevice, bytes);
  request.peer = true;
  return copy_async(sim, request, stream);
}

SIMGPU_API Result cuMemcpy2D_v2(const Copy2dParams* params) {
  SIMGPU_BEGIN(cuMemcpy2D_v2);
  CopyRequest request;
  if (Result error = from_2d(params, &request)) return error;
  return copy_blocking(entered, request);
}

SIMGPU_API Result cuMemcpy2DUnaligned_v2(const Copy2dParams* params) {
  SIMGPU_BEGIN(cuMemcpy2DUnaligned_v2);
  CopyRequest request;
  if (Result error = from_2d(params, &request)) return error;
  return copy_blocking(entered, request);
}

SIMGPU_API Result cuMemcpy2DAsync_v2(const Copy2dParams* params, Stream stream) {
  SIMGPU_BEGIN(cuMemcpy2DAsync_v2);
  CopyRequest request;
  if (Result error = from_2d(params, &request)) return error;
  return copy_async(sim, request, stream);
}

SIMGPU_API Result cuMemsetD8_v2(DevicePtr target, unsigned char value, size_t count) {
  SIMGPU_BEGIN(cuMemsetD8_v2);
  return fill_blocking(entered, target, value, 1, count);
}

SIMGPU_API Result cuMemsetD16_v2(DevicePtr target, unsigned short value, size_t count) {
  SIMGPU_BEGIN(cuMemsetD16_v2);
  return fill_blocking(entered, target, value, 2, count);
}

SIMGPU_API Result cuMemsetD32_v2(DevicePtr target, unsigned value, size_t count) {
  SIMGPU_BEGIN(cuMemsetD32_v2);
  return fill_blocking(entered, target, value, 4, count);
}

SIMGPU_API Result cuMemsetD8Async(DevicePtr target, unsigned char value, size_t count, Stream stream) {
  SIMGPU_BEGIN(cuMemsetD8Async);
  return fill(sim, find_stream(sim, stream), target, value, 1, count, 1, 0);
}

SIMGPU_API Result cuMemsetD16Async(DevicePtr target, unsigned short value, size_t count, Stream stream) {
  SIMGPU_BEGIN(cuMemsetD16Async);
  return fill(sim, find_stream(sim, stream), target, value, 2, count, 1, 0);
}

SIMGPU_API Result cuMemsetD32Async(DevicePtr target, unsigned value, size_t count, Stream stream) {
  SIMGPU_BEGIN(cuMemsetD32Async);
  return fill(sim, find_stream(sim, stream), target, value, 4, count, 1, 0);
}

SIMGPU_API Result cuMemsetD2D8_v2(DevicePtr target, size_t pitch, unsigned char value, size_t width, size_t height) {
  SIMGPU_BEGIN(cuMemsetD2D8_v2);
  if (height > 1 && pitch < width) return kInvalidValue;
  return fill_blocking(entered, target, value, 1, width, height, pitch);
}

SIMGPU_API Result cuMemsetD2D8Async(DevicePtr target, size_t pitch, unsigned char value, size_t width, size_t height,
                                    Stream stream) {
  SIMGPU_BEGIN(cuMemsetD2D8Async);
  if (height > 1 && pitch < width) return kInvalidValue;
  return fill(sim, find_stream(sim, stream), target, value, 1, width, height, pitch);
}
