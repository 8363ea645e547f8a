#include "view/page_layout.h"

#include "base/json_text.h"

namespace pyalloc {
namespace {

class Fields {
 public:
  void add(const char* name, const char* type, size_t offset, size_t bytes, const char* kind, const char* unit,
           const char* help) {
    text_ += std::string(text_.empty() ? "" : ", ") + "{\"name\": " + quoted(name) + ", \"type\": " + quoted(type) +
             ", \"offset\": " + std::to_string(offset) + ", \"bytes\": " + std::to_string(bytes) +
             ", \"kind\": " + quoted(kind) + ", \"unit\": " + quoted(unit) + ", \"help\": " + quoted(help) + "}";
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

#define PYALLOC_PAGE_NUMBER(name, kind, unit, help) \
  fields.add(#name, "int64", offsetof(Record, name), sizeof(Record::name), #kind, unit, help);
#define PYALLOC_PAGE_STAT(name, unit, help) \
  fields.add(#name, "stat", offsetof(Record, name), sizeof(Record::name), "stat", unit, help);
#define PYALLOC_PAGE_TEXT(name, count, help) \
  fields.add(#name, "text", offsetof(Record, name), sizeof(Record::name), "fact", "", help);
#define PYALLOC_PAGE_CELLS(name, count, help) \
  fields.add(#name, "cells", offsetof(Record, name), sizeof(Record::name), "gauge", "", help);
std::string fields_of_process() {
  using Record = pyalloc_page_process;
  Fields fields;
#define PYALLOC_PAGE_OF_PROCESS
#include "pyalloc/page_fields.def"
#undef PYALLOC_PAGE_OF_PROCESS
  return fields.text();
}
std::string fields_of_device() {
  using Record = pyalloc_page_device;
  Fields fields;
#define PYALLOC_PAGE_OF_DEVICE
#include "pyalloc/page_fields.def"
#undef PYALLOC_PAGE_OF_DEVICE
  return fields.text();
}
std::string fields_of_tag() {
  using Record = pyalloc_page_tag;
  Fields fields;
#define PYALLOC_PAGE_OF_TAG
#include "pyalloc/page_fields.def"
#undef PYALLOC_PAGE_OF_TAG
  return fields.text();
}
std::string fields_of_event() {
  using Record = pyalloc_page_event;
  Fields fields;
#define PYALLOC_PAGE_OF_EVENT
#include "pyalloc/page_fields.def"
#undef PYALLOC_PAGE_OF_EVENT
  return fields.text();
}
std::string fields_of_pool() {
  using Record = pyalloc_page_pool;
  Fields fields;
#define PYALLOC_PAGE_OF_POOL
#include "pyalloc/page_fields.def"
#undef PYALLOC_PAGE_OF_POOL
  return fields.text();
}
#undef PYALLOC_PAGE_NUMBER
#undef PYALLOC_PAGE_STAT
#undef PYALLOC_PAGE_TEXT
#undef PYALLOC_PAGE_CELLS

std::string table(const char* name, const PageTable& place, const std::string& fields) {
  return std::string("{\"name\": \"") + name + "\", \"offset\": " + std::to_string(place.offset) +
         ", \"stride\": " + std::to_string(place.stride) + ", \"capacity\": " + std::to_string(place.capacity) +
         ", \"fields\": [" + fields + "]}";
}

}  // namespace

PageLayout::PageLayout(size_t devices) {
  auto place = [&](PageTable& one, size_t stride, size_t capacity) {
    one = {bytes, stride, capacity};
    bytes += stride * capacity;
  };
  place(process, sizeof(pyalloc_page_process), 1);
  place(device, sizeof(pyalloc_page_device), devices);
  place(tag, sizeof(pyalloc_page_tag), PYALLOC_PAGE_TAGS);
  place(event, sizeof(pyalloc_page_event), PYALLOC_PAGE_EVENTS);
  place(pool, sizeof(pyalloc_page_pool), devices * kPagePools);
}

std::string PageLayout::description() const {
  return "{\"tables\": [" + table("process", process, fields_of_process()) + ",\n" +
         table("device", device, fields_of_device()) + ",\n" + table("tag", tag, fields_of_tag()) + ",\n" +
         table("event", event, fields_of_event()) + ",\n" + table("pool", pool, fields_of_pool()) + "]}";
}

}  // namespace pyalloc
