#include "ipc/channel.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace pyalloc {
namespace {

socklen_t abstract_address(SocketName name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "pyalloc-%016llx",
                             static_cast<unsigned long long>(name));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

Descriptor make_socket() { return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

bool credentials(int socket, ucred& of) {
  socklen_t length = sizeof of;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &of, &length) == 0;
}

}  // namespace

void Descriptor::reset(int number) {
  int error = errno;
  if (number_ >= 0) close(number_);
  number_ = number;
  errno = error;
}

Descriptor listen_at(SocketName name) {
  sockaddr_un address;
  socklen_t length = abstract_address(name, address);
  Descriptor made = make_socket();
  if (!made || bind(made.number(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(made.number(), SOMAXCONN) != 0)
    return {};
  return made;
}

Descriptor connect_to(SocketName name) {
  sockaddr_un address;
  socklen_t length = abstract_address(name, address);
  Descriptor made = make_socket();
  if (!made || connect(made.number(), reinterpret_cast<sockaddr*>(&address), length) != 0) return {};
  return made;
}

bool make_pair(Descriptor& one, Descriptor& other) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return false;
  one.reset(pair[0]);
  other.reset(pair[1]);
  return true;
}

bool same_user(int socket) {
  ucred other{};
  return credentials(socket, other) && (other.uid == geteuid() || other.uid == 0);
}

pid_t peer_of(int socket) {
  ucred other{};
  return credentials(socket, other) ? other.pid : 0;
}

bool set_timeout(int socket, int milliseconds) {
  timeval time{milliseconds / 1000, milliseconds % 1000 * 1000};
  return setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0 &&
         setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time) == 0;
}

bool send_message(int socket, const void* message, size_t bytes, const std::vector<int>& descriptors) {
  ssize_t sent = -1;
  if (descriptors.empty()) {
    do {
      sent = send(socket, message, bytes, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == static_cast<ssize_t>(bytes);
  }
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  iovec part{const_cast<void*>(message), bytes};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size() * sizeof(int));
  do {
    sent = sendmsg(socket, &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

bool receive_message(int socket, void* message, size_t bytes, std::vector<Descriptor>* descriptors) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))];
  iovec part{message, bytes};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t received = -1;
  do {
    received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return false;
  for (cmsghdr* one = CMSG_FIRSTHDR(&header); one != nullptr; one = CMSG_NXTHDR(&header, one)) {
    if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(one) + i * sizeof(int), sizeof number);
      Descriptor owned(number);  // closed where nobody asked for it
      if (descriptors != nullptr) descriptors->push_back(std::move(owned));
    }
  }
  errno = received == 0 ? 0 : EPROTO;
  return received == static_cast<ssize_t>(bytes) && (header.msg_flags & MSG_TRUNC) == 0;
}

Descriptor take_descriptor(pid_t process, int number) {
  Descriptor handle(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (!handle) return {};
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_getfd, handle.number(), number, 0)));
}

}  // namespace pyalloc
