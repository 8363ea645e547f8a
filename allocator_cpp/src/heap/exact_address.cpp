// A block at an address that the caller names: memory that a block left is had again where it was, as torch's
// _resize_with_addr_ asks for. The memory must be free and the stream's; nothing is moved for it.
#include <algorithm>

#include "base/bits.h"
#include "heap/checkpoint.h"
#include "heap/device_heap.h"

namespace pyalloc {
namespace {

Status not_there(uint64_t address, size_t bytes, const char* why) {
  return fail(PYALLOC_INVALID_ARGUMENT, "%zu bytes cannot be allocated at 0x%llx: %s", bytes,
              static_cast<unsigned long long>(address), why);
}

}  // namespace

Status DeviceHeap::allocate_at(Space& space, uint64_t address, cuda::Stream stream, bool owned, size_t bytes) {
  if (guard_ || space.arena() || space.whole_blocks() || space.large_pages())
    return not_there(address, bytes, "its pool gives its blocks places of its own");
  if (space.offset(address) % kUnit != 0) return not_there(address, bytes, "blocks begin at multiples of 512 bytes");
  if (bytes > space.memory().bytes() - space.offset(address) || (!space.coarse() && bytes > kLargestFine))
    return not_there(address, bytes, "there is no room behind it");
  Lane* lane = space.lane() != nullptr ? space.lane() : lane_of(space.pool(), stream, owned, false);
  if (lane == nullptr) return PYALLOC_INVALID_ARGUMENT;
  if (lane->stream() != stream) return not_there(address, bytes, "the memory there is another stream's");

  // A block is longer than a cell (space.h): so much is taken for a shorter one too.
  size_t whole = std::max<size_t>(align_up(bytes, kUnit), space.cell_bytes() + kUnit);
  SavedBlock block{&space,
                   static_cast<uint32_t>(space.offset(address) / kUnit),
                   static_cast<uint32_t>(whole / kUnit),
                   -1,
                   address,
                   bytes,
                   whole,
                   lane->index(),
                   stream};
  auto attempt = [&] {
    if (!space.coarse()) return lane->allocate_at(block, true);
    return free_for(space, block) ? allocate_coarse_at(block) : PYALLOC_WRONG_STATE;
  };
  poll_pending();
  Status status = attempt();
  if (status == PYALLOC_WRONG_STATE) {  // what was freed there may wait for a stream, or be a slab with nothing in it
    finish_everything();
    status = attempt();
  }
  tell_news();
  return status == PYALLOC_WRONG_STATE ? not_there(address, bytes, "not all of the memory there is free") : status;
}

// Whether the range over the block is free for its stream: its own, or one that every stream is past.
bool DeviceHeap::free_for(Space& space, const SavedBlock& block) {
  Lock lock(mutex_);
  clean_finished(space);
  NodeId id = space.extents().free_range_over(block.start, block.length);
  if (id == kNoNode) return false;
  uint16_t owner = space.extents().range(id).owner;
  return owner == kClean || owner == block.owner;
}

}  // namespace pyalloc
