#include "api/registry.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>

#include "base/log.h"
#include "driver/driver.h"
#include "facts/event_log.h"
#include "facts/tag_accounts.h"

namespace pyalloc {
namespace {

// torch's own switch: every block straight from the driver.
bool caching() { return std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") == nullptr; }

// Lets every other device use the heap's memory that can reach it. One that is refused is said, and copies to and from it
// fail as without.
void let_peers_in(DeviceHeap& heap) {
  cuda::Device own = 0, other = 0;
  if (driver().device_get(&own, heap.device()) != cuda::kSuccess) return;
  for (int peer = 0; driver().device_get(&other, peer) == cuda::kSuccess; ++peer) {
    int can = 0;
    if (peer == heap.device() || driver().can_access_peer(&can, other, own) != cuda::kSuccess || can == 0) continue;
    if (heap.enable_peer(peer) != kOk) log_line("device %d is left without peer access: %s", peer, last_error());
  }
}

}  // namespace

Registry::Registry() {
  std::fill(std::begin(fractions_), std::end(fractions_), -1.0);
  for (auto& of_device : pool_limits_) std::fill(std::begin(of_device), std::end(of_device), kNotSet);
  // The locks of what a child may still use are held across a fork, so that it does not find one taken by a thread it
  // does not have.
  pthread_atfork([] { instance().lock_for_fork(true); }, [] { instance().lock_for_fork(false); },
                 &Registry::after_fork_in_child);
  std::atexit(&Registry::at_exit);
}

void Registry::lock_for_fork(bool lock) {
  RankedMutex* const mutexes[] = {&mutex_,        &page_.mutex(), &ladder_->mutex(), &observers_.mutex(),
                                  &names_mutex(), &tags_mutex(),  &events_mutex()};
  for (RankedMutex* one : mutexes) lock ? one->lock() : one->unlock();
}

void Registry::after_fork_in_child() {
  Registry& one = instance();
  one.page_.abandon();
  one.ladder_->forget_other_threads();
  one.observers_.forget_other_threads();
  one.lock_for_fork(false);
  if (one.open_heaps().empty()) return;  // CUDA was not touched here: the child may begin afresh
  one.state_.store(State::kForked);
  one.exporter_->abandon();
  for (std::atomic<DeviceHeap*>& heap : one.heaps_)
    heap.store(nullptr);  // left as it is: its locks may be held by threads that are gone
}

void Registry::at_exit() {
  Registry& one = instance();
  State alive = State::kAlive;
  if (!one.state_.compare_exchange_strong(alive, State::kExiting)) return;
  leave_driver();  // what other threads have begun ends at its next call
  one.maintenance_->stop();
  one.exporter_->stop();
  one.page_.end();
}

Status Registry::usable() const {
  switch (state_.load(std::memory_order_relaxed)) {
    case State::kAlive:
      return kOk;
    case State::kForked:
      return fail(PYALLOC_WRONG_STATE,
                  "this process was forked after pyalloc used CUDA, which does not survive a fork; start it with the "
                  "spawn method instead");
    default:
      return fail(PYALLOC_WRONG_STATE, "the process is exiting");
  }
}

void Registry::configure_from_environment() {
  configured_ = true;
  const char* text = std::getenv("PYALLOC_CONF");
  if (text != nullptr && config_.set(text, "environment") != kOk)
    log_line("PYALLOC_CONF is ignored:\n%s", last_error());
}

Status Registry::configure(const char* text, const char* origin) {
  Status status = usable();
  if (status != kOk) return status;
  Lock lock(mutex_);
  if (text == nullptr) {
    text = std::getenv("PYALLOC_CONF");
    origin = "environment";
  }
  Config wanted;
  status = wanted.set(text != nullptr ? text : "", origin != nullptr ? origin : "argument");
  if (status != kOk) return status;
  if (!open_heaps().empty()) {
    std::string differences = config_.differences(wanted);
    if (differences.empty()) return kOk;
    return fail(PYALLOC_WRONG_STATE, "pyalloc is in use with %s: options are fixed from the first allocation on",
                differences.c_str());
  }
  config_ = wanted;
  configured_ = true;
  return kOk;
}

std::string Registry::config_json() {
  Lock lock(mutex_);
  if (!configured_) configure_from_environment();
  return config_.json();
}

Status Registry::init(int count) {
  Status status = usable();
  if (status != kOk) return status;
  if (count < 0 || count > kMostDevices)
    return fail(PYALLOC_INVALID_ARGUMENT, "%d devices; expected 0 to %d", count, kMostDevices);
  status = resolve_driver();
  if (status != kOk) return status;
  for (int device = 0; caching() && device < count; ++device) {
    status = DeviceHeap::check_device(device);
    if (status != kOk) return status;
  }
  Lock lock(mutex_);
  if (!configured_) configure_from_environment();
  device_count_.store(count, std::memory_order_release);
  return kOk;
}

Status Registry::check_device(int device) const {
  int count = device_count();
  int end = count > 0 ? count : kMostDevices;  // plain registration may come without init
  return device >= 0 && device < end ? kOk
                                     : fail(PYALLOC_INVALID_ARGUMENT, "device %d; expected 0 to %d", device, end - 1);
}

DeviceHeap* Registry::open_or_refuse(int device, Status& status) {
  Registry& one = instance();
  status = one.usable();
  if (status == kOk) status = one.check_device(device);
  if (status == kOk) status = one.open(device);
  return status == kOk ? open_heap(device) : nullptr;
}

Status Registry::insist(DeviceHeap& heap, PoolId pool, bool chosen, cuda::Stream stream, bool owned, size_t bytes,
                        void** pointer) {
  return instance().ladder_->insist(heap, pool, chosen, stream, owned, bytes, pointer);
}

Status Registry::open(int device) {
  Status status = resolve_driver();
  if (status != kOk) return status;
  bool first = false, page = false;
  {
    Lock lock(mutex_);
    if (heaps_[device].load() != nullptr) return kOk;
    if (!configured_) configure_from_environment();
    const Options& options = config_.options();
    HeapOptions heap_options;
    heap_options.slack = options.slack;
    heap_options.limit = limits_[device] != 0 ? limits_[device] : options.limit;
    heap_options.memory_fraction = fractions_[device] >= 0 ? fractions_[device] : options.memory_fraction;
    heap_options.cross_stream_wait = options.cross_stream_wait;
    heap_options.guard = options.guard;
    heap_options.lora_reserve = options.lora_reserve;
    heap_options.predict_lifetimes = options.predict_lifetimes;
    heap_options.kv_large_threshold = options.kv_large_threshold;
    heap_options.lora_overflow = options.lora_overflow == "general";
    heap_options.caching = caching();
    heap_options.check = options.check == "off" ? Check::kOff : options.check == "full" ? Check::kFull : Check::kCheap;
    for (PoolId pool = 0; pool < kMostPools; ++pool)
      heap_options.pool_limits.push_back(pool_limit_locked(device, pool));
    std::unique_ptr<DeviceHeap> opened;
    status = DeviceHeap::open(device, heap_options, observers_, opened);
    if (status == PYALLOC_DRIVER_ERROR) {
      std::string why = last_error();
      return fail(status, "device %d cannot be used: %s", device, why.c_str());
    }
    if (status != kOk) return status;
    if (shares_with_peers_.load(std::memory_order_relaxed)) let_peers_in(*opened);
    heaps_[device].store(opened.release(), std::memory_order_release);
    first = options.maintenance;
    page = options.stats_page;
  }
  auto publish = [this, page] {
    if (page) page_.publish_when_due(open_heaps(), page_devices(), *ladder_);
  };
  if (first) maintenance_->start([this] { return open_heaps(); }, publish, decay_ms());
  return kOk;
}

Status Registry::publish_page() {
  Status status = usable();
  if (status != kOk) return status;
  {
    Lock lock(mutex_);
    if (!config_.options().stats_page) return fail(PYALLOC_WRONG_STATE, "there is no stats page: stats_page is off");
  }
  return page_.publish(open_heaps(), page_devices(), *ladder_);
}

void Registry::start_sharing() {
  Lock lock(mutex_);
  if (shares_with_peers_.load(std::memory_order_relaxed)) return;
  for (DeviceHeap* heap : open_heaps()) let_peers_in(*heap);
  shares_with_peers_.store(true, std::memory_order_relaxed);
}

std::vector<DeviceHeap*> Registry::open_heaps() const {
  std::vector<DeviceHeap*> open;
  for (const std::atomic<DeviceHeap*>& heap : heaps_)
    if (DeviceHeap* one = heap.load(std::memory_order_acquire)) open.push_back(one);
  return open;
}

Status Registry::set_fraction(int device, double fraction) {
  Status status = usable();
  if (status == kOk) status = check_device(device);
  if (status != kOk) return status;
  if (!(fraction >= 0.0 && fraction <= 1.0))
    return fail(PYALLOC_INVALID_ARGUMENT, "memory fraction %g; expected 0 to 1", fraction);
  Lock lock(mutex_);
  fractions_[device] = fraction;
  DeviceHeap* open = open_heap(device);
  return open != nullptr ? open->set_fraction(fraction) : kOk;
}

Status Registry::get_fraction(int device, double& fraction) {
  Status status = usable();
  if (status == kOk) status = check_device(device);
  if (status != kOk) return status;
  Lock lock(mutex_);
  if (!configured_) configure_from_environment();
  DeviceHeap* open = open_heap(device);
  fraction = open != nullptr           ? open->fraction()
             : fractions_[device] >= 0 ? fractions_[device]
                                       : config_.options().memory_fraction;
  return kOk;
}

Status Registry::set_limit(int device, uint64_t bytes) {
  Status status = usable();
  if (status == kOk) status = check_device(device);
  if (status != kOk) return status;
  Lock lock(mutex_);
  limits_[device] = bytes;
  if (DeviceHeap* open = open_heap(device)) open->set_limit(bytes);
  return kOk;
}

uint64_t Registry::pool_limit_locked(int device, PoolId pool) const {
  const Options& options = config_.options();
  const uint64_t configured[] = {options.general_limit, options.weights_limit, options.kv_limit,
                                 options.workspace_limit, options.lora_limit};
  if (pool_limits_[device][pool] != kNotSet) return pool_limits_[device][pool];
  return pool < std::size(configured) ? configured[pool] : 0;
}

uint64_t Registry::pool_limit(int device, PoolId pool) {
  Lock lock(mutex_);
  if (!configured_) configure_from_environment();
  return pool_limit_locked(device, pool);
}

Status Registry::set_pool_limit(int device, PoolId pool, uint64_t bytes) {
  Lock lock(mutex_);
  DeviceHeap* open = open_heap(device);
  Status status = open != nullptr ? open->set_pool_limit(pool, bytes) : kOk;
  if (status == kOk) pool_limits_[device][pool] = bytes;
  return status;
}

Status Registry::shutdown() {
  Status status = usable();
  if (status != kOk) return status;
  maintenance_->stop();
  exporter_->stop();
  for (DeviceHeap* heap : open_heaps()) heap->tell_closing();
  observers_.clear();
  page_.close();
  clear_events();
  Lock lock(mutex_);
  maintenance_ = std::make_unique<Maintenance>();
  exporter_ = std::make_unique<Exporter>();
  importer_ = std::make_unique<Importer>();  // the heaps undo what it opened
  ladder_ = std::make_unique<Ladder>();
  for (std::atomic<DeviceHeap*>& heap : heaps_) delete heap.exchange(nullptr);
  clear_tags();
  std::fill(std::begin(fractions_), std::end(fractions_), -1.0);
  std::fill(std::begin(limits_), std::end(limits_), uint64_t{0});
  for (auto& of_device : pool_limits_) std::fill(std::begin(of_device), std::end(of_device), kNotSet);
  configured_ = false;
  config_ = Config{};
  device_count_.store(0);
  return kOk;
}

}  // namespace pyalloc
