// The part of the CUDA driver's binary interface that Slackwater uses. We declare it ourselves, so that the build does
// not need CUDA. If <cuda.h> is installed, tests/unit/device/cuda_abi_test.cpp compares every line with it.
//
// Functions have the names that the driver library exports. Where cuda.h maps a plain name to one with a suffix
// (cuMemAlloc to cuMemAlloc_v2), the plain symbol is still exported with an older meaning. Never call it.
// Thread rule: declarations only. The driver is thread-safe. Each thread has its own current context and capture mode.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slackwater::cuda {

// The codes we name; a driver may return others. cuGetErrorName() knows them all.
enum class CUresult : unsigned int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,  // the process is exiting
  kStubLibrary = 34,
  kDeviceUnavailable = 46,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kEccUncorrectable = 214,
  kOperatingSystem = 304,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,  // not an error: the work is still running
  kIllegalAddress = 700,
  kLaunchTimeout = 702,
  kContextIsDestroyed = 709,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kSystemDriverMismatch = 803,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
  kStreamCaptureMerge = 902,
  kStreamCaptureUnmatched = 903,
  kStreamCaptureUnjoined = 904,
  kStreamCaptureIsolation = 905,
  kStreamCaptureImplicit = 906,
  kCapturedEvent = 907,
  kStreamCaptureWrongThread = 908,
  kUnknown = 999,
};

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUarray = struct CUarray_st*;
static_assert(sizeof(void*) == 8, "the driver's 64-bit interface is declared here");

// Streams that exist without being created. Handle 0 also means the legacy stream.
inline constexpr std::uintptr_t kStreamLegacy = 1;
inline constexpr std::uintptr_t kStreamPerThread = 2;

// cuStreamCreateWithPriority
inline constexpr unsigned int kStreamDefault = 0;
inline constexpr unsigned int kStreamNonBlocking = 1;  // no implicit order with the legacy default stream

// cuEventCreate
inline constexpr unsigned int kEventDefault = 0;
inline constexpr unsigned int kEventBlockingSync = 1;  // cuEventSynchronize sleeps instead of spinning
inline constexpr unsigned int kEventDisableTiming = 2;

// cuMemHostAlloc, cuMemHostRegister
inline constexpr unsigned int kMemHostAllocPortable = 1;
inline constexpr unsigned int kMemHostRegisterPortable = 1;  // pinned for every context of the process
inline constexpr unsigned int kMemHostRegisterReadOnly = 8;

// Types keep the names that readers of CUDA code know.
// NOLINTBEGIN(readability-identifier-naming)
enum class CUdevice_attribute : int {
  kMaxPitch = 11,  // of 2D copies, in bytes
  kPciBusId = 33,
  kPciDeviceId = 34,
  kAsyncEngineCount = 40,
  kUnifiedAddressing = 41,
  kPciDomainId = 50,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kStreamPrioritiesSupported = 78,
  kHostRegisterSupported = 99,
  kHostNumaId = 134,  // since 12.2; older drivers answer kInvalidValue
};

enum class CUpointer_attribute : int {
  kContext = 1,          // CUcontext
  kMemoryType = 2,       // CUmemorytype
  kDevicePointer = 3,    // CUdeviceptr
  kHostPointer = 4,      // void*
  kIsManaged = 8,        // unsigned int
  kDeviceOrdinal = 9,    // int
  kRangeStartAddr = 11,  // CUdeviceptr
  kRangeSize = 12,       // std::size_t
};

enum class CUmemorytype : unsigned int { kHost = 1, kDevice = 2, kArray = 3, kUnified = 4 };

enum class CUstreamCaptureStatus : unsigned int { kNone = 0, kActive = 1, kInvalidated = 2 };
enum class CUstreamCaptureMode : unsigned int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

struct CUDA_MEMCPY2D_v2 {
  std::size_t srcXInBytes;
  std::size_t srcY;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  std::size_t srcPitch;
  std::size_t dstXInBytes;
  std::size_t dstY;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  std::size_t dstPitch;
  std::size_t WidthInBytes;
  std::size_t Height;
};

enum class CUmemLocationType : unsigned int { kInvalid = 0, kDevice = 1, kHost = 2, kHostNuma = 3 };
struct CUmemLocation {
  CUmemLocationType type;
  int id;
};

enum class CUmemcpySrcAccessOrder : unsigned int { kInvalid = 0, kStream = 1, kDuringApiCall = 2, kAny = 3 };
inline constexpr unsigned int kMemcpyFlagPreferOverlapWithCompute = 1;

struct CUmemcpyAttributes {
  CUmemcpySrcAccessOrder srcAccessOrder;
  CUmemLocation srcLocHint;  // hints are ignored unless the pointer is managed or pageable
  CUmemLocation dstLocHint;
  unsigned int flags;
};

