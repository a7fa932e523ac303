// Signs the requests on stdin, one JSON object per line, and prints the authorization of each. For
// tests/python/test_s3_signatures.py, which compares them with botocore's.
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "store/s3/signature.hpp"
#include "store/s3/uri.hpp"

int main() {
  using namespace slackwater::s3;
  for (std::string line; std::getline(std::cin, line);) {
    const auto json = nlohmann::json::parse(line);
    SignedRequest request{.method = json["method"],
                          .host = json["host"],
                          .path = "/" + encode_key(json["key"].get<std::string>()),
                          .query = json["query"].get<Query>(),
                          .headers = json["headers"].get<Headers>(),
                          .payload_hash = json["payload_hash"],
                          .region = json["region"],
                          .unix_seconds = json["unix_seconds"]};
    const Headers headers = sign(request, {json["access_key"], json["secret_key"], json["session_token"]});
    std::cout << headers.back().second << "\n";
  }
}
