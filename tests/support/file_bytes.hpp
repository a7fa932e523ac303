// read_file, read_file_text: whole files in tests, read in one piece (byte by byte takes seconds under the sanitizers).
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace slackwater::test {

[[nodiscard]] inline std::vector<std::byte> read_file(const std::string& path) {
  std::vector<std::byte> bytes(std::filesystem::file_size(path));
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw std::runtime_error("cannot read " + path);
  return bytes;
}

// As text, of which a test changes something.
[[nodiscard]] inline std::string read_file_text(const std::string& path) {
  std::string text(std::filesystem::file_size(path), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file) throw std::runtime_error("cannot read " + path);
  return text;
}

}  // namespace slackwater::test