// NOLINTEND(readability-identifier-naming)

}  // namespace slackwater::cuda

// The functions: X(exported symbol, parameters). All return CUresult. Instantiate inside slackwater::cuda. A driver
// without a required symbol is refused. Without an optional one, Slackwater does the work in another way.
// clang-format off
#define SW_CUDA_REQUIRED_FUNCTIONS(X)                                                                                  \
  X(cuInit, (unsigned int flags))                                                                                      \
  X(cuDriverGetVersion, (int* version))                                                                                \
  X(cuGetErrorName, (CUresult error, const char** name))                                                               \
  X(cuGetErrorString, (CUresult error, const char** text))                                                             \
  X(cuDeviceGetCount, (int* count))                                                                                    \
  X(cuDeviceGet, (CUdevice* device, int ordinal))                                                                      \
  X(cuDeviceGetName, (char* name, int capacity, CUdevice device))                                                      \
  X(cuDeviceGetAttribute, (int* value, CUdevice_attribute attribute, CUdevice device))                                 \
  X(cuDeviceGetPCIBusId, (char* bus_id, int capacity, CUdevice device))                                                \
  X(cuDevicePrimaryCtxRetain, (CUcontext* context, CUdevice device))                                                   \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                                   \
  X(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int* flags, int* active))                                   \
  X(cuCtxPushCurrent_v2, (CUcontext context))                                                                          \
  X(cuCtxPopCurrent_v2, (CUcontext* context))                                                                          \
  X(cuCtxGetCurrent, (CUcontext* context))                                                                             \
  X(cuCtxSetCurrent, (CUcontext context))                                                                              \
  X(cuCtxSynchronize, ())                                                                                              \
  X(cuCtxGetStreamPriorityRange, (int* least, int* greatest))                                                          \
  X(cuStreamCreateWithPriority, (CUstream* stream, unsigned int flags, int priority))                                  \
  X(cuStreamDestroy_v2, (CUstream stream))                                                                             \
  X(cuStreamSynchronize, (CUstream stream))                                                                            \
  X(cuStreamQuery, (CUstream stream))                                                                                  \
  X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags))                                           \
  X(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus* status))                                             \
  X(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode* mode))                                                    \
  X(cuEventCreate, (CUevent* event, unsigned int flags))                                                               \
  X(cuEventDestroy_v2, (CUevent event))                                                                                \
  X(cuEventRecord, (CUevent event, CUstream stream))                                                                   \
  X(cuEventQuery, (CUevent event))                                                                                     \
  X(cuEventSynchronize, (CUevent event))                                                                               \
  X(cuMemAlloc_v2, (CUdeviceptr* address, std::size_t size_bytes))                                                     \
  X(cuMemFree_v2, (CUdeviceptr address))                                                                               \
  X(cuMemGetInfo_v2, (std::size_t* free_bytes, std::size_t* total_bytes))                                              \
  X(cuMemHostAlloc, (void** memory, std::size_t size_bytes, unsigned int flags))                                       \
  X(cuMemFreeHost, (void* memory))                                                                                     \
  X(cuMemHostRegister_v2, (void* memory, std::size_t size_bytes, unsigned int flags))                                  \
  X(cuMemHostUnregister, (void* memory))                                                                               \
  X(cuMemcpyDtoHAsync_v2, (void* host, CUdeviceptr device, std::size_t size_bytes, CUstream stream))                   \
  X(cuMemcpyHtoDAsync_v2, (CUdeviceptr device, const void* host, std::size_t size_bytes, CUstream stream))             \
  X(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, std::size_t size_bytes, CUstream stream))                 \
  X(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D_v2* copy, CUstream stream))                                               \
  X(cuPointerGetAttribute, (void* value, CUpointer_attribute attribute, CUdeviceptr address))

// cuMemcpyBatchAsync exists since 12.8 and returns the index of a copy that it refuses. _v2 exists since 13.0 and does
// not. The batch runs in stream order, its copies in any order. The stream must not be the legacy default stream.
#define SW_CUDA_OPTIONAL_FUNCTIONS(X)                                                                                  \
  X(cuMemcpyBatchAsync, (CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,                    \
                         CUmemcpyAttributes* attributes, std::size_t* first_copies, std::size_t attribute_count,       \
                         std::size_t* failed_copy, CUstream stream))                                                   \
  X(cuMemcpyBatchAsync_v2, (CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,                 \
                            CUmemcpyAttributes* attributes, std::size_t* first_copies, std::size_t attribute_count,    \
                            CUstream stream))                                                                          \
  X(cuStreamGetPriority, (CUstream stream, int* priority))
// clang-format on
