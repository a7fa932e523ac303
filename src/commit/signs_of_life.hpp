// SignsOfLife: tells a rank that is busy from one that is gone. In a restore one rank may read for minutes longer than
// another: as long as it comes further it says so now and then, in a box of its own, and who waits for it goes on waiting.
// A sign is given by whoever makes progress, not by a thread beside it: a rank that hangs in its storage gives none. A
// restore that is over within a quarter of the time-out needs no message. Made for one restore. Thread rule: one thread (the
// trainer's, inside restore()). Lifetime: what it is given outlives it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "commit/coordinator.hpp"
#include "os/clock.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

class SignsOfLife {
 public:
  // `timeout`: how long a rank is waited for after its last sign. `round`: as for RestoreAgreement.
  SignsOfLife(Coordinator& coordinator, const Clock& clock, std::uint32_t rank, std::chrono::milliseconds timeout,
              std::uint64_t round);

  // This rank has come further. Cheap: says so at most once in a quarter of the time-out.
  void show();

  // As Coordinator::await(). But whenever one of the ranks that have not spoken yet gives a sign the wait begins anew, and
  // this rank gives one too: who waits for it waits for them.
  [[nodiscard]] Result<bool> await(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                                   const Coordinator::Take& take);
  // The same for who has said all it has to say: nobody waits for it, so it gives no signs. Thousands do this at once, and
  // whoever waits for a word of theirs that got lost must not take them for busy.
  [[nodiscard]] Result<bool> listen(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                                    const Coordinator::Take& take);

 private:
  [[nodiscard]] Result<bool> wait(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                                  const Coordinator::Take& take, bool passes_signs_on);
  [[nodiscard]] Topic topic(std::uint32_t rank, std::uint64_t number) const;
  [[nodiscard]] bool seen_anew(const std::vector<std::uint32_t>& ranks);  // a sign of any of them

  Coordinator& coordinator_;
  const Clock& clock_;
  const std::uint32_t rank_;
  const Duration timeout_;
  const std::uint32_t round_;

  TimePoint next_;                               // not before this is the next sign given
  bool owed_ = false;                            // there was reason for one before that
  std::uint64_t given_ = 0;                      // signs so far
  std::map<std::uint32_t, std::uint64_t> seen_;  // the last of each rank
};

}  // namespace slackwater
