#include "physical.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace simgpu {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kFileBytes = 1ull << 55;  // offsets are never reused, and a hole costs nothing
constexpr uint64_t kBufferBytes = 1 << 20;
constexpr char kSharedName[] = "simgpu-memory";

bool read_fully(int fd, char* host, uint64_t bytes, uint64_t offset) {
  while (bytes > 0) {
    ssize_t n = pread(fd, host, std::min<uint64_t>(bytes, 1 << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    host += n, offset += n, bytes -= n;
  }
  return true;
}

bool write_fully(int fd, const char* host, uint64_t bytes, uint64_t offset) {
  while (bytes > 0) {
    ssize_t n = pwrite(fd, host, std::min<uint64_t>(bytes, 1 << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    host += n, offset += n, bytes -= n;
  }
  return true;
}

bool punch(int fd, uint64_t offset, uint64_t bytes) {
  return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(bytes)) == 0;
}

}  // namespace

PhysicalMemory::~PhysicalMemory() {
  for (int fd : files_) {
    if (fd >= 0) close(fd);
  }
}

int PhysicalMemory::device_file(int device) {
  if (files_[device] < 0) {
    int fd = memfd_create("simgpu-device", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(kFileBytes)) != 0) {
      close(fd);
      fd = -1;
    }
    files_[device] = fd;
  }
  return files_[device];
}

std::unique_ptr<Physical> PhysicalMemory::create(int device, uint64_t bytes, uint64_t charged) {
  int fd = device_file(device);
  if (fd < 0 || !session_->take(visible_[static_cast<size_t>(device)], charged)) return nullptr;
  auto memory = std::make_unique<Physical>();
  memory->device = device;
  memory->bytes = bytes;
  memory->charged = charged;
  memory->fd = fd;
  memory->offset = next_[device];
  memory->address = static_cast<uint64_t>(device) << 56 | memory->offset;
  next_[device] += (bytes + kPage - 1) / kPage * kPage;
  return memory;
}

void PhysicalMemory::destroy(std::unique_ptr<Physical> memory) {
  if (memory->own_file) {
    close(memory->fd);
    shared_.erase(std::remove(shared_.begin(), shared_.end(), memory.get()), shared_.end());
  } else if (memory->written) {
    punch(memory->fd, memory->offset, (memory->bytes + kPage - 1) / kPage * kPage);
  }
  if (memory->shared_entry >= 0) {
    session_->unshare(memory->shared_entry);
  } else {
    session_->give(visible_[static_cast<size_t>(memory->device)], memory->charged);
  }
}

bool PhysicalMemory::make_shareable(Physical& memory) {
  if (memory.own_file) return true;
  char name[64];
  std::snprintf(name, sizeof(name), "%s-%d-%llx-%x", kSharedName, visible_[static_cast<size_t>(memory.device)],
                (unsigned long long)memory.charged, memory.prop.requested_handle_types);
  int fd = memfd_create(name, MFD_CLOEXEC);
  struct stat status;
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(memory.bytes)) != 0 || fstat(fd, &status) != 0) {
    if (fd >= 0) close(fd);
    return false;
  }
  Physical target = memory;
  target.fd = fd;
  target.offset = 0;
  target.written = false;
  bool copied = !memory.written || copy(target, 0, memory, 0, memory.bytes);
  int entry =
      copied ? session_->share(status.st_ino, visible_[static_cast<size_t>(memory.device)], memory.charged) : -1;
  if (entry < 0) {
    close(fd);
    return false;
  }
  if (memory.written) punch(memory.fd, memory.offset, (memory.bytes + kPage - 1) / kPage * kPage);
  memory.fd = fd;
  memory.offset = 0;
  memory.own_file = true;
  memory.written = true;  // other processes write to it unseen
  memory.shared_entry = entry;
  shared_.push_back(&memory);
  return true;
}

std::unique_ptr<Physical> PhysicalMemory::adopt(int fd) {
  char link[64], path[256];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof(path) - 1);
  if (n <= 0) return nullptr;
  path[n] = '\0';
  const char* name = std::strstr(path, kSharedName);
  int device = 0;
  unsigned long long charged = 0;
  unsigned types = 0;
  struct stat status;
  if (name == nullptr || std::sscanf(name + sizeof(kSharedName), "%d-%llx-%x", &device, &charged, &types) != 3)
    return nullptr;
  auto seen = std::find(visible_.begin(), visible_.end(), device);
  if (seen == visible_.end() || fstat(fd, &status) != 0) return nullptr;
  int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return nullptr;
  int entry = session_->adopt(status.st_ino, device, charged);
  device = static_cast<int>(seen - visible_.begin());
  if (entry < 0) {
    close(own);
    return nullptr;
  }
  auto memory = std::make_unique<Physical>();
  memory->device = device;
  memory->bytes = static_cast<uint64_t>(status.st_size);
  memory->charged = charged;
  memory->fd = own;
  memory->own_file = true;
  memory->written = true;
  memory->shared_entry = entry;
  memory->address = static_cast<uint64_t>(device) << 56 | next_[device];
  next_[device] += (memory->bytes + kPage - 1) / kPage * kPage;
  memory->prop.type = kAllocationPinned;
  memory->prop.location = {kLocationDevice, device};
  memory->prop.requested_handle_types = static_cast<HandleType>(types);
  shared_.push_back(memory.get());
  return memory;
}

