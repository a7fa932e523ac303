// Structure: the part of a state that stays the same from save to save. Only addresses change.
// Owner: Python, which keeps it as long as the state looks the same.
// Thread rule: constant after construction. Making one needs the GIL.
// Lifetime: holds no Python object and may outlive its engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/guarded.hpp"
#include "bindings.hpp"

namespace slackwater::python {

using Addresses = nb::typed<nb::list, nb::int_>;

struct Structure {
  using Texts = nb::typed<nb::list, nb::str>;
  using Items = nb::typed<nb::list, nb::any>;
  Structure(const Texts& names, const Texts& dtypes, const Items& shapes, const Items& strides, const Items& updates,
            const Items& devices, std::size_t watched_tensors, std::vector<std::string> object_names,
            const std::optional<Items>& shards);

  // `read`: addresses of the tensors at the front, if they were read the quick way; the others are in the list.
  [[nodiscard]] std::vector<Tensor> with_addresses(std::span<const std::uintptr_t> read,
                                                   const Addresses& addresses) const;
  // Gives back what with_addresses() made, once the engine has done with it. The next save uses it again: making and
  // freeing the names and shapes of a thousand tensors takes a good part of a save(). Any thread.
  using TakeBack = std::function<void(std::vector<Tensor>)>;
  [[nodiscard]] TakeBack take_back() const;

  // What TensorReader compares of each tensor. It lies in one piece, because it is read at every save, and the copies
  // of the save before have pushed it out of the processor's caches.
  struct Layout {
    std::size_t first = 0;  // of its shape in `extents`; its strides follow
    std::size_t dimensions = 0;
    int device = kHostDevice;
    DType dtype = DType::kU8;
    bool empty = false;
    bool has_strides = false;
  };
  std::vector<Layout> layouts;
  std::vector<std::int64_t> extents;

  std::vector<Tensor> tensors;
  std::size_t watched = 0;  // so many at the front are the caller's to watch
  std::vector<std::string> objects;
  std::shared_ptr<const void> identity = std::make_shared<char>();

 private:
  void add_layout(const Tensor& tensor);

  using Spare = Guarded<std::vector<std::vector<Tensor>>>;
  std::shared_ptr<Spare> spare_ = std::make_shared<Spare>();  // of earlier saves
};

}  // namespace slackwater::python
