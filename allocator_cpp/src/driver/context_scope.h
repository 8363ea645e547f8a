// Makes a device's primary context current for a few driver calls, and allows them while some thread captures a CUDA
// graph in global mode (reserving and mapping memory is safe there, and the driver permits it in relaxed mode). Used
// around slow-path driver calls only; costs two driver calls when the context is already current.
#pragma once
#include "driver/driver.h"

namespace pyalloc {

class ContextScope {
 public:
  // `needed` false: does nothing, for paths that reach the driver only sometimes.
  explicit ContextScope(cuda::Context context, bool needed = true) {
    if (!needed) return;
    cuda::Context current = nullptr;
    if (context != nullptr && (driver().context_current(&current) != cuda::kSuccess || current != context)) {
      pushed_ = driver().context_push(context) == cuda::kSuccess;
    }
    exchanged_ = driver().exchange_capture_mode(&mode_) == cuda::kSuccess;
  }
  ~ContextScope() {
    if (exchanged_) driver().exchange_capture_mode(&mode_);
    cuda::Context popped = nullptr;
    if (pushed_) driver().context_pop(&popped);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  cuda::CaptureMode mode_ = cuda::kCaptureRelaxed;
  bool pushed_ = false;
  bool exchanged_ = false;
};

}  // namespace pyalloc
