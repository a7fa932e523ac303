// How many operations the driver is given at once.
#include <atomic>
#include <thread>

#include "unit/device/cuda_trainer.hpp"

namespace slackwater::cuda {
namespace {

class CudaSubmission : public OnCudaDevice {
 protected:
  static constexpr std::size_t kPieces = 3000;
  static constexpr std::uint64_t kPieceBytes = 16;
  static constexpr std::uint64_t kApart = 2 * kPieceBytes;  // so that no two can be merged

  // Small pieces of the tensor, with gaps between them.
  static std::vector<CopyPiece> pieces_of(const DeviceTensor& tensor, std::byte* to) {
    std::vector<CopyPiece> pieces;
    for (std::size_t i = 0; i < kPieces; ++i) {
      pieces.push_back({&tensor.memory, i * kApart, kPieceBytes, to + i * kPieceBytes});
    }
    return pieces;
  }
  static Bytes expected(const DeviceTensor& tensor) {
    Bytes bytes;
    for (std::size_t i = 0; i < kPieces; ++i) {
      const auto first = tensor.twin.begin() + static_cast<std::ptrdiff_t>(i * kApart);
      bytes.insert(bytes.end(), first, first + kPieceBytes);
    }
    return bytes;
  }
};

TEST_F(CudaSubmission, ThousandsOfSmallCopiesNeverFillTheDriversQueue) {
  auto driver = std::make_shared<Driver>(*driver_);
  driver->cuMemcpyBatchAsync_v2 = nullptr;
  driver->cuMemcpyBatchAsync = nullptr;
  open_device(driver);
  {
    const DeviceTensor tensor = DeviceTensor::flat(kPieces * kApart);
    const PinnedBuffer host(kPieces * kPieceBytes);
    const auto copies = begun(recorded());
    copies->at_once();
    must(swsim_stall_copies(0, SWSIM_STALL_ON));
    const std::uint64_t earlier_waits = counters().host_waits;
    std::atomic<bool> over = false;
    Status queued;
    {
      const std::jthread copy_thread([&] {
        queued = copies->queue_copies(pieces_of(tensor, host.data()));
        over = true;
      });
      while (!over && counters().host_waits == earlier_waits) std::this_thread::yield();
      EXPECT_FALSE(over) << "all were queued at once";
      EXPECT_LE(counters().pending, 1024u);
      must(swsim_stall_copies(0, SWSIM_STALL_OFF));
    }
    ASSERT_TRUE(queued);
    ASSERT_TRUE(wait_for(*copies));
    EXPECT_EQ(host.copy(), expected(tensor));
  }
  EXPECT_EQ(counters().spinning_waits, 0u);
}

TEST_F(CudaSubmission, NoBatchHasMoreThan1024Copies) {
  const DeviceTensor tensor = DeviceTensor::flat(kPieces * kApart);
  const PinnedBuffer host(kPieces * kPieceBytes);
  const auto copies = begun(recorded());
  copies->at_once();
  const std::uint64_t earlier = swsim_calls("cuMemcpyBatchAsync_v2");
  ASSERT_TRUE(copies->queue_copies(pieces_of(tensor, host.data())));
  EXPECT_EQ(swsim_calls("cuMemcpyBatchAsync_v2"), earlier + 3);
  ASSERT_TRUE(wait_for(*copies));
  EXPECT_EQ(host.copy(), expected(tensor));
}

}  // namespace
}  // namespace slackwater::cuda
