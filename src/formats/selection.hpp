// Which tensors and values are wanted (--only), and what they are called (--map). Constant after construction; any
// thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater::formats {

// Names that match one of `only` (base/name_pattern.hpp), or all names, without those that match one of `exclude`.
class Selection {
 public:
  Selection() = default;
  Selection(std::vector<std::string> only, std::vector<std::string> exclude)
      : only_(std::move(only)), exclude_(std::move(exclude)) {}

  [[nodiscard]] bool everything() const { return only_.empty() && exclude_.empty(); }
  [[nodiscard]] bool operator()(const std::string& name) const;

 private:
  std::vector<std::string> only_;
  std::vector<std::string> exclude_;
};

// Rules such as "model.=" (a prefix is replaced) or "*.attn.*=*.attention.*" (the n-th star on the right is what the
// n-th star on the left matched). The first rule that matches a name is used. A name that no rule matches stays.
class NameMap {
 public:
  NameMap() = default;
  // kInvalidArgument names the rule: no "=", or more stars on the right than on the left.
  [[nodiscard]] static Result<NameMap> parse(const std::vector<std::string>& rules);

  [[nodiscard]] bool empty() const { return rules_.empty(); }
  [[nodiscard]] std::string operator()(std::string_view name) const;

 private:
  struct Rule {
    std::string from;
    std::string to;
  };
  std::vector<Rule> rules_;
};

}  // namespace slackwater::formats
