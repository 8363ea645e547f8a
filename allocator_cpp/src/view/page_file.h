// The file of a stats page: under a name that is this process's alone, in a folder that is this user's alone, and held
// locked for as long as the process lives (pyalloc/stats_page.h says how both look from outside).
//
// It is written with pwrite and never mapped: whoever truncates the file, or a full file system, makes a write fail, and
// does not kill the program. Not guarded; StatsPage is its one user.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace pyalloc {

class PageFile {
 public:
  PageFile() = default;
  ~PageFile() { leave(); }
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  // Makes the file with `content` in it and lets it appear; pages that the user's dead processes left an hour ago or
  // earlier go. False with the reason in `why`, and nothing is left behind.
  bool create(const std::string& content, std::string& why);
  bool is_open() const { return file_ >= 0; }
  const std::string& path() const { return path_; }
  // All of it, or false.
  bool write(size_t offset, const void* data, size_t bytes);
  // The file goes. In a forked child, which has the parent's file, only its descriptors do.
  void remove();
  void leave();

 private:
  bool open_folder(std::string& why);
  void remove_leftovers();
  bool link(std::string& why);

  int folder_ = -1, file_ = -1;
  uint64_t owner_ = 0;  // the process that made it
  std::string name_, path_;
};

}  // namespace pyalloc
