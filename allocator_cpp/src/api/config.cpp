#include "api/config.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace pyalloc {
namespace {

// What was written stays for messages, blanks inside it included.
struct Entry {
  std::string key, value, written_key, written_value;
};

constexpr const char* kBlanks = " \t\n\r";

std::string without_spaces(const std::string& text) {
  std::string out;
  for (char c : text)
    if (std::strchr(kBlanks, c) == nullptr) out += c;
  return out;
}

std::string without_blank_ends(const std::string& text) {
  size_t start = text.find_first_not_of(kBlanks);
  return start == std::string::npos ? "" : text.substr(start, text.find_last_not_of(kBlanks) + 1 - start);
}

// Splits "a:b,c:d".
std::vector<Entry> split(const std::string& all, std::vector<std::string>& errors) {
  std::vector<Entry> entries;
  std::string text = without_blank_ends(all);
  size_t start = 0;
  while (start < text.size()) {
    size_t end = std::min(text.find(',', start), text.size());
    std::string item = without_blank_ends(text.substr(start, end - start));
    size_t colon = item.find(':');
    if (item.empty()) {
      errors.push_back("an empty entry; expected key:value between commas");
    } else if (colon == std::string::npos) {
      errors.push_back("'" + item + "' is not KEY:VALUE; expected as in enable:True,limit:20GiB");
    } else {
      std::string key = without_blank_ends(item.substr(0, colon)), value = without_blank_ends(item.substr(colon + 1));
      entries.push_back({without_spaces(key), without_spaces(value), key, value});
    }
    start = end + 1;
  }
  return entries;
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1] ? 1 : 0)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

const char* const kKeys[] = {
#define OPTION_SWITCH(key, value, help) #key,
#define OPTION_CHOICE(key, value, choices, help) #key,
#define OPTION_SIZE(key, value, help) #key,
#define OPTION_FRACTION(key, value, low, high, help) #key,
#define OPTION_INTEGER(key, value, low, high, unit, help) #key,
#include "api/options.def"
#undef OPTION_SWITCH
#undef OPTION_CHOICE
#undef OPTION_SIZE
#undef OPTION_FRACTION
#undef OPTION_INTEGER
};

std::string unknown_key(const Entry& entry) {
  const char* nearest = kKeys[0];
  for (const char* known : kKeys)
    if (edit_distance(entry.key, known) < edit_distance(entry.key, nearest)) nearest = known;
  std::string all;
  for (const char* known : kKeys) all += (all.empty() ? "" : ", ") + std::string(known);
  return "unknown option '" + entry.written_key + "'; the nearest is '" + nearest + "' (options: " + all + ")";
}

bool parse_number(const std::string& text, double& number, std::string& rest) {
  if (text.empty() || !((text[0] >= '0' && text[0] <= '9') || text[0] == '.')) return false;
  char* end = nullptr;
  number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(number)) return false;
  if (std::any_of(text.c_str(), static_cast<const char*>(end), [](char c) { return c == 'x' || c == 'X'; }))
    return false;  // hexadecimal
  rest = end;
  return true;
}

// Each parser returns what was expected when `value` is not that, else an empty string.
std::string parse_switch(const std::string& value, bool& to) {
  if (value == "on" || value == "True" || value == "true") return to = true, "";
  if (value == "off" || value == "False" || value == "false") return to = false, "";
  return "on or off (True or False)";
}

std::string parse_choice(const std::string& value, std::string& to, const std::string& choices) {
  std::string bounded = "|" + choices + "|";
  if (!value.empty() && value.find('|') == std::string::npos && bounded.find("|" + value + "|") != std::string::npos)
    return to = value, "";
  return "one of " + choices;
}