bool PhysicalMemory::read(const Physical& memory, uint64_t offset, void* host, uint64_t bytes) const {
  return read_fully(memory.fd, static_cast<char*>(host), bytes, memory.offset + offset);
}

bool PhysicalMemory::write(Physical& memory, uint64_t offset, const void* host, uint64_t bytes) {
  memory.written = true;
  return write_fully(memory.fd, static_cast<const char*>(host), bytes, memory.offset + offset);
}

bool PhysicalMemory::zero(Physical& memory, uint64_t offset, uint64_t bytes) {
  if (!memory.written || bytes == 0) return true;
  uint64_t begin = memory.offset + offset, end = begin + bytes;
  uint64_t first = (begin + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
  static const char zeros[kPage] = {};
  if (first >= last) {  // within two pages
    uint64_t middle = std::min(first, end);
    return write_fully(memory.fd, zeros, middle - begin, begin) && write_fully(memory.fd, zeros, end - middle, middle);
  }
  return write_fully(memory.fd, zeros, first - begin, begin) && punch(memory.fd, first, last - first) &&
         write_fully(memory.fd, zeros, end - last, last);
}

bool PhysicalMemory::fill(Physical& memory, uint64_t offset, uint64_t bytes, const uint8_t* pattern,
                          unsigned pattern_bytes, uint64_t phase) {
  bool zeros = true;
  for (unsigned i = 0; i < pattern_bytes; ++i) zeros = zeros && pattern[i] == 0;
  if (zeros) return zero(memory, offset, bytes);
  memory.written = true;
  if (buffer_.size() < kBufferBytes) buffer_.resize(kBufferBytes);
  uint64_t chunk = std::min(bytes, kBufferBytes);  // a multiple of the pattern, or all there is
  for (uint64_t i = 0; i < chunk; ++i) buffer_[i] = static_cast<char>(pattern[(phase + i) % pattern_bytes]);
  for (uint64_t done = 0; done < bytes; done += chunk) {
    if (!write_fully(memory.fd, buffer_.data(), std::min(chunk, bytes - done), memory.offset + offset + done))
      return false;
  }
  return true;
}

bool PhysicalMemory::copy(Physical& target, uint64_t target_offset, const Physical& source, uint64_t source_offset,
                          uint64_t bytes) {
  if (!source.written) return zero(target, target_offset, bytes);
  if (buffer_.size() < kBufferBytes) buffer_.resize(kBufferBytes);
  uint64_t begin = source.offset + source_offset, at = begin, end = begin + bytes;
  while (at < end) {
    off_t data = lseek(source.fd, static_cast<off_t>(at), SEEK_DATA);
    uint64_t next = data < 0 ? end : std::min<uint64_t>(static_cast<uint64_t>(data), end);
    if (next > at && !zero(target, target_offset + (at - begin), next - at)) return false;
    at = next;
    if (at >= end) break;
    off_t hole = lseek(source.fd, static_cast<off_t>(at), SEEK_HOLE);
    uint64_t stop = hole < 0 ? end : std::min<uint64_t>(static_cast<uint64_t>(hole), end);
    while (at < stop) {
      uint64_t n = std::min(stop - at, kBufferBytes);
      if (!read_fully(source.fd, buffer_.data(), n, at)) return false;
      if (!write(target, target_offset + (at - begin), buffer_.data(), n)) return false;
      at += n;
    }
  }
  return true;
}

uint64_t PhysicalMemory::resident() const {
  uint64_t sum = 0;
  struct stat status;
  for (int fd : files_) {
    if (fd >= 0 && fstat(fd, &status) == 0) sum += static_cast<uint64_t>(status.st_blocks) * 512;
  }
  for (const Physical* memory : shared_) {
    if (fstat(memory->fd, &status) == 0) sum += static_cast<uint64_t>(status.st_blocks) * 512;
  }
  return sum;
}

}  // namespace simgpu
