// Answers of an object store. Input: the XML of a list.
#include <string>

#include "fuzz.hpp"
#include "store/s3/object_client.hpp"
#include "store/s3/uri.hpp"
#include "store/s3/xml.hpp"

namespace slackwater::fuzz {
namespace {

std::size_t depth_of(const s3::XmlElement& element) {
  std::size_t deepest = 0;
  for (const s3::XmlElement& child : element.children) deepest = std::max(deepest, depth_of(child));
  return deepest + 1;
}

void check_answer(std::string_view text) {
  const auto root = s3::parse_xml(text);
  if (!root) return require_refusal(root.error());
  require(depth_of(*root) <= 16, "the depth is bounded");
  require(!root->name.empty(), "an element has a name");
  const auto page = s3::parse_object_page(*root);
  if (!page) return require_refusal(page.error());
  for (const s3::ObjectInfo& object : page->objects) require(!object.key.empty(), "an object has a name");
}

void check_uri(std::string_view text) {
  require(s3::decode_percent(s3::encode_query(text)) == text, "what was encoded is decoded");
  if (const auto location = s3::parse_object_location(text)) {
    require(!location->bucket.empty() && location->bucket.find_first_of("/\r\n ") == std::string::npos,
            "a bucket is plain");
    require(!location->key.starts_with('/') && !location->key.ends_with('/'), "a key has no slash at its ends");
  }
  if (const auto endpoint = s3::parse_endpoint(text))
    require(endpoint->host.find_first_of("/\r\n ?#@") == std::string::npos, "a host is plain");
}

}  // namespace
}  // namespace slackwater::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = slackwater::fuzz::text_of(data, size);
  slackwater::fuzz::check_answer(text);
  slackwater::fuzz::check_uri(text);
  return 0;
}
