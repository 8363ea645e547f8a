#include "address_space.h"

#include <sys/mman.h>

#include <algorithm>

namespace simgpu {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMaxBytes = 1ull << 46;
constexpr int kRangeFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

const char* fault_text(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return "no fault";
    case Fault::kUnknownAddress:
      return "outside every reservation and allocation";
    case Fault::kNotMapped:
      return "not mapped";
    case Fault::kNoAccess:
      return "mapped without access for this device";
  }
  return "";
}

Region* AddressSpace::insert(std::unique_ptr<Region> region) {
  Region* raw = region.get();
  raw->serial = next_serial_++;
  regions_[raw->start] = std::move(region);
  return raw;
}

Region* AddressSpace::find(uint64_t address) {
  if (last_ != nullptr && address - last_->start < last_->bytes) return last_;
  auto it = regions_.upper_bound(address);
  if (it == regions_.begin()) return nullptr;
  Region* region = std::prev(it)->second.get();
  if (address - region->start >= region->bytes) return nullptr;
  return last_ = region;
}

Region* AddressSpace::find_device(uint64_t address, uint64_t bytes) {
  Region* region = find(address);
  if (region == nullptr || region->kind == RegionKind::kHost) return nullptr;
  return bytes <= region->bytes - (address - region->start) ? region : nullptr;
}

bool AddressSpace::overlaps_any(uint64_t address, uint64_t bytes) {
  if (find(address) != nullptr) return true;
  auto it = regions_.lower_bound(address);
  return it != regions_.end() && it->first - address < bytes;
}

uint64_t AddressSpace::host_range(uint64_t bytes, uint64_t alignment) {
  uint64_t span = alignment > kPage ? bytes + alignment : bytes;
  void* at = mmap(nullptr, span, PROT_NONE, kRangeFlags, -1, 0);
  if (at == MAP_FAILED) return 0;
  uint64_t begin = reinterpret_cast<uint64_t>(at), start = round_up(begin, alignment), end = start + bytes;
  if (start > begin) munmap(at, start - begin);
  if (begin + span > end) munmap(reinterpret_cast<void*>(end), begin + span - end);
  return start;
}

uint64_t AddressSpace::reserve(uint64_t bytes, uint64_t alignment, uint64_t hint) {
  alignment = std::max(alignment, kGranularity);
  if (bytes > kMaxBytes || alignment > kMaxBytes) return 0;
  uint64_t start = 0;
  if (hint != 0 && hint % alignment == 0) {
    void* at = mmap(reinterpret_cast<void*>(hint), bytes, PROT_NONE, kRangeFlags, -1, 0);
    if (at == reinterpret_cast<void*>(hint)) {
      start = hint;
    } else if (at != MAP_FAILED) {
      munmap(at, bytes);
    }
  }
  if (start == 0) start = host_range(bytes, alignment);
  if (start == 0) return 0;
  auto region = std::make_unique<Region>();
  region->kind = RegionKind::kReservation;
  region->start = start;
  region->bytes = bytes;
  return insert(std::move(region))->start;
}

uint64_t AddressSpace::plain_range(uint64_t bytes) {
  auto idle = idle_ranges_.find(bytes);
  if (idle != idle_ranges_.end() && !idle->second.empty()) {
    uint64_t start = idle->second.back();
    idle->second.pop_back();
    --idle_count_;
    return start;
  }
  return host_range(bytes, bytes >= kGranularity ? kGranularity : kPage);
}

void AddressSpace::free_reservation(Region* region) {
  munmap(reinterpret_cast<void*>(region->start), region->bytes);
  if (last_ == region) last_ = nullptr;
  regions_.erase(region->start);
}

