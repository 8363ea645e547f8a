#include "ipc/importer.h"

#include <signal.h>

#include <cerrno>
#include <cstring>

namespace pyalloc {
namespace {

constexpr int kPatience = 30000;  // milliseconds: the other process may be serving somebody else

const char* const kRemedy =
    "run both processes as one user and in one container (or network namespace), or allow pidfd_getfd (docker run "
    "--cap-add=SYS_PTRACE; kernel.yama.ptrace_scope=0)";

bool ended(const Ticket& ticket) { return kill(ticket.process, 0) != 0 && errno == ESRCH; }

Status unreachable(const Ticket& ticket, int connecting, int taking) {
  if (ended(ticket) || (connecting == ECONNREFUSED && taking == ESRCH))
    return fail(PYALLOC_DRIVER_ERROR,
                "the process that shared this CUDA tensor (pid %d) has ended; keep it alive until its tensors have "
                "been "
                "received",
                ticket.process);
  return fail(PYALLOC_DRIVER_ERROR,
              "the process that shared this CUDA tensor (pid %d) cannot be reached: connecting to its socket failed "
              "(%s), "
              "and so did pidfd_getfd (%s); %s",
              ticket.process, std::strerror(connecting), std::strerror(taking), kRemedy);
}

// Through the socket, else through the door: there the other process is handed one end of a new pair.
Status reach(const Ticket& ticket, Descriptor& connection, pid_t& process) {
  process = ticket.process;
  if (ticket.socket != 0) connection = connect_to(ticket.socket);
  if (connection) {
    if (pid_t peer = peer_of(connection.number()); peer != 0) process = peer;
    return kOk;
  }
  int connecting = ticket.socket != 0 ? errno : ENOENT;
  Descriptor door, theirs;
  if (ticket.door >= 0) door = take_descriptor(ticket.process, ticket.door);
  if (!door) return unreachable(ticket, connecting, ticket.door >= 0 ? errno : ENOENT);
  const char knock = 1;
  if (!make_pair(connection, theirs) || !send_message(door.number(), &knock, sizeof knock, {theirs.number()})) {
    connection.reset(-1);
    return unreachable(ticket, connecting, errno);
  }
  return kOk;
}

// The answer that did not come.
Status silent(const Ticket& ticket) {
  int error = errno;
  if (error == 0 || error == ECONNRESET || error == EPIPE)
    return ended(ticket)
               ? unreachable(ticket, 0, 0)
               : fail(PYALLOC_DRIVER_ERROR,
                      "the process that shared this CUDA tensor (pid %d) closed the connection: it is ending, runs as "
                      "another user, or did not share this; %s",
                      ticket.process, kRemedy);
  return fail(PYALLOC_DRIVER_ERROR,
              "the process that shared this CUDA tensor (pid %d) did not answer (%s); is it stopped, or out of memory?",
              ticket.process, std::strerror(error));
}

// The descriptors of a batch that came without them.
Status take_by_number(const Batch& batch, pid_t process, std::vector<Descriptor>& descriptors) {
  descriptors.clear();
  for (uint32_t i = 0; i < batch.count; ++i) {
    descriptors.push_back(take_descriptor(process, batch.numbers[i]));
    if (descriptors.back()) continue;
    int error = errno;
    return fail(PYALLOC_DRIVER_ERROR,
                "the memory of process %d cannot be received: its descriptors may not be sent over a socket, and "
                "pidfd_getfd failed (%s); %s",
                process, std::strerror(error), error == EMFILE ? "raise the limit of open files (ulimit -n)" : kRemedy);
  }
  return kOk;
}

// Every handle of the range, which the caller lets go.
Status receive(DeviceHeap& heap, const Ticket& ticket, std::vector<ReceivedHandle>& handles) {
  Descriptor connection;
  pid_t process = 0;
  Status status = reach(ticket, connection, process);
  if (status != kOk) return status;
  int socket = connection.number();
  Request request{};
  std::memcpy(request.magic, kTicketMagic, sizeof request.magic);
  request.secret = ticket.secret;
  request.device = ticket.device;
  request.range = ticket.range;
  if (!set_timeout(socket, kPatience) || !send_message(socket, &request, sizeof request)) return silent(ticket);
  uint64_t bytes = 0;
  for (uint32_t left = 1; left > 0;) {
    Batch batch;
    std::vector<Descriptor> descriptors;
    if (!receive_message(socket, &batch, sizeof batch, &descriptors)) return silent(ticket);
    batch.error[sizeof batch.error - 1] = 0;
    if (batch.error[0] != 0) return fail(PYALLOC_DRIVER_ERROR, "%s", batch.error);
    if (batch.count == 0 || batch.count > kMostDescriptors)
      return fail(PYALLOC_DRIVER_ERROR, "process %d answered with %u handles; expected 1 to %zu", process, batch.count,
                  kMostDescriptors);
    if (batch.by_number == 0 && descriptors.size() != batch.count) {
      const Answer answer = Answer::kByNumber;
      if (!send_message(socket, &answer, sizeof answer)) return silent(ticket);
      continue;
    }
    if (batch.by_number != 0) status = take_by_number(batch, process, descriptors);
    for (uint32_t i = 0; status == kOk && i < batch.count; ++i) {
      ReceivedHandle one{0, batch.bytes[i]};
      status = heap.receive_handle(descriptors[i].number(), one.memory);
      if (status == kOk) handles.push_back(one);
      bytes += one.bytes;
    }
    if (status != kOk) return status;
    const Answer answer = Answer::kTaken;
    if (!send_message(socket, &answer, sizeof answer) && batch.left > 0) return silent(ticket);
    left = batch.left;
  }
  if (bytes == ticket.range.bytes) return kOk;
  return fail(PYALLOC_DRIVER_ERROR, "process %d answered with %llu bytes; expected %llu", process,
              static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(ticket.range.bytes));
}

// Two processes with different CUDA_VISIBLE_DEVICES mean different devices by one number.
Status with_device(Status status, const DeviceHeap& heap, const Ticket& ticket) {
  unsigned char uuid[16];
  if (!uuid_of(heap.device(), uuid) || std::memcmp(uuid, ticket.device_uuid, sizeof uuid) == 0) return status;
  std::string why = last_error();
  return fail(status,
              "%s; the tensor lies on %s, and device %d of this process is %s: start both with the same "
              "CUDA_VISIBLE_DEVICES",
              why.c_str(), text_of(ticket.device_uuid).c_str(), heap.device(), text_of(uuid).c_str());
}

// Waits for every device that may use what was mapped on `heap`; false, and the reason in `status`, when that failed.
bool wait_for_users(const Importer::Heaps& heaps, DeviceHeap& heap, Status& status) {
  for (DeviceHeap* one : heaps()) {
    if (!heap.reachable_from(one->device())) continue;
    Status waited = one->synchronize_context();
    if (waited == kOk) continue;
    status = waited;
    return false;
  }
  return true;
}

}  // namespace

Status Importer::read(const void* bytes, size_t count, Ticket& ticket) {
  constexpr size_t kName = sizeof ticket.magic - 1;
  if (bytes == nullptr || count < sizeof ticket.magic || std::memcmp(bytes, kTicketMagic, kName) != 0)
    return fail(PYALLOC_INVALID_ARGUMENT,
                "this CUDA tensor comes from a process that does not use pyalloc, whose handles only torch's native "
                "allocator can open; enable pyalloc in both processes (PYALLOC_CONF=enable:True reaches child "
                "processes too) or in neither");
  if (count != sizeof ticket || std::memcmp(bytes, kTicketMagic, sizeof ticket.magic) != 0)
    return fail(PYALLOC_INVALID_ARGUMENT,
                "this CUDA tensor comes from a process with another version of pyalloc; install the same in both");
  std::memcpy(&ticket, bytes, sizeof ticket);
  if (ticket.handle_type == cuda::kHandlePosixFd) return kOk;
  return fail(PYALLOC_INVALID_ARGUMENT,
              "this CUDA tensor's memory was made for handles of type %d; this version of pyalloc opens type %d, POSIX "
              "file descriptors",
              ticket.handle_type, cuda::kHandlePosixFd);
}

Status Importer::open(DeviceHeap& heap, const Ticket& ticket, void** address) {
  Key key{heap.device(), std::string(reinterpret_cast<const char*>(&ticket), sizeof ticket)};
  Lock lock(mutex_);
  auto found = opened_.find(key);
  if (found == opened_.end()) {
    std::vector<ReceivedHandle> handles;
    Opened opened{&heap, 0, 0};
    Status status = receive(heap, ticket, handles);
    if (status == kOk) status = heap.map_import(handles, opened.address);
    std::string why = status != kOk ? last_error() : "";
    heap.release_received(handles);  // the mapping keeps the memory
    if (status != kOk) return with_device(fail(status, "%s", why.c_str()), heap, ticket);
    found = opened_.emplace(std::move(key), opened).first;
  }
  ++found->second.references;
  *address = reinterpret_cast<void*>(found->second.address);
  return kOk;
}

Status Importer::close(const Heaps& heaps, void* address) {
  Lock lock(mutex_);
  auto found = opened_.begin();
  while (found != opened_.end() && found->second.address != reinterpret_cast<uint64_t>(address)) ++found;
  if (found == opened_.end() || found->second.references == 0)
    return fail(PYALLOC_UNKNOWN_POINTER, "%p is not memory of another process", address);
  if (--found->second.references > 0) return kOk;
  // Others that nobody has any more are those for which this failed.
  Status status = kOk;
  for (auto one = opened_.begin(); one != opened_.end();) {
    if (one->second.references == 0 && wait_for_users(heaps, *one->second.heap, status)) {
      Status undone = one->second.heap->unmap_import(one->second.address);
      if (undone != kOk) status = undone;
      one = opened_.erase(one);
    } else {
      ++one;
    }
  }
  return status;
}

}  // namespace pyalloc
