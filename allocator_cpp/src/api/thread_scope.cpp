#include "api/thread_scope.h"

namespace pyalloc {

__thread ThreadScope current_scope;

}  // namespace pyalloc
