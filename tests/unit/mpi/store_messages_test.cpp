#include "mpi/store_messages.hpp"

#include <gtest/gtest.h>

namespace slackwater {
namespace {

TEST(StoreMessages, ARequestComesOutAsItWentIn) {
  const StoreRequest sent{
      .number = 7, .call = StoreCall::kGet, .keys = {"a", "", std::string("b\0c", 3)}, .value = "v"};
  const auto come = decode_request(encode(sent));
  ASSERT_TRUE(come);
  EXPECT_EQ(come->number, 7u);
  EXPECT_EQ(come->call, StoreCall::kGet);
  EXPECT_EQ(come->keys, sent.keys);
  EXPECT_EQ(come->value, "v");
}

TEST(StoreMessages, AnAnswerTellsWhatIsEmptyFromWhatIsMissing) {
  const auto come = decode_reply(encode(StoreReply{3, "why not", {std::nullopt, "", "text"}}));
  ASSERT_TRUE(come);
  EXPECT_EQ(come->number, 3u);
  EXPECT_EQ(come->error, "why not");
  EXPECT_EQ(come->values, (std::vector<std::optional<std::string>>{std::nullopt, "", "text"}));
}

TEST(StoreMessages, EveryMessageCutShortOrTooLongIsRefused) {
  const std::string request = encode({.number = 1, .call = StoreCall::kSet, .keys = {"key"}, .value = "value"});
  const std::string reply = encode(StoreReply{1, "", {"value", std::nullopt}});
  for (std::size_t size = 0; size < request.size(); ++size)
    EXPECT_FALSE(decode_request(request.substr(0, size))) << size;
  for (std::size_t size = 0; size < reply.size(); ++size) EXPECT_FALSE(decode_reply(reply.substr(0, size))) << size;
  EXPECT_FALSE(decode_request(request + "x"));
  EXPECT_FALSE(decode_reply(reply + "x"));
}

TEST(StoreMessages, LengthsAndCallsThatCannotBeAreRefused) {
  std::string request = encode({.number = 1, .call = StoreCall::kGet, .keys = {"key"}});
  std::string many = request;
  many.replace(24, 8, std::string(7, '\xff') + '\x0f');  // how many keys there are
  EXPECT_FALSE(decode_request(many));
  request[8] = 9;
  EXPECT_FALSE(decode_request(request)) << "there is no such call";
  EXPECT_FALSE(decode_request(encode({.call = StoreCall::kSet}))) << "nothing to set";
}

}  // namespace
}  // namespace slackwater
