#include "reclaim/sleep_cycle.h"

#include <string>

namespace pyalloc {

Status SleepCycle::begin() {
  if (!busy_.exchange(true)) return kOk;
  return fail(PYALLOC_WRONG_STATE, "another thread is putting pools to sleep or waking them; wait for it");
}

Status SleepCycle::sleep(const Heaps& heaps, const std::vector<PoolId>& pools, const std::vector<PoolId>& offload,
                         CopyProgress progress, uint64_t& released) {
  Status status = begin();
  if (status != kOk) return status;
  released = 0;
  size_t lying = 0, asleep = 0;
  for (; lying < heaps.size() && status == kOk; ++lying) {
    progress.device = heaps[lying]->device();
    status = heaps[lying]->lie_down(pools, offload, progress);
  }
  for (; status == kOk && asleep < heaps.size(); ++asleep) status = heaps[asleep]->fall_asleep(released);
  if (status != kOk) {
    std::string why = last_error();
    for (DeviceHeap* heap : heaps) heap->back_up();
    for (size_t i = 0; i + 1 < asleep; ++i) {
      progress.device = heaps[i]->device();
      if (heaps[i]->get_up(pools, progress) != kOk) {
        why += "; device " + std::to_string(heaps[i]->device()) +
               " sleeps already, and its memory cannot be had again now: pyalloc.wake() tries again";
        continue;
      }
      heaps[i]->wake_up();
    }
    fail(status, "%s", why.c_str());
  }
  busy_.store(false);
  return status;
}

Status SleepCycle::wake(Ladder& ladder, const Heaps& heaps, const std::vector<PoolId>& pools, CopyProgress progress) {
  Status status = begin();
  if (status != kOk) return status;
  size_t up = 0;
  for (; up < heaps.size() && status == kOk; ++up) {
    progress.device = heaps[up]->device();
    status = ladder.get_up(*heaps[up], pools, progress);
  }
  if (status != kOk) {
    std::string why = last_error();
    for (size_t i = 0; i + 1 < up; ++i) heaps[i]->lie_back();
    fail(status, "%s", why.c_str());
  } else {
    for (DeviceHeap* heap : heaps) heap->wake_up();
  }
  busy_.store(false);
  return status;
}

}  // namespace pyalloc
