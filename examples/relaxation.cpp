// The engine without Python: a rod cools towards the temperatures of its ends, and every sweep is checkpointed.
//
//   relaxation <directory> <sweeps>
//
// Stop it at any moment and start it again: it goes on from the newest checkpoint.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "slackwater/engine.hpp"

namespace sw = slackwater;

namespace {

constexpr std::int64_t kCells = 1 << 20;

void relax(const std::vector<double>& from, std::vector<double>& to) {
  to.front() = 1.0;
  to.back() = 0.0;
  for (std::size_t i = 1; i + 1 < from.size(); ++i) to[i] = 0.5 * (from[i - 1] + from[i + 1]);
}

int stop(const sw::Error& error) {
  std::fprintf(stderr, "relaxation: %s\n", error.to_string().c_str());
  return EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: relaxation <directory> <sweeps>\n");
    return 2;
  }
  std::vector<double> rod(kCells);
  std::vector<double> next(kCells);

  auto engine = sw::Engine::open({.path = argv[1]});
  if (!engine) return stop(engine.error());

  // The plan says where the tensors of the checkpoint go. This program has one, and knows its shape.
  const auto restored = engine->restore({}, [&](const sw::Checkpoint&) {
    return sw::Result<std::vector<sw::Target>>{
        {{.name = "rod", .dtype = sw::DType::kF64, .shape = {kCells}, .data = rod.data()}}};
  });
  if (!restored) return stop(restored.error());
  const std::uint64_t start = *restored ? (*restored)->version.step : 0;
  std::printf("%s sweep %llu\n", start ? "going on with" : "beginning with",
              static_cast<unsigned long long>(start + 1));

  const std::uint64_t sweeps = std::strtoull(argv[2], nullptr, 10);
  for (std::uint64_t sweep = start + 1; sweep <= sweeps; ++sweep) {
    relax(rod, next);       // reads the rod, as the snapshot in flight does
    (void)engine->fence();  // from here on its memory may be written to; trouble with the storage comes out of close()
    rod.swap(next);

    sw::State state;
    state.tensors = {{.name = "rod", .dtype = sw::DType::kF64, .shape = {kCells}, .data = rod.data()}};
    if (auto saved = engine->save(sweep, std::move(state)); !saved) return stop(saved.error());
  }
  if (auto closed = engine->close(); !closed) return stop(closed.error());
  std::printf("sweep %llu is committed\n", static_cast<unsigned long long>(sweeps));
}
