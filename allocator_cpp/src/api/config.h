// The configuration: one string of "key:value,key:value", parsed against options.def. All errors of a string are
// reported together and change nothing. Guarded by the registry's lock; fixed once a device heap exists.
#pragma once
#include <string>

#include "base/status.h"

namespace pyalloc {

struct Options {
#define OPTION_SWITCH(key, value, help) bool key = value;
#define OPTION_CHOICE(key, value, choices, help) std::string key = value;
#define OPTION_SIZE(key, value, help) uint64_t key = value;
#define OPTION_FRACTION(key, value, low, high, help) double key = value;
#define OPTION_INTEGER(key, value, low, high, unit, help) int64_t key = value;
#include "api/options.def"
#undef OPTION_SWITCH
#undef OPTION_CHOICE
#undef OPTION_SIZE
#undef OPTION_FRACTION
#undef OPTION_INTEGER
};

// Bytes of a size as options have it: "20GiB". PYALLOC_INVALID_ARGUMENT for any other text.
Status size_of(const std::string& text, uint64_t& bytes);

class Config {
 public:
  // Defaults plus `text`; `origin` is remembered for the keys that `text` sets.
  Status set(const std::string& text, const std::string& origin);
  const Options& options() const { return options_; }
  std::string json() const;
  // "slack:0.05 (asked for 0.1), ...": every option that has another value in `wanted`; empty when none has.
  std::string differences(const Config& wanted) const;

 private:
  Options options_;
  std::string text_;
  std::string origin_ = "default";
};

}  // namespace pyalloc
