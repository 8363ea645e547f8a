// The entry points' table, with the address of each.
#include "calls.h"

// Only the addresses are taken here; the definitions with their arguments stand in the entry_*.cpp files.
#define ENTRY(name, symbol, version, traits) extern "C" void symbol();
#include "entry_points.def"
#undef ENTRY
#define UNSUPPORTED(name, symbol, version, purpose) extern "C" void symbol();
#include "unsupported_entry_points.def"
#undef UNSUPPORTED

namespace simgpu {

const EntryPoint kEntryPoints[static_cast<int>(Call::kCount)] = {
#define ENTRY(name, symbol, version, traits) {#name, #symbol, version, traits, reinterpret_cast<void*>(&::symbol)},
#include "entry_points.def"
#undef ENTRY
};

const UnsupportedEntryPoint kUnsupportedEntryPoints[] = {
#define UNSUPPORTED(name, symbol, version, purpose) {#name, #symbol, version, reinterpret_cast<void*>(&::symbol)},
#include "unsupported_entry_points.def"
#undef UNSUPPORTED
};
const int kUnsupportedCount = sizeof(kUnsupportedEntryPoints) / sizeof(kUnsupportedEntryPoints[0]);

}  // namespace simgpu
