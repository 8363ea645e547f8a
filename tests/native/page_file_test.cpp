// The stats page's file: who may have it, what is in its way, and that nothing about it harms the program.
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "gpu.h"
#include "page_reader.h"

using namespace test;

namespace {

int exit_code_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

}  // namespace

TEST(none_is_made_where_none_is_wanted) {
  PageFolder folder;
  Gpu gpu("memory:64MiB", "stats_page:off,maintenance:on");
  void* block = allocate(3 * kMiB);
  CHECK_EQ(pyalloc_publish_stats_page(), PYALLOC_WRONG_STATE);
  CHECK(std::strstr(pyalloc_last_error(), "off") != nullptr);
  CHECK(page_path().empty());
  CHECK(!exists(folder.folder()));
  CHECK_EQ(deallocate(block), PYALLOC_OK);
}

TEST(a_forked_child_leaves_its_parent_s_page_alone) {
  PageFolder folder;
  Gpu gpu("memory:64MiB", "maintenance:on");
  void* block = allocate(3 * kMiB);
  CHECK_EQ(pyalloc_publish_stats_page(), PYALLOC_OK);
  std::string path = page_path();
  pid_t child = fork();
  if (child == 0) {
    int wrong = !page_path().empty();
    wrong += pyalloc_publish_stats_page() != PYALLOC_WRONG_STATE;
    if (wrong != 0) _exit(wrong);
    std::exit(0);  // the exit handlers run
  }
  CHECK_EQ(exit_code_of(child), 0);
  CHECK(exists(path));
  // A child that lives on does not hold the lock, once it runs: its copy is closed by fork's handler in it.
  int runs[2], ends[2];
  CHECK_EQ(pipe(runs), 0);
  CHECK_EQ(pipe(ends), 0);
  child = fork();
  char byte = 0;
  if (child == 0) {
    close(ends[1]);
    if (write(runs[1], &byte, 1) != 1) _exit(2);
    _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(runs[1]);
  CHECK_EQ(read(runs[0], &byte, 1), 1);
  close(runs[0]);
  close(ends[0]);
  int file = open(path.c_str(), O_RDONLY);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK_EQ(pyalloc_shutdown(), PYALLOC_OK);
  CHECK(flock(file, LOCK_SH | LOCK_NB) == 0);
  close(file);
  close(ends[1]);
  CHECK_EQ(exit_code_of(child), 0);
  CHECK_EQ(pyalloc_init(1), PYALLOC_OK);
}

TEST(folders_that_are_not_ours_alone_are_not_used) {
  for (const char* how : {"open to others", "a link", "a file", "missing base"}) {
    PageFolder folder;
    std::string name = how;
    if (name == "open to others")
      CHECK(mkdir(folder.folder().c_str(), 0755) == 0 && chmod(folder.folder().c_str(), 0755) == 0);
    if (name == "a link") {
      std::string elsewhere = folder.base() + "/elsewhere";
      CHECK_EQ(mkdir(elsewhere.c_str(), 0700), 0);
      CHECK_EQ(symlink(elsewhere.c_str(), folder.folder().c_str()), 0);
    }
    if (name == "a file") close(open(folder.folder().c_str(), O_CREAT | O_WRONLY, 0600));
    if (name == "missing base") setenv("PYALLOC_SHARED_FOLDER", (folder.base() + "/no/such").c_str(), 1);
    Gpu gpu("memory:64MiB");
    void* block = allocate(3 * kMiB);
    CHECK(block != nullptr);
    CHECK_EQ(pyalloc_publish_stats_page(), PYALLOC_WRONG_STATE);
    CHECK(std::strstr(pyalloc_last_error(), "/pyalloc-") != nullptr);
    CHECK(page_path().empty());
    CHECK_EQ(deallocate(block), PYALLOC_OK);
    CHECK(valid());
  }
}

TEST(a_page_of_the_same_name) {
  PageFolder folder;
  std::string path;
  {
    Gpu gpu("memory:64MiB");
    CHECK_EQ(deallocate(allocate(700)), PYALLOC_OK);
    CHECK_EQ(pyalloc_publish_stats_page(), PYALLOC_OK);
    path = page_path();
  }
  // As an exec leaves it: nobody holds the lock.
  int old = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK_EQ(write(old, "old", 3), ssize_t{3});
  {
    Gpu gpu("memory:64MiB");
    CHECK_EQ(deallocate(allocate(700)), PYALLOC_OK);
    CHECK(!published().content.empty());
    char still[4] = "";
    CHECK_EQ(pread(old, still, 3, 0), ssize_t{3});  // another file, not this one written over
    CHECK(std::strcmp(still, "old") == 0);
  }
  close(old);
  // Somebody holds it: it stays as it is.
  int held = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK_EQ(flock(held, LOCK_EX | LOCK_NB), 0);
  {
    Gpu gpu("memory:64MiB");
    CHECK_EQ(deallocate(allocate(700)), PYALLOC_OK);
    CHECK_EQ(pyalloc_publish_stats_page(), PYALLOC_WRONG_STATE);
    CHECK(std::strstr(pyalloc_last_error(), "in use") != nullptr);
  }
  CHECK(exists(path));
  close(held);
}

TEST(old_leftovers_go_and_nothing_else) {
  PageFolder folder;
  CHECK_EQ(mkdir(folder.folder().c_str(), 0700), 0);
  auto make = [&](const std::string& name, bool old) {
    int file = open((folder.folder() + "/" + name).c_str(), O_CREAT | O_RDWR, 0600);
    timespec times[2] = {{time(nullptr) - (old ? 4000 : 3000), 0}, {time(nullptr) - (old ? 4000 : 3000), 0}};
    CHECK_EQ(futimens(file, times), 0);
    return file;
  };
  close(make("1-2-3", true));
  close(make("1-2-4", false));
  close(make("1-2-5.sock", true));
  close(make("1-2", true));
  close(make("notes", true));
  int held = make("1-2-6", true);
  CHECK_EQ(flock(held, LOCK_EX), 0);
  CHECK_EQ(symlink("notes", (folder.folder() + "/1-2-7").c_str()), 0);
  {
    Gpu gpu("memory:64MiB");
    CHECK_EQ(deallocate(allocate(700)), PYALLOC_OK);
    CHECK(!published().content.empty());
  }
  CHECK(!exists(folder.folder() + "/1-2-3"));
  for (const char* name : {"1-2-4", "1-2-5.sock", "1-2", "notes", "1-2-6", "1-2-7"})
    CHECK(exists(folder.folder() + "/" + name));
  close(held);
}

TEST(a_page_that_somebody_damages_harms_nobody) {
  PageFolder folder;
  Gpu gpu("memory:64MiB");
  void* block = allocate(3 * kMiB);
  CHECK_EQ(pyalloc_publish_stats_page(), PYALLOC_OK);
  std::string path = page_path();
  CHECK_EQ(truncate(path.c_str(), 10), 0);
  CHECK_EQ(pyalloc_publish_stats_page(), PYALLOC_OK);
  CHECK_EQ(unlink(path.c_str()), 0);
  CHECK_EQ(pyalloc_publish_stats_page(), PYALLOC_OK);
  CHECK_EQ(deallocate(block), PYALLOC_OK);
  CHECK(valid());
}
