// The arithmetic of an address space against a model that keeps every unit: exhaustive on a tiny space, random on a larger one.
#include "heap/extents.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gpu.h"

using namespace test;
using pyalloc::Extents;
using pyalloc::kClean;
using pyalloc::kNoNode;
using pyalloc::NodeId;
using pyalloc::Range;
using pyalloc::RangeState;

namespace {

struct Unit {
  bool free = true;
  uint16_t owner = kClean;
  uint64_t stamp = 0;
  uint32_t block = 0;  // live: which one
};

// What Extents promises, unit by unit: free units next to each other with one owner are one range, with the latest of their stamps.
class Model {
 public:
  explicit Model(uint32_t units) : units_(units) {}

  void take(uint32_t start, uint32_t length, uint32_t block) {
    for (uint32_t i = start; i < start + length; ++i) units_[i] = {false, kClean, 0, block};
  }
  void give(uint32_t start, uint32_t length, uint16_t owner, uint64_t stamp) {
    for (uint32_t i = start; i < start + length; ++i) units_[i] = {true, owner, owner == kClean ? 0 : stamp, 0};
    level();
  }
  void clean(uint16_t owner, uint64_t done) {
    if (owner == kClean) return;
    for (Unit& unit : units_)
      if (unit.free && unit.owner == owner && unit.stamp <= done) unit = Unit{};
    level();
  }
  bool equals(const Extents& extents) const {
    std::string reason;
    if (!extents.validate(reason)) return std::fprintf(stderr, "%s\n", reason.c_str()), false;
    uint32_t at = 0;
    int64_t free_ranges = 0, live_ranges = 0;
    for (NodeId id = extents.first(); id != kNoNode; id = extents.range(id).next) {
      const Range& range = extents.range(id);
      bool free = range.state == RangeState::kFree;
      (free ? free_ranges : live_ranges) += 1;
      for (uint32_t i = 0; i < range.length; ++i, ++at) {
        const Unit& unit = units_[at];
        if (unit.free != free) return false;
        if (free && (unit.owner != range.owner || unit.stamp != range.stamp)) return false;
        if (!free && unit.block != range.requested) return false;
      }
    }
    return at == units_.size() && free_ranges == extents.free_ranges() && live_ranges == extents.live_ranges();
  }
  // Starts and lengths of the free ranges of `owner` with at least `length` units, by address.
  std::vector<std::pair<uint32_t, uint32_t>> fitting(uint16_t owner, uint32_t length) const {
    std::vector<std::pair<uint32_t, uint32_t>> found;
    for (uint32_t start = 0; start < units_.size();) {
      uint32_t end = run_end(start);
      if (units_[start].free && units_[start].owner == owner && end - start >= length)
        found.emplace_back(start, end - start);
      start = end;
    }
    return found;
  }

 private:
  uint32_t run_end(uint32_t start) const {
    uint32_t end = start + 1;
    const Unit& first = units_[start];
    while (end < units_.size() && units_[end].free == first.free && units_[end].owner == first.owner &&
           units_[end].block == first.block)
      ++end;
    return end;
  }
  void level() {
    for (uint32_t start = 0; start < units_.size();) {
      uint32_t end = run_end(start);
      uint64_t latest = 0;
      for (uint32_t i = start; i < end; ++i) latest = std::max(latest, units_[i].stamp);
      for (uint32_t i = start; i < end; ++i) units_[i].stamp = latest;
      start = end;
    }
  }

