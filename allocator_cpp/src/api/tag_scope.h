// Who pays for what a thread allocates: a stack of tags per thread, of which the innermost pays.
#pragma once
#include "base/status.h"
#include "facts/tag_accounts.h"

namespace pyalloc {

Status push_tag(const char* name, TagId& tag);
// As pop_pool().
Status pop_tag(TagId tag);

}  // namespace pyalloc
