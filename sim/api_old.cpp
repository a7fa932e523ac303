// Exported functions: symbols that have a newer version. A real driver still has them, with 32-bit sizes or other
// parameters, so a call would not do what was meant. Here it is counted and refused.
#include "sim/driver_api.hpp"
#include "sim/simulator.hpp"

namespace slackwater::cuda {
namespace {

CUresult trapped(const char* symbol) {
  return sim::enter(symbol, sim::kAlways, [](sim::Simulator& state, sim::Call&) {
    ++state.counts.old_abi_calls;
    return CUresult::kNotSupported;
  });
}

}  // namespace

extern "C" {
#define SWSIM_TRAP(name)                                  \
  __attribute__((visibility("default"))) CUresult name(); \
  CUresult name() { return trapped(#name); }
SWSIM_TRAP(cuDevicePrimaryCtxRelease)
SWSIM_TRAP(cuDeviceTotalMem)
SWSIM_TRAP(cuCtxPushCurrent)
SWSIM_TRAP(cuCtxPopCurrent)
SWSIM_TRAP(cuStreamDestroy)
SWSIM_TRAP(cuStreamBeginCapture)
SWSIM_TRAP(cuEventDestroy)
SWSIM_TRAP(cuGraphInstantiate)
SWSIM_TRAP(cuGraphInstantiate_v2)
SWSIM_TRAP(cuMemAlloc)
SWSIM_TRAP(cuMemFree)
SWSIM_TRAP(cuMemGetInfo)
SWSIM_TRAP(cuMemHostRegister)
SWSIM_TRAP(cuMemcpyDtoH)
SWSIM_TRAP(cuMemcpyHtoD)
SWSIM_TRAP(cuMemcpyDtoHAsync)
SWSIM_TRAP(cuMemcpyHtoDAsync)
SWSIM_TRAP(cuMemcpyDtoDAsync)
SWSIM_TRAP(cuMemcpy2DAsync)
#undef SWSIM_TRAP
}

}  // namespace slackwater::cuda