  std::vector<Unit> units_;
};

std::vector<NodeId> ranges(const Extents& extents, bool free) {
  std::vector<NodeId> found;
  for (NodeId id = extents.first(); id != kNoNode; id = extents.range(id).next)
    if ((extents.range(id).state == RangeState::kFree) == free) found.push_back(id);
  return found;
}

// Every sequence of operations up to `depth`; returns how many states were seen.
int64_t explore(const Extents& extents, const Model& model, int depth, uint32_t serial) {
  if (!model.equals(extents)) {
    CHECK(!"the extents are not what the model says");
    return 1;
  }
  if (depth == 0 || failures() > 0) return 1;
  int64_t seen = 1;
  for (NodeId id : ranges(extents, true)) {
    Range range = extents.range(id);
    for (uint32_t start = range.start; start < range.start + range.length; ++start) {
      for (uint32_t length = 1; start + length <= range.start + range.length; ++length) {
        Extents next = extents;
        Model expected = model;
        NodeId taken = next.take(id, start, length, RangeState::kLive, 3, serial);
        expected.take(start, length, serial);
        CHECK(next.range(taken).start == start && next.range(taken).length == length && next.range(taken).owner == 3);
        seen += explore(next, expected, depth - 1, serial + 1);
      }
    }
  }
  for (NodeId id : ranges(extents, false)) {
    for (uint16_t owner : {kClean, uint16_t{1}, uint16_t{2}}) {
      Extents next = extents;
      Model expected = model;
      expected.give(extents.range(id).start, extents.range(id).length, owner, serial);
      next.give(id, owner, serial);
      seen += explore(next, expected, depth - 1, serial + 1);
    }
  }
  for (uint64_t done : {uint64_t{serial} / 2, uint64_t{serial}}) {
    Extents next = extents;
    Model expected = model;
    next.clean(1, done);
    expected.clean(1, done);
    seen += explore(next, expected, depth - 1, serial + 1);
  }
  return seen;
}

}  // namespace

TEST(every_sequence_on_a_tiny_space) {
  CHECK(explore(Extents(3), Model(3), kSlowdown > 1 ? 5 : 6, 1) > 2000);
  CHECK(explore(Extents(4), Model(4), kSlowdown > 1 ? 4 : 5, 1) > 2000);
}

TEST(random_sequences) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Random random(seed);
    uint32_t units = 200 + static_cast<uint32_t>(random.below(2000));
    Extents extents(units);
    Model model(units);
    uint64_t stamp = 0;
    for (uint32_t step = 1; step < 1500u / kSlowdown; ++step) {
      std::vector<NodeId> free = ranges(extents, true), live = ranges(extents, false);
      uint64_t choice = random.below(20);
      if (choice < 10 && !free.empty()) {
        NodeId id = free[random.below(free.size())];
        Range range = extents.range(id);
        auto length = static_cast<uint32_t>(1 + random.below(std::min(range.length, 60u)));
        auto start =
            static_cast<uint32_t>(range.start + (random.below(2) == 0 ? 0 : random.below(range.length - length + 1)));
        extents.take(id, start, length, random.below(2) == 0 ? RangeState::kLive : RangeState::kSlab, 1, step);
        model.take(start, length, step);
      } else if (choice < 18 && !live.empty()) {
        NodeId id = live[random.below(live.size())];
        Range range = extents.range(id);
        auto owner = static_cast<uint16_t>(random.below(5));
        ++stamp;
        NodeId joined = extents.give(id, owner, stamp);
        model.give(range.start, range.length, owner, stamp);
        CHECK(extents.range(joined).start <= range.start &&
              extents.range(joined).start + extents.range(joined).length >= range.start + range.length);
      } else {
        auto owner = static_cast<uint16_t>(random.below(6));
        uint64_t done = random.below(stamp + 2);
        extents.clean(owner, done);
        model.clean(owner, done);
      }
      CHECK(model.equals(extents));
      if (failures() > 0) return;
    }
    CHECK(extents.metadata_bytes() > 0);
  }
}

