// The reference alone: a file of the given size, written raw again and again.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/units.hpp"
#include "benchmarks.hpp"
#include "host_state.hpp"
#include "reference_io.hpp"

namespace slackwater::bench {

Result<Report> raw_write(const Settings& settings) {
  SW_ASSIGN(const HostMemory image, HostMemory::create(round_up(settings.state_bytes, 4096), Pages::kHuge));
  image.fill_random(1);
  SW_ASSIGN(RawIo io,
            RawIo::create(image.bytes(), {.depth = settings.queue_depth, .request_bytes = settings.slab_bytes}));
  Line seconds{.name = "raw write", .unit = "s", .samples = {}, .goal = {}};
  const std::string path = settings.directory + "/raw-write";
  for (unsigned run = 0; run < settings.pairs; ++run) {
    SW_TRY(settle(settings));
    SW_ASSIGN(const double elapsed, io.write_file(path, settings.state_bytes));
    seconds.samples.push_back(elapsed);
    std::error_code ignored;  // the next create is exclusive and would say so
    std::filesystem::remove(path, ignored);
  }
  return Report{.benchmark = "raw_write",
                .setup = {{"bytes", settings.state_bytes}, {"registered_buffers", io.registered()}},
                .lines = {seconds}};
}

}  // namespace slackwater::bench
