// The configuration: every option, its forms, and every error of a string at once.
#include "api/config.h"

#include <string>
#include <vector>

#include "gpu.h"

using namespace test;
using pyalloc::Config;

namespace {

bool accepts(Config& config, const std::string& text) {
  if (config.set(text, "test") == PYALLOC_OK) return true;
  std::fprintf(stderr, "'%s': %s\n", text.c_str(), pyalloc_last_error());
  return false;
}

// Refused, with each of these in the message, and nothing changed.
void refuses(const std::string& text, const std::vector<std::string>& parts) {
  Config config;
  CHECK(accepts(config, "limit:12345,check:full"));
  std::string before = config.json();
  CHECK_EQ(config.set(text, "test"), PYALLOC_BAD_CONFIG);
  std::string message = pyalloc_last_error();
  for (const std::string& part : parts) {
    if (message.find(part) == std::string::npos)
      std::fprintf(stderr, "'%s' lacks '%s'\n", message.c_str(), part.c_str());
    CHECK(message.find(part) != std::string::npos);
  }
  CHECK(config.json() == before);
}

}  // namespace

TEST(every_option_takes_its_default_and_another_value) {
  int options = 0;
#define OPTION_SWITCH(key, default_, help)               \
  for (const char* on : {"on", "True", "true"}) {        \
    Config config;                                       \
    CHECK(accepts(config, std::string(#key ":") + on));  \
    CHECK(config.options().key);                         \
  }                                                      \
  for (const char* off : {"off", "False", "false"}) {    \
    Config config;                                       \
    CHECK(accepts(config, std::string(#key ":") + off)); \
    CHECK(!config.options().key);                        \
  }                                                      \
  CHECK(Config().options().key == default_);             \
  refuses(#key ":maybe", {#key, "maybe", "on or off"});  \
  ++options;
#define OPTION_CHOICE(key, default_, choices, help)                                   \
  {                                                                                   \
    std::string all = choices;                                                        \
    for (size_t start = 0; start < all.size();) {                                     \
      size_t end = std::min(all.find('|', start), all.size());                        \
      Config config;                                                                  \
      CHECK(accepts(config, std::string(#key ":") + all.substr(start, end - start))); \
      CHECK(config.options().key == all.substr(start, end - start));                  \
      start = end + 1;                                                                \
    }                                                                                 \
    CHECK(Config().options().key == default_);                                        \
    refuses(#key ":" choices, {#key, choices});                                       \
    refuses(#key ":", {#key, choices});                                               \
    ++options;                                                                        \
  }
#define OPTION_SIZE(key, default_, help)                       \
  {                                                            \
    Config config;                                             \
    CHECK(accepts(config, #key ":3GiB"));                      \
    CHECK_EQ(config.options().key, uint64_t{3} << 30);         \
    CHECK_EQ(Config().options().key, uint64_t{default_});      \
    refuses(#key ":3 parsecs", {#key, "3 parsecs", "512MiB"}); \
    ++options;                                                 \
  }
#define OPTION_FRACTION(key, default_, low, high, help) \
  {                                                     \
    Config config;                                      \
    CHECK(accepts(config, #key ":0.5"));                \
    CHECK(config.options().key == 0.5);                 \
    CHECK(Config().options().key == default_);          \
    refuses(#key ":1e9", {#key, "1e9", "from 0 to"});   \
    refuses(#key ":-0.5", {#key, "-0.5"});              \
    refuses(#key ":nan", {#key, "nan"});                \
    refuses(#key ":0.5x", {#key, "0.5x"});              \
    ++options;                                          \
  }
#define OPTION_INTEGER(key, default_, low, high, unit, help)   \
  {                                                            \
    Config config;                                             \
    CHECK(accepts(config, #key ":7"));                         \
    CHECK_EQ(config.options().key, int64_t{7});                \
    CHECK_EQ(Config().options().key, int64_t{default_});       \
    refuses(#key ":7.5", {#key, "7.5", "whole number", unit}); \
    refuses(#key ":-1", {#key, "-1"});                         \
    refuses(#key ":99999999999999999999", {#key});             \
    ++options;                                                 \
  }
#include "api/options.def"
#undef OPTION_SWITCH
#undef OPTION_CHOICE
#undef OPTION_SIZE
#undef OPTION_FRACTION
#undef OPTION_INTEGER
  CHECK(options >= 11);
}

TEST(sizes_with_units) {
  struct {
    const char* text;
    uint64_t bytes;
  } cases[] = {{"0", 0},
               {"512", 512},
               {"512B", 512},
               {"2KiB", 2048},
               {"512MiB", 512 * kMiB},
               {"20GiB", 20 * kGiB},
               {"1.5GiB", 3 * kGiB / 2},
               {"1TiB", 1024 * kGiB},
               {"1.5GB", 1500000000},
               {"3KB", 3000},
               {"7MB", 7000000},
               {"2TB", 2000000000000},
               {" 4 GiB ", 4 * kGiB}};
  for (const auto& one : cases) {
    Config config;
    CHECK(accepts(config, std::string("limit:") + one.text));
    CHECK_EQ(config.options().limit, one.bytes);
  }
  for (const char* wrong : {"", "-1", "GiB", "1XiB", "1gib", "1e30GiB", "nan", "inf", "0x10", "1,5GiB"}) {
    Config config;
    CHECK_EQ(config.set(std::string("limit:") + wrong, "test"), PYALLOC_BAD_CONFIG);
  }
}

TEST(all_errors_at_once_naming_key_value_expected_and_the_nearest_key) {
  refuses("limti:5GiB,check:loud,slack:many,,decay:-3,bridge",
          {"limti", "the nearest is 'limit'", "check", "loud", "off|cheap|full", "slack", "many", "0 to 10",
           "empty entry", "decay", "-3", "'bridge' is not KEY:VALUE"});
  refuses("cros_stream_wiat:on", {"cross_stream_wait"});
  refuses("x:1", {"unknown option 'x'", "options:"});
}

TEST(later_calls_replace_earlier_ones) {
  Config config;
  CHECK(accepts(config, "limit:1GiB,check:off"));
  CHECK(accepts(config, "check:full"));
  CHECK_EQ(config.options().limit, uint64_t{0});
  CHECK(accepts(config, "limit:1GiB,limit:2GiB"));
  CHECK_EQ(config.options().limit, uint64_t{2 * kGiB});
  CHECK(accepts(config, ""));
  CHECK(config.options().check == "cheap");
  std::string json = config.json();
  CHECK(json.find("\"key\": \"limit\"") != std::string::npos &&
        json.find("\"origin\": \"default\"") != std::string::npos);
}

TEST(the_environment_is_read_when_nothing_else_was_said) {
  CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
  setenv("PYALLOC_CONF", "limit:12MiB,maintenance:off", 1);
  CHECK_EQ(pyalloc_configure(nullptr, nullptr), PYALLOC_OK);
  char text[8192];
  CHECK(pyalloc_config_json(text, sizeof text) < sizeof text);
  CHECK(std::strstr(text, "\"key\": \"limit\", \"value\": \"12582912\"") != nullptr);
  CHECK(std::strstr(text, "\"origin\": \"environment\"") != nullptr);
  unsetenv("PYALLOC_CONF");
  CHECK_EQ(pyalloc_configure("limit:bad", "test"), PYALLOC_BAD_CONFIG);
  pyalloc_config_json(text, sizeof text);
  CHECK(std::strstr(text, "12582912") != nullptr);
  size_t needed = pyalloc_config_json(nullptr, 0);
  char small[16];
  CHECK_EQ(pyalloc_config_json(small, sizeof small), needed);
  CHECK_EQ(std::strlen(small), size_t{15});
}

TEST(the_configuration_is_fixed_once_a_heap_is_open) {
  Gpu gpu("memory:64MiB");
  void* block = allocate(512);
  CHECK_EQ(pyalloc_configure("limit:1GiB", "test"), PYALLOC_WRONG_STATE);
  CHECK(std::strstr(pyalloc_last_error(), "fixed from the first allocation") != nullptr);
  CHECK(std::strstr(pyalloc_last_error(), "limit:0 (asked for 1073741824)") != nullptr);
  CHECK(std::strstr(pyalloc_last_error(), "slack") == nullptr);  // it is the same
  deallocate(block);
}

TEST(a_size_is_read_as_in_an_option) {
  uint64_t bytes = 7;
  CHECK(pyalloc_parse_size("1.5GiB", &bytes) == PYALLOC_OK && bytes == 1610612736);
  CHECK(pyalloc_parse_size("4096", &bytes) == PYALLOC_OK && bytes == 4096);
  for (const char* bad : {"", "much", "-1", "20g", "1e30GiB"})
    CHECK(pyalloc_parse_size(bad, &bytes) == PYALLOC_INVALID_ARGUMENT && bytes == 4096);
  CHECK(std::string(pyalloc_last_error()).find("size '1e30GiB'; expected a size in bytes") == 0);
}
