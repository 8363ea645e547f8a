#include "ipc/exporter.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "heap/address_map.h"

namespace pyalloc {
namespace {

constexpr int kPatience = 5000;  // milliseconds for a receiver's next message
constexpr int kPause = 100;      // milliseconds between tries while a connection cannot be taken

bool fill_random(void* to, size_t bytes) { return getrandom(to, bytes, 0) == static_cast<ssize_t>(bytes); }

}  // namespace

Status Exporter::start(const Heaps& heaps) {
  Lock lock(mutex_);
  if (thread_ != nullptr) return kOk;
  if (stopping_) return fail(PYALLOC_WRONG_STATE, "the process is exiting");
  if (!fill_random(&secret_, sizeof secret_) || !fill_random(&name_, sizeof name_))
    return fail(PYALLOC_DRIVER_ERROR,
                "sharing memory with other processes needs random numbers, and getrandom failed: %s",
                std::strerror(errno));
  listener_ = listen_at(name_);
  int error = errno;
  if (!listener_) name_ = 0;
  bool has_door = make_pair(door_, door_outside_);
  if (!listener_ && !has_door)
    return fail(PYALLOC_DRIVER_ERROR,
                "sharing memory with other processes needs a unix socket, and this process may not make one: %s; allow "
                "AF_UNIX sockets in the container's or sandbox's profile",
                std::strerror(error));
  if (!make_pair(wake_, wake_inside_)) {
    error = errno;
    close_sockets();
    return fail(PYALLOC_DRIVER_ERROR, "sharing memory with other processes failed at socketpair: %s",
                std::strerror(error));
  }
  heaps_ = heaps;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the thread inherits it
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
  } catch (const std::system_error& refused) {
    error = refused.code().value();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (thread_ == nullptr) {
    close_sockets();
    return fail(PYALLOC_DRIVER_ERROR, "sharing memory with other processes needs a thread, and none could be made: %s",
                std::strerror(error));
  }
  pthread_setname_np(thread_->native_handle(), "pyalloc-ipc");
  return kOk;
}

Status Exporter::share(const Heaps& heaps, DeviceHeap& heap, Space& space, uint64_t address, Ticket& ticket) {
  if (heap.handle_type() != cuda::kHandlePosixFd)
    return fail(PYALLOC_DRIVER_ERROR,
                "device %d does not share memory as file descriptors, so its tensors cannot be sent to other "
                "processes; "
                "send copies on the CPU",
                heap.device());
  Status status = start(heaps);
  ticket = {};
  if (status == kOk) status = heap.share(space, address, ticket.range);
  if (status != kOk) return status;
  std::memcpy(ticket.magic, kTicketMagic, sizeof ticket.magic);
  ticket.process = getpid();
  ticket.door = door_outside_ ? door_outside_.number() : -1;
  ticket.device = heap.device();
  ticket.handle_type = heap.handle_type();
  ticket.socket = name_;
  ticket.secret = secret_;
  uuid_of(heap.device(), ticket.device_uuid);
  return kOk;
}

bool Exporter::made(const Ticket& ticket) {
  Lock lock(mutex_);
  return thread_ != nullptr && ticket.secret == secret_;
}

void Exporter::stop() {
  std::unique_ptr<std::thread> ending;
  {
    Lock lock(mutex_);
    ending = std::move(thread_);
    stopping_ = true;
    wake_.reset(-1);
    if (serving_ >= 0) shutdown(serving_, SHUT_RDWR);
  }
  if (ending == nullptr) return;
  ending->join();
  close_sockets();
}

void Exporter::close_sockets() {
  for (Descriptor* one : {&listener_, &door_, &door_outside_, &wake_, &wake_inside_}) one->reset(-1);
}

void Exporter::abandon() {
  close_sockets();
  (void)thread_.release();  // it does not exist here
}

void Exporter::run() {
  while (!stopping_) {
    pollfd waits[] = {{wake_inside_.number(), POLLIN, 0}, {listener_.number(), POLLIN, 0}, {door_.number(), POLLIN, 0}};
    if (poll(waits, 3, -1) < 0 && errno != EINTR) return;
    if (stopping_) return;
    if (waits[1].revents != 0) {
      Descriptor connection(accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC));
      // While the process has no descriptors left, the receiver stays in the queue and poll() returns at once.
      if (!connection) poll(waits, 1, kPause);
      if (connection && same_user(connection.number())) serve(connection);
    }
    if (waits[2].revents != 0) {  // whoever could take the other end may trace this process: it is of this user
      std::vector<Descriptor> connection;
      char knock = 0;
      if (receive_message(door_.number(), &knock, sizeof knock, &connection) && connection.size() == 1)
        serve(connection[0]);
    }
  }
}

// Receivers take the descriptors of one batch before they get the next, so that thousands of handles need few at once.
void Exporter::serve(const Descriptor& connection) {
  int socket = connection.number();
  if (!begin_serving(socket)) return;
  Request request;
  bool good = set_timeout(socket, kPatience) && receive_message(socket, &request, sizeof request) &&
              std::memcmp(request.magic, kTicketMagic, sizeof request.magic) == 0 && request.secret == secret_;
  for (uint32_t from = 0; good;) {
    std::vector<Descriptor> descriptors;
    Batch batch{};
    if (export_batch(request, from, descriptors, batch) != kOk)
      std::snprintf(batch.error, sizeof batch.error, "%s", last_error());
    std::vector<int> numbers;
    for (const Descriptor& one : descriptors) numbers.push_back(one.number());
    Answer answer = Answer::kByNumber;
    if (send_message(socket, &batch, sizeof batch, numbers)) {
      good = receive_message(socket, &answer, sizeof answer);
    } else {  // descriptors may not be sent, or the receiver is gone
      good = errno != EPIPE && errno != EAGAIN && errno != ECONNRESET;
    }
    if (good && answer == Answer::kByNumber) {
      batch.by_number = 1;
      good = send_message(socket, &batch, sizeof batch) && receive_message(socket, &answer, sizeof answer);
    }
    good = good && answer == Answer::kTaken && batch.left > 0 && batch.error[0] == 0;
    from += batch.count;
  }
  begin_serving(-1);
}

// Under the lock, so that stop() interrupts this connection and not what has its number later.
bool Exporter::begin_serving(int socket) {
  Lock lock(mutex_);
  serving_ = socket;
  return !stopping_;
}

Status Exporter::export_batch(const Request& request, uint32_t from, std::vector<Descriptor>& descriptors,
                              Batch& batch) {
  DeviceHeap* heap = heaps_(request.device);
  Space* space = find_space(request.range.address);
  if (heap == nullptr || space == nullptr || &space->heap() != heap)
    return fail(PYALLOC_UNKNOWN_POINTER, "the process that shared the tensor has no such memory");
  std::vector<DeviceHeap::Exported> exported;
  Status status = heap->export_handles(*space, request.range, from, kMostDescriptors, exported, batch.left);
  if (status != kOk) return status;
  for (const DeviceHeap::Exported& one : exported) {
    batch.numbers[batch.count] = one.descriptor;
    batch.bytes[batch.count++] = one.bytes;
    descriptors.emplace_back(one.descriptor);
  }
  return kOk;
}

}  // namespace pyalloc