std::string parse_size(const std::string& value, uint64_t& to) {
  static const struct {
    const char* name;
    double bytes;
  } kUnits[] =
      {{"", 1},     {"B", 1},    {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
       {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9},     {"TB", 1e12}};
  double number = 0;
  std::string unit;
  if (parse_number(value, number, unit)) {
    for (const auto& known : kUnits) {
      if (unit == known.name && number * known.bytes < 9e18)
        return to = static_cast<uint64_t>(number * known.bytes), "";
    }
  }
  return "a size in bytes, or with a unit as 512MiB or 20GiB";
}

std::string parse_fraction(const std::string& value, double& to, double low, double high) {
  double number = 0;
  std::string rest;
  if (parse_number(value, number, rest) && rest.empty() && number >= low && number <= high) return to = number, "";
  char text[80];
  std::snprintf(text, sizeof text, "a number from %g to %g", low, high);
  return text;
}

std::string parse_integer(const std::string& value, int64_t& to, int64_t low, int64_t high, const char* unit) {
  double number = 0;
  std::string rest;
  if (parse_number(value, number, rest) && rest.empty() && number == std::floor(number) &&
      number >= static_cast<double>(low) && number <= static_cast<double>(high)) {
    return to = static_cast<int64_t>(number), "";
  }
  return "a whole number of " + std::string(unit) + " from " + std::to_string(low) + " to " + std::to_string(high);
}

std::string parse_entry(const Entry& entry, Options& options) {
  std::string expected;
  bool known = false;
#define ACCEPT(name, call)  \
  if (entry.key == #name) { \
    known = true;           \
    expected = call;        \
  }
#define OPTION_SWITCH(key, default_, help) ACCEPT(key, parse_switch(entry.value, options.key))
#define OPTION_CHOICE(key, default_, choices, help) ACCEPT(key, parse_choice(entry.value, options.key, choices))
#define OPTION_SIZE(key, default_, help) ACCEPT(key, parse_size(entry.value, options.key))
#define OPTION_FRACTION(key, default_, low, high, help) ACCEPT(key, parse_fraction(entry.value, options.key, low, high))
#define OPTION_INTEGER(key, default_, low, high, unit, help) \
  ACCEPT(key, parse_integer(entry.value, options.key, low, high, unit))
#include "api/options.def"
#undef OPTION_SWITCH
#undef OPTION_CHOICE
#undef OPTION_SIZE
#undef OPTION_FRACTION
#undef OPTION_INTEGER
#undef ACCEPT
  if (!known) return unknown_key(entry);
  return expected.empty() ? ""
                          : "option '" + entry.key + "' has value '" + entry.written_value + "'; expected " + expected;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string text_of(bool value) { return value ? "on" : "off"; }
std::string text_of(const std::string& value) { return value; }
std::string text_of(uint64_t value) { return std::to_string(value); }
std::string text_of(int64_t value) { return std::to_string(value); }
std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

Status size_of(const std::string& text, uint64_t& bytes) {
  std::string expected = parse_size(text, bytes);
  return expected.empty() ? kOk
                          : fail(PYALLOC_INVALID_ARGUMENT, "size '%s'; expected %s", text.c_str(), expected.c_str());
}

Status Config::set(const std::string& text, const std::string& origin) {
  Options parsed;
  std::vector<std::string> errors;
  for (const Entry& entry : split(text, errors)) {
    std::string error = parse_entry(entry, parsed);
    if (!error.empty()) errors.push_back(error);
  }
  if (!errors.empty()) {
    std::string all;
    for (const std::string& error : errors) all += (all.empty() ? "" : "\n") + error;
    return fail(PYALLOC_BAD_CONFIG, "%s", all.c_str());
  }
  options_ = parsed;
  text_ = text;
  origin_ = origin;
  return kOk;
}

std::string Config::json() const {
  std::vector<std::string> ignored;
  std::vector<Entry> given = split(text_, ignored);
  const Options defaults;
  std::string out = "[";
  auto add = [&](const char* key, const std::string& value, const std::string& fallback, const char* type,
                 const char* unit, const std::string& expected, const char* help) {
    bool is_set = std::any_of(given.begin(), given.end(), [&](const Entry& entry) { return entry.key == key; });
    out += out.size() > 1 ? ",\n " : "";
    out += "{\"key\": " + quoted(key) + ", \"value\": " + quoted(value) + ", \"default\": " + quoted(fallback) +
           ", \"origin\": " + quoted(is_set ? origin_ : "default") + ", \"type\": " + quoted(type) +
           ", \"unit\": " + quoted(unit) + ", \"expected\": " + quoted(expected) + ", \"help\": " + quoted(help) + "}";
  };
#define OPTION_SWITCH(key, default_, help) \
  add(#key, text_of(options_.key), text_of(defaults.key), "switch", "", "on|off", help);
#define OPTION_CHOICE(key, default_, choices, help) \
  add(#key, text_of(options_.key), text_of(defaults.key), "choice", "", choices, help);
#define OPTION_SIZE(key, default_, help) \
  add(#key, text_of(options_.key), text_of(defaults.key), "size", "bytes", "bytes or 512MiB", help);
#define OPTION_FRACTION(key, default_, low, high, help) \
  add(#key, text_of(options_.key), text_of(defaults.key), "fraction", "", #low " to " #high, help);
#define OPTION_INTEGER(key, default_, low, high, unit, help) \
  add(#key, text_of(options_.key), text_of(defaults.key), "integer", unit, #low " to " #high, help);
#include "api/options.def"
#undef OPTION_SWITCH
#undef OPTION_CHOICE
#undef OPTION_SIZE
#undef OPTION_FRACTION
#undef OPTION_INTEGER
  return out + "]";
}

std::string Config::differences(const Config& wanted) const {
  std::string out;
  auto compare = [&](const char* key, const std::string& has, const std::string& asked) {
    if (has != asked) out += (out.empty() ? "" : ", ") + std::string(key) + ":" + has + " (asked for " + asked + ")";
  };
#define COMPARE(key) compare(#key, text_of(options_.key), text_of(wanted.options_.key));
#define OPTION_SWITCH(key, value, help) COMPARE(key)
#define OPTION_CHOICE(key, value, choices, help) COMPARE(key)
#define OPTION_SIZE(key, value, help) COMPARE(key)
#define OPTION_FRACTION(key, value, low, high, help) COMPARE(key)
#define OPTION_INTEGER(key, value, low, high, unit, help) COMPARE(key)
#include "api/options.def"
#undef OPTION_SWITCH
#undef OPTION_CHOICE
#undef OPTION_SIZE
#undef OPTION_FRACTION
#undef OPTION_INTEGER
#undef COMPARE
  return out;
}

}  // namespace pyalloc
