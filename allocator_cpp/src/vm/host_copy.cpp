#include "vm/host_copy.h"

#include <algorithm>
#include <cstdio>

#include "base/bits.h"
#include "driver/driver.h"

namespace pyalloc {
namespace {

constexpr uint64_t kChunk = 64 * kMiB;

// A stream that waits for no other; what was enqueued is done, or has failed, when it goes.
class CopyStream {
 public:
  ~CopyStream() {
    if (stream_ == nullptr) return;
    driver().stream_synchronize(stream_);
    driver().stream_destroy(stream_);
  }
  Status open() {
    cuda::Result result = driver().stream_create(&stream_, cuda::kStreamNonBlocking);
    return result == cuda::kSuccess ? kOk : driver_failure("cuStreamCreate", result, "making a stream for copies");
  }
  Status wait() const {
    cuda::Result result = driver().stream_synchronize(stream_);
    return result == cuda::kSuccess ? kOk : driver_failure("cuStreamSynchronize", result, "waiting for a copy");
  }
  cuda::Stream get() const { return stream_; }

 private:
  cuda::Stream stream_ = nullptr;
};

// What the system could give without swapping; UINT64_MAX where it does not say. Pinning more would end in the
// system's stopping some process, not in an error.
uint64_t available_host_bytes() {
  std::FILE* file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return UINT64_MAX;
  unsigned long long kib = 0;
  bool found = false;
  for (char line[128]; !found && std::fgets(line, sizeof line, file) != nullptr;)
    found = std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
  std::fclose(file);
  return found ? kib * 1024 : UINT64_MAX;
}

}  // namespace

uint64_t HostCopy::bytes() const {
  uint64_t sum = 0;
  for (const Chunk& chunk : chunks_) sum += chunk.bytes;
  return sum;
}

void HostCopy::drop() {
  for (const Chunk& chunk : chunks_) driver().host_free(chunk.memory);
  chunks_.clear();
}

Status HostCopy::take(const std::vector<DeviceRun>& runs, CopyProgress& progress) {
  uint64_t total = bytes_of(runs), copying = 0;
  if (total == 0) return kOk;
  if (uint64_t there_is = available_host_bytes(); there_is < total)
    return fail(PYALLOC_OUT_OF_MEMORY,
                "%llu MiB of host memory are needed for what is to be restored, and the system has %llu MiB left; "
                "offload fewer pools",
                static_cast<unsigned long long>(total / kMiB), static_cast<unsigned long long>(there_is / kMiB));
  Status status = kOk;
  {
    CopyStream stream;
    status = stream.open();
    for (size_t i = 0; i < runs.size() && status == kOk; ++i) {
      for (uint64_t at = 0; at < runs[i].bytes && status == kOk; at += kChunk) {
        Chunk chunk{runs[i].address + at, std::min(kChunk, runs[i].bytes - at), nullptr};
        cuda::Result result = driver().host_alloc(&chunk.memory, chunk.bytes, cuda::kHostPortable);
        if (result != cuda::kSuccess) {
          driver_failure("cuMemHostAlloc", result, "pinning host memory for what is to be restored");
          status = result == cuda::kOutOfMemory ? PYALLOC_OUT_OF_MEMORY : PYALLOC_DRIVER_ERROR;
          break;
        }
        chunks_.push_back(chunk);
        status = stream.wait();  // for the chunk before
        if (status != kOk) break;
        progress.copied(copying);
        copying = chunk.bytes;
        result = driver().copy_to_host(chunk.memory, chunk.address, chunk.bytes, stream.get());
        if (result != cuda::kSuccess) status = driver_failure("cuMemcpyDtoHAsync", result, "copying to the host");
      }
    }
    if (status == kOk) status = stream.wait();
  }
  if (status != kOk) {
    drop();
    return status;
  }
  progress.copied(copying);
  return kOk;
}

Status HostCopy::put_back(const std::vector<DeviceRun>& parts, CopyProgress& progress) const {
  if (parts.empty()) return kOk;
  CopyStream stream;
  Status status = stream.open();
  auto chunk = chunks_.begin();
  for (const DeviceRun& part : parts) {
    if (status != kOk) return status;
    while (part.address - chunk->address >= chunk->bytes) ++chunk;
    const char* from = static_cast<const char*>(chunk->memory) + (part.address - chunk->address);
    cuda::Result result = driver().copy_to_device(part.address, from, part.bytes, stream.get());
    if (result != cuda::kSuccess) return driver_failure("cuMemcpyHtoDAsync", result, "copying back from the host");
    status = stream.wait();
    if (status == kOk) progress.copied(part.bytes);
  }
  return status;
}

}  // namespace pyalloc
