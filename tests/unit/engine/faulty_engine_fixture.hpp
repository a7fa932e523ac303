// An engine on a disk that fails, hangs or is slow when told to.
#pragma once

#include <memory>
#include <stdexcept>
#include <utility>

#include "engine/engine_impl.hpp"
#include "support/fault_file_system.hpp"
#include "unit/engine/engine_fixture.hpp"

namespace slackwater::test {

class FaultyEngineTest : public EngineTest {
 protected:
  Engine open_faulty(Options options) {
    static FileSystem* const real = make_posix_file_system().release();  // outlives engines that are left behind
    auto faulty = std::make_unique<FaultFileSystem>(*real);
    fs_ = faulty.get();
    auto engine = open_engine(std::move(options), {.fs = std::move(faulty), .clock = nullptr});
    if (!engine) throw std::runtime_error(engine.error().to_string());
    return std::move(*engine);
  }
  FaultFileSystem* fs_ = nullptr;
};

}  // namespace slackwater::test
