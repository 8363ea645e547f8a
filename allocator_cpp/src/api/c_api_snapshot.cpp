// The C ABI's snapshot as rows: checks arguments, copies what the view has copied.
#include <string>
#include <vector>

#include "api/registry.h"
#include "base/json_text.h"
#include "view/snapshot.h"

using namespace pyalloc;

namespace {

int64_t number(const void* address) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(address)); }
int64_t number(size_t bytes) { return static_cast<int64_t>(bytes); }

pyalloc_segment_row row_of(const SegmentCopy& one) {
  const pyalloc_segment_view& view = one.view;
  pyalloc_segment_row row{};
  row.address = number(view.address);
  row.bytes = number(view.bytes);
  row.pool = one.pool;
  row.key_first = static_cast<int64_t>(view.key.first);
  row.key_second = static_cast<int64_t>(view.key.second);
  row.large = view.large;
  row.stream = number(view.stream);
  row.allocated = number(view.allocated);
  row.active = number(view.active);
  row.requested = number(view.requested);
  row.blocks = number(one.blocks.size());
  return row;
}

pyalloc_block_row row_of(const pyalloc_block_view& view) {
  pyalloc_block_row row{};
  row.address = number(view.address);
  row.bytes = number(view.bytes);
  row.requested = number(view.requested);
  row.state = view.state;
  row.stream = number(view.stream);
  row.tag = view.tag;
  return row;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

pyalloc_status pyalloc_snapshot_rows(int device, pyalloc_segment_row* segments, size_t* segment_count,
                                     pyalloc_block_row* blocks, size_t* block_count) {
  if (segment_count == nullptr || block_count == nullptr || (segments == nullptr && *segment_count > 0) ||
      (blocks == nullptr && *block_count > 0))
    return fail(PYALLOC_INVALID_ARGUMENT,
                "pyalloc_snapshot_rows: a count is null, or an array is null that there is room in");
  Registry& registry = Registry::instance();
  Status status = registry.usable();
  if (status == kOk) status = registry.check_device(device);
  if (status != kOk) return status;
  std::vector<SegmentCopy> copies;
  if (DeviceHeap* heap = registry.open_heap(device); heap != nullptr) copies = copy_segments(*heap);
  size_t found = 0;
  for (const SegmentCopy& one : copies) found += one.blocks.size();
  if (copies.size() <= *segment_count && found <= *block_count)
    for (const SegmentCopy& one : copies) {
      *segments++ = row_of(one);
      for (const pyalloc_block_view& view : one.blocks) *blocks++ = row_of(view);
    }
  *segment_count = copies.size();
  *block_count = found;
  return kOk;
}

size_t pyalloc_snapshot_fields_json(char* buffer, size_t capacity) {
  std::string segment, block;
#define PYALLOC_SEGMENT_FIELD(name, unit, help) add_field(segment, #name, unit, help);
#define PYALLOC_BLOCK_FIELD(name, unit, help) add_field(block, #name, unit, help);
#include "pyalloc/snapshot_fields.def"
#undef PYALLOC_SEGMENT_FIELD
#undef PYALLOC_BLOCK_FIELD
  return copy("{\"segment\": [" + segment + "],\n \"block\": [" + block + "]}", buffer, capacity);
}

}  // extern "C"
#pragma GCC visibility pop
