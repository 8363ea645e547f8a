#include "api/tag_scope.h"

#include <vector>

#include "api/thread_scope.h"

namespace pyalloc {
namespace {

constexpr size_t kDeepest = 1000;  // scopes; more are pushes that nobody pops

struct Scopes {
  std::vector<TagId> open;
  ~Scopes() {
    for (TagId tag : open) close_tag(tag);
  }
};

thread_local Scopes scopes;

}  // namespace

Status push_tag(const char* name, TagId& tag) {
  if (scopes.open.size() >= kDeepest)
    return fail(PYALLOC_WRONG_STATE, "%zu tag scopes are open on this thread; leave each one that is entered",
                scopes.open.size());
  Status status = open_tag(name, tag);
  if (status != kOk) return status;
  scopes.open.push_back(tag);
  thread_scope().tag = tag;
  return kOk;
}

Status pop_tag(TagId tag) {
  if (scopes.open.empty()) return fail(PYALLOC_WRONG_STATE, "no tag scope is open on this thread");
  if (tag != thread_scope().tag)
    return fail(PYALLOC_WRONG_STATE,
                "this tag cannot be left: another was entered last on this thread; leave scopes in the opposite order, "
                "on the thread that entered them");
  scopes.open.pop_back();
  thread_scope().tag = scopes.open.empty() ? kNoTag : scopes.open.back();
  close_tag(tag);
  return kOk;
}

}  // namespace pyalloc
