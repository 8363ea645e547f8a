// One address space of a pool with its books: which slots are mapped (AddressSpace), which ranges are live (Extents),
// and, by address, which block starts where. Each lane has one for its blocks up to 1 MiB; larger blocks of all streams
// share the coarse one. An arena, the lane of a stream's steps, has blocks of every size, and so has the packed space of
// a pool without lanes.
//
// Cells: a block is larger than a cell (16 KiB fine, 1 MiB coarse), so at most one block starts in a cell and one array
// look-up finds it. Slabs cover whole cells. Ranges and cells change under the lane's lock (fine) or the heap's
// (coarse); `slab_at` may be read without it by whoever owns a live block there, since a slab with a live block stays.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/lazy_array.h"
#include "facts/usage.h"
#include "heap/extents.h"
#include "heap/size_class.h"
#include "heap/slab.h"
#include "vm/address_space.h"

namespace pyalloc {

class DeviceHeap;
class Lane;
struct Pool;

// kWhole, kShared: of a contiguous pool, the blocks with a handle each, and those that share granules.
enum class Layout : uint8_t { kLane, kArena, kCoarse, kPacked, kLargePages, kWhole, kShared };

class Space {
 public:
  // `lane`: whose blocks live here; null for a space that all streams share.
  Space(DeviceHeap& heap, Pool& pool, Lane* lane, Layout layout, uint16_t id, size_t granule_bytes,
        MappedTotals (&of_kinds)[kKinds], MappedTotals& of_pool)
      : heap_(heap), pool_(pool), lane_(lane), layout_(layout), memory_(id, granule_bytes, of_kinds[kind()], of_pool) {}

  Status create(uint64_t bytes, uint64_t least);

  DeviceHeap& heap() const { return heap_; }
  Pool& pool() const { return pool_; }
  Lane* lane() const { return lane_; }
  bool coarse() const { return lane_ == nullptr; }
  // Where memory comes and goes in slabs: of several granules (kv), or of one (the smaller blocks of a contiguous pool).
  bool large_pages() const { return layout_ == Layout::kLargePages || layout_ == Layout::kShared; }
  bool whole_blocks() const { return layout_ == Layout::kWhole; }
  // Units of a slab; no block lies over the border of two. 0: no slabs.
  uint32_t slab_units() const {
    return large_pages() ? static_cast<uint32_t>(memory_.slab_slots * memory_.granule_bytes() / kUnit) : 0;
  }
  bool arena() const { return layout_ == Layout::kArena; }
  // Which of torch's two kinds its segments are.
  Kind kind() const { return layout_ == Layout::kLane ? kSmall : kLarge; }
  AddressSpace& memory() { return memory_; }
  const AddressSpace& memory() const { return memory_; }
  Extents& extents() { return *extents_; }
  const Extents& extents() const { return *extents_; }

  // Slots touched once more than blocks do, so that they stay mapped (reserve.cpp).
  uint64_t kept_slots = 0;

  static constexpr size_t kFineCell = kLargestSmall, kCoarseCell = 1 * kMiB;
  size_t cell_bytes() const { return coarse() ? kCoarseCell : kFineCell; }
  // Of an address inside; a shift, since no compiler sees that the division is by a power of two.
  uint64_t cell_of(uint64_t address) const {
    return offset(address) >> highest_bit(coarse() ? kCoarseCell : kFineCell);
  }

  uint64_t offset(uint64_t address) const { return address - memory_.base(); }
  bool contains(uint64_t address) const { return address >= memory_.base() && offset(address) < memory_.bytes(); }
  uint64_t address(const Range& range) const { return memory_.base() + uint64_t{range.start} * kUnit; }

  // The slab that covers `address`, or null.
  Slab* slab_at(uint64_t address) {
    uint32_t cell = __atomic_load_n(&cells_[cell_of(address)], __ATOMIC_ACQUIRE);
    return (cell & kSlabCell) != 0 ? &slabs_[cell & ~kSlabCell] : nullptr;
  }
  const Slab* slab_at(uint64_t address) const { return const_cast<Space*>(this)->slab_at(address); }
  // A slab over range `id`, with all slots free, and its end.
  Slab& add_slab(NodeId id, int size_class);
  void remove_slab(Slab& slab);
  // The tag of a slab's slot; null where the host has no address space for them. With the lane's lock held.
  TagId* slot_tag(const Slab& slab, unsigned slot);
  // The same to read, of a slab with tagged slots.
  TagId tag_of(const Slab& slab, unsigned slot) const { return *const_cast<Space*>(this)->slot_tag(slab, slot); }
  size_t starts_bytes() const { return starts_.size() * 64; }
  size_t slab_records() const { return slab_count_; }

  // The live or pending extent whose block starts in the cell of `address`.
  NodeId start_in_cell(uint64_t address) const {
    if (packed()) {
      auto found = starts_.find(address);
      return found != starts_.end() ? found->second : kNoNode;
    }
    uint32_t cell = cells_[cell_of(address)];
    return (cell & kSlabCell) == 0 ? cell : kNoNode;
  }
  void set_start(uint64_t address, NodeId id) {
    if (packed()) {
      if (id != kNoNode) {
        starts_[address] = id;
      } else {
        starts_.erase(address);
      }
      return;
    }
    __atomic_store_n(&cells_[cell_of(address)], id, __ATOMIC_RELEASE);
  }
  // The live extent that contains `address`, or none.
  NodeId covering(uint64_t address) const;

  bool validate(std::string& reason) const;

 private:
  DeviceHeap& heap_;
  Pool& pool_;
  Lane* const lane_;
  const Layout layout_;
  AddressSpace memory_;
  static constexpr uint32_t kSlabCell = uint32_t{1} << 31;

  bool packed() const { return layout_ == Layout::kPacked || layout_ == Layout::kShared; }
  void set_cells(const Range& range, uint32_t value);

  std::unique_ptr<Extents> extents_;
  LazyArray<uint32_t>
      cells_;  // the range that starts in the cell, or kSlabCell + the record of the slab that covers it
  std::map<uint64_t, NodeId> starts_;  // packed: by address
  LazyArray<Slab> slabs_;              // fine only; records are recycled
  LazyArray<TagId> slot_tags_;         // kSlabSlots for each record; made when the first slot is tagged
  uint32_t slab_count_ = 0;
  Slab* unused_slabs_ = nullptr;
};

}  // namespace pyalloc
