// Reads this process's stats page as another process would: from its file, by the header alone and the structs of stats_page.h, whose
// places the test knows for one device.
#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "heap/pool_names.h"
#include "pyalloc/stats_page.h"

namespace test {

inline std::string page_path() {
  char path[4096] = "";
  size_t length = pyalloc_stats_page_path(path, sizeof path);
  return {path, length};
}

struct Page {
  std::string content;

  bool load(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    content.assign(std::istreambuf_iterator<char>(file), {});
    return content.size() >= sizeof(pyalloc_page_header) && content.size() == header().page_bytes;
  }
  const pyalloc_page_header& header() const { return *reinterpret_cast<const pyalloc_page_header*>(content.data()); }
  bool whole() const { return header().sequence % 2 == 0; }
  std::string description() const { return content.substr(header().layout_offset, header().layout_bytes); }

  template <class Record>
  const Record& at(size_t offset) const {
    return *reinterpret_cast<const Record*>(content.data() + header().tables_offset + offset);
  }
  const pyalloc_page_process& process() const { return at<pyalloc_page_process>(0); }
  const pyalloc_page_device& device() const { return at<pyalloc_page_device>(kDevice); }
  const pyalloc_page_tag& tag(size_t index) const {
    return at<pyalloc_page_tag>(kTags + index * sizeof(pyalloc_page_tag));
  }
  const pyalloc_page_event& event(size_t index) const {
    return at<pyalloc_page_event>(kEvents + index * sizeof(pyalloc_page_event));
  }
  const pyalloc_page_pool& pool(size_t index) const {
    return at<pyalloc_page_pool>(kPools + index * sizeof(pyalloc_page_pool));
  }

 private:
  static constexpr size_t kDevice = sizeof(pyalloc_page_process), kTags = kDevice + sizeof(pyalloc_page_device),
                          kEvents = kTags + PYALLOC_PAGE_TAGS * sizeof(pyalloc_page_tag),
                          kPools = kEvents + PYALLOC_PAGE_EVENTS * sizeof(pyalloc_page_event);
};

// The page as it is after a publish of everything; empty when there is none.
inline Page published() {
  Page page;
  if (pyalloc_publish_stats_page() != PYALLOC_OK || !page.load(page_path())) page.content.clear();
  return page;
}

inline bool exists(const std::string& path) {
  struct stat facts{};
  return lstat(path.c_str(), &facts) == 0;
}

// A folder for pages that is this test's alone, until it ends.
class PageFolder {
 public:
  PageFolder() {
    char name[] = "/tmp/pyalloc-page-test-XXXXXX";
    base_ = mkdtemp(name);
    setenv("PYALLOC_SHARED_FOLDER", base_.c_str(), 1);
  }
  ~PageFolder() {
    unsetenv("PYALLOC_SHARED_FOLDER");
    int removed = std::system(("rm -rf " + base_).c_str());
    (void)removed;
  }
  std::string folder() const { return base_ + "/pyalloc-" + std::to_string(geteuid()); }
  const std::string& base() const { return base_; }

 private:
  std::string base_;
};

}  // namespace test
