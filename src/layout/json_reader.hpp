// JsonReader: reads an untrusted JSON text value by value, without a tree in memory. Strict: no duplicate commas, no
// leading zeros, whole numbers only, strings in UTF-8. Depth is bounded, because the caller asks only for what it
// expects.
// Thread rule: one thread. Lifetime: the text outlives the reader.
//
//   reader.begin_object();
//   while (reader.next_key(key)) { ...read exactly one value... }
//   if (!reader.finish()) -> reader.trouble()
//
// The first error sticks. From then on every call returns false and changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace slackwater {

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  bool begin_object();
  bool next_key(std::string& key);  // false after the last member
  bool begin_array();
  bool next_item();  // false after the last item

  bool read_string(std::string& value);
  bool read_u64(std::uint64_t& value);
  bool read_dimensions(std::vector<std::int64_t>& dimensions);  // an array of whole numbers below 2^63

  // Any value as it is written, as a view into the text. Its content is scanned only to find the end.
  bool read_raw(std::string_view& value);

  // Whether there was no error and only white space is left.
  bool finish();

  // Reports an error that only the caller can find.
  bool refuse(std::string trouble);
  [[nodiscard]] bool failed() const { return !trouble_.empty(); }
  [[nodiscard]] const std::string& trouble() const { return trouble_; }  // "a name is expected near byte 17"

 private:
  void skip_space();
  [[nodiscard]] bool take(char expected);
  [[nodiscard]] bool separated();  // takes the comma between members; there is none before the first
  bool expected(const char* what);
  bool read_escape(std::string& value);
  bool read_hex4(std::uint32_t& unit);

  std::string_view text_;
  std::size_t at_ = 0;
  bool first_ = true;  // no member of the innermost container has been read yet
  std::string trouble_;
};

}  // namespace slackwater
