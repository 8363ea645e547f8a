// The C ABI's calls about the stats page.
#include "api/registry.h"
#include "base/json_text.h"

using namespace pyalloc;

#pragma GCC visibility push(default)
extern "C" {

size_t pyalloc_stats_page_path(char* buffer, size_t capacity) {
  Registry& registry = Registry::instance();
  return copy(registry.dead() ? "" : registry.page().path(), buffer, capacity);
}

pyalloc_status pyalloc_publish_stats_page(void) { return Registry::instance().publish_page(); }

size_t pyalloc_page_fields_json(char* buffer, size_t capacity) {
  return copy(PageLayout(1).description(), buffer, capacity);
}

}  // extern "C"
#pragma GCC visibility pop
