// Marks functions that run both on a CUDA device and, compiled by the host compiler, on a CPU.
//
// A kernel's body is written once with these marks. nvcc builds it for the device; any C++ compiler
// builds the same lines for the emulation that tests run (csrc/cuda/host_block.h).
#pragma once

#ifdef __CUDACC__
#define FLARECORE_DEVICE __device__ __forceinline__
#else
#define FLARECORE_DEVICE inline
#endif
