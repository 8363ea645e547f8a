// The C ABI's calls about tags: checks arguments and calls tag_scope.h and tag_accounts.h.
#include <string>

#include "api/tag_scope.h"
#include "base/json_text.h"
#include "pyalloc/pyalloc.h"

using namespace pyalloc;

#pragma GCC visibility push(default)
extern "C" {

pyalloc_status pyalloc_push_tag(const char* name, uint32_t* tag) {
  if (name == nullptr || tag == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_push_tag: an argument is null");
  return push_tag(name, *tag);
}

pyalloc_status pyalloc_pop_tag(uint32_t tag) { return pop_tag(tag); }

pyalloc_status pyalloc_get_bill(const char* name, pyalloc_bill* bill) {
  if (name == nullptr || bill == nullptr || bill->size < sizeof(pyalloc_bill))
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_get_bill: the name is null, or bill->size is not set");
  return get_bill(name, *bill);
}

size_t pyalloc_bills_json(char* buffer, size_t capacity) {
  std::string text = "[";
  for (const NamedBill& one : all_bills()) {
    text += (text.size() > 1 ? ",\n {\"tag\": " : "{\"tag\": ") + quoted(one.name);
#define PYALLOC_TAG_FIELD(name, unit, help) text += ", \"" #name "\": " + std::to_string(one.bill.name);
#include "pyalloc/tag_fields.def"
#undef PYALLOC_TAG_FIELD
    text += "}";
  }
  return copy(text + "]", buffer, capacity);
}

size_t pyalloc_tag_name(uint32_t tag, char* buffer, size_t capacity) { return copy(tag_name(tag), buffer, capacity); }

size_t pyalloc_tag_fields_json(char* buffer, size_t capacity) {
  std::string rows;
#define PYALLOC_TAG_FIELD(name, unit, help) add_field(rows, #name, unit, help);
#include "pyalloc/tag_fields.def"
#undef PYALLOC_TAG_FIELD
  return copy("[" + rows + "]", buffer, capacity);
}

}  // extern "C"
#pragma GCC visibility pop
