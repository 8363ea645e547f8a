// What torch's users attach to the history from outside: text that a thread's entries carry, and named stages of the
// program (record_function under _record_memory_history(global_record_annotations=True)).
//
// The texts are a thread's own. The stages are rare and have one lock for all threads.
#pragma once
#include <mutex>
#include <string>
#include <vector>

#include "core.h"
#include "ring.h"

namespace pyalloc_bridge {

using c10::CachingDeviceAllocator::AnnotationEntry;

inline thread_local std::string user_metadata;                  // torch.cuda.memory._set_memory_metadata
inline thread_local std::vector<std::string> compile_contexts;  // of torch.compile, innermost last

// "N/A" outside torch.compile, as torch's own allocator says.
inline std::string compile_context() { return compile_contexts.empty() ? "N/A" : compile_contexts.back(); }

// What an entry about a pool's memory says: the thread's own text, else the name of a pool with a purpose, which is how
// viewers tell weights from KV cache. Such a pool's id for torch stays that of the default pool: viewers draw any other
// as a private pool, and CUDA graph trees select segments by it.
inline std::string metadata_of(const pyalloc_owner& owner) {
  const bool is_private = owner.key.first != 0 || owner.key.second != 0;
  if (!user_metadata.empty() || is_private || owner.pool == PYALLOC_POOL_GENERAL) return user_metadata;
  const char* name = core->pool_name(owner.pool);
  return name != nullptr ? name : "";
}

class Stages {
 public:
  void keep(size_t most, bool none) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (none) entries_.clear();
    entries_.keep(most);
  }
  void add(const std::vector<std::pair<std::string, std::string>>& facts) {
    AnnotationEntry entry(current_device(), c10::getApproximateTime());
    for (const auto& [name, value] : facts) entry.recordUserMetadata(name, value);
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.push(std::move(entry));
  }
  std::vector<AnnotationEntry> in_order() {
    std::lock_guard<std::mutex> lock(mutex_);
    return entries_.in_order();
  }

 private:
  std::mutex mutex_;
  Ring<AnnotationEntry> entries_;
};

}  // namespace pyalloc_bridge
