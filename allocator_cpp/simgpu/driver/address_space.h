// Every address the driver knows: reservations and what is mapped in them, memory of cuMemAlloc, pinned host memory.
//
// Device addresses are PROT_NONE ranges of the host's address space: unique in the process, and a stray host access faults. Mapping
// changes only these tables; translate() finds the physical bytes behind an address. Locked by the simulation's mutex.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "physical.h"

namespace simgpu {

enum class RegionKind { kReservation, kPlain, kHost };

struct Mapping {
  uint64_t bytes = 0;
  Physical* physical = nullptr;
  uint64_t offset = 0;
  std::array<uint8_t, kMaxDevices> access{};  // AccessFlags of each device
};

struct Region {
  RegionKind kind;
  uint64_t start = 0, bytes = 0;
  uint64_t serial = 0;  // never reused: the driver's "buffer id"
  int device = 0;
  std::map<uint64_t, Mapping> mappings;  // by address; a plain region has one
  std::unique_ptr<Physical> owned;       // kPlain
  int ipc_references = 0;                // kPlain opened from another process
  uint64_t pool = 0;                     // kPlain from this memory pool
  bool registered = false;               // kHost: the caller's own memory, pinned by cuMemHostRegister
  unsigned host_flags = 0;
};

struct Piece {
  Physical* physical;
  uint64_t offset, bytes;
};

enum class Fault { kNone, kUnknownAddress, kNotMapped, kNoAccess };
const char* fault_text(Fault fault);

class AddressSpace {
 public:
  explicit AddressSpace(PhysicalMemory* memory) : memory_(memory) {}
  ~AddressSpace() { clear(); }

  Region* find(uint64_t address);  // the region that holds the address
  // The reservation or plain region that holds the whole range; null else.
  Region* find_device(uint64_t address, uint64_t bytes);
  bool overlaps_any(uint64_t address, uint64_t bytes);

  // Address of a new PROT_NONE range, 0 when the host has none.
  uint64_t reserve(uint64_t bytes, uint64_t alignment, uint64_t hint);
  void free_reservation(Region* region);
  // cuMemAlloc and IPC: a region owning its memory, readable and writable by every device that may reach it.
  Region* add_plain(std::unique_ptr<Physical> physical, uint64_t bytes);
  void free_plain(Region* region);
  Region* add_host(uint64_t address, uint64_t bytes, bool registered, unsigned flags);
  void remove_host(Region* region);

  // The mappings that exactly tile [address, address + bytes), as a first iterator and a count; 0 when they do not.
  size_t whole_mappings(Region* region, uint64_t address, uint64_t bytes, std::map<uint64_t, Mapping>::iterator* first);

  // Appends the pieces behind the range as `device` would reach them (kAnyDevice: no access check).
  static constexpr int kAnyDevice = -1;
  Fault translate(uint64_t address, uint64_t bytes, int device, bool write, std::vector<Piece>* pieces);

  template <typename F>
  void for_each(F visit) {
    for (auto& entry : regions_) visit(*entry.second);
  }
  void clear();

 private:
  Region* insert(std::unique_ptr<Region> region);
  // A PROT_NONE range of the host, aligned; 0 when there is none.
  static uint64_t host_range(uint64_t bytes, uint64_t alignment);
  uint64_t plain_range(uint64_t bytes);
  PhysicalMemory* memory_;
  std::map<uint64_t, std::unique_ptr<Region>> regions_;
  Region* last_ = nullptr;  // the last region found: lookups come in runs
  uint64_t next_serial_ = 1;
  // Address ranges of freed plain memory, by size, kept for the next allocation: a system call less each way.
  std::map<uint64_t, std::vector<uint64_t>> idle_ranges_;
  size_t idle_count_ = 0;
};

}  // namespace simgpu
