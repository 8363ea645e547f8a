#include "view/page_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "view/process_identity.h"

namespace pyalloc {
namespace {

constexpr mode_t kOthers = 077;
constexpr time_t kLeftoversKept_s = 3600;

// <digits>-<digits>-<digits>
bool is_page_name(const char* name) {
  int numbers = 0;
  for (const char* at = name;; ++at) {
    size_t digits = std::strspn(at, "0123456789");
    if (digits == 0) return false;
    at += digits;
    ++numbers;
    if (*at != '-') return *at == 0 && numbers == 3;
  }
}

bool fails(std::string& why, const std::string& what, int error = errno) {
  why = what + ": " + std::strerror(error);
  return false;
}

// Closes what `descriptor` names, once.
void shut(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

}  // namespace

// The folder must be a real one of this user's, closed to others: /dev/shm lets anybody make it first.
bool PageFile::open_folder(std::string& why) {
  const char* chosen = std::getenv("PYALLOC_SHARED_FOLDER");
  std::string base = chosen != nullptr && chosen[0] != 0 ? chosen : "/dev/shm";
  std::string folder = base + "/pyalloc-" + std::to_string(geteuid());
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return fails(why, "cannot make " + folder);
  folder_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder_ < 0) return fails(why, "cannot open " + folder);
  struct stat facts{};
  if (fstat(folder_, &facts) != 0) return fails(why, "cannot look at " + folder);
  if (facts.st_uid != geteuid() || (facts.st_mode & kOthers) != 0) {
    why = folder + " is not this user's alone; expected it to be owned by uid " + std::to_string(geteuid()) +
          " with mode 0700";
    return false;
  }
  path_ = folder + "/" + name_;
  return true;
}

// Lets the file appear under its name. What has the name already was left by this process before an exec, and goes.
bool PageFile::link(std::string& why) {
  std::string unnamed = "/proc/self/fd/" + std::to_string(file_);
  for (int tries = 0; tries < 2; ++tries) {
    if (linkat(AT_FDCWD, unnamed.c_str(), folder_, name_.c_str(), AT_SYMLINK_FOLLOW) == 0) return true;
    if (errno != EEXIST) break;
    int old = openat(folder_, name_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (old < 0) return fails(why, "cannot open the old " + path_);
    bool left = flock(old, LOCK_EX | LOCK_NB) == 0;
    if (left) unlinkat(folder_, name_.c_str(), 0);
    close(old);
    if (!left) {
      why = path_ + " is in use";
      return false;
    }
  }
  return fails(why, "cannot make " + path_);
}

// What processes that were killed left: for an hour it may tell somebody why, then it is in the way.
void PageFile::remove_leftovers() {
  int again = openat(folder_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // the listing's own
  DIR* listing = again >= 0 ? fdopendir(again) : nullptr;
  if (listing == nullptr) {
    shut(again);
    return;
  }
  while (const dirent* entry = readdir(listing)) {
    if (!is_page_name(entry->d_name)) continue;
    int file = openat(folder_, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) continue;
    struct stat facts{};
    bool old = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_uid == geteuid() &&
               std::time(nullptr) - facts.st_mtime > kLeftoversKept_s;
    if (old && flock(file, LOCK_EX | LOCK_NB) == 0) unlinkat(folder_, entry->d_name, 0);
    close(file);
  }
  closedir(listing);
}

bool PageFile::create(const std::string& content, std::string& why) {
  ProcessIdentity self = process_identity();
  name_ = self.file_name();
  bool made = open_folder(why);
  if (made) remove_leftovers();
  if (made) {
    file_ = openat(folder_, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    made = file_ >= 0 || fails(why, "cannot make a file in " + path_.substr(0, path_.rfind('/')));
  }
  // What the file needs is taken now, so that later writes do not find the file system full.
  if (made)
    if (int error = posix_fallocate(file_, 0, static_cast<off_t>(content.size())); error != 0)
      made = fails(why, "no room for " + path_, error);
  if (made && !write(0, content.data(), content.size())) made = fails(why, "cannot write " + path_);
  if (made && flock(file_, LOCK_EX | LOCK_NB) != 0) made = fails(why, "cannot lock " + path_);
  if (made) made = link(why);
  owner_ = self.pid;
  if (!made) leave();
  return made;
}

bool PageFile::write(size_t offset, const void* data, size_t bytes) {
  auto from = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t done = pwrite(file_, from, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    from += done;
    offset += static_cast<size_t>(done);
    bytes -= static_cast<size_t>(done);
  }
  return true;
}

void PageFile::remove() {
  if (file_ >= 0 && owner_ == static_cast<uint64_t>(getpid())) unlinkat(folder_, name_.c_str(), 0);
  leave();
}

void PageFile::leave() {
  shut(file_);
  shut(folder_);
}

}  // namespace pyalloc
