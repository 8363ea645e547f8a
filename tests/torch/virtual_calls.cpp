// Calls torch's allocator the way other C++ code does (cuDNN's autotuner, NCCL, extensions): through c10's own functions.
// Compiled by test_bridge_virtuals.py against the installed torch, loaded with ctypes.
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <string>

namespace cca = c10::cuda::CUDACachingAllocator;

static std::string message;

template <class Call>
static const char* message_of(Call call) {
  try {
    call();
    return nullptr;
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
    return message.c_str();
  }
}

static int foreign_deletes = 0;
static void foreign_delete(void*) { ++foreign_deletes; }

// A free-memory callback, as the collector of CUDA IPC memory is one: gives up one block when memory runs out.
static void* held = nullptr;
struct GiveUpHeld : c10::FreeMemoryCallback {
  bool Execute() override {
    if (held == nullptr) return false;
    cca::raw_delete(held);
    held = nullptr;
    return true;
  }
};
namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK("give_up_held", GiveUpHeld)
}

extern "C" {

void hold(size_t bytes) { held = cca::raw_alloc(bytes); }
int holds() { return held != nullptr ? 1 : 0; }

size_t largest_block(int device) {
  size_t largest = 0;
  cca::cacheInfo(static_cast<c10::DeviceIndex>(device), &largest);
  return largest;
}

const char* base_allocation(void* pointer, void** base, size_t* bytes) {
  return message_of([&] { *base = cca::getBaseAllocation(pointer, bytes); });
}

// Null when both allocators torch may ask are one object, its deleter is constant, and a block's context is its address.
const char* identity() {
  return message_of([] {
    auto* allocator = cca::get();
    TORCH_CHECK(c10::GetAllocator(c10::kCUDA) == allocator, "c10::GetAllocator is another");
    TORCH_CHECK(torch::cuda::CUDAPluggableAllocator::getCurrentAllocator().get() == allocator,
                "getCurrentAllocator is another");
    TORCH_CHECK(allocator->raw_deleter() == c10::GetAllocator(c10::kCUDA)->raw_deleter(), "two deleters");
    c10::DataPtr data = allocator->allocate(1000);
    TORCH_CHECK(data.get_deleter() == allocator->raw_deleter(), "not the deleter of raw_deleter()");
    TORCH_CHECK(data.get() == data.get_context(), "context is not the address");
    TORCH_CHECK(allocator->is_simple_data_ptr(data), "not a simple pointer");
    void* raw = allocator->raw_allocate(1000);
    allocator->raw_deallocate(raw);
    allocator->raw_delete(nullptr);
  });
}

// The number of deletes of a foreign pointer that recordStream must leave alone; -1 when it raised.
int record_foreign() {
  char byte = 0;
  const char* failed = message_of([&] {
    c10::DataPtr data(&byte, &byte, &foreign_delete, c10::Device(c10::kCUDA, 0));
    cca::recordStream(data, c10::cuda::getStreamFromPool());
    cca::recordStream(c10::DataPtr(), c10::cuda::getStreamFromPool());
  });
  return failed == nullptr ? foreign_deletes : -1;
}

const char* share_ipc(void* pointer) {
  return message_of([&] { cca::shareIpcHandle(pointer); });
}

const char* open_ipc() {
  return message_of([] { cca::getIpcDevPtr("handle"); });
}

static long rejections = 0, rejected_bytes = 0;
long rejected(long* bytes) {
  *bytes = rejected_bytes;
  return rejections;
}
#if TORCH_HAS_REJECTION_OBSERVER
void observe_rejections() {
  cca::attachOomRejectionObserver([](int64_t, size_t bytes, size_t, size_t) {
    ++rejections;
    rejected_bytes = static_cast<long>(bytes);
  });
}
const char* at_address(void* address) {
  return message_of([&] { cca::allocateWithAddress(512, address); });
}
#endif
}
