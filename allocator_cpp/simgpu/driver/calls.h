// Every entry point by number, and what is known of each: calls made, virtual cost, planned faults; and the virtual clock.
//
// Entry points that are versions of one name (cuStreamGetCaptureInfo, _v2, _v3) share one count, cost and fault plan, under the name.
// Locked by the simulation's mutex.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "abi.h"

namespace simgpu {

enum class Call : int {
#define ENTRY(name, symbol, version, traits) symbol,
#include "entry_points.def"
#undef ENTRY
  kCount
};

// What the shared prologue of an entry point checks before it runs.
enum Traits : unsigned {
  kAlways = 0,           // works before cuInit
  kNeedsInit = 1,        // cuInit must have been called
  kNeedsContext = 2,     // a context must be current
  kReportsFault = 4,     // returns the error left by earlier asynchronous work
  kUnsafeInCapture = 8,  // prohibited while a capture in global mode is under way
  // the usual combinations
  kQuery = kNeedsInit,
  kWork = kNeedsInit | kNeedsContext | kReportsFault,
  kUnsafe = kNeedsInit | kNeedsContext | kReportsFault | kUnsafeInCapture,
};

struct EntryPoint {
  const char* name;    // as asked of cuGetProcAddress and counted
  const char* symbol;  // as exported
  int version;         // the driver version that introduced this symbol
  unsigned traits;
  void* address;
};
extern const EntryPoint kEntryPoints[static_cast<int>(Call::kCount)];

// Those that answer NOT_SUPPORTED: found by cuGetProcAddress, not counted.
struct UnsupportedEntryPoint {
  const char* name;
  const char* symbol;
  int version;
  void* address;
};
extern const UnsupportedEntryPoint kUnsupportedEntryPoints[];
extern const int kUnsupportedCount;

class Calls {
 public:
  Calls();
  // Counts one call; the error a fault plan asks for, else success.
  Result begin(Call call);
  // Charges the cost of a call that did its work, on `mappings` mappings and `bytes` bytes.
  void charge(Call call, double mappings, double bytes);

  int64_t count(const char* name) const;  // -1: unknown; null: all cuMem* calls
  std::string json() const;
  void reset_counts();
  bool set_cost(const char* name, double per_call, double per_mapping, double per_mib);
  bool fail(const char* name, int64_t nth, int64_t times, Result error);
  void clear_faults();
  void clear_costs();

  double clock_us = 0;
  double charged_us = 0;         // the sum of all costs
  bool cost_moves_clock = true;  // else the clock is left to simgpu_advance and waits

 private:
  void add_cost(double us);
  struct Fault {
    int64_t first = 0, last = 0;  // by call number since the plan was made
    int64_t seen = 0;
    Result error = kSuccess;
  };
  struct Record {
    int64_t calls = 0;
    double per_call = 0, per_mapping = 0, per_mib = 0;
    std::vector<Fault> faults;
  };
  int find(const char* name) const;
  int first_of_name_[static_cast<int>(Call::kCount)];  // index of the record shared by all versions of a name
  std::vector<Record> records_;
};

}  // namespace simgpu
