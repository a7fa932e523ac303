#include "bindings.hpp"

NB_MODULE(_core, module) {
  using namespace slackwater::python;
#ifdef NDEBUG
  // A forked child, or a program that ends with daemon threads, leaks objects on purpose. Users need not be warned of
  // that. A debug build warns, so that we notice real leaks.
  nb::set_leak_warnings(false);
#endif
  module.doc() = "The Slackwater engine. Private: use the package slackwater.";
  module.attr("version") = SLACKWATER_VERSION;
  bind_mailbox(module);
  bind_values(module);
  bind_snapshot(module);
  bind_checkpoint(module);
  bind_dlpack(module);
  bind_store_relay(module);
  bind_structure(module);
  bind_tensor_reader(module);
  bind_tables(module);
  bind_part(module);
  bind_options(module);
  bind_engine(module);
}
