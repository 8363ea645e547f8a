// What happened to one device's memory, as torch's trace entries, and who is told of it at once.
//
// The core knows nothing of it: the bridge tells each allocation after the core made it and each free before the core
// does it, so that for one address the entries stand in their true order whichever threads made them. Three sets are
// kept beside the entries, so that every entry fits those before it:
//   mapped_   what was told to be mapped. The core tells of it before it hands out a block there, or unmaps it; a block
//             in memory that was not told of is preceded by its mapping all the same.
//   pending_  blocks whose free was requested and not completed: those of record_stream, and those another thread is
//             just freeing. An address cannot be allocated before the free there is complete, so it is completed then.
//   live_     the live blocks that were told of, or were there before, with their stacks. A block that its thread has not
//             told of yet, or never will since it did not see in time that somebody listens, is told by the snapshot
//             that shows it or just before its free, without a stack.
//   asleep_   live blocks whose memory is gone while their pool sleeps: told as freed when it goes, as allocated when it
//             is back, and not at all should they be freed meanwhile.
// A snapshot is taken with the lock held, and what it shows of segments and pending blocks is told first, so that a
// viewer can go back from it entry by entry.
//
// Mapped memory is told as segment_map and segment_unmap, never as segment_alloc: a viewer takes those for separate
// segments, where ours grow, shrink and join. Trackers (NCCL's registration) want pieces that come and go whole: they get
// segment_alloc for each piece that is mapped, and segment_free before any part of it goes, then segment_alloc for what
// is left of it.
//
// One lock a device. The core is asked with it held (its locks come after); trackers are called with it held, as torch
// promises them an order. Contexts are gathered before it is taken.
#pragma once
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "annotations.h"
#include "mapped_ranges.h"
#include "ring.h"

namespace pyalloc_bridge {

using c10::CachingDeviceAllocator::AllocatorTraceTracker;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;
using Context = std::shared_ptr<c10::GatheredContext>;

// A live or pending block as the core describes it.
struct BlockFacts {
  pyalloc_block_view view;
  pyalloc_owner owner;
  uint64_t begin() const { return reinterpret_cast<uint64_t>(view.address); }
  uint64_t end() const { return begin() + view.bytes; }
};
inline bool block_at(const void* address, BlockFacts& block) {
  return core->block_at(address, &block.view, &block.owner) == PYALLOC_OK;
}

// Torch's action of text attached to a block; older releases have none.
template <class Entry>
constexpr std::optional<TraceEntry::Action> annotate_action() {
  if constexpr (requires { Entry::ANNOTATE; }) return Entry::ANNOTATE;
  return std::nullopt;
}

// The settings of _record_memory_history and the trackers, for all devices. Changed with every device's lock held, so
// that reading needs one of them; `when` and `gather` may also be read with none.
struct HistorySettings {
  std::atomic<RecordContext> when{RecordContext::NEVER};
  std::atomic<c10::CachingDeviceAllocator::CreateContextFn> gather{nullptr};
  bool recording = false;
  uint32_t skipped = 0;  // by TraceEntry::Action, as bits
  std::vector<AllocatorTraceTracker> trackers;

  Context context(RecordContext level) const {
    const auto function = gather.load(std::memory_order_relaxed);
    return function != nullptr && when.load(std::memory_order_relaxed) >= level ? function() : nullptr;
  }
};

class DeviceHistory {
 public:
  DeviceHistory(const HistorySettings& settings, c10::DeviceIndex device) : settings_(settings), device_(device) {}

  std::mutex& mutex() { return mutex_; }

  // --- what happens; called without the lock ---
  void allocated(const BlockFacts& block, Context context) {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool awake = tell_mapping_of(block, context);
    complete_frees(block.begin(), block.end());
    if (!awake) {
      asleep_[block.begin()] = {std::move(context)};
      return;
    }
    Live& live = live_[block.begin()];
    live.context = context;
    if (!std::exchange(live.told_by_snapshot, false)) tell(TraceEntry::ALLOC, block, std::move(context));
    look_at_one_pending();
  }

