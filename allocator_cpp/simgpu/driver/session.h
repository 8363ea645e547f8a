// What the processes of one simulation share: each device's capacity and use, memory handed between processes, and events.
//
// Devices are numbered as in the configuration, whatever CUDA_VISIBLE_DEVICES says. A small file in /dev/shm named by the configuration's session, made by the first process and removed by the last; without a session
// it is private to this process. Bytes in use are atomics (no lock on the allocation path); joining, leaving, sharing and taking back
// what dead processes held happen under flock, which the kernel drops when a process dies. Within a process: the simulation's mutex.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "configuration.h"

namespace simgpu {

struct SharedState;

class Session {
 public:
  ~Session() { leave(); }
  bool join(const Configuration& configuration, std::string* error);
  bool joined() const { return state_ != nullptr; }
  void leave();
  // After fork: forgets the parent's membership without touching it.
  void abandon();

  // Accounts for bytes of device memory; false when the device has not that much left.
  bool take(int device, uint64_t bytes);
  void give(int device, uint64_t bytes);
  uint64_t used(int device);
  uint64_t capacity(int device) const;
  void set_capacity(int device, uint64_t bytes);
  // What a container may use of the device, of all processes of the session together: at most its capacity.
  uint64_t allowed(int device) const;
  // bytes 0: none. told: what the driver says may be had is the limit too, not the capacity.
  void set_limit(int device, uint64_t bytes, bool told);
  uint64_t told(int device) const;
  // The processes that hold memory of the device: up to `capacity` of them are written, all are counted.
  size_t processes(int device, int* pids, uint64_t* bytes, size_t capacity);

  // Memory known to several processes is charged once, until the last of them lets go. `share` moves a charge of this process to the
  // shared table; `adopt` adds this process as a holder (charging it anew when nobody holds it any more). -1: full or out of memory.
  int share(uint64_t inode, int device, uint64_t bytes);
  int adopt(uint64_t inode, int device, uint64_t bytes);
  void unshare(int entry);

  // Events visible to other processes: a count of records made and of records completed.
  int event_create();
  void event_retain(int slot);
  void event_release(int slot);
  std::atomic<uint64_t>* event_recorded(int slot);
  std::atomic<uint64_t>* event_completed(int slot);

 private:
  class FileLock;
  void reclaim_dead();
  bool any_process_lives() const;
  static void remove_dead_sessions();

  SharedState* state_ = nullptr;
  int fd_ = -1;  // -1: private
  int slot_ = -1;
  int pid_ = 0;
  std::string path_;
  int holds_[4096] = {};  // references of this process to each shared memory entry
};

}  // namespace simgpu
