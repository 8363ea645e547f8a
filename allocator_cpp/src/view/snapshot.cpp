#include "view/snapshot.h"

#include <algorithm>

#include "heap/pool_names.h"

namespace pyalloc {
namespace {

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// Blocks of one space, in address order; free ranges whole, mapped or not.
class BlockWalk {
 public:
  BlockWalk(const DeviceHeap& heap, const Space& space) : heap_(heap), space_(space) {}

  std::vector<pyalloc_block_view> blocks() {
    for (NodeId id = space_.extents().first(); id != kNoNode; id = space_.extents().range(id).next) {
      const Range& range = space_.extents().range(id);
      uint64_t at = space_.address(range), bytes = uint64_t{range.length} * kUnit;
      switch (range.state) {
        case RangeState::kSlab:
          add_slab(*space_.slab_at(at), at + bytes);
          break;
        case RangeState::kLive:
          add(at, bytes, range.requested, PYALLOC_BLOCK_LIVE, heap_.stream_of(range.owner), range.tag);
          break;
        case RangeState::kPending:
          add(at, bytes, range.requested, PYALLOC_BLOCK_PENDING, heap_.stream_of(range.owner));
          break;
        default:
          add(at, bytes, 0, PYALLOC_BLOCK_FREE, range.owner == kClean ? nullptr : heap_.stream_of(range.owner));
      }
    }
    return std::move(blocks_);
  }

 private:
  void add(uint64_t at, uint64_t bytes, uint64_t requested, pyalloc_block_state state, cuda::Stream stream,
           TagId tag = kNoTag) {
    if (state == PYALLOC_BLOCK_FREE && !blocks_.empty() && blocks_.back().state == PYALLOC_BLOCK_FREE) {
      blocks_.back().bytes += bytes;  // neighbours of different streams are one hole to a reader
      return;
    }
    blocks_.push_back({pointer(at), bytes, requested, state, stream, tag});
  }

  void add_slab(const Slab& slab, uint64_t end) {
    for (unsigned slot = 0; slot < slab.slots; ++slot) {
      bool free = Slab::test(slab.free_bits, slot);
      pyalloc_block_state state = free                                  ? PYALLOC_BLOCK_FREE
                                  : Slab::test(slab.pending_bits, slot) ? PYALLOC_BLOCK_PENDING
                                                                        : PYALLOC_BLOCK_LIVE;
      bool tagged = state == PYALLOC_BLOCK_LIVE && slab.tagged_slots != 0;
      add(slab.address(slot), slab.slot_bytes, free ? 0 : slab.requested(slot), state, space_.lane()->stream(),
          tagged ? space_.tag_of(slab, slot) : kNoTag);
    }
    uint64_t used = slab.address(slab.slots);
    if (used < end) add(used, end - used, 0, PYALLOC_BLOCK_FREE, space_.lane()->stream());
  }

  const DeviceHeap& heap_;
  const Space& space_;
  std::vector<pyalloc_block_view> blocks_;
};

// Cuts the walk at the mapped runs: a live block lies inside one run, a hole may span several and the gaps between
// them.
void add_segments(const DeviceHeap& heap, const Space& space, std::vector<SegmentCopy>& segments) {
  std::vector<pyalloc_block_view> blocks = BlockWalk(heap, space).blocks();
  const AddressSpace& memory = space.memory();
  auto block = blocks.begin();
  for (uint32_t first = 0; first < memory.highest_used();) {
    if (memory.slot(first).handle == 0) {
      ++first;
      continue;
    }
    uint32_t end = first;
    while (end < memory.highest_used() && memory.slot(end).handle != 0) ++end;
    uint64_t start_address = memory.address(first), end_address = memory.address(end);
    SegmentCopy segment{};
    segment.pool = space.pool().id;
    segment.view = {heap.device(),
                    space.kind() == kLarge ? 1 : 0,
                    pool_name(space.pool().id),
                    pointer(start_address),
                    end_address - start_address,
                    0,
                    0,
                    0,
                    space.lane() != nullptr ? space.lane()->stream() : nullptr,
                    {}};
    const auto [first_of_key, second_of_key] = heap.key_of(space.pool());
    segment.view.key = {first_of_key, second_of_key};
    while (block != blocks.end() && reinterpret_cast<uint64_t>(block->address) + block->bytes <= start_address) ++block;
    for (auto one = block; one != blocks.end() && reinterpret_cast<uint64_t>(one->address) < end_address; ++one) {
      pyalloc_block_view part = *one;
      uint64_t low = std::max(reinterpret_cast<uint64_t>(part.address), start_address);
      uint64_t high = std::min(reinterpret_cast<uint64_t>(one->address) + one->bytes, end_address);
      part.address = pointer(low);
      part.bytes = high - low;
      if (part.state == PYALLOC_BLOCK_LIVE) {
        segment.view.allocated += part.bytes;
        segment.view.requested += part.requested;
      }
      if (part.state != PYALLOC_BLOCK_FREE) segment.view.active += part.bytes;
      segment.blocks.push_back(part);
    }
    segments.push_back(std::move(segment));
    first = end;
  }
}

// Blocks straight from the driver (caching off): a segment each, of one block.
void add_direct(const DeviceHeap& heap, std::vector<SegmentCopy>& segments) {
  heap.each_direct([&](uint64_t address, size_t bytes, size_t requested, cuda::Stream stream) {
    segments.push_back({{heap.device(),
                         bytes > kMiB ? 1 : 0,
                         pool_name(kGeneralPool),
                         pointer(address),
                         bytes,
                         bytes,
                         bytes,
                         requested,
                         stream,
                         {}},
                        kGeneralPool,
                        {{pointer(address), bytes, requested, PYALLOC_BLOCK_LIVE, stream, kNoTag}}});
  });
}

}  // namespace

std::vector<SegmentCopy> copy_segments(DeviceHeap& heap) {
  std::vector<SegmentCopy> segments;
  heap.with_everything_locked([&](const Space& space) {
    if (space.memory().bytes() != 0) add_segments(heap, space, segments);
  });
  heap.while_all_locked([&] { add_direct(heap, segments); });
  // The driver chose where each space lies.
  std::sort(segments.begin(), segments.end(),
            [](const SegmentCopy& a, const SegmentCopy& b) { return a.view.address < b.view.address; });
  return segments;
}

}  // namespace pyalloc
