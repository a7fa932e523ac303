// Names of the format and locations of the command line. Input: one name.
#include <string>

#include "cli/location.hpp"
#include "cli/text.hpp"
#include "fuzz.hpp"
#include "version/names.hpp"

namespace slackwater::fuzz {
namespace {

void check_names(const std::string& name) {
  if (const auto version = parse_version_directory(name))
    require(version_directory(*version) == name && is_plain_name(name), "a version has one spelling");
  if (const auto version = parse_pin_file(name))
    require(pin_file(*version) == name && is_plain_name(name), "a pin has one spelling");
  if (const auto attempt = parse_attempt_file(name))
    require(attempt_file(*attempt) == name && is_plain_name(name), "an attempt has one spelling");
  if (is_plain_name(name))
    require(name.find('/') == std::string::npos && name != ".." && name.size() <= 255, "a plain name stays here");
  if (const auto rank = rank_of_file(name)) {
    const std::string directory = name.substr(0, name.rfind('/') + 1);
    require(directory.empty() || (is_rank_directory(directory.substr(0, directory.size() - 1)) &&
                                  directory.find_first_not_of("g0123456789/") == std::string::npos),
            "a file of a rank lies in the version or one directory below");
    require(is_plain_name(name.substr(directory.size())) && stays_in_version(name),
            "a file of a rank stays in its version");
    require(*rank == rank_of_file(name.substr(directory.size())), "its directory does not change whose it is");
  }
  if (is_plain_name(name) && is_version_file(name))
    require(!parse_version_directory(name) && !parse_attempt_file(name), "a file is one thing");
}

void check_location(const std::string& text) {
  const cli::Location location = cli::parse_location(text);
  if (!location.step) return require(location.directory == text, "without a step it is all directory");
  require(!location.directory.empty(), "a step is of a directory");
  require(text.starts_with(location.directory + "@"), "the directory is what stands before the @");
  const std::string digits = text.substr(location.directory.size() + 1);
  require(!digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos, "a step is digits");
}

void check_escape(const std::string& text) {
  for (const char c : cli::escape_controls(text))
    require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F, "no control character reaches the terminal");
}

}  // namespace
}  // namespace slackwater::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(slackwater::fuzz::text_of(data, size));
  slackwater::fuzz::check_names(text);
  slackwater::fuzz::check_location(text);
  slackwater::fuzz::check_escape(text);
  return 0;
}
