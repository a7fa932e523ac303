// Exported function: the version. The two libraries that are built from these sources differ in it (CMakeLists.txt).
#include "sim/driver_api.hpp"
#include "sim/simulator.hpp"

namespace slackwater::cuda {

CUresult cuDriverGetVersion(int* version) {
  return sim::enter("cuDriverGetVersion", sim::kAlways, [&](sim::Simulator&, sim::Call&) {
    if (version == nullptr) return CUresult::kInvalidValue;
    *version = SWSIM_DRIVER_VERSION;
    return CUresult::kSuccess;
  });
}

}  // namespace slackwater::cuda
