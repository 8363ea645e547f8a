// Address to space: the top bits of an address index one flat table for the whole process, each entry one 4 GiB region.
// Entries are written once, when a space is created, and cleared when its heap closes; reading takes no lock.
#pragma once
#include <cstdint>

#include "heap/space.h"

namespace pyalloc {

void add_to_address_map(Space& space);
void remove_from_address_map(const Space& space);
// The space that owns `address`, or null.
Space* find_space(uint64_t address);

}  // namespace pyalloc
