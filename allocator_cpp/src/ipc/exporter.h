// The side that shares: makes tickets, and hands out the memory they name.
//
// From the first share on, one thread waits for receivers at a socket and a door (channel.h) and serves them one after
// the other; a receiver that falls silent is left after a few seconds. It knows no state but its secret: what a ticket
// names is looked up, and its fingerprint compared, when it is asked for. The thread runs no user code, takes no signal,
// and ends with the process. A forked child has neither the thread nor its sockets.
//
// Called by api; share() from any thread, with no lock held. The thread takes the heap's lock, no other.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/ranked_mutex.h"
#include "ipc/ticket.h"

namespace pyalloc {

class Exporter {
 public:
  // The open heap of a device, or null.
  using Heaps = std::function<DeviceHeap*(int device)>;

  ~Exporter() { stop(); }
  // A ticket for the live block that holds `address`.
  Status share(const Heaps& heaps, DeviceHeap& heap, Space& space, uint64_t address, Ticket& ticket);
  // Whether the ticket is of this process.
  bool made(const Ticket& ticket);
  // Ends the thread, at once, also when it is serving somebody. It is not started again.
  void stop();
  // In a forked child: closes what it has of the parent's sockets.
  void abandon();

 private:
  Status start(const Heaps& heaps);
  void close_sockets();
  void run();
  void serve(const Descriptor& connection);
  bool begin_serving(int socket);
  Status export_batch(const Request& request, uint32_t from, std::vector<Descriptor>& descriptors, Batch& batch);

  RankedMutex mutex_{Rank::kIpc};
  std::unique_ptr<std::thread> thread_;
  Heaps heaps_;
  Secret secret_{};
  SocketName name_ = 0;
  Descriptor listener_;
  Descriptor door_, door_outside_;  // receivers take the second
  Descriptor wake_, wake_inside_;   // closing the first ends the thread
  std::atomic<bool> stopping_{false};
  int serving_ = -1;  // the connection being served
};

}  // namespace pyalloc
