// What the simulated driver library exports: every function of src/device/cuda/abi.hpp, and the calls that only tests
// make. A definition that differs from its declaration here does not compile.
#pragma once

#include "device/cuda/abi.hpp"
#include "sim/graph_abi.hpp"

namespace slackwater::cuda {

extern "C" {
#define SWSIM_DECLARE(name, parameters) __attribute__((visibility("default"))) CUresult name parameters;
SW_CUDA_REQUIRED_FUNCTIONS(SWSIM_DECLARE)
SW_CUDA_OPTIONAL_FUNCTIONS(SWSIM_DECLARE)
SWSIM_GRAPH_FUNCTIONS(SWSIM_DECLARE)
#undef SWSIM_DECLARE
}

}  // namespace slackwater::cuda
