// A trace tracker as torch's NCCL backend attaches one (TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK), which keeps the books that a
// registration would need: pieces of memory, each registered once and withdrawn whole. Compiled by test_history_trackers.py against
// the installed torch, loaded with ctypes.
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <map>
#include <string>

namespace cca = c10::cuda::CUDACachingAllocator;
using Entry = cca::TraceEntry;

// The bridge declares this itself (torch_bridge/traceback.h).
static_assert(std::is_same_v<decltype(&torch::CapturedTraceback::gather),
                             std::shared_ptr<torch::CapturedTraceback> (*)(bool, bool, bool)>);
static_assert(std::is_base_of_v<c10::GatheredContext, torch::CapturedTraceback>);

static std::mutex mutex;
static std::map<size_t, size_t> pieces;  // registered: start to end
static std::map<size_t, size_t> blocks;  // live
static std::string trouble;
static size_t entries[16];

static bool registered(size_t begin, size_t end) {
  while (begin < end) {
    auto after = pieces.upper_bound(begin);
    if (after == pieces.begin() || std::prev(after)->second <= begin) return false;
    begin = std::prev(after)->second;
  }
  return true;
}

static void complain(const char* what, const Entry& entry) {
  if (trouble.empty())
    trouble = std::string(what) + " " + std::to_string(entry.addr_) + " " + std::to_string(entry.size_);
}

static void track(const Entry& entry) {
  std::lock_guard<std::mutex> lock(mutex);
  ++entries[entry.action_];
  const size_t begin = entry.addr_, end = begin + entry.size_;
  switch (entry.action_) {
    case Entry::SEGMENT_ALLOC: {
      auto after = pieces.lower_bound(begin);
      if (after != pieces.end() && after->first < end) complain("registered twice", entry);
      if (after != pieces.begin() && std::prev(after)->second > begin) complain("registered twice", entry);
      pieces[begin] = end;
      break;
    }
    case Entry::SEGMENT_FREE: {
      auto found = pieces.find(begin);
      if (found == pieces.end() || found->second != end) {
        complain("not registered as one piece", entry);
        break;
      }
      pieces.erase(found);
      break;
    }
    case Entry::SEGMENT_MAP:
    case Entry::SEGMENT_UNMAP:
      complain("not a whole piece", entry);
      break;
    case Entry::ALLOC:
      if (!registered(begin, end)) complain("a block in memory that is not registered", entry);
      if (!blocks.emplace(begin, end).second) complain("a block where one is", entry);
      break;
    case Entry::FREE_COMPLETED:
      if (blocks.erase(begin) != 1) complain("a free of no block", entry);
      break;
    default:
      break;
  }
}

extern "C" {

void attach() { cca::attachAllocatorTraceTracker(&track); }
void attach_failing() {
  cca::attachAllocatorTraceTracker([](const Entry&) { throw std::runtime_error("this tracker always fails"); });
}
// As NCCL does for a new communicator: what is mapped now.
void register_present() {
  const auto snapshot = cca::snapshot();
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& segment : snapshot.segments) {
    pieces[segment.address] = segment.address + segment.total_size;
    size_t at = segment.address;
    for (const auto& block : segment.blocks) {
      if (block.active) blocks[at] = at + block.requested_size;
      at += block.size;
    }
  }
}
size_t registered_bytes() {
  std::lock_guard<std::mutex> lock(mutex);
  size_t bytes = 0;
  for (const auto& [begin, end] : pieces) bytes += end - begin;
  return bytes;
}
size_t count(int action) {
  std::lock_guard<std::mutex> lock(mutex);
  return entries[action];
}
size_t live() {
  std::lock_guard<std::mutex> lock(mutex);
  return blocks.size();
}
const char* first_trouble() {
  std::lock_guard<std::mutex> lock(mutex);
  return trouble.c_str();
}
}
