// ChunkCopier: fills one slab with one chunk of a file, or queues the device copies that will fill it. It also runs the
// torn-capture guard over each tensor whose last bytes it copies.
// Owner and thread rule: each copy thread of the Stager has one and is the only user. It keeps its scratch memory from
// chunk to chunk.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "layout/file_layout.hpp"
#include "slackwater/error.hpp"
#include "stage/copy_budget.hpp"
#include "stage/stager.hpp"

namespace slackwater {

// How many bytes of each source have been copied. All copy threads add to it; whoever adds the last bytes of a tensor
// checks that tensor.
using CopiedBytes = std::unique_ptr<std::atomic<std::uint64_t>[]>;

struct CopiedChunk {
  std::uint64_t size_bytes = 0;
  std::vector<std::shared_ptr<Event>> events;  // the slab is full when all of them have happened
  std::vector<CopyPiece> late;                 // early copies; copy_late() once the events have happened
  std::vector<std::uint32_t> to_check;         // tensors on a device; check_stood_still() once the slab is full
};

// Fills in the early copies of tensors that were on a device. The copy threads must not wait for those, because the
// fence waits for the copy threads.
void copy_late(std::span<const CopyPiece> pieces);

// Checks that a guarded tensor has not changed since save(). If it has: kTorn, with the name in Error::tensor.
// For tensors on a device, call it only after the chunk's events have happened.
[[nodiscard]] Status check_stood_still(const StageJob& job, std::uint32_t tensor);
// The same for several tensors on devices. The first error counts. Fingerprints of every byte are fetched together.
[[nodiscard]] Status check_all_stood_still(const StageJob& job, std::span<const std::uint32_t> tensors);

// For a job that ended with kTorn, while its sources still exist: `first`, the tensor it ended with, and every other
// tensor in host memory that has changed since save(). Code that writes to one tensor too early usually writes to its
// neighbours as well, and the message should name them all.
[[nodiscard]] std::vector<std::string> changed_tensors(const StageJob& job, const std::string& first);

class ChunkCopier {
 public:
  // What the devices will have to do for this chunk; nothing for those that have none of it.
  [[nodiscard]] std::vector<CopyCost> costs(const StageJob& job, std::uint32_t part, std::uint64_t index,
                                            std::uint64_t slab_bytes);
  // Fills `slab` with chunk `index` of part `part`, and zeroes it up to the next multiple of 4096. kTorn if a guarded
  // tensor in host memory, whose last byte was copied here, has changed since save(). After an error a device may
  // still be writing to the slab.
  [[nodiscard]] Result<CopiedChunk> copy(const StageJob& job, std::uint32_t part, std::uint64_t index,
                                         std::span<std::byte> slab, CopiedBytes& copied);

 private:
  [[nodiscard]] Status copy_pieces(const StageJob& job, std::span<std::byte> slab, std::vector<CopyPiece>& late);
  [[nodiscard]] Status check_completed(const StageJob& job, CopiedBytes& copied,
                                       std::vector<std::uint32_t>& to_check) const;
  [[nodiscard]] Result<std::vector<std::shared_ptr<Event>>> record_events(const StageJob& job) const;

  std::vector<ChunkPiece> pieces_;
  std::vector<CopyPiece> batch_;
};

}  // namespace slackwater
