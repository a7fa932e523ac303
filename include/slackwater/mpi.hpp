// mpi_store(): the store through which the ranks of a run under mpirun agree, over MPI. The only header here that needs
// MPI, and not a part of the wheel.
//
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
//   auto store = slackwater::mpi_store(MPI_COMM_WORLD);                           // on all ranks together
//   auto engine = slackwater::Engine::open({.path = "runs/heat", .rank = ..., .world = ..., .store = *store});
//   ...
//   engine->close();
//   MPI_Finalize();
//
// Keys live in the memory of the communicator's rank 0, where a thread of their own serves them ("sw-mpi"); the others ask by message.
// Thread rule: mpi_store() is a collective call; the store itself may be used from any thread.
// Lifetime: who closes it first does not matter. Rank 0 goes on serving until the others have closed theirs, or have been silent for
// the time-out. What is still open when MPI_Finalize() is called is closed there, and refuses calls from then on.
#pragma once

#include <mpi.h>

#include <chrono>
#include <memory>

#include "slackwater/error.hpp"
#include "slackwater/key_value_store.hpp"

namespace slackwater {

inline constexpr std::chrono::milliseconds kMpiStoreTimeout{30'000};

// Messages go over a duplicate of `communicator`, so none meets the program's own. A call that rank 0 does not answer within `timeout`
// fails. kUnsupported, on all ranks, unless MPI was initialised with MPI_THREAD_MULTIPLE on each of them.
[[nodiscard]] Result<std::shared_ptr<KeyValueStore>> mpi_store(MPI_Comm communicator,
                                                               std::chrono::milliseconds timeout = kMpiStoreTimeout);

}  // namespace slackwater
