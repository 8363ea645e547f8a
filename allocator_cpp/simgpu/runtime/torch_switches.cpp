#include "runtime/torch_switches.h"

#include <dlfcn.h>

#include <atomic>

namespace simgpu::runtime {

// Through torch's own exported functions, in whatever way torch was started, so that no Python hook is needed in any
// child process. torch counts devices before it does anything else with CUDA; a torch without these functions keeps
// cuDNN on, and the first use of it is answered by the line in libraries/unsupported.def.
void switch_cudnn_off_in_torch() {
  static std::atomic<bool> done{false};
  if (done.load(std::memory_order_relaxed)) return;
  void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch == nullptr) return;  // not loaded yet, or the program is not torch
  if (done.exchange(true)) return;
  using Switch = void (*)(void* context, bool on);
  auto context = reinterpret_cast<void* (*)()>(dlsym(torch, "_ZN2at13globalContextEv"));
  auto set_cudnn = reinterpret_cast<Switch>(dlsym(torch, "_ZN2at7Context19setUserEnabledCuDNNEb"));
  auto set_attention = reinterpret_cast<Switch>(dlsym(torch, "_ZN2at7Context14setSDPUseCuDNNEb"));
  if (context != nullptr && set_cudnn != nullptr) set_cudnn(context(), false);
  if (context != nullptr && set_attention != nullptr) set_attention(context(), false);
  dlclose(torch);
}

}  // namespace simgpu::runtime
