// The delete note. Input: its text without the closing digest.
#include "fuzz.hpp"
#include "version/delete_notes.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace slackwater;
  fuzz::round_trip(
      fuzz::text_of(data, size), [](std::string_view text) { return parse_delete_note(text, "note"); },
      [](const DeleteNote& note) { return serialize(note); },
      [](const DeleteNote& note) {
        fuzz::require(parse_delete_note_file(delete_note_file(note.version, note.tier)) == note.version,
                      "a note has a file name that leads back to its version");
      });
  return 0;
}
