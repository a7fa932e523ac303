// Exported functions: single copies.
#include "sim/copy_call.hpp"
#include "sim/driver_api.hpp"
#include "sim/simulator.hpp"

namespace slackwater::cuda {

using namespace slackwater::sim;

namespace {

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

struct Operand {
  std::uint64_t address = 0;
  Place place = Place::kEither;
};

std::optional<Operand> operand(CUmemorytype type, const void* host, CUdeviceptr device) {
  switch (type) {
    case CUmemorytype::kHost: return Operand{number(host), Place::kHost};
    case CUmemorytype::kDevice: return Operand{device, Place::kDevice};
    case CUmemorytype::kUnified: return Operand{device, Place::kEither};
    case CUmemorytype::kArray: break;  // there are no arrays here
  }
  return std::nullopt;
}

}  // namespace

CUresult cuMemcpyDtoHAsync_v2(void* host, CUdeviceptr device, std::size_t size_bytes, CUstream stream) {
  return enter("cuMemcpyDtoHAsync_v2", kContext, [&](Simulator& sim, Call& call) {
    return queue_copies(sim, call, stream,
                        {{.from = device,
                          .to = number(host),
                          .from_place = Place::kDevice,
                          .to_place = Place::kHost,
                          .width = size_bytes}});
  });
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr device, const void* host, std::size_t size_bytes, CUstream stream) {
  return enter("cuMemcpyHtoDAsync_v2", kContext, [&](Simulator& sim, Call& call) {
    return queue_copies(sim, call, stream,
                        {{.from = number(host),
                          .to = device,
                          .from_place = Place::kHost,
                          .to_place = Place::kDevice,
                          .width = size_bytes}});
  });
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t size_bytes, CUstream stream) {
  return enter("cuMemcpyDtoDAsync_v2", kContext, [&](Simulator& sim, Call& call) {
    return queue_copies(
        sim, call, stream,
        {{.from = from, .to = to, .from_place = Place::kDevice, .to_place = Place::kDevice, .width = size_bytes}});
  });
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D_v2* copy, CUstream stream) {
  return enter("cuMemcpy2DAsync_v2", kContext, [&](Simulator& sim, Call& call) {
    if (copy == nullptr) return CUresult::kInvalidValue;
    const auto from = operand(copy->srcMemoryType, copy->srcHost, copy->srcDevice);
    const auto to = operand(copy->dstMemoryType, copy->dstHost, copy->dstDevice);
    if (!from.has_value() || !to.has_value()) return CUresult::kInvalidValue;
    // A pitch of 0 means rows without gaps.
    const std::size_t from_pitch = copy->srcPitch != 0 ? copy->srcPitch : copy->srcXInBytes + copy->WidthInBytes;
    const std::size_t to_pitch = copy->dstPitch != 0 ? copy->dstPitch : copy->dstXInBytes + copy->WidthInBytes;
    if (from_pitch < copy->srcXInBytes + copy->WidthInBytes || to_pitch < copy->dstXInBytes + copy->WidthInBytes) {
      return CUresult::kInvalidValue;
    }
    if (from_pitch > kMaxPitch || to_pitch > kMaxPitch) return CUresult::kInvalidValue;
    return queue_copies(sim, call, stream,
                        {{.from = from->address + copy->srcY * from_pitch + copy->srcXInBytes,
                          .to = to->address + copy->dstY * to_pitch + copy->dstXInBytes,
                          .from_place = from->place,
                          .to_place = to->place,
                          .width = copy->WidthInBytes,
                          .height = copy->Height,
                          .from_pitch = from_pitch,
                          .to_pitch = to_pitch}});
  });
}

}  // namespace slackwater::cuda
