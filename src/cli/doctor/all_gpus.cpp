#include "cli/doctor/all_gpus.hpp"

#include <algorithm>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "cli/doctor/thresholds.hpp"
#include "device/cuda/inspection.hpp"
#include "stage/pool.hpp"

namespace slackwater::cli::doctor {
namespace {

constexpr std::uint64_t kPieceBytes = 8u << 20;
constexpr std::uint64_t kMostPieces = 8;  // of each GPU
constexpr double kAloneSeconds = 0.2;
constexpr double kAtOnceSeconds = 0.5;
constexpr double kQuickPart = 0.1;

// One GPU, with memory of the host that is near it, as the engine's pool is.
class CopyingGpu {
 public:
  CopyingGpu(const Settings& settings, int ordinal) : settings_(settings), ordinal_(ordinal) {}
  ~CopyingGpu() {
    for (std::byte* const piece : registered_) scratch_->unregister_host(piece);
  }
  CopyingGpu(const CopyingGpu&) = delete;
  CopyingGpu& operator=(const CopyingGpu&) = delete;

  Status open(std::uint64_t pieces) {
    SW_ASSIGN(scratch_, cuda::CudaScratch::open(settings_.cuda_driver, ordinal_));
    SW_ASSIGN(const cuda::DeviceFacts facts, scratch_->facts());
    SW_ASSIGN(pool_, Pool::create(kPieceBytes, static_cast<std::uint32_t>(pieces), {}, facts.numa_node));
    pool_->wait_touched();
    for (std::uint64_t at = 0; at < pool_->memory().size(); at += kPieceBytes) {
      SW_TRY(scratch_->register_host(pool_->memory().subspan(at, kPieceBytes)));
      registered_.push_back(pool_->memory().data() + at);
    }
    SW_ASSIGN(from_, scratch_->allocate(pool_->memory().size()));
    return copy_all();  // whatever the first copies have to set up
  }

  // GB/s. Copies for so long, and then to the end of what was begun.
  Result<double> copy_for(double seconds) {
    const Stopwatch watch;
    std::uint64_t bytes = 0;
    while (bytes == 0 || watch.seconds() < seconds) {
      SW_TRY(copy_all());
      bytes += pool_->memory().size();
    }
    return static_cast<double>(bytes) / watch.seconds() / 1e9;
  }

 private:
  Status copy_all() {
    std::byte* const to = pool_->memory().data();
    for (std::uint64_t at = 0; at < pool_->memory().size(); at += kPieceBytes)
      SW_TRY(scratch_->download(to + at, from_ + at, kPieceBytes));
    return scratch_->wait(settings_.time_limit());
  }

  const Settings& settings_;
  const int ordinal_;
  std::unique_ptr<cuda::CudaScratch> scratch_;
  std::unique_ptr<Pool> pool_;
  std::vector<std::byte*> registered_;
  std::byte* from_ = nullptr;
};

Check at_once_line() {
  Check check{.section = "device", .name = "all GPUs at once"};
  check.threshold = fmt::format("{:g} of it", kAtOnceOverAlone);
  return check;
}

double sum_of(const std::vector<double>& rates) { return std::accumulate(rates.begin(), rates.end(), 0.0); }

Result<GpuRates> measure_gpus(const Settings& settings, std::vector<std::unique_ptr<CopyingGpu>>& gpus,
                              std::uint64_t pieces) {
  const double part = settings.quick ? kQuickPart : 1;
  for (auto& gpu : gpus) SW_TRY(gpu->open(pieces));
  GpuRates rates;
  for (auto& gpu : gpus) {
    SW_ASSIGN(const double rate, gpu->copy_for(part * kAloneSeconds));
    rates.alone.push_back(rate);
  }
  std::vector<Result<double>> found(gpus.size(), Result<double>(0.0));
  {
    std::latch ready(static_cast<std::ptrdiff_t>(gpus.size()));
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < gpus.size(); ++i)
      threads.push_back(start_thread("doctor-gpu", [&, i](const std::stop_token&) {
        ready.arrive_and_wait();
        found[i] = gpus[i]->copy_for(part * kAtOnceSeconds);
      }));
  }
  for (auto& rate : found) {
    SW_TRY(rate);
    rates.at_once.push_back(*rate);
  }
  return rates;
}

}  // namespace

Check gpus_at_once_check(const GpuRates& rates) {
  Check check = at_once_line();
  const double alone = sum_of(rates.alone);
  const double at_once = sum_of(rates.at_once);
  const double ratio = alone > 0 ? at_once / alone : 0;
  std::size_t slowest = 0;
  for (std::size_t i = 1; i < rates.at_once.size(); ++i)
    if (rates.at_once[i] * rates.alone[slowest] < rates.at_once[slowest] * rates.alone[i]) slowest = i;
  check.figure = fmt::format(
      "{} GPUs: {:.1f} GB/s, {:.2f} of the sum of each alone ({:.1f} GB/s); cuda:{} loses most: {:.1f} "
      "instead of {:.1f}",
      rates.at_once.size(), at_once, ratio, alone, slowest, rates.at_once.at(slowest), rates.alone.at(slowest));
  check.values = {{"alone_gbs", rates.alone}, {"at_once_gbs", rates.at_once}};
  check.verdict = at_least(ratio, {.warn = kAtOnceOverAlone, .fail = 0});
  if (check.verdict != Verdict::kPass)
    check.remedy =
        "GPUs below one switch share its link, and all share the host's memory: compare with nvidia-smi topo -m; bind "
        "each rank to the NUMA node of its GPU (numactl)";
  return check;
}

void all_gpus_checks(const Settings& settings, int gpus, std::uint64_t usable_host_bytes, const Emit& emit) {
  Check check = at_once_line();
  const auto count = static_cast<std::uint64_t>(std::max(gpus, 1));
  const std::uint64_t pieces = std::min(kMostPieces, usable_host_bytes / 4 / count / kPieceBytes);
  if (pieces < 2) {
    check.verdict = Verdict::kSkip;
    check.figure = fmt::format("not measured: {} of memory is too little", format_bytes(usable_host_bytes));
    return emit(std::move(check));
  }
  std::vector<std::unique_ptr<CopyingGpu>> all;
  for (int ordinal = 0; ordinal < gpus; ++ordinal) all.push_back(std::make_unique<CopyingGpu>(settings, ordinal));
  const auto rates = measure_gpus(settings, all, pieces);
  if (rates) return emit(gpus_at_once_check(*rates));
  if (rates.error().kind == ErrorKind::kTimeout)
    for (auto& gpu : all) (void)gpu.release();  // their destructors would wait for what hangs
  check.verdict = Verdict::kFail;
  check.figure = rates.error().to_string();
  check.remedy = "see the lines of each GPU";
  emit(std::move(check));
}

}  // namespace slackwater::cli::doctor
