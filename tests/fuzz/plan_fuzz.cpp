// How readers understand an index, and how they plan to read every tensor in it. Input: the text of the index without
// the closing digest.
#include <cstddef>
#include <optional>
#include <string>

#include "fuzz.hpp"
#include "restore/index_view.hpp"
#include "restore/read_plan.hpp"
#include "version/index.hpp"

namespace slackwater::fuzz {
namespace {

constexpr std::uint32_t kWorld = 4;

// Whatever boxes a tensor lies in: it is read from exactly as many bytes as it has, or not at all.
void check_plan(const IndexView& view, const TensorInfo& tensor) {
  std::byte memory{};
  const Target target{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .data = &memory};
  const auto plan = ReadPlan::make(view.tensors, {&target, 1});
  if (!plan) return require_refusal(plan.error());
  std::uint64_t size_bytes = 0;
  for (const FileExtent& box : plan->stored()) {
    require(box.file < view.files.size(), "a box lies in a file that is listed");
    size_bytes += box.size_bytes;
  }
  require(size_bytes == tensor.size_bytes, "a tensor is read from its own bytes, each once");
}

void check_view(const std::vector<IndexEntry>& entries, const std::optional<Viewer>& viewer) {
  const auto view = view_index(entries, kWorld, viewer, "index");
  if (!view) return require_refusal(view.error());
  for (const FileInfoOnTier& file : view->files) require(file.rank < kWorld, "a file belongs to a rank");
  for (const TensorInfo& tensor : view->tensors) check_plan(*view, tensor);
}

}  // namespace
}  // namespace slackwater::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace slackwater;
  const auto entries = parse_index(fuzz::sealed(fuzz::text_of(data, size)), "index");
  if (!entries) return 0;
  fuzz::check_view(*entries, {});
  fuzz::check_view(*entries, Viewer{1, fuzz::kWorld});
  fuzz::check_view(*entries, Viewer{0, 2});
  return 0;
}
