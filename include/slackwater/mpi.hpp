// mpi_store(): a KeyValueStore over MPI, for runs that are started by mpirun. This is the only public header that needs
// MPI. It is not part of the wheel.
//
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
//   auto store = slackwater::mpi_store(MPI_COMM_WORLD);                           // on all ranks together
//   auto engine = slackwater::Engine::open({.path = "runs/heat", .rank = ..., .world = ..., .store = *store});
//   ...
//   engine->close();
//   MPI_Finalize();
//
// The keys live in the memory of the communicator's rank 0, where a thread ("sw-mpi") serves them. The other ranks send
// it messages.
// Owner: shared by the caller and the engine. Thread rule: mpi_store() is a collective call; any thread may use the
// store.
// Lifetime: ranks may close their stores in any order. Rank 0 keeps serving until the others have closed theirs, or
// have been silent for the timeout. MPI_Finalize() closes a store that is still open; from then on it refuses calls.
#pragma once

#include <mpi.h>

#include <chrono>
#include <memory>

#include "slackwater/error.hpp"
#include "slackwater/key_value_store.hpp"

namespace slackwater {

inline constexpr std::chrono::milliseconds kMpiStoreTimeout{30'000};

// Messages go over a duplicate of `communicator`, so they never mix with the program's own. A call that rank 0 does not
// answer within `timeout` fails. kUnsupported on all ranks, unless every rank initialised MPI with MPI_THREAD_MULTIPLE.
[[nodiscard]] Result<std::shared_ptr<KeyValueStore>> mpi_store(MPI_Comm communicator,
                                                               std::chrono::milliseconds timeout = kMpiStoreTimeout);

}  // namespace slackwater
