// How a simulated device calls itself, in the driver API and in NVML alike: an H100 by its numbers, simgpu by its name.
#pragma once
#include <cstdio>
#include <cstring>

namespace simgpu {

inline constexpr char kDeviceName[] = "Simulated GPU (simgpu)";
inline constexpr int kComputeMajor = 9;
inline constexpr int kComputeMinor = 0;
inline constexpr int kFirstPciBus = 0x10;  // device i is on bus 0x10 + i of domain 0

// The 16 bytes of device i's UUID.
inline void write_uuid_bytes(int device, unsigned char out[16]) {
  std::memcpy(out, "simgpu-device-00", 16);
  out[15] = static_cast<unsigned char>('0' + device);
}

// The same UUID as NVML writes it: "GPU-" and five groups of hexadecimal digits, 41 bytes with the end mark.
inline constexpr int kUuidTextBytes = 41;
inline void write_uuid_text(int device, char out[kUuidTextBytes]) {
  unsigned char u[16];
  write_uuid_bytes(device, u);
  std::snprintf(out, kUuidTextBytes, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
                u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

}  // namespace simgpu
