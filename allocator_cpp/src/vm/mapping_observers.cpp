#include "vm/mapping_observers.h"

#include <algorithm>
#include <string>

namespace pyalloc {
namespace {

thread_local std::vector<const void*> inside;  // the observers this thread is in

}  // namespace

void MappingObservers::add(pyalloc_mapping_fn fn, void* context, uint32_t kinds) {
  Lock lock(mutex_);
  observers_.push_back(std::make_shared<Observer>(Observer{fn, context, kinds}));
  note_wanted();
}

bool MappingObservers::remove(pyalloc_mapping_fn fn, void* context) {
  Lock lock(mutex_);
  auto found = std::find_if(observers_.begin(), observers_.end(),
                            [&](const auto& one) { return one->fn == fn && one->context == context; });
  if (found == observers_.end()) return false;
  std::shared_ptr<Observer> removed = *found;
  observers_.erase(found);
  note_wanted();
  while (removed->calls > own_calls(*removed)) returned_.wait(lock);
  return true;
}

void MappingObservers::clear() {
  Lock lock(mutex_);
  observers_.clear();
  note_wanted();
}

void MappingObservers::note_wanted() {
  uint32_t kinds = 0;
  for (const auto& one : observers_) kinds |= one->kinds;
  wanted_.store(kinds, std::memory_order_release);
}

void MappingObservers::tell(const pyalloc_mapping_event& event) {
  std::string error = last_error();  // of the call that is under way
  Lock lock(mutex_);
  std::vector<std::shared_ptr<Observer>> all = observers_;
  for (const auto& one : all) {
    if ((one->kinds & event.kind) == 0) continue;
    if (std::find(observers_.begin(), observers_.end(), one) == observers_.end()) continue;  // removed meanwhile
    ++one->calls;
    inside.push_back(one.get());
    lock.unlock();
    one->fn(one->context, &event);
    lock.lock();
    inside.pop_back();
    --one->calls;
    returned_.notify_all();
  }
  fail(kOk, "%s", error.c_str());
}

int MappingObservers::own_calls(const Observer& one) {
  return static_cast<int>(std::count(inside.begin(), inside.end(), &one));
}

void MappingObservers::forget_other_threads() {
  for (const auto& one : observers_) one->calls = own_calls(*one);
}

bool MappingObservers::telling() { return !inside.empty(); }

}  // namespace pyalloc