  // The block is about to be freed. Returns a number for free_done(), 0 where there is nothing to tell.
  uint64_t free_requested(const BlockFacts& block, Context context) {
    std::lock_guard<std::mutex> lock(mutex_);
    complete_frees(block.begin(), block.begin() + 1);  // freed twice: the core refuses one of them
    if (asleep_.erase(block.begin()) > 0) return 0;
    if (auto found = live_.find(block.begin()); found != live_.end()) {
      if (!context) context = std::move(found->second.context);
      live_.erase(found);
    } else {
      if (!tell_mapping_of(block, nullptr)) return 0;
      tell(TraceEntry::ALLOC, block, nullptr);
    }
    tell(TraceEntry::FREE_REQUESTED, block, context);
    const uint64_t ticket = ++tickets_;
    pending_.emplace(block.begin(), PendingFree{block, std::move(context), ticket});
    return ticket;
  }

  // The block was freed, and nobody else could have its address since.
  void freed(const BlockFacts& block, Context context) {
    free_requested(block, std::move(context));
    std::lock_guard<std::mutex> lock(mutex_);
    complete_frees(block.begin(), block.begin() + 1);
  }

  // The core has freed it. One that waits for another stream stays pending.
  void free_done(const void* address, uint64_t ticket) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = pending_.find(reinterpret_cast<uint64_t>(address));
    if (found != pending_.end() && found->second.ticket == ticket && !waits(found->second)) complete(found);
    look_at_one_pending();
  }

  void mapped(uint64_t begin, uint64_t end, const Context& context) {
    std::lock_guard<std::mutex> lock(mutex_);
    add_mapped(begin, end, context);
  }
  void unmapped(uint64_t begin, uint64_t end, const Context& context) {
    std::lock_guard<std::mutex> lock(mutex_);
    complete_frees(begin, end);
    remove_mapped(begin, end, context);
  }

  void out_of_memory(size_t bytes, size_t device_free, void* stream, Context context) {
    constexpr size_t kViewersLargest = (size_t{1} << 53) - 1;  // their numbers are doubles
    std::lock_guard<std::mutex> lock(mutex_);
    tell(TraceEntry::OOM, device_free, std::min(bytes, kViewersLargest), stream, {}, user_metadata, std::move(context));
  }

  void annotated(TraceEntry::Action action, const BlockFacts& block, const std::string& text, Context context) {
    std::lock_guard<std::mutex> lock(mutex_);
    tell(action, block.begin(), block.view.requested, block.view.stream, block.owner.key, text, std::move(context));
  }

  Context context_of(const void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    return context_at(reinterpret_cast<uint64_t>(address));
  }

  // --- called with the lock held ---
  void keep(size_t most, bool none) {
    if (none) entries_.clear();
    entries_.keep(most);
  }
  // What was mapped and allocated before anybody listened: known, and not told.
  void begin(const std::vector<SegmentInfo>& segments) {
    forget();
    for (const SegmentInfo& segment : segments) {
      if (segment.device != device_) continue;
      mapped_.add(segment.address, segment.address + segment.total_size, [](uint64_t, uint64_t) {});
      each_block(segment, [&](uint64_t address, const BlockInfo& block) {
        if (block.allocated) live_[address];
      });
    }
  }
  void forget() {
    mapped_.clear();
    pending_.clear();
    live_.clear();
    asleep_.clear();
  }
  // Tells what the segments of a snapshot show and was not told, marks blocks that are just being freed, and gives each
  // live block its stack.
  void reconcile(std::vector<SegmentInfo>& segments);
  void tell_snapshot(size_t active) { tell(TraceEntry::SNAPSHOT, 0, active, nullptr, {}, user_metadata, nullptr); }
  std::vector<TraceEntry> entries() const { return entries_.in_order(); }
  Context context_at(uint64_t address) const {
    if (auto found = live_.find(address); found != live_.end()) return found->second.context;
    auto found = asleep_.find(address);
    return found != asleep_.end() ? found->second.context : nullptr;
  }

 private:
  struct PendingFree {
    BlockFacts block;
    Context context;
    uint64_t ticket;
  };
  using Pending = std::map<uint64_t, PendingFree>;
  struct Live {
    Context context;
    bool told_by_snapshot = false;
  };

  template <class Segment, class Visit>
  static void each_block(Segment& segment, Visit&& visit) {
    uint64_t address = segment.address;
    for (auto& block : segment.blocks) {
      visit(address, block);
      address += block.size;
    }
  }

