// Size classes and slabs, for every size there is.
#include "heap/size_class.h"

#include "gpu.h"
#include "heap/slab.h"

using namespace pyalloc;

TEST(every_size_has_its_class) {
  int before = 0;
  for (size_t bytes = 1; bytes <= kLargestMiddle; ++bytes) {
    int index = size_class(bytes);
    CHECK(index >= 0 && index < kSizeClasses);
    CHECK(index == before || index == before + 1);  // no class is skipped
    CHECK(class_bytes(index) >= bytes);
    CHECK(index == 0 || class_bytes(index - 1) < bytes);  // the smallest that holds it
    CHECK_EQ(class_bytes(index) % kUnit, size_t{0});
    if (bytes <= kLargestSmall) CHECK(class_bytes(index) - bytes < (bytes <= 8 * kKiB ? 512 : 1024));
    if (bytes > 4 * kKiB) CHECK((class_bytes(index) - bytes) * 100 <= 125 * bytes / 10);
    if (bytes > kLargestSmall) CHECK((class_bytes(index) - bytes) * 16 < bytes);
    CHECK_EQ(bytes <= kLargestSmall, index < kSmallClasses);
    before = index;
  }
  CHECK_EQ(before, kSizeClasses - 1);
}

TEST(every_class_has_its_slab) {
  for (int index = 0; index < kSizeClasses; ++index) {
    CHECK(slab_slots(index) >= 8 && slab_slots(index) <= kSlabSlots);
    CHECK(slab_slots(index) * class_bytes(index) <= slab_bytes(index));
    CHECK((slab_slots(index) + 1) * class_bytes(index) > slab_bytes(index));
    CHECK(slab_bytes(index) >= 64 * kKiB && slab_bytes(index) <= (index < kSmallClasses ? 256 * kKiB : 2 * kMiB));
    CHECK_EQ(slab_bytes(index) % kLargestSmall, size_t{0});  // whole cells of a lane's space
    CHECK(class_bytes(index) - (index > 0 ? class_bytes(index - 1) : 0) <= UINT16_MAX);  // unused_bytes
  }
}

TEST(every_slot_of_every_slab) {
  for (int index = 0; index < kSizeClasses; ++index) {
    Slab slab;
    uint64_t base = 0x7000000000;
    slab.reset(base, 1, index);
    CHECK_EQ(slab.free_slots, slab.slots);
    for (unsigned expected = 0; expected < slab.slots; ++expected) {
      CHECK(!slab.live(expected));
      unsigned slot = slab.take();
      CHECK_EQ(slot, expected);
      CHECK(slab.live(slot));
      uint64_t address = slab.address(slot);
      CHECK_EQ(address % kUnit, uint64_t{0});
      CHECK(address + slab.slot_bytes <= base + slab_bytes(index));
      CHECK_EQ(slab.slot_at(address), static_cast<int>(slot));
      CHECK_EQ(slab.slot_at(address + 1), -1);
      CHECK_EQ(slab.slot_at(address + slab.slot_bytes - 1), -1);
      CHECK_EQ(slab.slot_of(address + slab.slot_bytes - 1), slot);
    }
    CHECK_EQ(slab.free_slots, 0);
    CHECK((slab.free_bits[0] | slab.free_bits[1]) == 0);
    CHECK_EQ(slab.slot_at(slab.address(slab.slots)), -1);
    slab.give(slab.slots - 1u);
    slab.give(0);
    CHECK_EQ(slab.take(), 0u);
    CHECK_EQ(slab.take(), slab.slots - 1u);
  }
}