Region* AddressSpace::add_plain(std::unique_ptr<Physical> physical, uint64_t bytes) {
  uint64_t start = plain_range(round_up(bytes, kPage));
  if (start == 0) {
    memory_->destroy(std::move(physical));
    return nullptr;
  }
  auto region = std::make_unique<Region>();
  region->kind = RegionKind::kPlain;
  region->start = start;
  region->bytes = bytes;
  region->device = physical->device;
  Mapping mapping;
  mapping.bytes = bytes;
  mapping.physical = physical.get();
  mapping.access.fill(kAccessReadWrite);
  physical->mappings = 1;
  region->mappings[start] = mapping;
  region->owned = std::move(physical);
  return insert(std::move(region));
}

void AddressSpace::free_plain(Region* region) {
  constexpr size_t kKept = 4096;
  uint64_t bytes = round_up(region->bytes, kPage);
  if (idle_count_ < kKept) {
    idle_ranges_[bytes].push_back(region->start);
    ++idle_count_;
  } else {
    munmap(reinterpret_cast<void*>(region->start), bytes);
  }
  memory_->destroy(std::move(region->owned));
  if (last_ == region) last_ = nullptr;
  regions_.erase(region->start);
}

Region* AddressSpace::add_host(uint64_t address, uint64_t bytes, bool registered, unsigned flags) {
  auto region = std::make_unique<Region>();
  region->kind = RegionKind::kHost;
  region->start = address;
  region->bytes = bytes;
  region->registered = registered;
  region->host_flags = flags;
  return insert(std::move(region));
}

void AddressSpace::remove_host(Region* region) {
  if (!region->registered) munmap(reinterpret_cast<void*>(region->start), round_up(region->bytes, kPage));
  if (last_ == region) last_ = nullptr;
  regions_.erase(region->start);
}

size_t AddressSpace::whole_mappings(Region* region, uint64_t address, uint64_t bytes,
                                    std::map<uint64_t, Mapping>::iterator* first) {
  auto it = region->mappings.find(address);
  *first = it;
  size_t count = 0;
  uint64_t at = address, end = address + bytes;
  while (at < end) {
    if (it == region->mappings.end() || it->first != at) return 0;
    at += it->second.bytes;
    ++it;
    ++count;
  }
  return at == end ? count : 0;
}

Fault AddressSpace::translate(uint64_t address, uint64_t bytes, int device, bool write, std::vector<Piece>* pieces) {
  uint64_t at = address, end = address + bytes;
  if (end < address) return Fault::kUnknownAddress;
  while (at < end) {
    Region* region = find(at);
    if (region == nullptr || region->kind == RegionKind::kHost) return Fault::kUnknownAddress;
    auto it = region->mappings.upper_bound(at);
    uint64_t stop = std::min(end, region->start + region->bytes);
    if (region->kind == RegionKind::kPlain && stop < end) return Fault::kUnknownAddress;  // ran past an allocation
    if (it == region->mappings.begin()) return Fault::kNotMapped;
    for (--it; at < stop; ++it) {
      if (it == region->mappings.end() || at < it->first || at - it->first >= it->second.bytes)
        return Fault::kNotMapped;
      const Mapping& mapping = it->second;
      unsigned need = write ? kAccessReadWrite : kAccessRead;
      if (device != kAnyDevice && (mapping.access[device] & need) != need) return Fault::kNoAccess;
      uint64_t skip = at - it->first, n = std::min(stop - at, mapping.bytes - skip);
      pieces->push_back({mapping.physical, mapping.offset + skip, n});
      at += n;
    }
  }
  return Fault::kNone;
}

void AddressSpace::clear() {
  last_ = nullptr;
  for (auto& entry : regions_) {
    Region& region = *entry.second;
    if (region.kind == RegionKind::kHost && region.registered) continue;
    munmap(reinterpret_cast<void*>(region.start), round_up(region.bytes, kPage));
    if (region.owned != nullptr) memory_->destroy(std::move(region.owned));
  }
  regions_.clear();
  for (auto& idle : idle_ranges_) {
    for (uint64_t start : idle.second) munmap(reinterpret_cast<void*>(start), idle.first);
  }
  idle_ranges_.clear();
  idle_count_ = 0;
}

}  // namespace simgpu
