// The part of the driver's binary interface that captures and launches graphs. Slackwater does not call it, but
// trainers do. tests/unit/sim/graph_abi_test.cpp compares it with <cuda.h>, if that is installed.
// Thread rule: declarations only.
#pragma once

#include "device/cuda/abi.hpp"

namespace slackwater::cuda {

using CUgraphExec = struct CUgraphExec_st*;
using CUgraphNode = struct CUgraphNode_st*;

inline constexpr unsigned long long kGraphAutoFreeOnLaunch = 1;
inline constexpr unsigned long long kGraphUpload = 2;
inline constexpr unsigned long long kGraphDeviceLaunch = 4;
inline constexpr unsigned long long kGraphUseNodePriority = 8;

// NOLINTBEGIN(readability-identifier-naming)
enum class CUgraphInstantiateResult : unsigned int { kSuccess = 0, kError = 1 };
struct CUDA_GRAPH_INSTANTIATE_PARAMS {
  std::uint64_t flags;
  CUstream hUploadStream;
  CUgraphNode hErrNode_out;
  CUgraphInstantiateResult result_out;
};
// NOLINTEND(readability-identifier-naming)

}  // namespace slackwater::cuda

// cuda.h maps cuGraphInstantiate to cuGraphInstantiateWithFlags since 12.0. The plain symbol has other parameters.
// clang-format off
#define SWSIM_GRAPH_FUNCTIONS(X)                                                                                       \
  X(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode))                                              \
  X(cuStreamEndCapture, (CUstream stream, CUgraph* graph))                                                             \
  X(cuGraphInstantiateWithFlags, (CUgraphExec* exec, CUgraph graph, unsigned long long flags))                         \
  X(cuGraphInstantiateWithParams,                                                                                      \
    (CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters))                                     \
  X(cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                                                \
  X(cuGraphExecDestroy, (CUgraphExec exec))                                                                            \
  X(cuGraphDestroy, (CUgraph graph))
// clang-format on
