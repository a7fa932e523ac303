// Compares src/device/cuda/abi.hpp with the real <cuda.h> at compile time, if that header is installed.
#include <cstddef>
#include <type_traits>

#include <gtest/gtest.h>

#include "device/cuda/abi.hpp"

// Function types under their exported names, written down before cuda.h can redefine any of them.
namespace slackwater::cuda::declared {
#define SW_DECLARE_TYPE(name, parameters) using name = CUresult parameters;
SW_CUDA_REQUIRED_FUNCTIONS(SW_DECLARE_TYPE)
SW_CUDA_OPTIONAL_FUNCTIONS(SW_DECLARE_TYPE)
using batch_12_8 = cuMemcpyBatchAsync;
using batch_13_0 = cuMemcpyBatchAsync_v2;
#undef SW_DECLARE_TYPE
}  // namespace slackwater::cuda::declared

#if __has_include(<cuda.h>)
#include <cuda.h>
#if __has_include(<cudaTypedefs.h>)
#include <cudaTypedefs.h>
#endif

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
template <class T>
struct Ours<const T> {
  using type = const ours_t<T>;
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
SW_SAME(::CUctx_st, CUctx_st)
SW_SAME(::CUstream_st, CUstream_st)
SW_SAME(::CUevent_st, CUevent_st)
SW_SAME(::CUgraph_st, CUgraph_st)
SW_SAME(::CUdevice_attribute, CUdevice_attribute)
SW_SAME(::CUpointer_attribute, CUpointer_attribute)
SW_SAME(::CUstreamCaptureStatus, CUstreamCaptureStatus)
SW_SAME(::CUstreamCaptureMode, CUstreamCaptureMode)
SW_SAME(::CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2)
#if CUDA_VERSION >= 12080
SW_SAME(::CUmemcpyAttributes, CUmemcpyAttributes)
#endif
#undef SW_SAME

static_assert(std::is_same_v<::CUdevice, CUdevice> && std::is_same_v<::CUdeviceptr, CUdeviceptr>);

int compared = 0;

#define SW_COMPARE(name, parameters)                                       \
  static_assert(std::is_same_v<ours_t<decltype(::name)>, declared::name>); \
  [[maybe_unused]] const int compared_##name = ++compared;
SW_CUDA_REQUIRED_FUNCTIONS(SW_COMPARE)
SW_COMPARE(cuStreamGetPriority, )
#undef SW_COMPARE
#if CUDA_VERSION >= 13000
static_assert(std::is_same_v<ours_t<decltype(::cuMemcpyBatchAsync_v2)>, declared::batch_13_0>);
#endif
#if CUDA_VERSION >= 12080 && __has_include(<cudaTypedefs.h>)
static_assert(std::is_same_v<ours_t<std::remove_pointer_t<::PFN_cuMemcpyBatchAsync_v12080>>, declared::batch_12_8>);
#endif

// An enum of C has the size and the calling convention of the integer we declare.
template <class Theirs, class Mine>
constexpr bool same_size = sizeof(Theirs) == sizeof(Mine) && alignof(Theirs) == alignof(Mine);
static_assert(same_size<::CUresult, CUresult> && same_size<::CUdevice_attribute, CUdevice_attribute>);
static_assert(same_size<::CUpointer_attribute, CUpointer_attribute> && same_size<::CUmemorytype, CUmemorytype>);
static_assert(same_size<::CUstreamCaptureStatus, CUstreamCaptureStatus>);
static_assert(same_size<::CUstreamCaptureMode, CUstreamCaptureMode>);

#define SW_VALUE(theirs, mine) static_assert(static_cast<long long>(theirs) == static_cast<long long>(mine));
SW_VALUE(::CUDA_SUCCESS, CUresult::kSuccess)
SW_VALUE(::CUDA_ERROR_INVALID_VALUE, CUresult::kInvalidValue)
SW_VALUE(::CUDA_ERROR_OUT_OF_MEMORY, CUresult::kOutOfMemory)
SW_VALUE(::CUDA_ERROR_NOT_INITIALIZED, CUresult::kNotInitialized)
SW_VALUE(::CUDA_ERROR_DEINITIALIZED, CUresult::kDeinitialized)
SW_VALUE(::CUDA_ERROR_STUB_LIBRARY, CUresult::kStubLibrary)
SW_VALUE(::CUDA_ERROR_DEVICE_UNAVAILABLE, CUresult::kDeviceUnavailable)
SW_VALUE(::CUDA_ERROR_NO_DEVICE, CUresult::kNoDevice)
SW_VALUE(::CUDA_ERROR_INVALID_DEVICE, CUresult::kInvalidDevice)
SW_VALUE(::CUDA_ERROR_INVALID_CONTEXT, CUresult::kInvalidContext)
SW_VALUE(::CUDA_ERROR_ECC_UNCORRECTABLE, CUresult::kEccUncorrectable)
SW_VALUE(::CUDA_ERROR_OPERATING_SYSTEM, CUresult::kOperatingSystem)
SW_VALUE(::CUDA_ERROR_INVALID_HANDLE, CUresult::kInvalidHandle)
SW_VALUE(::CUDA_ERROR_ILLEGAL_STATE, CUresult::kIllegalState)
SW_VALUE(::CUDA_ERROR_NOT_FOUND, CUresult::kNotFound)
SW_VALUE(::CUDA_ERROR_NOT_READY, CUresult::kNotReady)
SW_VALUE(::CUDA_ERROR_ILLEGAL_ADDRESS, CUresult::kIllegalAddress)
SW_VALUE(::CUDA_ERROR_LAUNCH_TIMEOUT, CUresult::kLaunchTimeout)
SW_VALUE(::CUDA_ERROR_CONTEXT_IS_DESTROYED, CUresult::kContextIsDestroyed)
SW_VALUE(::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUresult::kHostMemoryAlreadyRegistered)
SW_VALUE(::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, CUresult::kHostMemoryNotRegistered)
SW_VALUE(::CUDA_ERROR_LAUNCH_FAILED, CUresult::kLaunchFailed)
SW_VALUE(::CUDA_ERROR_NOT_PERMITTED, CUresult::kNotPermitted)
SW_VALUE(::CUDA_ERROR_NOT_SUPPORTED, CUresult::kNotSupported)
SW_VALUE(::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CUresult::kSystemDriverMismatch)
SW_VALUE(::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUresult::kStreamCaptureUnsupported)
SW_VALUE(::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CUresult::kStreamCaptureInvalidated)
SW_VALUE(::CUDA_ERROR_STREAM_CAPTURE_MERGE, CUresult::kStreamCaptureMerge)
SW_VALUE(::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CUresult::kStreamCaptureUnmatched)
SW_VALUE(::CUDA_ERROR_STREAM_CAPTURE_UNJOINED, CUresult::kStreamCaptureUnjoined)
SW_VALUE(::CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CUresult::kStreamCaptureIsolation)
SW_VALUE(::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CUresult::kStreamCaptureImplicit)
SW_VALUE(::CUDA_ERROR_CAPTURED_EVENT, CUresult::kCapturedEvent)
SW_VALUE(::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, CUresult::kStreamCaptureWrongThread)
SW_VALUE(::CUDA_ERROR_UNKNOWN, CUresult::kUnknown)

SW_VALUE(::CU_STREAM_DEFAULT, kStreamDefault)
SW_VALUE(::CU_STREAM_NON_BLOCKING, kStreamNonBlocking)
SW_VALUE(::CU_EVENT_DEFAULT, kEventDefault)
SW_VALUE(::CU_EVENT_BLOCKING_SYNC, kEventBlockingSync)
SW_VALUE(::CU_EVENT_DISABLE_TIMING, kEventDisableTiming)
SW_VALUE(CU_MEMHOSTALLOC_PORTABLE, kMemHostAllocPortable)
SW_VALUE(CU_MEMHOSTREGISTER_PORTABLE, kMemHostRegisterPortable)
SW_VALUE(CU_MEMHOSTREGISTER_READ_ONLY, kMemHostRegisterReadOnly)

SW_VALUE(::CU_DEVICE_ATTRIBUTE_MAX_PITCH, CUdevice_attribute::kMaxPitch)
SW_VALUE(::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CUdevice_attribute::kPciBusId)
SW_VALUE(::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, CUdevice_attribute::kPciDeviceId)
SW_VALUE(::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, CUdevice_attribute::kPciDomainId)
SW_VALUE(::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, CUdevice_attribute::kAsyncEngineCount)
SW_VALUE(::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, CUdevice_attribute::kUnifiedAddressing)
SW_VALUE(::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CUdevice_attribute::kComputeCapabilityMajor)
SW_VALUE(::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, CUdevice_attribute::kComputeCapabilityMinor)
SW_VALUE(::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, CUdevice_attribute::kStreamPrioritiesSupported)
SW_VALUE(::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, CUdevice_attribute::kHostRegisterSupported)
#if CUDA_VERSION >= 12020
SW_VALUE(::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, CUdevice_attribute::kHostNumaId)
#endif

SW_VALUE(::CU_POINTER_ATTRIBUTE_CONTEXT, CUpointer_attribute::kContext)
SW_VALUE(::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUpointer_attribute::kMemoryType)
SW_VALUE(::CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CUpointer_attribute::kDevicePointer)
SW_VALUE(::CU_POINTER_ATTRIBUTE_HOST_POINTER, CUpointer_attribute::kHostPointer)
SW_VALUE(::CU_POINTER_ATTRIBUTE_IS_MANAGED, CUpointer_attribute::kIsManaged)
SW_VALUE(::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CUpointer_attribute::kDeviceOrdinal)
SW_VALUE(::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CUpointer_attribute::kRangeStartAddr)
SW_VALUE(::CU_POINTER_ATTRIBUTE_RANGE_SIZE, CUpointer_attribute::kRangeSize)

SW_VALUE(::CU_MEMORYTYPE_HOST, CUmemorytype::kHost)
SW_VALUE(::CU_MEMORYTYPE_DEVICE, CUmemorytype::kDevice)
SW_VALUE(::CU_MEMORYTYPE_ARRAY, CUmemorytype::kArray)
SW_VALUE(::CU_MEMORYTYPE_UNIFIED, CUmemorytype::kUnified)
SW_VALUE(::CU_STREAM_CAPTURE_STATUS_NONE, CUstreamCaptureStatus::kNone)
SW_VALUE(::CU_STREAM_CAPTURE_STATUS_ACTIVE, CUstreamCaptureStatus::kActive)
SW_VALUE(::CU_STREAM_CAPTURE_STATUS_INVALIDATED, CUstreamCaptureStatus::kInvalidated)
SW_VALUE(::CU_STREAM_CAPTURE_MODE_GLOBAL, CUstreamCaptureMode::kGlobal)
SW_VALUE(::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUstreamCaptureMode::kThreadLocal)
SW_VALUE(::CU_STREAM_CAPTURE_MODE_RELAXED, CUstreamCaptureMode::kRelaxed)

#define SW_FIELD(theirs, mine, field)                        \
  SW_VALUE(offsetof(::theirs, field), offsetof(mine, field)) \
  static_assert(sizeof(::theirs::field) == sizeof(mine::field));
static_assert(same_size<::CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2>);
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, srcXInBytes)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, srcY)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, srcMemoryType)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, srcHost)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, srcDevice)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, srcArray)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, srcPitch)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, dstXInBytes)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, dstY)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, dstMemoryType)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, dstHost)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, dstDevice)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, dstArray)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, dstPitch)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, WidthInBytes)
SW_FIELD(CUDA_MEMCPY2D, CUDA_MEMCPY2D_v2, Height)

