// The virtuals of torch's CUDA allocator as C++ calls them, for the table of compatibility: call(name) says in words what
// came of one of them, or raises as torch does. Compiled by table.py against the installed torch, loaded with ctypes.
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>

namespace {

namespace cca = c10::cuda::CUDACachingAllocator;
using Pool = c10::cuda::MempoolId_t;
constexpr size_t kMiB = 1 << 20;

std::string yes_no(bool answer) { return answer ? "yes" : "no"; }

std::string raw_blocks() {
  void* first = cca::raw_alloc(3 * kMiB);
  void* second = cca::raw_alloc_with_stream(3 * kMiB, c10::cuda::getStreamFromPool());
  std::string answer = yes_no(first != nullptr && second != nullptr && first != second);
  cca::raw_delete(first);
  cca::raw_delete(second);
  return answer;
}

std::string data_pointers() {
  auto* allocator = cca::get();
  c10::DataPtr data = allocator->allocate(1000), empty = allocator->allocate(0);
  const bool simple = allocator->is_simple_data_ptr(data);
  const bool deleter = data.get_deleter() == allocator->raw_deleter() && allocator->raw_deleter() != nullptr;
  const bool same = c10::GetAllocator(c10::kCUDA) == allocator;
  return yes_no(simple) + " " + yes_no(deleter) + " " + yes_no(same) + " " + yes_no(empty.get() == nullptr);
}

std::string clone() {
  auto* allocator = cca::get();
  c10::DataPtr data = allocator->allocate(1000);
  cudaMemset(data.get(), 7, 1000);
  c10::DataPtr copy = allocator->clone(data.get(), 1000);
  unsigned char byte = 0;
  cudaMemcpy(&byte, static_cast<char*>(copy.get()) + 999, 1, cudaMemcpyDeviceToHost);
  return std::to_string(byte);
}

std::string base_allocation() {
  c10::DataPtr data = cca::get()->allocate(3 * kMiB);
  size_t bytes = 0;
  auto* base = static_cast<char*>(cca::getBaseAllocation(data.get(), &bytes));
  return yes_no(base <= data.get() && base + bytes >= static_cast<char*>(data.get()) + 3 * kMiB);
}

std::string cache_info() {
  size_t largest = 0;
  cca::cacheInfo(0, &largest);
  const auto [free, total] = cca::get()->getMemoryInfo(0);
  return yes_no(largest > total / 2 && largest <= total);
}

std::string record_stream() {
  c10::DataPtr data = cca::get()->allocate(3 * kMiB);
  cca::recordStream(data, c10::cuda::getStreamFromPool());
  return "done";
}

// A pool as CUDA graphs and MemPool use it, from its making to its end.
std::string pool_life() {
  const Pool pool{0, 77};
  cca::createOrIncrefPool(0, pool);
  cca::setUseOnOOM(0, pool, false);
  std::string answer = std::to_string(cca::getPoolUseCount(0, pool));
  cca::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  answer += " " + std::to_string(cca::getPoolUseCount(0, pool));
  void* block = cca::raw_alloc(3 * kMiB);
  cca::endAllocateToPool(0, pool);
  cca::releasePool(0, pool);
  answer += " " + std::to_string(cca::getPoolUseCount(0, pool));
  answer += " " + yes_no(cca::checkPoolLiveAllocations(0, pool, {block}));
  answer += " " + yes_no(cca::checkPoolLiveAllocations(0, pool, {}));
  answer += " " + std::to_string(cca::snapshot(pool).segments.size());
  cca::raw_delete(block);
  cca::releasePool(0, pool);
  cca::emptyCache(pool);
  return answer + " " + std::to_string(cca::snapshot(pool).segments.size());
}

std::string no_split() {
  const Pool pool{0, 78};
  cca::createOrIncrefPool(0, pool);
  cca::setNoSplit(0, pool);
  cca::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  void* block = cca::raw_alloc(3 * kMiB);
  cca::endAllocateToPool(0, pool);
  cca::releasePool(0, pool);
  cca::raw_delete(block);
  cca::releasePool(0, pool);
  return yes_no(block != nullptr);
}

std::string checkpoint() {
  const Pool pool{0, 79};
  cca::createOrIncrefPool(0, pool);
  auto inside = [&](size_t bytes) {
    cca::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    void* block = cca::raw_alloc(bytes);
    cca::endAllocateToPool(0, pool);
    cca::releasePool(0, pool);
    return block;
  };
  void* kept = inside(3 * kMiB);
  void* gone = inside(1000);
  auto state = cca::getCheckpointState(0, pool);
  cca::raw_delete(gone);
  void* later = inside(5 * kMiB);
  cca::CheckpointDelta delta = cca::setCheckpointPoolState(0, state);
  std::string answer = std::to_string(delta.ptrs_freed.size()) + " " + std::to_string(delta.dataptrs_allocd.size());
  bool found_kept = false, found_gone = false, found_later = false;
  for (const auto& data : delta.dataptrs_allocd) {
    found_kept |= data.get() == kept;
    found_gone |= data.get() == gone;
  }
  for (void* freed : delta.ptrs_freed) found_later |= freed == later;
  return answer + " " + yes_no(found_kept) + " " + yes_no(found_gone) + " " + yes_no(found_later);
}

std::string share_handle() {
  c10::DataPtr data = cca::get()->allocate(3 * kMiB);
  cca::ShareableHandle one = cca::shareIpcHandle(data.get());
  cca::ShareableHandle two = cca::shareIpcHandle(data.get());
  return yes_no(!one.handle.empty() && one.handle == two.handle) + " " + yes_no(one.offset == two.offset);
}

std::string compile_context() {
  cca::recordHistory(true, nullptr, 100, cca::RecordContext::NEVER, true, {});
  std::string text = "a compiled frame";
  cca::pushCompileContext(text);
  cca::raw_delete(cca::raw_alloc(1000));
  cca::popCompileContext();
  cca::raw_delete(cca::raw_alloc(1000));
  std::string answer = yes_no(cca::isHistoryEnabled());
  const cca::SnapshotInfo snapshot = cca::snapshot();
  for (const auto& entry : snapshot.device_traces.at(0))
    if (entry.action_ == cca::TraceEntry::ALLOC) answer += " '" + entry.compile_context_ + "'";
  cca::recordHistory(false, nullptr, 0, cca::RecordContext::NEVER, true, {});
  return answer + " " + yes_no(cca::isHistoryEnabled());
}

std::string annotation() {
  cca::recordHistory(true, nullptr, 100, cca::RecordContext::NEVER, true, {});
  cca::recordAnnotation({{"name", "phase"}, {"stage", "START"}});
  return std::to_string(cca::snapshot().external_annotations.size());
}

std::string trace_tracker() {
  static std::string seen;
  cca::attachAllocatorTraceTracker([](const cca::TraceEntry& entry) {
    if (entry.action_ == cca::TraceEntry::SEGMENT_ALLOC || entry.action_ == cca::TraceEntry::SEGMENT_MAP) seen += "+";
    if (entry.action_ == cca::TraceEntry::SEGMENT_FREE || entry.action_ == cca::TraceEntry::SEGMENT_UNMAP) seen += "-";
  });
  cca::raw_delete(cca::raw_alloc(64 * kMiB));
  cca::emptyCache();
  return yes_no(seen.find('+') != std::string::npos) + " " + yes_no(seen.find('-') != std::string::npos);
}

std::string out_of_memory_observer() {
  static size_t asked = 0;
  cca::attachOutOfMemoryObserver([](int64_t, size_t bytes, size_t, size_t) { asked = bytes; });
  try {
    cca::raw_delete(cca::raw_alloc(size_t{1} << 40));
  } catch (const c10::OutOfMemoryError&) {
    return std::to_string(asked);
  }
  return "no error";
}

std::string rejection_observer() {
  static size_t asked = 0;
  cca::attachOomRejectionObserver([](int64_t, size_t bytes, size_t, size_t) { asked = bytes; });
  cca::setMemoryFraction(0.25, 0);
  const auto [free, total] = cca::get()->getMemoryInfo(0);
  try {
    cca::raw_delete(cca::raw_alloc(total / 2));
  } catch (const c10::OutOfMemoryError&) {
    return yes_no(asked == total / 2 || asked == 0);  // native tells of it with throw_on_cudamalloc_oom alone
  }
  return "no error";
}

std::string at_address() {
  c10::DataPtr data = cca::get()->allocate(3 * kMiB);
  void* address = data.get();
  data.clear();
  return yes_no(cca::allocateWithAddress(3 * kMiB, address).get() == address);
}

const std::map<std::string, std::function<std::string()>> kCalls = {
    {"raw_blocks", raw_blocks},
    {"data_pointers", data_pointers},
    {"clone", clone},
    {"base_allocation", base_allocation},
    {"cache_info", cache_info},
    {"record_stream", record_stream},
    {"pool_life", pool_life},
    {"no_split", no_split},
    {"checkpoint", checkpoint},
    {"share_handle", share_handle},
    {"compile_context", compile_context},
    {"annotation", annotation},
    {"trace_tracker", trace_tracker},
    {"out_of_memory_observer", out_of_memory_observer},
    {"rejection_observer", rejection_observer},
    {"at_address", at_address},
    {"initialized", [] { return yes_no(cca::get()->initialized()); }},
    {"name", [] { return cca::name(); }},
    {"expandable_sizes", [] { return std::to_string(cca::getExpandableSegmentSizes(0).size()); }},
};

std::string answer;
int foreign_blocks = 0;

}  // namespace

extern "C" {

// The answer, or null and the error's text.
const char* call(const char* name, const char** error) {
  try {
    answer = kCalls.at(name)();
    *error = nullptr;
    return answer.c_str();
  } catch (const c10::Error& raised) {
    answer = raised.what_without_backtrace();
  } catch (const std::exception& raised) {
    answer = raised.what();
  }
  *error = answer.c_str();
  return nullptr;
}

// Somebody else's allocator, for a MemPool of it.
void* foreign_malloc(ptrdiff_t bytes, int, cudaStream_t) {
  void* pointer = nullptr;
  if (cudaMalloc(&pointer, static_cast<size_t>(bytes)) != cudaSuccess) return nullptr;
  ++foreign_blocks;
  return pointer;
}
void foreign_free(void* pointer, ptrdiff_t, int, cudaStream_t) {
  cudaFree(pointer);
  --foreign_blocks;
}
int foreign_count() { return foreign_blocks; }
}
