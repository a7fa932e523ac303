#include <gtest/gtest.h>

#include "formats/pickle_reader.hpp"
#include "formats/pickle_writer.hpp"
#include "formats/selection.hpp"

namespace slackwater::formats {
namespace {

using Kind = PickleNode::Kind;

TEST(Pickle, WhatIsWrittenIsReadAsTheSameValues) {
  PickleWriter out;
  out.empty_list();
  out.mark();
  const std::vector<std::int64_t> numbers{0, 255, 256, -1, INT32_MIN, INT32_MAX, std::int64_t{1} << 40, INT64_MIN};
  for (const std::int64_t number : numbers) out.integer(number);
  out.real(1.5);
  out.text("text");
  out.append_items();
  const std::string bytes = out.finish();
  const auto graph = PickleGraph::read(bytes, "file");
  ASSERT_TRUE(graph) << graph.error().to_string();
  ASSERT_EQ(graph->root().kind, Kind::kList);
  ASSERT_EQ(graph->root().items.size(), numbers.size() + 2);
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(graph->at(graph->root().items[i]).number, numbers[i]);
  EXPECT_EQ(graph->at(graph->root().items[numbers.size()]).real, 1.5);
  EXPECT_EQ(graph->at(graph->root().items.back()).text, "text");
}

TEST(Pickle, ACallIsANodeAndNothingIsRun) {
  const std::string bytes(
      "\x80\x02"
      "cos\nsystem\n"
      "(X\x02\0\0\0lst"
      "R.",
      24);
  const auto graph = PickleGraph::read(bytes, "file");
  ASSERT_TRUE(graph) << graph.error().to_string();
  EXPECT_EQ(graph->called(graph->root()), "os.system");
  ASSERT_EQ(graph->arguments(graph->root()).size(), 1u);
  EXPECT_EQ(graph->at(graph->arguments(graph->root())[0]).text, "ls");
}

TEST(Pickle, CutAnywhereItIsRefused) {
  PickleWriter out;
  out.empty_dict();
  out.mark();
  out.text("key");
  out.global("torch", "Size");
  out.mark();
  out.integer(70'000);
  out.tuple();
  out.call();
  out.set_items();
  const std::string bytes = out.finish();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto graph = PickleGraph::read(std::string_view(bytes).substr(0, size), "file");
    ASSERT_FALSE(graph) << size;
    EXPECT_EQ(graph.error().kind, ErrorKind::kCorrupt);
  }
}

TEST(Pickle, AMarkProtectsWhatLiesBelowIt) {
  for (const std::string_view bytes :
       {"\x80\x02K\x01(\x85.", "\x80\x02](K\x01s.", "\x80\x02N(R.", "\x80\x02]K\x01(ae."})
    EXPECT_FALSE(PickleGraph::read(bytes, "file"));
}

TEST(NameMap, PrefixesAndStars) {
  const auto map = NameMap::parse({"model.*.attn.*=*.attention.*", "model.=", "lm_=head."});
  ASSERT_TRUE(map);
  EXPECT_EQ((*map)("model.a.attn.w"), "a.attention.w");
  EXPECT_EQ((*map)("model.a.w"), "a.w");
  EXPECT_EQ((*map)("lm_w"), "head.w");
  EXPECT_EQ((*map)("other.w"), "other.w");
  EXPECT_FALSE(NameMap::parse({"model"}));
  EXPECT_FALSE(NameMap::parse({"a*=**"}));
}

TEST(Selection, AParentSelectsItsChildren) {
  const Selection selected({"model"}, {"model.head.*"});
  EXPECT_TRUE(selected("model.body.w"));
  EXPECT_FALSE(selected("model.head.w"));
  EXPECT_FALSE(selected("models.w"));
}

}  // namespace
}  // namespace slackwater::formats
