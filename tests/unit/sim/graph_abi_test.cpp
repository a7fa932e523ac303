// Compares sim/graph_abi.hpp with the real <cuda.h> at compile time, if that header is installed.
#include "sim/graph_abi.hpp"

#include <cstddef>
#include <type_traits>

#include <gtest/gtest.h>

// Function types under their exported names, written down before cuda.h can redefine any of them.
namespace slackwater::cuda::declared {
#define SW_DECLARE_TYPE(name, parameters) using name = CUresult parameters;
SWSIM_GRAPH_FUNCTIONS(SW_DECLARE_TYPE)
#undef SW_DECLARE_TYPE
using begin_capture = cuStreamBeginCapture_v2;
using instantiate = cuGraphInstantiateWithFlags;
}  // namespace slackwater::cuda::declared

#if __has_include(<cuda.h>)
#include <cuda.h>

namespace slackwater::cuda {
namespace {

// Maps a type of cuda.h to ours.
template <class T>
struct Ours {
  using type = T;
};
template <class T>
using ours_t = typename Ours<T>::type;
template <class T>
struct Ours<T*> {
  using type = ours_t<T>*;
};
template <class R, class... A>
struct Ours<R(A...)> {
  using type = ours_t<R>(ours_t<A>...);
};
#define SW_SAME(theirs, ours_) \
  template <>                  \
  struct Ours<theirs> {        \
    using type = ours_;        \
  };
SW_SAME(::CUresult, CUresult)
SW_SAME(::CUstream_st, CUstream_st)
SW_SAME(::CUgraph_st, CUgraph_st)
SW_SAME(::CUgraphExec_st, CUgraphExec_st)
SW_SAME(::CUstreamCaptureMode, CUstreamCaptureMode)
SW_SAME(::CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_GRAPH_INSTANTIATE_PARAMS)
#undef SW_SAME

template <class Theirs, class Mine>
constexpr bool same = std::is_same_v<ours_t<Theirs>, Mine>;
static_assert(same<decltype(::cuStreamBeginCapture), declared::begin_capture>);  // a macro for the name with _v2
static_assert(same<decltype(::cuStreamEndCapture), declared::cuStreamEndCapture>);
#if CUDA_VERSION >= 12000
static_assert(same<decltype(::cuGraphInstantiate), declared::instantiate>);  // a macro for the name with WithFlags
static_assert(same<decltype(::cuGraphInstantiateWithParams), declared::cuGraphInstantiateWithParams>);
static_assert(sizeof(::CUDA_GRAPH_INSTANTIATE_PARAMS) == sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS));
static_assert(offsetof(::CUDA_GRAPH_INSTANTIATE_PARAMS, hUploadStream) ==
              offsetof(CUDA_GRAPH_INSTANTIATE_PARAMS, hUploadStream));
static_assert(offsetof(::CUDA_GRAPH_INSTANTIATE_PARAMS, hErrNode_out) ==
              offsetof(CUDA_GRAPH_INSTANTIATE_PARAMS, hErrNode_out));
static_assert(offsetof(::CUDA_GRAPH_INSTANTIATE_PARAMS, result_out) ==
              offsetof(CUDA_GRAPH_INSTANTIATE_PARAMS, result_out));
#endif
static_assert(same<decltype(::cuGraphLaunch), declared::cuGraphLaunch>);
static_assert(same<decltype(::cuGraphExecDestroy), declared::cuGraphExecDestroy>);
static_assert(same<decltype(::cuGraphDestroy), declared::cuGraphDestroy>);

#define SW_VALUE(theirs, mine) static_assert(static_cast<unsigned long long>(theirs) == mine);
SW_VALUE(::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, kGraphAutoFreeOnLaunch)
SW_VALUE(::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, kGraphUpload)
SW_VALUE(::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH, kGraphDeviceLaunch)
SW_VALUE(::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY, kGraphUseNodePriority)
#undef SW_VALUE

TEST(SimGraphAbi, MatchesTheRealHeader) { SUCCEED(); }

}  // namespace
}  // namespace slackwater::cuda
#else
TEST(SimGraphAbi, MatchesTheRealHeader) { GTEST_SKIP() << "cuda.h is not installed"; }
#endif
