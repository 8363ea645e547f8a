#include "api/tag_scope.h"

#include <algorithm>
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
  auto found = std::find(scopes.open.rbegin(), scopes.open.rend(), tag);
  if (found == scopes.open.rend())
    return fail(PYALLOC_WRONG_STATE,
                "no scope of that tag is open on this thread; leave a scope on the thread that entered it");
  bool last = found == scopes.open.rbegin();
  scopes.open.erase(std::next(found).base());
  thread_scope().tag = scopes.open.empty() ? kNoTag : scopes.open.back();
  close_tag(tag);
  return last ? kOk
              : fail(PYALLOC_WRONG_STATE,
                     "a tag was left before another that was entered after it on this thread: leave scopes in the "
                     "opposite order, and hold none across an await");
}

}  // namespace pyalloc