TEST(the_search_offers_exactly_what_fits) {
  Random random(4);
  Extents extents(20000);
  Model model(20000);
  for (uint32_t step = 1; step < 3000u / kSlowdown; ++step) {
    std::vector<NodeId> live = ranges(extents, false);
    if (live.size() < 200 && (live.empty() || random.below(3) > 0)) {
      NodeId last = extents.last();
      if (extents.range(last).state != RangeState::kFree || extents.range(last).length < 300) continue;
      auto length = static_cast<uint32_t>(1 + random.below(200));
      uint32_t start = extents.range(last).start;
      extents.take(last, start, length, RangeState::kLive, 1, step);
      model.take(start, length, step);
    } else {
      NodeId id = live[random.below(live.size())];
      auto owner = static_cast<uint16_t>(random.below(3));
      model.give(extents.range(id).start, extents.range(id).length, owner, step);
      extents.give(id, owner, step);
    }
    for (uint16_t owner : {uint16_t{0}, uint16_t{1}, uint16_t{2}, uint16_t{9}}) {
      auto length = static_cast<uint32_t>(1 + random.below(300));
      std::vector<std::pair<uint32_t, uint32_t>> offered;
      extents.fitting(owner, length, 1 << 20, [&](NodeId id) {
        offered.emplace_back(extents.range(id).start, extents.range(id).length);
        return true;
      });
      std::vector<uint32_t> lengths;
      for (auto& one : offered) lengths.push_back(one.second);
      if (!lengths.empty()) {  // bins grow by an eighth, so the first is at most a fifth longer than the best
        uint32_t best = *std::min_element(lengths.begin(), lengths.end());
        CHECK(lengths.front() <= best + best / 5 + 1);
      }
      std::sort(offered.begin(), offered.end());
      CHECK(offered == model.fitting(owner, length));
      int calls = 0;
      extents.fitting(owner, length, 2, [&](NodeId) { return ++calls, true; });
      CHECK_EQ(calls, static_cast<int>(std::min<size_t>(2, offered.size())));
      CHECK(extents.has_free(owner) == !model.fitting(owner, 1).empty());
    }
    if (failures() > 0) return;
  }
}

TEST(the_shortest_that_fits_is_offered_first) {
  Random random(9);
  Extents extents(1 << 20);
  std::vector<NodeId> holes;
  for (int i = 0; i < 16; ++i) {  // within what a list keeps in order
    auto length = static_cast<uint32_t>(100 + random.below(60));
    NodeId hole = extents.take(extents.last(), extents.range(extents.last()).start, length, RangeState::kLive, 1, 1);
    extents.take(extents.last(), extents.range(extents.last()).start, 1, RangeState::kLive, 1, 1);
    holes.push_back(hole);
  }
  for (NodeId hole : holes) extents.give(hole, 1, 1);
  for (uint32_t length = 1; length <= 160; ++length) {
    std::pair<uint32_t, uint32_t> before{0, 0};  // length, start
    extents.fitting(1, length, 1 << 20, [&](NodeId id) {
      std::pair<uint32_t, uint32_t> one{extents.range(id).length, extents.range(id).start};
      CHECK(one > before && one.first >= length);
      before = one;
      return true;
    });
  }
}

TEST(the_border_of_two_free_ranges_moves) {
  Extents extents(100);
  std::string reason;
  NodeId block = extents.take(extents.first(), 0, 40, RangeState::kLive, 1, 1);
  NodeId freed = extents.give(block, 1, 7);
  for (uint32_t border : {90u, 99u, 1u, 40u}) {
    extents.move_border(freed, border);
    CHECK(extents.validate(reason));
    CHECK(extents.range(freed).length == border && extents.range(freed).owner == 1 && extents.range(freed).stamp == 7);
    NodeId fresh = extents.last();
    CHECK(extents.range(fresh).start == border && extents.range(fresh).owner == kClean);
    CHECK_EQ(extents.range(fresh).length, 100 - border);
  }
}

TEST(the_largest_space_has_bins_for_every_length) {
  Extents extents(UINT32_MAX);
  std::string reason;
  for (uint32_t length = 1; length < UINT32_MAX / 3; length += 1 + length / 7) {
    NodeId low = extents.take(extents.first(), 0, length, RangeState::kLive, 1, 1);
    CHECK(extents.validate(reason));
    NodeId joined = extents.give(low, kClean, 0);
    CHECK_EQ(extents.range(joined).length, UINT32_MAX);
  }
  CHECK_EQ(extents.free_ranges(), int64_t{1});
}
