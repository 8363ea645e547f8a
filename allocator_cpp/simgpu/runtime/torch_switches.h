// cuDNN is not simulated; convolutions and attention have other kernels in torch. Called by device.cpp when torch
// counts devices.
#pragma once

namespace simgpu::runtime {

// Sets torch.backends.cudnn.enabled and torch.backends.cuda.enable_cudnn_sdp to False, once, when torch is loaded.
void switch_cudnn_off_in_torch();

}  // namespace simgpu::runtime
