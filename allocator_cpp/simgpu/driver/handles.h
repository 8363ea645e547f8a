// HandleTable<T>: the opaque handles given to callers (streams, events, memory, graphs) and the objects behind them.
//
// A handle is a number, never an address: kind, generation and slot, multiplied by 64 so that it looks aligned. A stale, foreign or
// made-up handle finds nothing instead of crashing the host. Slots are reused with a new generation. Locked by the simulation's mutex.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace simgpu {

// Streams' handles repeat: a new stream often gets the handle of one destroyed before, as with the real driver.
enum class HandleKind : uint64_t {
  kContext = 1,
  kStream,
  kEvent,
  kMemory,
  kGraph,
  kNode,
  kGraphExec,
  kUserObject,
  kPool,
  kModule
};

template <typename T, HandleKind kKind>
class HandleTable {
 public:
  uint64_t insert(std::unique_ptr<T> object) {
    uint32_t slot;
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else {
      slot = static_cast<uint32_t>(slots_.size());
      slots_.push_back({});
    }
    slots_[slot].object = std::move(object);
    ++live_;
    return encode(slot);
  }

  T* find(uint64_t handle) const {
    uint32_t slot = static_cast<uint32_t>(handle >> 6) & kSlotMask;
    if (slot >= slots_.size() || slots_[slot].object == nullptr || encode(slot) != handle) return nullptr;
    return slots_[slot].object.get();
  }
  template <typename Opaque>
  T* find(Opaque* handle) const {
    return find(reinterpret_cast<uint64_t>(handle));
  }

  std::unique_ptr<T> remove(uint64_t handle) {
    if (find(handle) == nullptr) return nullptr;
    uint32_t slot = static_cast<uint32_t>(handle >> 6) & kSlotMask;
    std::unique_ptr<T> object = std::move(slots_[slot].object);
    slots_[slot].generation = (slots_[slot].generation + 1) & kGenerationMask;
    free_.push_back(slot);
    --live_;
    return object;
  }

  // Drops every object; handles given before stay invalid.
  void clear() {
    for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].object != nullptr) remove(encode(slot));
    }
  }

  template <typename F>
  void for_each(F visit) const {
    for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].object != nullptr) visit(encode(slot), *slots_[slot].object);
    }
  }
  size_t live() const { return live_; }

 private:
  static constexpr uint32_t kSlotMask = (1u << 22) - 1;
  static constexpr uint32_t kGenerationMask = (1u << 13) - 1;
  struct Slot {
    std::unique_ptr<T> object;
    uint32_t generation = 0;
  };
  uint64_t encode(uint32_t slot) const {
    uint64_t generation = kKind == HandleKind::kStream ? 0 : slots_[slot].generation;
    return static_cast<uint64_t>(kKind) << 41 | generation << 28 | static_cast<uint64_t>(slot) << 6;
  }
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  size_t live_ = 0;
};

}  // namespace simgpu
