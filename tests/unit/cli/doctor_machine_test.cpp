// The judges of `slackwater doctor` on texts of machines that this is not.
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "cli/doctor/check.hpp"
#include "cli/doctor/copies.hpp"
#include "cli/doctor/devices.hpp"
#include "cli/doctor/machine.hpp"
#include "cli/doctor/raw_io.hpp"
#include "cli/doctor/storage.hpp"
#include "support/aligned_buffer.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::cli::doctor {
namespace {

constexpr std::uint64_t kGiB = 1ull << 30;

void write_text(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST(DoctorCheck, TravelsAsOneLine) {
  const Check check{.section = "machine",
                    .name = "memlock",
                    .verdict = Verdict::kWarn,
                    .figure = "8 MiB",
                    .threshold = "1 GiB",
                    .remedy = "ulimit -l unlimited",
                    .rank = 3};
  const std::string line = check_json(check).dump();
  EXPECT_EQ(line, R"({"section":"machine","check":"memlock","status":"WARN","figure":"8 MiB","threshold":"1 GiB",)"
                  R"("remedy":"ulimit -l unlimited","rank":3})");
  const auto back = parse_check(line);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(check_json(*back), check_json(check));
}

TEST(DoctorCheck, RefusesLinesThatAreNoChecks) {
  for (const char* line :
       {"", "hello", "[]", "{}", R"({"section":"a","check":"b","status":"OK"})",
        R"({"section":"","check":"b","status":"PASS"})", R"({"section":1,"check":"b","status":"PASS"})"})
    EXPECT_FALSE(parse_check(line).has_value()) << line;
}

TEST(DoctorCheck, TextNamesFigureThresholdAndRemedyAndNoControls) {
  const Check check{.section = "torch",
                    .name = "AdamW",
                    .verdict = Verdict::kFail,
                    .figure = "a\x1b[31m",
                    .threshold = "b",
                    .remedy = "c",
                    .rank = 2};
  const std::string text = check_text(check, true);
  EXPECT_TRUE(text.starts_with("FAIL  torch")) << text;
  EXPECT_NE(text.find("rank 2: AdamW"), std::string::npos) << text;
  EXPECT_NE(text.find("(expected: b); c"), std::string::npos) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(DoctorCheck, BandsHaveTwoEdges) {
  EXPECT_EQ(at_least(0.9, {.warn = 0.8, .fail = 0.3}), Verdict::kPass);
  EXPECT_EQ(at_least(0.7, {.warn = 0.8, .fail = 0.3}), Verdict::kWarn);
  EXPECT_EQ(at_least(0.2, {.warn = 0.8, .fail = 0.3}), Verdict::kFail);
  EXPECT_EQ(at_most(1, {.warn = 10, .fail = 100}), Verdict::kPass);
  EXPECT_EQ(at_most(11, {.warn = 10, .fail = 100}), Verdict::kWarn);
  EXPECT_EQ(at_most(101, {.warn = 10, .fail = 100}), Verdict::kFail);
  EXPECT_EQ(soften(Verdict::kFail, true), Verdict::kWarn);
  EXPECT_EQ(soften(Verdict::kFail, false), Verdict::kFail);
}

TEST(DoctorMachine, FindsTheTopmostMountOfAPath) {
  const std::string mountinfo =
      "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
      "30 22 0:25 / /data rw - xfs /dev/nvme0n1 rw\n"
      "31 30 0:26 / /data/my\\040run rw shared:2 master:1 - nfs4 server:/export rw\n"
      "32 22 0:27 / /database rw - tmpfs none rw\n"
      "33 30 0:28 / /data rw - btrfs /dev/sdb rw\n"
      "broken line\n";
  EXPECT_EQ(find_mount(mountinfo, "/home/a")->type, "ext4");
  EXPECT_EQ(find_mount(mountinfo, "/data/x")->type, "btrfs");  // mounted over xfs
  EXPECT_EQ(find_mount(mountinfo, "/data/my run/step")->source, "server:/export");
  EXPECT_EQ(find_mount(mountinfo, "/database")->type, "tmpfs");
  EXPECT_EQ(find_mount(mountinfo, "/databases")->type, "ext4");
  EXPECT_FALSE(find_mount("", "/").has_value());
}

TEST(DoctorMachine, ReadsProcTexts) {
  const std::string status = "Name:\tsh\nCapEff:\t0000000000004000\nSeccomp:\t2\nSeccomp_filters:\t1\n";
  EXPECT_EQ(seccomp_mode(status), 2);
  EXPECT_TRUE(may_lock_any_memory(status));
  EXPECT_FALSE(may_lock_any_memory("CapEff:\t0000000000000000\n"));
  EXPECT_EQ(seccomp_mode(""), -1);
  EXPECT_EQ(meminfo_bytes("MemTotal: 16 kB\nMemAvailable:    8 kB\n", "MemAvailable"), 8192u);
  EXPECT_EQ(parse_list("0-2,5\n"), (std::vector<int>{0, 1, 2, 5}));
  EXPECT_TRUE(parse_list("\n").empty());
}

TEST(DoctorMachine, KernelVersions) {
  EXPECT_EQ(kernel_check("6.18.44-fc").verdict, Verdict::kPass);
  EXPECT_EQ(kernel_check("5.19.0").verdict, Verdict::kPass);
  EXPECT_EQ(kernel_check("5.15.0-91-generic").verdict, Verdict::kWarn);
  EXPECT_NE(kernel_check("5.4.0").remedy.find("io_uring needs 5.11"), std::string::npos);
  EXPECT_EQ(kernel_check("unknown").verdict, Verdict::kWarn);
}

TEST(DoctorMachine, SaysWhyIoUringIsNotUsable) {
  EXPECT_EQ(uring_check("", 0, 0).verdict, Verdict::kPass);
  EXPECT_EQ(uring_check("no", 2, 2).remedy, "sysctl -w kernel.io_uring_disabled=0");
  EXPECT_NE(uring_check("no", 0, 2).figure.find("seccomp"), std::string::npos);
  EXPECT_NE(uring_check("not implemented", std::nullopt, 0).figure.find("not implemented"), std::string::npos);
  EXPECT_EQ(uring_check("no", 0, 0).verdict, Verdict::kWarn);
}

TEST(DoctorMachine, MemlockMustHoldThePool) {
  EXPECT_EQ(memlock_check(kUnlimited, false, kGiB).verdict, Verdict::kPass);
  EXPECT_EQ(memlock_check(kGiB, false, kGiB).verdict, Verdict::kPass);
  EXPECT_EQ(memlock_check(8u << 20, true, kGiB).verdict, Verdict::kPass);
  const Check small = memlock_check(8u << 20, false, kGiB);
  EXPECT_EQ(small.verdict, Verdict::kWarn);
  EXPECT_TRUE(small.remedy.starts_with("ulimit -l unlimited")) << small.remedy;
}

TEST(DoctorMachine, LoadAndHugePagesOfAMapping) {
  EXPECT_EQ(load_of("1.50 14.59 13.89 3/410 21\n"), 1.5);
  EXPECT_EQ(load_check(2, 2).verdict, Verdict::kPass);
  EXPECT_EQ(load_check(2.5, 2).verdict, Verdict::kWarn);
  const std::string smaps =
      "1000-3000 rw-p 00000000 00:00 0\nRss: 8 kB\nAnonHugePages:         4 kB\n"
      "3000-5000 rw-p 00000000 00:00 0\nAnonHugePages:         8 kB\n"
      "9000-a000 rw-p 00000000 00:00 0\nAnonHugePages:       100 kB\n";
  EXPECT_EQ(huge_page_bytes(smaps, 0x1000, 0x5000), 12u * 1024);
  EXPECT_EQ(huge_page_bytes("", 0, ~std::uint64_t{0}), 0u);
}

TEST(DoctorMachine, HugePages) {
  EXPECT_EQ(huge_pages_check("always [madvise] never\n").verdict, Verdict::kPass);
  EXPECT_EQ(huge_pages_check("[always] madvise never\n").figure, "always");
  EXPECT_EQ(huge_pages_check("always madvise [never]\n").verdict, Verdict::kWarn);
  EXPECT_EQ(huge_pages_check("").verdict, Verdict::kWarn);
}

TEST(DoctorMachine, MemoryOfACgroupCounts) {
  const test::TempDir directory;
  const MachineFiles files{.proc = directory / "proc", .sys = directory / "sys"};
  write_text(files.proc + "/meminfo", "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n");
  EXPECT_EQ(memory_check(read_memory(files), 0).verdict, Verdict::kPass);
  EXPECT_FALSE(read_memory(files).cgroup_limit_bytes.has_value());

  write_text(files.sys + "/fs/cgroup/memory.max", "max\n");
  write_text(files.sys + "/fs/cgroup/memory.current", "1000\n");
  EXPECT_FALSE(read_memory(files).cgroup_limit_bytes.has_value());

  write_text(files.sys + "/fs/cgroup/memory.max", "1073741824\n");
  write_text(files.sys + "/fs/cgroup/memory.current", "536870912\n");
  EXPECT_EQ(read_memory(files).usable_bytes(), kGiB / 2);
  const Check tight = memory_check(read_memory(files), 0);
  EXPECT_EQ(tight.verdict, Verdict::kWarn);
  EXPECT_NE(tight.remedy.find("container"), std::string::npos);

  write_text(files.sys + "/fs/cgroup/memory.current", "1073741000\n");
  EXPECT_EQ(memory_check(read_memory(files), 0).verdict, Verdict::kFail);
}

TEST(DoctorMachine, NumaNodesWithoutMemory) {
  EXPECT_EQ(numa_check({}, {}).verdict, Verdict::kPass);
  EXPECT_EQ(numa_check({0, 1}, {0, 1}).figure, "2 nodes");
  EXPECT_EQ(numa_check({0, 1}, {0}).verdict, Verdict::kWarn);
}

TEST(DoctorStorage, NamesTheFileSystem) {
  const Mount ext4{.type = "ext4", .source = "/dev/sda", .point = "/"};
  EXPECT_EQ(direct_io_check(true, ext4).verdict, Verdict::kPass);
  EXPECT_EQ(direct_io_check(true, ext4).figure, "works on ext4 (/dev/sda on /)");
  EXPECT_EQ(direct_io_check(false, ext4).verdict, Verdict::kWarn);
  EXPECT_EQ(direct_io_check(true, Mount{.type = "tmpfs"}).verdict, Verdict::kWarn);
  EXPECT_NE(direct_io_check(false, Mount{.type = "nfs4"}).remedy.find("local"), std::string::npos);
  EXPECT_EQ(direct_io_check(true, std::nullopt).verdict, Verdict::kPass);
}

TEST(DoctorStorage, FreeSpaceForKeepAndThoseInFlight) {
  EXPECT_EQ(free_space_check(100 * kGiB, 0, 2, 2).verdict, Verdict::kPass);
  EXPECT_EQ(free_space_check(kGiB, 0, 2, 2).verdict, Verdict::kWarn);
  EXPECT_EQ(free_space_check(200 * kGiB, 40 * kGiB, 2, 2).verdict, Verdict::kPass);
  EXPECT_EQ(free_space_check(170 * kGiB, 40 * kGiB, 2, 2).verdict, Verdict::kWarn);
  const Check full = free_space_check(100 * kGiB, 40 * kGiB, 2, 2);
  EXPECT_EQ(full.verdict, Verdict::kFail);
  EXPECT_EQ(full.threshold, "160 GiB: 40 GiB x (keep 2 + 2 in flight)");
  EXPECT_EQ(free_space_check(100 * kGiB, 40 * kGiB, 0, 2).verdict, Verdict::kWarn);
  EXPECT_EQ(free_space_check(100 * kGiB, kUnlimited / 2, 9, 2).verdict, Verdict::kFail);
}

TEST(DoctorStorage, SlowSyncs) {
  EXPECT_EQ(sync_check({1, 1, 50}).verdict, Verdict::kPass);
  EXPECT_EQ(sync_check({1, 1, 2000}).verdict, Verdict::kWarn);
  EXPECT_EQ(sync_check({40, 40, 40}).verdict, Verdict::kWarn);
  EXPECT_EQ(sync_check({1500, 1500, 1500}).verdict, Verdict::kFail);
}

TEST(DoctorStorage, OursNextToRaw) {
  const Check line{.section = "storage", .name = "write", .remedy = "do something"};
  const Check fine = ratio_check(line, {.ours = {0.9}, .raw = {1.0}}, "raw", false);
  EXPECT_EQ(fine.verdict, Verdict::kPass);
  EXPECT_EQ(fine.figure, "0.90 GB/s, 0.90 of raw (1.00 GB/s)");
  EXPECT_EQ(fine.remedy, "");
  EXPECT_EQ(ratio_check(line, {.ours = {0.7}, .raw = {1.0}}, "raw", false).verdict, Verdict::kWarn);
  EXPECT_EQ(ratio_check(line, {.ours = {0.2}, .raw = {1.0}}, "raw", false).verdict, Verdict::kFail);
  EXPECT_EQ(ratio_check(line, {.ours = {0.2}, .raw = {1.0}}, "raw", true).verdict, Verdict::kWarn);
}

// Two pieces of the buffer for each of 16 threads, and 17 requests: some thread gets two. The last request is short.
TEST(DoctorStorage, RawIoMovesEveryByteThroughTheWholeBuffer) {
  constexpr std::size_t kPieces = 32;
  constexpr std::size_t kBytes = 16 * kRawRequestBytes + 4096;
  const test::TempDir directory;
  const std::string path = directory / "raw";
  test::AlignedBuffer buffer(kPieces * kRawRequestBytes);
  const std::span<std::byte> memory = buffer.bytes();
  for (std::size_t piece = 0; piece < kPieces; ++piece)
    memory[piece * kRawRequestBytes] = static_cast<std::byte>(1 + piece);
  ASSERT_TRUE(write_raw(path, kBytes, memory).has_value());
  EXPECT_EQ(std::filesystem::file_size(path), kBytes);
  std::ifstream file(path, std::ios::binary);
  std::set<int> pieces;
  for (std::size_t at = 0; at < kBytes; at += kRawRequestBytes) {
    file.seekg(static_cast<std::streamoff>(at));
    pieces.insert(file.get());
  }
  EXPECT_GE(*pieces.begin(), 1);
  EXPECT_LE(*pieces.rbegin(), static_cast<int>(kPieces));
  EXPECT_GT(*pieces.rbegin(), 16) << "only the first piece of each thread is used";
  EXPECT_TRUE(read_raw(path, kBytes, memory).has_value());
  EXPECT_FALSE(read_raw(path, kBytes + kRawRequestBytes, memory).has_value()) << "it has no such bytes";
  EXPECT_FALSE(write_raw(path, kBytes, memory).has_value()) << "it is there already";
}

TEST(DoctorDevices, SeesGpusOnThePciBus) {
  const test::TempDir directory;
  const std::string sys = directory / "sys";
  const std::string dev = directory / "dev";
  EXPECT_EQ(visible_gpus(sys, dev).nvidia, 0);
  write_text(sys + "/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  write_text(sys + "/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
  write_text(sys + "/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n");  // its sound device
  write_text(sys + "/bus/pci/devices/0000:01:00.1/class", "0x040300\n");
  write_text(sys + "/bus/pci/devices/0000:02:00.0/vendor", "0x1002\n");
  write_text(sys + "/bus/pci/devices/0000:02:00.0/class", "0x030000\n");
  EXPECT_EQ(visible_gpus(sys, dev).nvidia, 1);
  EXPECT_EQ(visible_gpus(sys, dev).amd, 0);
  write_text(sys + "/bus/pci/devices/0000:02:00.0/class", "0x038000\n");
  EXPECT_EQ(visible_gpus(sys, dev).amd, 1);
  write_text(dev + "/nvidia0", "");
  write_text(dev + "/nvidia1", "");
  write_text(dev + "/nvidiactl", "");
  EXPECT_EQ(visible_gpus(sys, dev).nvidia, 2);
}

TEST(DoctorDevices, ADriverThatCannotBeUsedFailsOnlyWhereThereIsAGpu) {
  const Result<cuda::DriverFacts> none = fail(ErrorKind::kUnsupported, "cannot load it");
  EXPECT_EQ(driver_check(none, {}, false).verdict, Verdict::kSkip);
  EXPECT_EQ(driver_check(none, {.nvidia = 1}, false).verdict, Verdict::kFail);
  EXPECT_EQ(driver_check(none, {}, true).verdict, Verdict::kFail);
  EXPECT_NE(driver_check(none, {.amd = 1}, false).figure.find("AMD"), std::string::npos);
  const cuda::DriverFacts facts{.path = "/lib/libcuda.so.1", .version = "12.0", .device_count = 2};
  EXPECT_EQ(driver_check(facts, {.nvidia = 2}, false).verdict, Verdict::kPass);
  cuda::DriverFacts old = facts;
  old.missing = {{"cuMemcpyBatchAsync", "slower"}};
  EXPECT_EQ(driver_check(old, {.nvidia = 2}, false).verdict, Verdict::kWarn);
  cuda::DriverFacts hidden = facts;
  hidden.device_count = 0;
  EXPECT_EQ(driver_check(hidden, {.nvidia = 2}, false).verdict, Verdict::kFail);
}

TEST(DoctorDevices, EnvironmentAndFacts) {
  EXPECT_EQ(connections_check(nullptr).verdict, Verdict::kPass);
  EXPECT_EQ(connections_check("8").verdict, Verdict::kPass);
  EXPECT_EQ(connections_check("1").verdict, Verdict::kWarn);
  EXPECT_EQ(allocator_check(nullptr, "expandable_segments:True").figure, "expandable_segments:True");
  EXPECT_EQ(allocator_check("a:1", "b:2").verdict, Verdict::kWarn);
  EXPECT_EQ(copy_engines_check("cuda:0", 3).verdict, Verdict::kPass);
  EXPECT_EQ(copy_engines_check("cuda:0", 1).verdict, Verdict::kWarn);
  EXPECT_EQ(free_memory_check("cuda:0", {.total_bytes = 80 * kGiB, .free_bytes = kGiB}).verdict, Verdict::kPass);
  EXPECT_EQ(free_memory_check("cuda:0", {.total_bytes = 80 * kGiB, .free_bytes = 8u << 20}).verdict, Verdict::kFail);
}

TEST(DoctorInterference, BlamesTheCopiesOnlyIfIdleIsBetter) {
  const Band band{.warn = 10, .fail = 250};
  EXPECT_EQ(latency_check("x", {.idle = {0.01}, .copying = {5}}, band, false).verdict, Verdict::kPass);
  EXPECT_EQ(latency_check("x", {.idle = {0.01}, .copying = {20}}, band, false).verdict, Verdict::kWarn);
  EXPECT_EQ(latency_check("x", {.idle = {0.01}, .copying = {300}}, band, false).verdict, Verdict::kFail);
  EXPECT_EQ(latency_check("x", {.idle = {200}, .copying = {300}}, band, false).verdict, Verdict::kWarn);
  EXPECT_EQ(latency_check("x", {.idle = {1}, .copying = {}}, band, false).verdict, Verdict::kSkip);
  // On a GPU: three times idle and a turn.
  EXPECT_EQ(small_copy_check("x", {.idle = {0.01}, .copying = {0.12}}, false).verdict, Verdict::kPass);
  const Check slow = small_copy_check("x", {.idle = {0.01}, .copying = {3}}, false);
  EXPECT_EQ(slow.verdict, Verdict::kWarn);
  EXPECT_NE(slow.remedy.find("copy_turn"), std::string::npos);
  EXPECT_EQ(small_copy_check("x", {.idle = {0.01}, .copying = {300}}, false).verdict, Verdict::kFail);
}

}  // namespace
}  // namespace slackwater::cli::doctor
