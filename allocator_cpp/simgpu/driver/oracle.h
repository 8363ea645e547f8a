// The ordering oracle: says when an allocator reuses, unmaps or releases memory before its last use is ordered or done.
//
// An allocator notes each block's streams at allocation, record and free. A use is a stream and a tick of that stream. Vector clocks,
// carried by event record and wait and by what the host waited for, say which uses precede a position. That work happens to be complete
// does not count: only what the program made sure of, so the immediate mode finds the same faults as the deferred one.
// Reuse is checked over physical bytes, so through every alias; unmapping over addresses. Locked by the simulation's mutex.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "streams.h"

namespace simgpu {

struct Simulation;
struct EventObject;
struct Physical;

class Oracle {
 public:
  Oracle(Simulation* simulation, bool enabled) : simulation_(simulation), enabled_(enabled) {}
  bool enabled() const { return enabled_; }

  void alloc(uint64_t address, uint64_t bytes, StreamObject& stream);
  void free(uint64_t address, uint64_t bytes, StreamObject& stream);
  void record(uint64_t address, uint64_t bytes, StreamObject& stream);
  // The stream that a live block was handed out for; null: there is no such block.
  StreamObject* home(uint64_t address) const;

  // The ordering that the driver's calls make. All do nothing while the oracle is off.
  std::shared_ptr<VectorClock> on_record(StreamObject& stream);
  void on_wait(StreamObject& stream, const VectorClock* clock);
  void on_host_wait(const VectorClock* clock);
  void on_host_wait(StreamObject& stream);
  void on_host_wait_device(int device);

  // From now on the allocator unmaps there on purpose, live blocks and all, once their uses up to now are known to be complete;
  // or no longer. From that unmapping until then no program may use what lies there, so a free there is no later use.
  void sleep(uint64_t address, uint64_t bytes, bool asleep);
  // The device whose memory is asleep there, or -1: a block may be told of after it fell asleep.
  int asleep_on(uint64_t address) const;
  void on_unmap(uint64_t address, uint64_t bytes);
  void on_release(const Physical& physical);
  void on_plain_free(uint64_t address, uint64_t bytes);

 private:
  using Uses = std::vector<std::pair<uint32_t, uint64_t>>;  // stream id, tick
  struct Block {
    uint64_t bytes;
    std::vector<uint32_t> streams;
    Uses before_sleep;
  };
  struct Range {
    uint64_t bytes;
    uint64_t address;  // where the block was, for the message
    Uses uses;
  };
  using Ranges = std::map<uint64_t, Range>;
  struct Asleep {
    int device;
    bool unmapped;  // since it fell asleep
  };

  void refresh(StreamObject& stream);
  Uses uses_until_now(const Block& block) const;
  static void merge(VectorClock* into, const VectorClock& from);
  static bool covers(const VectorClock& clock, const Uses& uses, uint32_t* stream);
  // Takes [at, at + bytes) out of the ranges, splitting those at the edges.
  static void erase(Ranges* ranges, uint64_t at, uint64_t bytes);

  Simulation* simulation_;
  bool enabled_;
  VectorClock host_;
  std::map<uint64_t, Block> live_;     // by address
  Ranges by_address_, by_physical_;    // last uses of freed blocks
  std::map<uint64_t, Asleep> asleep_;  // granules of sleep()
};

}  // namespace simgpu
