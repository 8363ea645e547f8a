// The bridge's books of what it told to be mapped, against one bit an address; and its ring of entries.
#include "torch_bridge/mapped_ranges.h"

#include <random>
#include <vector>

#include "test_case.h"
#include "torch_bridge/ring.h"

using pyalloc_bridge::MappedRanges;
using pyalloc_bridge::Ring;

namespace {

constexpr uint64_t kAddresses = 64;

// What a viewer or NCCL would know: mapped addresses, and pieces as they were announced.
struct Model {
  bool mapped[kAddresses] = {};
  std::map<uint64_t, uint64_t> pieces;
};

void add(MappedRanges& ranges, Model& model, uint64_t begin, uint64_t end) {
  bool before[kAddresses];
  std::copy(std::begin(model.mapped), std::end(model.mapped), before);
  ranges.add(begin, end, [&](uint64_t low, uint64_t high) {
    CHECK(begin <= low && low < high && high <= end);
    for (uint64_t at = low; at < high; ++at) {
      CHECK(!model.mapped[at]);
      model.mapped[at] = true;
    }
    CHECK(model.pieces.emplace(low, high).second);
  });
  for (uint64_t at = 0; at < kAddresses; ++at) CHECK_EQ(model.mapped[at], before[at] || (begin <= at && at < end));
}

void remove(MappedRanges& ranges, Model& model, uint64_t begin, uint64_t end) {
  bool before[kAddresses];
  std::copy(std::begin(model.mapped), std::end(model.mapped), before);
  ranges.remove(begin, end, [&](uint64_t low, uint64_t high, uint64_t piece, uint64_t piece_end) {
    CHECK(begin <= low && low < high && high <= end && piece <= low && high <= piece_end);
    for (uint64_t at = low; at < high; ++at) {
      CHECK(model.mapped[at]);
      model.mapped[at] = false;
    }
    auto announced = model.pieces.find(piece);
    CHECK(announced != model.pieces.end() && announced->second == piece_end);
    model.pieces.erase(piece);
    if (piece < low) model.pieces.emplace(piece, low);
    if (high < piece_end) model.pieces.emplace(high, piece_end);
  });
  for (uint64_t at = 0; at < kAddresses; ++at) CHECK_EQ(model.mapped[at], before[at] && !(begin <= at && at < end));
}

}  // namespace

TEST(ranges_are_what_was_added_and_not_removed) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    MappedRanges ranges;
    Model model;
    for (int step = 0; step < 60; ++step) {
      uint64_t begin = random() % kAddresses, end = begin + random() % (kAddresses - begin + 1);
      random() % 2 == 0 ? add(ranges, model, begin, end) : remove(ranges, model, begin, end);
      CHECK(ranges.ranges() == model.pieces);
      begin = random() % kAddresses, end = begin + random() % (kAddresses - begin + 1);
      bool all = true;
      for (uint64_t at = begin; at < end; ++at) all = all && model.mapped[at];
      CHECK_EQ(ranges.contains(begin, end), all);
    }
  }
}

TEST(a_ring_keeps_the_newest) {
  Ring<int> ring;
  for (size_t most : {size_t{4}, size_t{9}, size_t{3}, size_t{1}, size_t{0}, ~size_t{0}}) {
    ring.keep(most);
    for (int next = 0; next < 20; ++next) ring.push(next);
    std::vector<int> kept = ring.in_order();
    size_t expected = most == ~size_t{0} ? 21 : std::max<size_t>(most, 1);  // the one kept before, and all 20
    CHECK_EQ(kept.size(), expected);
    for (size_t i = 0; i < 20 && i < kept.size(); ++i) CHECK_EQ(kept[kept.size() - 1 - i], 19 - static_cast<int>(i));
  }
  ring.keep(5);
  CHECK_EQ(ring.in_order().front(), 15);
  ring.push(20);
  CHECK_EQ(ring.in_order().front(), 16);
  ring.clear();
  CHECK(ring.in_order().empty());
}
