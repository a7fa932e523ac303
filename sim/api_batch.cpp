// Exported functions: copies in batches. Not part of the library that acts as an old driver.
#include <span>

#include "sim/copy_call.hpp"
#include "sim/driver_api.hpp"
#include "sim/simulator.hpp"

namespace slackwater::cuda {

using namespace slackwater::sim;

namespace {

struct Batch {
  CUdeviceptr* to;
  CUdeviceptr* from;
  std::size_t* sizes;
  std::size_t count;
  CUmemcpyAttributes* attributes;
  std::size_t* first_copies;
  std::size_t attribute_count;
};

bool attributes_are_valid(const Batch& batch) {
  if (batch.attributes == nullptr || batch.first_copies == nullptr) return false;
  if (batch.attribute_count == 0 || batch.attribute_count > batch.count || batch.first_copies[0] != 0) return false;
  for (std::size_t index = 0; index < batch.attribute_count; ++index) {
    const CUmemcpyAttributes& attributes = batch.attributes[index];
    // The only order that is safe for Slackwater. The others are refused, so that a mistake shows.
    if (attributes.srcAccessOrder != CUmemcpySrcAccessOrder::kStream) return false;
    if ((attributes.flags & ~kMemcpyFlagPreferOverlapWithCompute) != 0) return false;
    if (batch.first_copies[index] >= batch.count) return false;
    if (index > 0 && batch.first_copies[index] <= batch.first_copies[index - 1]) return false;
  }
  return true;
}

CUresult queue_batch(const char* symbol, const Batch& batch, std::size_t* failed_copy, CUstream stream) {
  return enter(symbol, kContext, [&](Simulator& sim, Call& call) {
    if (failed_copy != nullptr) *failed_copy = static_cast<std::size_t>(-1);  // no single copy is to blame
    const auto handle = reinterpret_cast<std::uintptr_t>(stream);
    if (handle == 0 || handle == kStreamLegacy) return CUresult::kInvalidValue;
    if (batch.to == nullptr || batch.from == nullptr || batch.sizes == nullptr || batch.count == 0) {
      return CUresult::kInvalidValue;
    }
    if (!attributes_are_valid(batch)) return CUresult::kInvalidValue;
    std::vector<CopyRequest> requests;
    requests.reserve(batch.count);
    for (std::size_t index = 0; index < batch.count; ++index) {
      requests.push_back({.from = batch.from[index], .to = batch.to[index], .width = batch.sizes[index]});
    }
    return queue_copies(sim, call, stream, requests, failed_copy, true);
  });
}

}  // namespace

CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                            CUmemcpyAttributes* attributes, std::size_t* first_copies, std::size_t attribute_count,
                            std::size_t* failed_copy, CUstream stream) {
  return queue_batch("cuMemcpyBatchAsync", {to, from, sizes, count, attributes, first_copies, attribute_count},
                     failed_copy, stream);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                               CUmemcpyAttributes* attributes, std::size_t* first_copies, std::size_t attribute_count,
                               CUstream stream) {
  return queue_batch("cuMemcpyBatchAsync_v2", {to, from, sizes, count, attributes, first_copies, attribute_count},
                     nullptr, stream);
}

}  // namespace slackwater::cuda
