#include "cli/doctor/check.hpp"

#include <fmt/format.h>

#include "cli/text.hpp"

namespace slackwater::cli::doctor {
namespace {

constexpr std::size_t kSectionWidth = 12;
constexpr std::size_t kNameWidth = 30;

std::string text_member(const OrderedJson& object, const char* key) {
  const auto member = object.find(key);
  return member != object.end() && member->is_string() ? member->get<std::string>() : std::string();
}

}  // namespace

Verdict at_least(double value, Band band) {
  return value < band.fail ? Verdict::kFail : value < band.warn ? Verdict::kWarn : Verdict::kPass;
}

Verdict at_most(double value, Band band) {
  return value > band.fail ? Verdict::kFail : value > band.warn ? Verdict::kWarn : Verdict::kPass;
}

Verdict soften(Verdict verdict, bool quick) { return quick && verdict == Verdict::kFail ? Verdict::kWarn : verdict; }

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass: return "PASS";
    case Verdict::kWarn: return "WARN";
    case Verdict::kFail: return "FAIL";
    case Verdict::kSkip: return "SKIP";
  }
  return "FAIL";
}

OrderedJson check_json(const Check& check) {
  OrderedJson object{
      {"section", check.section}, {"check", check.name},          {"status", std::string(verdict_name(check.verdict))},
      {"figure", check.figure},   {"threshold", check.threshold}, {"remedy", check.remedy},
      {"rank", check.rank}};
  if (!check.values.is_null()) object["values"] = check.values;
  return object;
}

std::optional<Check> parse_check(std::string_view line) {
  const OrderedJson object = OrderedJson::parse(line, nullptr, false);
  if (!object.is_object()) return std::nullopt;
  Check check{.section = text_member(object, "section"),
              .name = text_member(object, "check"),
              .figure = text_member(object, "figure"),
              .threshold = text_member(object, "threshold"),
              .remedy = text_member(object, "remedy")};
  const std::string status = text_member(object, "status");
  bool known = false;
  for (const Verdict verdict : {Verdict::kPass, Verdict::kWarn, Verdict::kFail, Verdict::kSkip}) {
    if (status != verdict_name(verdict)) continue;
    check.verdict = verdict;
    known = true;
  }
  if (!known || check.section.empty() || check.name.empty()) return std::nullopt;
  if (const auto rank = object.find("rank"); rank != object.end() && rank->is_number_integer())
    check.rank = rank->get<int>();
  if (const auto values = object.find("values"); values != object.end() && values->is_object()) check.values = *values;
  return check;
}

std::string check_text(const Check& check, bool with_rank) {
  std::string name = check.name;
  if (with_rank && check.rank > 0) name = fmt::format("rank {}: {}", check.rank, name);
  std::string line = fmt::format("{}  {:<{}}  {:<{}}  {}", verdict_name(check.verdict), check.section, kSectionWidth,
                                 name, kNameWidth, check.figure);
  if (!check.threshold.empty()) line += fmt::format(" (expected: {})", check.threshold);
  if (!check.remedy.empty()) line += fmt::format("; {}", check.remedy);
  return escape_controls(line);
}

}  // namespace slackwater::cli::doctor
