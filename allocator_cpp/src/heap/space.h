// One address space of a pool with its books: which slots are mapped (AddressSpace), which ranges are live (Extents), and, by address, which
// block starts where. A pool has two: the fine one for blocks up to 1 MiB and slabs, the coarse one for larger blocks.
//
// Cells: a block is larger than a cell (16 KiB fine, 1 MiB coarse), so at most one block starts in a cell and one array look-up finds it.
// Slabs cover whole cells. Ranges, slots and cells change under the heap's lock; `slab_at` may be read without it by whoever owns a
// live block there, since a slab with a live block stays.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/lazy_array.h"
#include "heap/extents.h"
#include "heap/size_class.h"
#include "heap/slab.h"
#include "vm/address_space.h"

namespace pyalloc {

class DeviceHeap;

class Space {
 public:
  Space(DeviceHeap& heap, uint16_t id, bool coarse, size_t granule_bytes) : heap_(heap), coarse_(coarse), memory_(id, granule_bytes) {}

  Status create(uint64_t bytes, uint64_t least);

  DeviceHeap& heap() const { return heap_; }
  bool coarse() const { return coarse_; }
  AddressSpace& memory() { return memory_; }
  const AddressSpace& memory() const { return memory_; }
  Extents& extents() { return *extents_; }
  const Extents& extents() const { return *extents_; }

  static constexpr size_t kFineCell = kSmallestExtent, kCoarseCell = 1 * kMiB;
  size_t cell_bytes() const { return coarse_ ? kCoarseCell : kFineCell; }

  uint64_t offset(uint64_t address) const { return address - memory_.base(); }
  bool contains(uint64_t address) const { return address >= memory_.base() && offset(address) < memory_.bytes(); }
  uint64_t address(const Range& range) const { return memory_.base() + uint64_t{range.start} * kUnit; }

  // The slab that covers `address`, or null.
  Slab* slab_at(uint64_t address) const { return coarse_ ? nullptr : __atomic_load_n(&slabs_[offset(address) / kFineCell], __ATOMIC_ACQUIRE); }
  void set_slab(const Range& range, Slab* slab);

  // The live or pending extent whose block starts in the cell of `address`.
  NodeId start_in_cell(uint64_t address) const { return cells_[offset(address) / cell_bytes()]; }
  void set_start(uint64_t address, NodeId id) { cells_[offset(address) / cell_bytes()] = id; }
  // The live extent that contains `address`, or none.
  NodeId covering(uint64_t address) const;

  bool validate(std::string& reason) const;

 private:
  DeviceHeap& heap_;
  const bool coarse_;
  AddressSpace memory_;
  std::unique_ptr<Extents> extents_;
  LazyArray<NodeId> cells_;
  LazyArray<Slab*> slabs_;  // fine only
};

}  // namespace pyalloc
