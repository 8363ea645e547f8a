// Stands in for NVIDIA's compiler checks, which the pip packages of the CUDA runtime leave out: a host compiler needs none.
#pragma once
