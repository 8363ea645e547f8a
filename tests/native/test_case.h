// The native tests' harness: TEST(name) { CHECK(...); } in one program per file; exit code 1 when anything failed.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace test {
struct Case {
  const char* name;
  void (*run)();
};
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
// Counts a failure; true when it is to be printed: the first few say it all.
inline bool failed() { return ++failures() <= 20; }
struct Register {
  Register(const char* name, void (*run)()) { cases().push_back({name, run}); }
};
}  // namespace test

#define TEST(name)                                            \
  static void test_##name();                                  \
  static test::Register register_##name(#name, &test_##name); \
  static void test_##name()

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition) && test::failed()) {                                          \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                              \
  } while (0)

#define CHECK_EQ(left, right)                                                                                      \
  do {                                                                                                             \
    auto left_ = (left);                                                                                           \
    auto right_ = (right);                                                                                         \
    if (!(left_ == right_) && test::failed()) {                                                                    \
      std::fprintf(stderr, "%s:%d: %s == %s: %lld != %lld\n", __FILE__, __LINE__, #left, #right, (long long)left_, \
                   (long long)right_);                                                                             \
    }                                                                                                              \
  } while (0)

int main(int argc, char** argv) {
  int ran = 0;
  for (const test::Case& one : test::cases()) {
    if (argc > 1 && std::strcmp(argv[1], one.name) != 0) continue;
    int before = test::failures();
    one.run();
    ++ran;
    std::printf("%s %s\n", test::failures() == before ? "ok  " : "FAIL", one.name);
    std::fflush(stdout);
  }
  if (ran == 0) {
    std::fprintf(stderr, "no test named %s\n", argc > 1 ? argv[1] : "");
    return 2;
  }
  return test::failures() == 0 ? 0 : 1;
}
