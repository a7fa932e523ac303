// The simulated driver's texts for result codes. Constant data.
#pragma once

#include "device/cuda/abi.hpp"

namespace slackwater::sim {

struct ErrorText {
  cuda::CUresult code;
  const char* name;
  const char* text;
};

[[nodiscard]] const ErrorText* find_error(cuda::CUresult code);  // null for a code that abi.hpp does not name

}  // namespace slackwater::sim
