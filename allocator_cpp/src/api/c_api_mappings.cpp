// The C ABI's calls about who is told of mappings: checks arguments, calls the registry's list.
#include "api/registry.h"

using namespace pyalloc;

#pragma GCC visibility push(default)
extern "C" {

pyalloc_status pyalloc_add_mapping_observer(pyalloc_mapping_fn fn, void* context, uint32_t kinds) {
  if (fn == nullptr) return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_add_mapping_observer: fn is null");
  constexpr uint32_t kAll = PYALLOC_MAPPED | PYALLOC_UNMAPPING;
  if (kinds == 0 || (kinds & ~kAll) != 0)
    return fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_add_mapping_observer: kinds %u; expected 1 to %u", kinds, kAll);
  Registry::instance().observers().add(fn, context, kinds);
  return kOk;
}

pyalloc_status pyalloc_remove_mapping_observer(pyalloc_mapping_fn fn, void* context) {
  return Registry::instance().observers().remove(fn, context)
             ? kOk
             : fail(PYALLOC_INVALID_ARGUMENT, "pyalloc_remove_mapping_observer: it is not registered");
}

}  // extern "C"
#pragma GCC visibility pop
