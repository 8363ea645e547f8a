// The streams of a benchmark: the default stream, then streams of torch's own pool, so that every allocator knows that torch keeps them.
#pragma once
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

namespace bench {

namespace cca = c10::cuda::CUDACachingAllocator;

constexpr int kPoolStreams = 32;  // torch's pool hands out this many, then the same again

inline std::vector<c10::cuda::CUDAStream> make_streams(size_t count) {
  TORCH_CHECK(count <= kPoolStreams + 1, count, " streams; expected at most ", kPoolStreams + 1);
  std::vector<c10::cuda::CUDAStream> streams;
  if (count > 0) streams.push_back(c10::cuda::getDefaultCUDAStream(0));
  while (streams.size() < count) streams.push_back(c10::cuda::getStreamFromPool(false, 0));
  return streams;
}

}  // namespace bench
