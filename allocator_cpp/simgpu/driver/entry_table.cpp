// The entry points' table, with the address of each.
#include "calls.h"

// Only the addresses are taken here; the definitions with their arguments stand in the entry_*.cpp files.
#define ENTRY(name, symbol, version, traits) extern "C" void symbol();
#include "entry_points.def"
#undef ENTRY

namespace simgpu {

const EntryPoint kEntryPoints[static_cast<int>(Call::kCount)] = {
#define ENTRY(name, symbol, version, traits) {#name, #symbol, version, traits, reinterpret_cast<void*>(&::symbol)},
#include "entry_points.def"
#undef ENTRY
};

}  // namespace simgpu
