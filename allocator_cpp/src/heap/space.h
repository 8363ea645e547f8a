// One address space of a pool with its books: which slots are mapped (AddressSpace), which ranges are live (Extents), and, by address, which
// block starts where. Each lane has a fine one for its blocks up to 1 MiB; larger blocks of all streams share the coarse one.
//
// Cells: a block is larger than a cell (16 KiB fine, 1 MiB coarse), so at most one block starts in a cell and one array look-up finds it.
// Slabs cover whole cells. Ranges and cells change under the lane's lock (fine) or the heap's (coarse); `slab_at` may be read without it by
// whoever owns a live block there, since a slab with a live block stays.
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
class Lane;

class Space {
 public:
  // `lane`: whose blocks up to 1 MiB live here; null for the coarse space, which all streams share.
  Space(DeviceHeap& heap, Lane* lane, uint16_t id, size_t granule_bytes, MappedTotals& totals)
      : heap_(heap), lane_(lane), coarse_(lane == nullptr), memory_(id, granule_bytes, totals) {}

  Status create(uint64_t bytes, uint64_t least);

  DeviceHeap& heap() const { return heap_; }
  Lane* lane() const { return lane_; }
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
  Lane* const lane_;
  const bool coarse_;
  AddressSpace memory_;
  std::unique_ptr<Extents> extents_;
  LazyArray<NodeId> cells_;
  LazyArray<Slab*> slabs_;  // fine only
};

}  // namespace pyalloc