#if CUDA_VERSION >= 12080
static_assert(same_size<::CUmemLocation, CUmemLocation> && same_size<::CUmemcpyAttributes, CUmemcpyAttributes>);
SW_FIELD(CUmemLocation, CUmemLocation, type)
SW_FIELD(CUmemLocation, CUmemLocation, id)
SW_FIELD(CUmemcpyAttributes, CUmemcpyAttributes, srcAccessOrder)
SW_FIELD(CUmemcpyAttributes, CUmemcpyAttributes, srcLocHint)
SW_FIELD(CUmemcpyAttributes, CUmemcpyAttributes, dstLocHint)
SW_FIELD(CUmemcpyAttributes, CUmemcpyAttributes, flags)
SW_VALUE(::CU_MEM_LOCATION_TYPE_INVALID, CUmemLocationType::kInvalid)
SW_VALUE(::CU_MEM_LOCATION_TYPE_DEVICE, CUmemLocationType::kDevice)
SW_VALUE(::CU_MEM_LOCATION_TYPE_HOST, CUmemLocationType::kHost)
SW_VALUE(::CU_MEM_LOCATION_TYPE_HOST_NUMA, CUmemLocationType::kHostNuma)
SW_VALUE(::CU_MEMCPY_SRC_ACCESS_ORDER_INVALID, CUmemcpySrcAccessOrder::kInvalid)
SW_VALUE(::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CUmemcpySrcAccessOrder::kStream)
SW_VALUE(::CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL, CUmemcpySrcAccessOrder::kDuringApiCall)
SW_VALUE(::CU_MEMCPY_SRC_ACCESS_ORDER_ANY, CUmemcpySrcAccessOrder::kAny)
SW_VALUE(::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE, kMemcpyFlagPreferOverlapWithCompute)
#endif
#undef SW_FIELD
#undef SW_VALUE

TEST(CudaAbi, DeclarationsAreThoseOfTheInstalledCudaHeader) {
#define SW_COUNT(name, parameters) +1
  EXPECT_EQ(compared, (0 SW_CUDA_REQUIRED_FUNCTIONS(SW_COUNT)) + 1);
#undef SW_COUNT
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(CU_STREAM_LEGACY), kStreamLegacy);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(CU_STREAM_PER_THREAD), kStreamPerThread);
  RecordProperty("cuda_version", CUDA_VERSION);
}

}  // namespace
}  // namespace slackwater::cuda

#else

TEST(CudaAbi, DeclarationsAreThoseOfTheInstalledCudaHeader) {
  GTEST_SKIP() << "cuda.h is not installed: src/device/cuda/abi.hpp was compared with nothing";
}

#endif
