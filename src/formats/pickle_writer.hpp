// PickleWriter: the few opcodes of pickle protocol 2 that torch files need, appended to a string. It writes no memo, so
// every value is written where it stands. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace slackwater::formats {

class PickleWriter {
 public:
  PickleWriter();

  void none() { out_ += 'N'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value);
  void hex_integer(std::string_view text);  // "-0x1f"; any size up to 255 bytes
  void real(double value);
  void text(std::string_view utf8);
  void bytes(std::string_view value);  // as _codecs.encode(text, "latin1"), which every reader takes

  // No newline may be in a name; the caller passes constants.
  void global(std::string_view module, std::string_view name);

  void mark() { out_ += '('; }
  void tuple() { out_ += 't'; }  // of all since the mark
  void empty_tuple() { out_ += ')'; }
  void empty_list() { out_ += ']'; }
  void append_items() { out_ += 'e'; }  // all since the mark, to the list below it
  void empty_dict() { out_ += '}'; }
  void set_items() { out_ += 'u'; }  // keys and values since the mark, in the dict below it
  void call() { out_ += 'R'; }       // the callable below the tuple of arguments
  void new_object() { out_ += '\x81'; }
  void set_state() { out_ += 'b'; }
  void persistent() { out_ += 'Q'; }

  [[nodiscard]] std::string finish();  // once

 private:
  std::string out_;
};

// Bytes as text of which each character is one byte, in UTF-8.
[[nodiscard]] std::string latin1_text(std::string_view bytes);

}  // namespace slackwater::formats
