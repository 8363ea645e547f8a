// What travels from the process that shares a block to the one that receives it: the bytes of torch's handle, and the
// messages by which the second then asks the first for the memory.
//
// A ticket says who shared which range. It is the same for every block over the same handles, for as long as those stand
// there, so that a receiver finds what it has mapped already. Its secret proves that the receiver was given it. Torch's
// own handles begin with a version of at most a few; the 'p' tells both sides apart, and torch's native allocator
// refuses it as a version of the future.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>

#include "base/status.h"
#include "driver/driver.h"
#include "heap/device_heap.h"
#include "ipc/channel.h"

namespace pyalloc {

struct Secret {
  unsigned char bytes[16];
  bool operator==(const Secret& other) const { return std::memcmp(bytes, other.bytes, sizeof bytes) == 0; }
};

struct Ticket {
  char magic[8];        // kTicketMagic: a name and the version of these structs
  int32_t process;      // as the process itself numbers it
  int32_t door;         // the descriptor there that leads to it (channel.h); -1: none
  int32_t device;       // as that process numbers it
  int32_t handle_type;  // what the memory was created with
  SocketName socket;    // 0: none
  Secret secret;
  unsigned char device_uuid[16];
  SharedRange range;
};
static_assert(sizeof(Ticket) == PYALLOC_IPC_HANDLE_BYTES, "a ticket has no padding");
constexpr char kTicketMagic[9] = "pyalloc\1";

struct Request {
  char magic[8];
  Secret secret;
  int32_t device;
  int32_t unused;
  SharedRange range;
};
static_assert(sizeof(Request) == 56, "a request has no padding");

// The handles of the range in order, a batch a message, until none is left. The receiver answers each with an Answer.
struct Batch {
  uint32_t count, left;
  uint32_t by_number;  // 1: the descriptors do not come along, but can be taken from the sender until the answer
  int32_t numbers[kMostDescriptors];
  uint64_t bytes[kMostDescriptors];
  char error[256];  // not empty: why there are none
};

enum class Answer : uint32_t { kTaken = 1, kByNumber = 2 };  // the second: the batch came without its descriptors

// False where the driver is too old to say.
inline bool uuid_of(int ordinal, unsigned char (&uuid)[16]) {
  cuda::Device device = 0;
  return driver().device_uuid != nullptr && driver().device_get(&device, ordinal) == cuda::kSuccess &&
         driver().device_uuid(uuid, device) == cuda::kSuccess;
}

inline std::string text_of(const unsigned char (&uuid)[16]) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += "0123456789abcdef"[uuid[i] >> 4];
    text += "0123456789abcdef"[uuid[i] & 15];
  }
  return text;
}

}  // namespace pyalloc
