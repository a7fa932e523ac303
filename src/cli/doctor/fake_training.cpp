#include "cli/doctor/fake_training.hpp"

#include <filesystem>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater::cli::doctor {
namespace {

std::string slice_name(std::size_t index) { return fmt::format("tensor.{}", index); }

// Tensor and Target alike.
template <class Place>
Place place_of(const Slice& slice, std::size_t index, std::byte* arena, int device) {
  Place place;
  place.name = slice_name(index);
  place.data = arena + slice.offset;
  place.device = device;
  place.shape = {static_cast<std::int64_t>(slice.width)};
  if (slice.rows > 1) {
    place.shape.insert(place.shape.begin(), static_cast<std::int64_t>(slice.rows));
    place.strides = {static_cast<std::int64_t>(slice.pitch), 1};
  }
  return place;
}

}  // namespace

Result<EngineRun> EngineRun::open(const Settings& settings, Options options) {
  std::string path = options.path;
  SW_ASSIGN(Engine engine, Engine::open(std::move(options)));
  return EngineRun(std::move(engine), std::move(path), settings.time_limit());
}

Status EngineRun::close() { return engine_->close(time_limit_); }

EngineRun::~EngineRun() {
  if (engine_ == nullptr) return;
  if (const Status closed = close(); !closed && closed.error().kind == ErrorKind::kTimeout)
    (void)engine_.release();  // its destructor would wait for what hangs
  engine_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

FakeTraining::FakeTraining(Scratch& scratch, const Settings& settings, std::uint64_t arena_bytes)
    : scratch_(&scratch), settings_(&settings), arena_bytes_(arena_bytes), expected_(arena_bytes) {}

Result<FakeTraining> FakeTraining::begin(Scratch& scratch, const Settings& settings, std::uint64_t arena_bytes) {
  FakeTraining training(scratch, settings, arena_bytes);
  for (std::byte** arena : {&training.state_, &training.next_, &training.restored_}) {
    SW_ASSIGN(*arena, scratch.allocate(arena_bytes));
  }
  for (std::byte** buffer : {&training.to_device_, &training.from_device_}) {
    SW_ASSIGN(*buffer, scratch.allocate_pinned(arena_bytes));
  }
  SW_TRY(training.upload_next(0));
  SW_TRY(training.update());
  SW_TRY(training.wait());
  return training;
}

Status FakeTraining::upload_next(std::uint64_t seed) {
  SW_TRY(wait());  // an earlier upload may still read the buffer
  fill_random({to_device_, arena_bytes_}, seed + 1);
  return scratch_->upload(next_, to_device_, arena_bytes_);
}

Status FakeTraining::update() {
  SW_TRY(scratch_->update(state_, next_, arena_bytes_));
  std::memcpy(expected_.bytes().data(), to_device_, arena_bytes_);
  return {};
}

State FakeTraining::state(std::span<const Slice> slices) const {
  State state;
  for (const Slice& slice : slices) {
    state.tensors.push_back(place_of<Tensor>(slice, state.tensors.size(), state_, scratch_->device()));
    state.tensors.back().at_once = slice.at_once;
  }
  state.after = scratch_->streams();
  return state;
}

Result<std::optional<std::string>> FakeTraining::differs(Engine& engine, std::uint64_t step,
                                                         std::span<const Slice> slices,
                                                         std::span<const std::byte> expected) {
  SW_ASSIGN(const auto restored, engine.restore({.step = step, .after = scratch_->streams()}, [&](const Checkpoint&) {
    std::vector<Target> targets;
    for (const Slice& slice : slices)
      targets.push_back(place_of<Target>(slice, targets.size(), restored_, scratch_->device()));
    return Result<std::vector<Target>>(std::move(targets));
  }));
  if (!restored) return fail(ErrorKind::kNotFound, fmt::format("step {} is not there", step));
  SW_TRY(scratch_->download(from_device_, restored_, arena_bytes_));
  SW_TRY(wait());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    for (std::uint64_t row = 0; row < slices[i].rows; ++row) {
      const std::uint64_t at = slices[i].offset + row * slices[i].pitch;
      for (std::uint64_t byte = at; std::memcmp(from_device_ + at, expected.data() + at, slices[i].width) != 0; ++byte)
        if (from_device_[byte] != expected[byte])
          return fmt::format("{} of {} bytes differs from byte {} on", slice_name(i), slices[i].width * slices[i].rows,
                             byte - slices[i].offset);
    }
  }
  return std::nullopt;
}

}  // namespace slackwater::cli::doctor
