#include "heap/space.h"

#include <algorithm>

namespace pyalloc {

Status Space::create(uint64_t bytes, uint64_t least) {
  // Ranges count their units in 32 bits.
  constexpr uint64_t kMostBytes = uint64_t{UINT32_MAX} * kUnit / AddressSpace::kRegion * AddressSpace::kRegion;
  Status status = memory_.reserve(std::min(bytes, kMostBytes), std::min(least, kMostBytes));
  if (status != kOk) return status;
  // In a lane with slabs what was freed last goes first: it is in the caches, and order would save no memory there.
  int looks = coarse() || arena() ? Extents::kSortedLooks : 0;
  extents_ = std::make_unique<Extents>(static_cast<uint32_t>(memory_.bytes() / kUnit), looks);
  size_t cells = memory_.bytes() / cell_bytes();
  if (!packed() && !cells_.create(cells)) cells = 0;
  if (cells == 0 || (!coarse() && !slabs_.create(memory_.bytes() / slab_bytes(0)))) {
    memory_.free_reservation();
    return fail(PYALLOC_OUT_OF_MEMORY, "the host has no address space left for the books of a pool");
  }
  return kOk;
}

void Space::set_cells(const Range& range, uint32_t value) {
  uint64_t first = uint64_t{range.start} * kUnit / kFineCell, count = uint64_t{range.length} * kUnit / kFineCell;
  for (uint64_t cell = first; cell < first + count; ++cell) __atomic_store_n(&cells_[cell], value, __ATOMIC_RELEASE);
}

Slab& Space::add_slab(NodeId id, int size_class_index) {
  const Range& range = extents_->range(id);
  Slab* slab = unused_slabs_;
  if (slab == nullptr) {
    slab = &slabs_[slab_count_++];
  } else {
    unused_slabs_ = slab->next;
  }
  slab->reset(address(range), id, size_class_index);
  set_cells(range, kSlabCell | static_cast<uint32_t>(slab - &slabs_[0]));
  return *slab;
}

TagId* Space::slot_tag(const Slab& slab, unsigned slot) {
  if (slot_tags_.size() == 0 && !slot_tags_.create(slabs_.size() * kSlabSlots)) return nullptr;
  return &slot_tags_[static_cast<size_t>(&slab - &slabs_[0]) * kSlabSlots + slot];
}

void Space::remove_slab(Slab& slab) {
  set_cells(extents_->range(slab.range), kNoNode);
  slab.slots = 0;  // a stale pointer into it finds no slot
  slab.next = unused_slabs_;
  unused_slabs_ = &slab;
}

NodeId Space::covering(uint64_t address) const {
  if (packed()) {
    auto after = starts_.upper_bound(address);
    if (after == starts_.begin()) return kNoNode;
    const Range& range = extents_->range(std::prev(after)->second);
    return address < this->address(range) + uint64_t{range.length} * kUnit ? std::prev(after)->second : kNoNode;
  }
  for (uint64_t cell = cell_of(address) + 1; cell-- > 0;) {
    NodeId id = cells_[cell];
    if (id == kNoNode) continue;
    if ((id & kSlabCell) != 0) return kNoNode;
    const Range& range = extents_->range(id);
    if (this->address(range) > address) continue;  // starts later in the address's own cell
    return address < this->address(range) + uint64_t{range.length} * kUnit ? id : kNoNode;
  }
  return kNoNode;
}

bool Space::validate(std::string& reason) const {
  if (!extents_->validate(reason)) return false;
  std::string where = coarse() ? "coarse space: " : arena() ? "arena: " : "lane's space: ";
  size_t granule = memory_.granule_bytes();
  uint64_t touched_slots = kept_slots;
  uint64_t live_slots = 0;
  for (NodeId id = extents_->first(); id != kNoNode; id = extents_->range(id).next) {
    const Range& range = extents_->range(id);
    if (range.state == RangeState::kFree) continue;
    uint64_t start = uint64_t{range.start} * kUnit, end = start + uint64_t{range.length} * kUnit;
    if (range.state == RangeState::kSlab) {
      const Slab* slab = slab_at(address(range));
      if (slab == nullptr || slab->range != id || slab->base != address(range))
        return reason = where + "a slab and its range disagree", false;
    }
    uint64_t step = granule * memory_.slab_slots;
    touched_slots += ((end - 1) / step - start / step + 1) * memory_.slab_slots;
    if (large_pages() && start / step != (end - 1) / step)
      return reason = where + "a block lies over the border of two slabs", false;
  }
  for (uint32_t index = 0; index < memory_.highest_used(); ++index) {
    const Slot& slot = memory_.slot(index);
    live_slots += slot.live;
    touched_slots += memory_.kept && (slot.handle != 0 || (memory_.asleep && slot.live > 0));
  }
  // Guarded blocks end in an unmapped granule that no slot counts; validate() of the heap knows whether there are any.
  if (live_slots > touched_slots) return reason = where + "slots count more blocks than there are", false;
  return true;
}

}  // namespace pyalloc
