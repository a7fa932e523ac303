#include "base/error.hpp"

#include <cerrno>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

TEST(Error, ReadsAsOneSentenceWithPathAndReason) {
  const Error error = error_from_errno(ENOSPC, "cannot write the file", "/data/x");
  EXPECT_EQ(error.to_string(), "cannot write the file: /data/x (No space left on device)");
}

TEST(Error, LeavesOutWhatItDoesNotHave) {
  EXPECT_EQ((Error{ErrorKind::kTorn, "tensor 'w' changed", {}, 0, false}).to_string(), "tensor 'w' changed");
  EXPECT_EQ((Error{ErrorKind::kTimeout, {}, "/data", 0, false}).to_string(), "timeout: /data");
}

TEST(Error, ATensorIsNamedByTheMessageAndNotAgainBehindIt) {
  const Error error{.kind = ErrorKind::kTorn, .message = "tensor 'w' changed", .path = {}, .tensor = "w"};
  EXPECT_EQ(error.to_string(), "tensor 'w' changed");
}

TEST(Error, KindFollowsFromErrno) {
  const auto kind = [](int sys_errno) { return error_from_errno(sys_errno, "x").kind; };
  EXPECT_EQ(kind(ENOSPC), ErrorKind::kNoSpace);
  EXPECT_EQ(kind(EDQUOT), ErrorKind::kNoSpace);
  EXPECT_EQ(kind(EACCES), ErrorKind::kPermission);
  EXPECT_EQ(kind(EPERM), ErrorKind::kPermission);
  EXPECT_EQ(kind(EROFS), ErrorKind::kPermission);
  EXPECT_EQ(kind(ENOENT), ErrorKind::kNotFound);
  EXPECT_EQ(kind(EEXIST), ErrorKind::kAlreadyExists);
  EXPECT_EQ(kind(EUCLEAN), ErrorKind::kCorrupt);
  EXPECT_EQ(kind(ENOMEM), ErrorKind::kOutOfMemory);
  EXPECT_EQ(kind(EOPNOTSUPP), ErrorKind::kUnsupported);
  EXPECT_EQ(kind(EIO), ErrorKind::kIo);
}

TEST(Error, OnlyTransientErrorsAreRetryable) {
  for (const int passing : {EAGAIN, EINTR, EBUSY, ENOMEM, EMFILE})
    EXPECT_TRUE(error_from_errno(passing, "x").retryable) << passing;
  for (const int lasting : {EIO, ENOSPC, EACCES, ENOENT, EEXIST})
    EXPECT_FALSE(error_from_errno(lasting, "x").retryable) << lasting;
}

TEST(ErrorKind, EveryKindHasANameOfItsOwn) {
  std::set<std::string_view> names;
  const int last = static_cast<int>(ErrorKind::kInternal);
  for (int kind = 0; kind <= last; ++kind) names.insert(to_string(static_cast<ErrorKind>(kind)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(last) + 1);
  EXPECT_FALSE(names.contains("unknown"));
}

}  // namespace
}  // namespace slackwater
