#include <dlfcn.h>

#include <gtest/gtest.h>

#include "device/cuda/abi.hpp"

namespace slackwater::cuda::test {
namespace {

TEST(SimOldDriver, LacksTheBatchFunctionsAndIsItsOwnDriver) {
  void* const library = ::dlopen(SW_OLD_DRIVER, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto version = reinterpret_cast<CUresult (*)(int*)>(::dlsym(library, "cuDriverGetVersion"));
  ASSERT_NE(version, nullptr);
  int number = 0;
  EXPECT_EQ(version(&number), CUresult::kSuccess);
  EXPECT_EQ(number, 12000);
#define SW_EXPECT_THERE(name, parameters) EXPECT_NE(::dlsym(library, #name), nullptr) << #name;
  SW_CUDA_REQUIRED_FUNCTIONS(SW_EXPECT_THERE)
#undef SW_EXPECT_THERE
  EXPECT_EQ(::dlsym(library, "cuMemcpyBatchAsync"), nullptr);
  EXPECT_EQ(::dlsym(library, "cuMemcpyBatchAsync_v2"), nullptr);
  ::dlclose(library);
}

}  // namespace
}  // namespace slackwater::cuda::test
