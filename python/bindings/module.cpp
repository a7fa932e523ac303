#include "bindings.hpp"

NB_MODULE(_core, module) {
  using namespace slackwater::python;
  module.doc() = "The Slackwater engine. Private: use the package slackwater.";
  module.attr("version") = SLACKWATER_VERSION;
  bind_mailbox(module);
  bind_values(module);
  bind_snapshot(module);
  bind_checkpoint(module);
  bind_dlpack(module);
  bind_store_relay(module);
  bind_engine(module);
}
