// Messages and file descriptors between two processes of one user.
//
// Two ways lead to another process, and two ways bring its descriptors, since containers and security modules allow
// sometimes one and sometimes the other:
//   a connection   to its abstract unix socket, which needs a network namespace in common; or through its door, one end
//                  of a pair of sockets that is taken from it by pidfd_getfd
//   descriptors    with a message (SCM_RIGHTS); or by their numbers, by pidfd_getfd
// pidfd_getfd needs a pid namespace in common and the right to trace the process.
//
// Nothing here knows the driver, and nothing throws or waits for ever. errno says why a call failed.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pyalloc {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Descriptor() { reset(-1); }

  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  int release() {
    int number = number_;
    number_ = -1;
    return number;
  }
  void reset(int number);  // leaves errno as it is

 private:
  int number_ = -1;
};

// A socket's abstract name is made of this number, which all users of the machine may see.
using SocketName = uint64_t;

Descriptor listen_at(SocketName name);
Descriptor connect_to(SocketName name);
// A pair of connected sockets: messages of several writers stay whole.
bool make_pair(Descriptor& one, Descriptor& other);
// The other end belongs to this user, or to root.
bool same_user(int socket);
// The process at the other end, as this one numbers it; 0: unknown.
pid_t peer_of(int socket);

// How long a message may take, for both directions.
bool set_timeout(int socket, int milliseconds);
// One whole message, with descriptors (up to kMostDescriptors) that stay the sender's.
constexpr size_t kMostDescriptors = 64;
bool send_message(int socket, const void* message, size_t bytes, const std::vector<int>& descriptors = {});
// False when no message of exactly so many bytes came: errno is 0 when the other end is closed. Fewer descriptors than
// were sent may come: whoever needs them counts.
bool receive_message(int socket, void* message, size_t bytes, std::vector<Descriptor>* descriptors = nullptr);

// Another process's descriptor `number`, duplicated into this one.
Descriptor take_descriptor(pid_t process, int number);

}  // namespace pyalloc
