// A plain C++ simulation under mpirun. Heat spreads over a plate whose rows are split among the ranks. Every sweep is
// checkpointed.
//
//   mpirun -n 4 mpi_stencil <directory> <sweeps>
//
// Stop it at any moment, or kill a rank, and start it again with any number of ranks. It continues from the newest
// checkpoint, and the final plate is the same to the last bit. Each rank passes its rows as a box of the global tensor
// "plate".
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "slackwater/engine.hpp"
#include "slackwater/mpi.hpp"

namespace sw = slackwater;

namespace {

constexpr std::int64_t kRows = 1000;
constexpr std::int64_t kColumns = 512;
constexpr std::int64_t kHotRow = 333;

struct Ranks {
  int rank = 0;
  int count = 1;
};

// The rows [first, last) of the plate that a rank holds, with a row of each neighbour around them (the halo).
struct Slice {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::vector<double> cells;

  explicit Slice(const Ranks& ranks)
      : first(kRows * ranks.rank / ranks.count),
        last(kRows * (ranks.rank + 1) / ranks.count),
        cells(static_cast<std::size_t>((last - first + 2) * kColumns)) {
    if (first <= kHotRow && kHotRow < last) std::fill_n(row(kHotRow), kColumns, 100.0);
  }
  // By its number in the whole plate; first - 1 and last are the neighbours'.
  double* row(std::int64_t index) { return cells.data() + (index - first + 1) * kColumns; }
};

// The plate as the engine knows it, and where these rows lie in it.
sw::Shard box_of(const Slice& slice) { return {.global_shape = {kRows, kColumns}, .offset = {slice.first, 0}}; }

void exchange_halo(Slice& slice, const Ranks& ranks) {
  const int above = ranks.rank > 0 ? ranks.rank - 1 : MPI_PROC_NULL;
  const int below = ranks.rank + 1 < ranks.count ? ranks.rank + 1 : MPI_PROC_NULL;
  MPI_Sendrecv(slice.row(slice.first), kColumns, MPI_DOUBLE, above, 0, slice.row(slice.last), kColumns, MPI_DOUBLE,
               below, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Sendrecv(slice.row(slice.last - 1), kColumns, MPI_DOUBLE, below, 1, slice.row(slice.first - 1), kColumns,
               MPI_DOUBLE, above, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// Only reads `from`. The edges of the plate keep their temperature.
void spread(Slice& from, Slice& to) {
  for (std::int64_t i = from.first; i < from.last; ++i) {
    const double* here = from.row(i);
    double* next = to.row(i);
    std::copy_n(here, kColumns, next);
    if (i == 0 || i == kRows - 1) continue;
    const double* above = from.row(i - 1);
    const double* below = from.row(i + 1);
    for (std::int64_t j = 1; j + 1 < kColumns; ++j) {
      next[j] = here[j] + 0.2 * (above[j] + below[j] + here[j - 1] + here[j + 1] - 4 * here[j]);
    }
  }
}

sw::Status simulate(const std::string& directory, std::uint64_t sweeps, const Ranks& ranks) {
  auto store = sw::mpi_store(MPI_COMM_WORLD);
  if (!store) return sw::fail(store.error());
  auto engine = sw::Engine::open({.path = directory,
                                  .rank = static_cast<std::uint32_t>(ranks.rank),
                                  .world = static_cast<std::uint32_t>(ranks.count),
                                  .store = *store});
  if (!engine) return sw::fail(engine.error());

  Slice plate(ranks);
  Slice next(ranks);
  const std::vector<std::int64_t> shape{plate.last - plate.first, kColumns};

  // Rank and number of ranks may be others than when it was saved: each asks for the box it needs now.
  const auto restored = engine->restore({}, [&](const sw::Checkpoint&) {
    return sw::Result<std::vector<sw::Target>>{{{.name = "plate",
                                                 .dtype = sw::DType::kF64,
                                                 .shape = shape,
                                                 .data = plate.row(plate.first),
                                                 .shard = box_of(plate)}}};
  });
  if (!restored) return sw::fail(restored.error());
  const std::uint64_t start = *restored ? (*restored)->version.step : 0;
  if (ranks.rank == 0) {
    std::printf("%d ranks, %s sweep %llu\n", ranks.count, start ? "going on with" : "beginning with",
                static_cast<unsigned long long>(start + 1));
    std::fflush(stdout);
  }

  for (std::uint64_t sweep = start + 1; sweep <= sweeps; ++sweep) {
    exchange_halo(plate, ranks);  // the halo is no part of the checkpoint, and may change while it is taken
    spread(plate, next);          // reads the rows, as the snapshot in flight does
    (void)engine->fence();        // from here on they may be written to; trouble with the storage comes out of close()
    plate.cells.swap(next.cells);

    sw::State state;
    state.tensors = {{.name = "plate",
                      .dtype = sw::DType::kF64,
                      .shape = shape,
                      .data = plate.row(plate.first),
                      .shard = box_of(plate)}};
    if (auto saved = engine->save(sweep, std::move(state)); !saved) return sw::fail(saved.error());
  }
  return engine->close();
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  Ranks ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &ranks.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks.count);
  if (argc != 3 || ranks.count > kRows) {
    if (ranks.rank == 0) std::fprintf(stderr, "usage: mpirun -n <ranks> mpi_stencil <directory> <sweeps>\n");
    MPI_Finalize();
    return 2;
  }
  if (auto done = simulate(argv[1], std::strtoull(argv[2], nullptr, 10), ranks); !done) {
    std::fprintf(stderr, "mpi_stencil: rank %d: %s\n", ranks.rank, done.error().to_string().c_str());
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);  // the neighbours would wait for this rank's rows
  }
  if (ranks.rank == 0) std::printf("sweep %s is committed\n", argv[2]);
  MPI_Finalize();
}
