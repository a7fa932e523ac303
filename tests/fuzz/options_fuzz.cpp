// Options and sizes as text. Input: lines "name=value"; each value is tried as a size too.
#include <string>

#include "base/digest.hpp"
#include "base/units.hpp"
#include "fuzz.hpp"
#include "slackwater/options.hpp"

namespace slackwater::fuzz {
namespace {

// Everything an option can set.
std::string describe(const Options& options) {
  std::string text = options.path + "|" + options.run_name;
  for (const std::uint64_t number :
       {options.pool_bytes, options.slab_bytes, std::uint64_t{options.copy_threads}, std::uint64_t{options.queue_depth},
        std::uint64_t{options.in_flight}, static_cast<std::uint64_t>(options.on_busy),
        static_cast<std::uint64_t>(options.on_damage), options.keep, options.keep_every,
        std::uint64_t{options.paranoid}, static_cast<std::uint64_t>(options.io_backend),
        std::uint64_t{options.direct_io}, static_cast<std::uint64_t>(options.stall_timeout.count())})
    text += "|" + std::to_string(number);
  return text;
}

void try_option(Options& options, std::string_view name, std::string_view value) {
  const std::string before = describe(options);
  if (const Status status = set_option(options, name, value); !status) {
    require(status.error().kind == ErrorKind::kInvalidArgument, "a refused option is misuse");
    require(describe(options) == before, "a refused option changes nothing");
    return;
  }
  require(options.slab_bytes > 0 && options.slab_bytes % kBlockBytes == 0, "a slab is a multiple of a block");
  require(options.in_flight >= 1, "one snapshot may be in flight");
  require(options.stall_timeout.count() >= 1, "the stall time-out is not zero");
}

void try_size(std::string_view text) {
  const auto bytes = parse_bytes(text);
  if (!bytes) return require(bytes.error().kind == ErrorKind::kInvalidArgument, "a refused size is misuse");
  require(parse_bytes(std::to_string(*bytes)) == *bytes, "a size in plain digits is itself");
  require(!format_bytes(*bytes).empty(), "a size can be shown");
}

}  // namespace
}  // namespace slackwater::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace slackwater;
  Options options;
  std::string_view rest = fuzz::text_of(data, size);
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::size_t equals = line.find('=');
    const std::string_view value = equals == std::string_view::npos ? line : line.substr(equals + 1);
    if (equals != std::string_view::npos) fuzz::try_option(options, line.substr(0, equals), value);
    fuzz::try_size(value);
  }
  return 0;
}
