// Structure: the part of a state that stays the same from save to save. Only addresses change.
// Owner: Python, which keeps it as long as the state looks the same.
// Thread rule: constant after construction. Making one needs the GIL.
// Lifetime: holds no Python object and may outlive its engine.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings.hpp"

namespace slackwater::python {

using Addresses = nb::typed<nb::list, nb::int_>;

struct Structure {
  using Texts = nb::typed<nb::list, nb::str>;
  using Items = nb::typed<nb::list, nb::any>;
  Structure(const Texts& names, const Texts& dtypes, const Items& shapes, const Items& strides, const Items& updates,
            const Items& devices, std::size_t watched_tensors, std::vector<std::string> object_names,
            const std::optional<Items>& shards);

  [[nodiscard]] std::vector<Tensor> with_addresses(const Addresses& addresses) const;

  std::vector<Tensor> tensors;
  std::size_t watched = 0;  // so many at the front are the caller's to watch
  std::vector<std::string> objects;
  std::shared_ptr<const void> identity = std::make_shared<char>();
};

}  // namespace slackwater::python
