#include "bench/lazy/trainer.hpp"

#include <array>
#include <cstring>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "slackwater/engine.hpp"

namespace slackwater::bench {
namespace {

constexpr std::uint64_t kLayers = 24;
constexpr std::uint64_t kTrainerColumns = 256;
constexpr std::uint64_t kGapBytes = 512;             // no two tensors touch: copies of neighbours cannot be merged
constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;  // what one update adds to every word

struct Kind {
  const char* name;
  DType dtype;
};
constexpr std::array kKinds{Kind{"model.layers.{}.weight", DType::kBF16}, Kind{"optim.layers.{}.master", DType::kF32},
                            Kind{"optim.layers.{}.exp_avg", DType::kF32},
                            Kind{"optim.layers.{}.exp_avg_sq", DType::kF32}};
constexpr std::uint64_t kBytesPerParameter = 14;

std::uint64_t word_at(std::uint64_t index, std::uint64_t version) {
  std::uint64_t word = (index + 1) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 31)) * 0x94d049bb133111eb;
  return (word ^ (word >> 29)) + version * kStep;
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::create(const SimulatedGpu& gpu, std::uint64_t state_bytes) {
  std::unique_ptr<Trainer> trainer(new Trainer(gpu));
  SW_TRY(trainer->open(state_bytes));
  return trainer;
}

Status Trainer::open(std::uint64_t state_bytes) {
  const std::uint64_t rows = std::max<std::uint64_t>(state_bytes / kBytesPerParameter / kLayers / kTrainerColumns, 1);
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    for (const Kind& kind : kKinds) {
      const std::uint64_t size_bytes = rows * kTrainerColumns * item_bytes(kind.dtype);
      pieces_.push_back({fmt::format(fmt::runtime(kind.name), layer), kind.dtype, block_bytes_, size_bytes});
      state_bytes_ += size_bytes;
      block_bytes_ += round_up(size_bytes, kGapBytes) + kGapBytes;
    }
  }
  const cuda::Driver& driver = gpu_.driver();
  SW_TRY(gpu_.check(driver.cuMemAlloc_v2(&block_, block_bytes_), "cuMemAlloc"));
  SW_TRY(gpu_.check(driver.cuStreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, 0),
                    "cuStreamCreateWithPriority"));
  for (cuda::CUevent* event : {&computed_, &update_begun_, &updated_})
    SW_TRY(gpu_.check(driver.cuEventCreate(event, cuda::kEventBlockingSync), "cuEventCreate"));
  words_ = {reinterpret_cast<std::uint64_t*>(gpu_.alias(block_)), block_bytes_ / sizeof(std::uint64_t)};
  for (std::uint64_t i = 0; i < words_.size(); ++i) words_[i] = word_at(i, 0);
  return {};
}

Trainer::~Trainer() {
  const cuda::Driver& driver = gpu_.driver();
  if (updated_ != nullptr) static_cast<void>(driver.cuEventSynchronize(updated_));
  for (cuda::CUevent event : {computed_, update_begun_, updated_})
    if (event != nullptr) static_cast<void>(driver.cuEventDestroy_v2(event));
  if (stream_ != nullptr) static_cast<void>(driver.cuStreamDestroy_v2(stream_));
  if (block_ != 0) static_cast<void>(driver.cuMemFree_v2(block_));
}

State Trainer::state() const {
  State state;
  state.tensors.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    const auto rows = static_cast<std::int64_t>(piece.size_bytes / item_bytes(piece.dtype) / kTrainerColumns);
    state.tensors.push_back(
        {.name = piece.name,
         .dtype = piece.dtype,
         .shape = {rows, static_cast<std::int64_t>(kTrainerColumns)},
         .strides = {},
         .data = reinterpret_cast<const void*>(block_ + piece.offset),  // NOLINT(performance-no-int-to-ptr)
         .device = gpu_.ordinal()});
  }
  state.tree = R"({"bench":"lazy"})";
  state.after = {stream()};
  return state;
}

Status Trainer::queue_compute(std::chrono::nanoseconds duration) {
  SW_TRY(gpu_.launch_delay(stream_, duration));
  return gpu_.check(gpu_.driver().cuEventRecord(computed_, stream_), "cuEventRecord");
}

Status Trainer::queue_update(std::chrono::nanoseconds duration) {
  const cuda::Driver& driver = gpu_.driver();
  SW_TRY(gpu_.check(driver.cuEventRecord(update_begun_, stream_), "cuEventRecord"));
  SW_TRY(gpu_.launch(stream_, duration, rewrite, this));
  ++version_;
  return gpu_.check(driver.cuEventRecord(updated_, stream_), "cuEventRecord");
}

// On a thread of the simulator.
void Trainer::rewrite(void* self, int /*phase*/) {
  for (std::uint64_t& word : static_cast<Trainer*>(self)->words_) word += kStep;
}

Status Trainer::wait_for_update() {
  return gpu_.check(gpu_.driver().cuEventSynchronize(updated_), "cuEventSynchronize");
}

double Trainer::update_held_seconds() const {
  return gpu_.event_seconds(update_begun_) - gpu_.event_seconds(computed_);
}

double Trainer::update_ended_seconds() const { return gpu_.event_seconds(updated_); }

Status Trainer::compare(std::span<const std::byte> bytes, std::uint64_t offset, std::uint64_t version) const {
  for (std::uint64_t i = 0; i < bytes.size() / sizeof(std::uint64_t); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
    if (word == word_at(offset / sizeof word + i, version)) continue;
    return fail(ErrorKind::kCorrupt, fmt::format("byte {} of the state is not as the update number {} left it",
                                                 offset + i * sizeof word, version));
  }
  return {};
}

Status Trainer::compare_tensor(std::size_t index, std::span<const std::byte> bytes, std::uint64_t version) const {
  return compare(bytes, pieces_[index].offset, version);
}

Status Trainer::compare_checkpoint(const std::string& directory, std::uint64_t step, std::uint64_t version) const {
  SW_ASSIGN(Checkpoint checkpoint, Checkpoint::open(directory, step));
  const State saved = state();
  std::vector<std::vector<std::byte>> bytes(saved.tensors.size());
  std::vector<Target> targets;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const Tensor& tensor = saved.tensors[i];
    bytes[i].resize(static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1]) * item_bytes(tensor.dtype));
    targets.push_back(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .strides = {}, .data = bytes[i].data()});
  }
  SW_TRY(checkpoint.read(targets));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (auto same = compare_tensor(i, bytes[i], version); !same) {
      return fail(same.error().kind,
                  fmt::format("step {}, tensor '{}': {}", step, targets[i].name, same.error().message), directory);
    }
  }
  return {};
}

}  // namespace slackwater::bench