  void tell(TraceEntry::Action action, uint64_t address, size_t bytes, void* stream, pyalloc_pool_key pool,
            std::string metadata, Context context) {
    if (settings_.when.load(std::memory_order_relaxed) < RecordContext::ALLOC) context = nullptr;
    TraceEntry entry(action, device_, address, bytes, stream, {pool.first, pool.second}, c10::getApproximateTime(),
                     std::move(context), compile_context(), std::move(metadata));
    // Mapped memory comes to trackers in whole pieces.
    if (action != TraceEntry::SEGMENT_MAP && action != TraceEntry::SEGMENT_UNMAP) track(entry);
    if (settings_.recording && (settings_.skipped >> action & 1) == 0) entries_.push(std::move(entry));
  }
  void tell(TraceEntry::Action action, const BlockFacts& block, Context context) {
    tell(action, block.begin(), block.view.requested, block.view.stream, block.owner.key, metadata_of(block.owner),
         std::move(context));
  }
  static pyalloc_owner owner_of(uint64_t address) {
    pyalloc_owner owner{};
    return core->owner_of(reinterpret_cast<void*>(address), &owner) == PYALLOC_OK ? owner : pyalloc_owner{};
  }
  void tell_segment(TraceEntry::Action action, uint64_t begin, uint64_t end, const Context& context) {
    const pyalloc_owner owner = owner_of(begin);
    tell(action, begin, end - begin, owner.stream, owner.key, metadata_of(owner), context);
  }
  void track_piece(TraceEntry::Action action, uint64_t begin, uint64_t end) const {
    if (settings_.trackers.empty() || begin == end) return;
    const pyalloc_owner owner = owner_of(begin);
    track(TraceEntry(action, device_, begin, end - begin, owner.stream, {owner.key.first, owner.key.second},
                     c10::getApproximateTime()));
  }
  // An exception of a tracker would lose the block that was just made; it is told once.
  void track(const TraceEntry& entry) const {
    for (const AllocatorTraceTracker& tracker : settings_.trackers) {
      try {
        tracker(entry);
      } catch (const std::exception& error) {
        static std::atomic<bool> told{false};
        if (!told.exchange(true)) log_line("a trace tracker of torch's allocator failed (told once)", error.what());
      }
    }
  }

  void add_mapped(uint64_t begin, uint64_t end, const Context& context) {
    mapped_.add(begin, end, [&](uint64_t low, uint64_t high) {
      tell_segment(TraceEntry::SEGMENT_MAP, low, high, context);
      track_piece(TraceEntry::SEGMENT_ALLOC, low, high);
    });
    wake(begin, end);
  }
  void remove_mapped(uint64_t begin, uint64_t end, const Context& context) {
    put_to_sleep(begin, end);
    mapped_.remove(begin, end, [&](uint64_t low, uint64_t high, uint64_t piece, uint64_t piece_end) {
      tell_segment(TraceEntry::SEGMENT_UNMAP, low, high, context);
      track_piece(TraceEntry::SEGMENT_FREE, piece, piece_end);
      track_piece(TraceEntry::SEGMENT_ALLOC, piece, low);
      track_piece(TraceEntry::SEGMENT_ALLOC, high, piece_end);
    });
  }
  // False: there is no memory, since the block's pool sleeps.
  bool tell_mapping_of(const BlockFacts& block, const Context& context) {
    if (mapped_.contains(block.begin(), block.end())) return true;
    pyalloc_block_info info{};
    info.size = sizeof info;
    if (core->find_block(block.view.address, &info) != PYALLOC_OK) return true;  // freed already
    const auto segment = reinterpret_cast<uint64_t>(info.segment);
    add_mapped(segment, segment + info.segment_bytes, context);
    return info.segment_bytes > 0;
  }
  static bool is_live(uint64_t address, BlockFacts& block) {
    return block_at(reinterpret_cast<void*>(address), block) && block.view.state == PYALLOC_BLOCK_LIVE;
  }
  // Only the memory of a pool that falls asleep goes while blocks lie in it, and then all of it.
  void put_to_sleep(uint64_t begin, uint64_t end) {
    for (auto at = live_.lower_bound(begin); at != live_.end() && at->first < end;) {
      auto one = live_.extract(at++);
      BlockFacts block{};
      if (!is_live(one.key(), block)) continue;
      tell(TraceEntry::FREE_REQUESTED, block, one.mapped().context);
      tell(TraceEntry::FREE_COMPLETED, block, one.mapped().context);
      asleep_.insert(std::move(one));
    }
  }
  // Those that lie in memory that is mapped again, which may come in pieces.
  void wake(uint64_t begin, uint64_t end) {
    if (asleep_.empty()) return;
    auto at = asleep_.lower_bound(begin);
    if (at != asleep_.begin()) --at;
    while (at != asleep_.end() && at->first < end) {
      BlockFacts block{};
      const bool live = is_live(at->first, block);
      if (live && !mapped_.contains(block.begin(), block.end())) {
        ++at;
        continue;
      }
      auto one = asleep_.extract(at++);
      if (!live) continue;
      tell(TraceEntry::ALLOC, block, one.mapped().context);
      live_.insert(std::move(one));
    }
  }

