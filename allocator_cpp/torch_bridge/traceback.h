// The stack of the calling thread, as torch itself gathers it.
//
// torch/csrc/profiler/combined_traceback.h brings in the JIT compiler's headers, which takes longer to compile than all
// the rest of the bridge: what is needed of it is declared here. tests/torch/history_calls.cpp compares the two.
#pragma once
#include <memory>

#include "core.h"

namespace torch {
struct CapturedTraceback : c10::GatheredContext {  // made and destroyed by torch alone
  static std::shared_ptr<CapturedTraceback> gather(bool python, bool script, bool cpp);
};
}  // namespace torch

namespace pyalloc_bridge {

// Python's frames where the thread holds the GIL, else none.
inline std::shared_ptr<c10::GatheredContext> gather_python_stack() {
  return torch::CapturedTraceback::gather(true, false, false);
}

}  // namespace pyalloc_bridge
