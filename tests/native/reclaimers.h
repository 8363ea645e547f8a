// For tests of functions that free memory when it runs out: one that counts its calls.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace test {

struct Hook {
  std::function<uint64_t(int device, size_t bytes)> run;
  int calls = 0;
  static uint64_t call(void* context, int device, size_t bytes) {
    Hook& hook = *static_cast<Hook*>(context);
    ++hook.calls;
    return hook.run ? hook.run(device, bytes) : 0;
  }
};

}  // namespace test