  static bool waits(const PendingFree& one) {
    BlockFacts now{};
    return block_at(one.block.view.address, now) && now.view.state == PYALLOC_BLOCK_PENDING;
  }
  Pending::iterator complete(Pending::iterator one) {
    tell(TraceEntry::FREE_COMPLETED, one->second.block, std::move(one->second.context));
    return pending_.erase(one);
  }
  void complete_frees(uint64_t begin, uint64_t end) {
    if (pending_.empty()) return;
    auto at = pending_.lower_bound(begin);
    if (at != pending_.begin() && std::prev(at)->second.block.end() > begin) --at;
    while (at != pending_.end() && at->first < end) at = complete(at);
  }
  // The core does not say when an event completes a free: at every step one of them is looked at, in turns. One that is
  // live again is completed by the entry of whoever allocated it, or is just being freed.
  void look_at_one_pending() {
    if (pending_.empty()) return;
    auto at = pending_.upper_bound(looked_at_);
    if (at == pending_.end()) at = pending_.begin();
    looked_at_ = at->first;
    BlockFacts now{};
    if (!block_at(at->second.block.view.address, now)) complete(at);
  }

  const HistorySettings& settings_;
  const c10::DeviceIndex device_;
  std::mutex mutex_;
  Ring<TraceEntry> entries_;
  MappedRanges mapped_;
  Pending pending_;
  std::map<uint64_t, Live> live_, asleep_;
  uint64_t tickets_ = 0, looked_at_ = 0;
};

inline void DeviceHistory::reconcile(std::vector<SegmentInfo>& segments) {
  MappedRanges gone = mapped_;
  std::unordered_map<uint64_t, bool> freed;  // by address: whether the snapshot still shows the block
  for (const auto& [address, one] : pending_) freed[address] = false;
  for (SegmentInfo& segment : segments) {
    if (segment.device != device_) continue;
    gone.remove(segment.address, segment.address + segment.total_size, [](uint64_t, uint64_t, uint64_t, uint64_t) {});
    each_block(segment, [&](uint64_t address, BlockInfo& block) {
      auto found = block.active ? freed.find(address) : freed.end();
      if (found == freed.end()) return;
      found->second = true;
      if (!block.allocated) return;  // else another thread is between asking for the free and doing it
      block.allocated = false;
      segment.allocated_size -= block.size;
      segment.requested_size -= block.requested_size;
    });
  }
  for (const auto& [address, shown] : freed)
    if (!shown) complete(pending_.find(address));
  for (const auto& [begin, end] : gone.ranges()) remove_mapped(begin, end, nullptr);
  for (const SegmentInfo& segment : segments)
    if (segment.device == device_) add_mapped(segment.address, segment.address + segment.total_size, nullptr);
  for (SegmentInfo& segment : segments) {
    if (segment.device != device_) continue;
    each_block(segment, [&](uint64_t address, BlockInfo& block) {
      if (!block.allocated) return;
      BlockFacts facts{};
      if (auto live = live_.find(address); live != live_.end()) {
        block.context_when_allocated = live->second.context;
      } else if (block_at(reinterpret_cast<void*>(address), facts)) {
        tell(TraceEntry::ALLOC, facts, nullptr);
        live_[address].told_by_snapshot = true;
      }
    });
  }
}

}  // namespace pyalloc_bridge
