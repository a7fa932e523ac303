#include "formats/piecewise_reader.hpp"

#include <algorithm>
#include <utility>

#include "base/result.hpp"
#include "base/units.hpp"
#include "formats/float_convert.hpp"
#include "tensor/shape.hpp"

namespace slackwater::formats {
namespace {

constexpr std::uint64_t kReadBufferBytes = 32u << 20;  // read at once
constexpr std::uint64_t kTargetAlignment = 64;

std::uint64_t elements_in(std::span<const std::int64_t> shape) {
  std::uint64_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::uint64_t>(extent);
  return count;
}

}  // namespace

std::uint64_t ReadItem::size_bytes() const { return elements_in(shape) * item_bytes(to); }

PiecewiseReader::PiecewiseReader(Checkpoint& checkpoint, std::function<void(std::uint64_t)> on_read)
    : checkpoint_(checkpoint), on_read_(std::move(on_read)) {}

// Cuts a tensor into boxes that are contiguous in it: rows of the outermost dimension, or of an inner one if a single
// row of the outer is too large.
void PiecewiseReader::split(std::span<const ReadItem> items, std::size_t item, std::vector<Piece>& pieces) const {
  const ReadItem& tensor = items[item];
  const std::vector<std::int64_t>& shape = tensor.shape;
  const std::uint64_t most = kReadBufferBytes / item_bytes(tensor.from);  // elements of a piece
  const std::uint64_t all = elements_in(shape);
  if (all == 0) return;
  if (all <= most) {
    pieces.push_back({item, std::vector<std::int64_t>(shape.size()), shape, 0, all});
    return;
  }
  std::size_t cut = 0;  // the dimension that is cut; of those before it, each index is a piece of its own
  std::uint64_t inner = all / static_cast<std::uint64_t>(shape[0]);
  while (inner > most) inner /= static_cast<std::uint64_t>(shape[++cut]);
  const std::int64_t rows = static_cast<std::int64_t>(most / inner);
  std::vector<std::int64_t> at(shape.size());
  for (std::uint64_t first = 0; first < all;) {
    Piece piece{.item = item, .offset = at, .shape = shape, .first = first};
    std::fill_n(piece.shape.begin(), cut, 1);
    piece.shape[cut] = std::min(rows, shape[cut] - at[cut]);
    piece.count = elements_in(piece.shape);
    first += piece.count;
    at[cut] += piece.shape[cut];
    for (std::size_t d = cut; d > 0 && at[d] == shape[d]; --d) {
      at[d] = 0;
      ++at[d - 1];
    }
    pieces.push_back(std::move(piece));
  }
}

Status PiecewiseReader::run(std::span<const ReadItem> items, const Sink& sink) {
  std::vector<Piece> pieces;
  std::uint64_t batch_bytes = 0;
  const auto flush = [&]() -> Status {
    SW_TRY(pass_on(items, pieces, sink));
    pieces.clear();
    batch_bytes = 0;
    return {};
  };
  std::vector<Piece> cut;
  for (std::size_t item = 0; item < items.size(); ++item) {
    cut.clear();
    split(items, item, cut);
    for (Piece& piece : cut) {
      const std::uint64_t bytes = round_up(piece.count * item_bytes(items[item].from), kTargetAlignment);
      if (batch_bytes + bytes > kReadBufferBytes && !pieces.empty()) SW_TRY(flush());
      batch_bytes += bytes;
      pieces.push_back(std::move(piece));
    }
  }
  return pieces.empty() ? Status() : flush();
}

Status PiecewiseReader::pass_on(std::span<const ReadItem> items, std::span<const Piece> pieces, const Sink& sink) {
  std::vector<std::uint64_t> begins;
  std::uint64_t bytes = 0;
  for (const Piece& piece : pieces) {
    begins.push_back(bytes);
    bytes += round_up(piece.count * item_bytes(items[piece.item].from), kTargetAlignment);
  }
  if (read_.size() < bytes) read_.resize(bytes);
  std::vector<Target> targets;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const ReadItem& item = items[pieces[i].item];
    Target target{.name = item.tensor, .dtype = item.from, .shape = pieces[i].shape, .data = read_.data() + begins[i]};
    if (pieces[i].shape != item.shape) target.shard = Shard{.global_shape = item.shape, .offset = pieces[i].offset};
    targets.push_back(std::move(target));
  }
  SW_TRY(checkpoint_.read(targets));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const ReadItem& item = items[pieces[i].item];
    std::span<const std::byte> found(read_.data() + begins[i], pieces[i].count * item_bytes(item.from));
    const std::uint64_t source_bytes = found.size();
    if (item.from != item.to) {
      converted_.resize(pieces[i].count * item_bytes(item.to));
      convert_floats(item.from, found, item.to, converted_);
      found = converted_;
    }
    SW_TRY(sink(pieces[i].item, pieces[i].first * item_bytes(item.to), found));
    if (on_read_) on_read_(source_bytes);
  }
  return {};
}

}  // namespace slackwater::formats
