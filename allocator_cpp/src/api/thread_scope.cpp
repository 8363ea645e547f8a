#include "api/thread_scope.h"

namespace pyalloc {

ThreadScope& thread_scope() {
  thread_local ThreadScope scope;
  return scope;
}

}  // namespace pyalloc
