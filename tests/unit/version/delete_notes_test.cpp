// Delete notes: what they say, when they are in force, and what becomes of those that are damaged or void.
#include "version/delete_notes.hpp"

#include <cerrno>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.hpp"
#include "store_fixture.hpp"
#include "version/attempt_files.hpp"
#include "version/retention.hpp"

namespace slackwater::test {
namespace {

constexpr const char* kTier = "s3://bucket/run";

class DeleteNotesTest : public StoreTest {
 protected:
  // Steps 1 and 2, and a note about step 1.
  void SetUp() override {
    store_ = open_store();
    attempt_ = claim(*store_);
    commit(*store_, attempt_, 1);
    commit(*store_, attempt_, 2);
    note_ = {.version = {1, attempt_.number}, .run = attempt_.run, .tier = kTier};
    ASSERT_TRUE(write_delete_note(fs_, root(), note_));
  }
  [[nodiscard]] std::string path() const { return control() + "/" + delete_note_file(note_.version, note_.tier); }
  std::vector<DeleteNote> pending() {
    const auto found = pending_deletes(fs_, root());
    EXPECT_TRUE(found) << found.error().to_string();
    return found ? found->notes : std::vector<DeleteNote>();
  }
  // What is said about notes that are ignored.
  std::string warnings() {
    const auto found = pending_deletes(fs_, root());
    EXPECT_TRUE(found) << found.error().to_string();
    std::string text;
    if (found)
      for (const std::string& warning : found->warnings) text += warning + "\n";
    return text;
  }

  std::unique_ptr<VersionStore> store_;
  Attempt attempt_;
  DeleteNote note_;
};

TEST(DeleteNoteNames, LeadBackToTheirVersion) {
  const std::string name = delete_note_file({42, 7}, kTier);
  EXPECT_EQ(name.substr(0, 21), "delete-0000000042.a7.");
  EXPECT_EQ(parse_delete_note_file(name), (VersionName{42, 7}));
  EXPECT_NE(name, delete_note_file({42, 7}, "/shared/run"));
  for (const char* other :
       {"", "delete-", "delete-0000000042.a7", "delete-0000000042.a7.", "delete-42.a7.0123456789abcdef",
        "delete-0000000042.a7.0123456789abcde", "delete-0000000042.a7.0123456789ABCDEF",
        "delete-0000000042.a7.0123456789abcdef0", "delete-0000000042.a07.0123456789abcdef",
        ".delete-0000000042.a7.0123456789abcdef.x.tmp", "step-0000000042.a7.0123456789abcdef"})
    EXPECT_FALSE(parse_delete_note_file(other)) << other;
}

TEST(DeleteNoteNames, ADirectoryIsNamedByItsAbsolutePath) {
  EXPECT_EQ(noted_location(kTier), kTier);
  EXPECT_EQ(noted_location("/shared/./run"), "/shared/run");
  EXPECT_EQ(noted_location("runs/shared"), std::filesystem::current_path().string() + "/runs/shared");
}

TEST(DeleteNoteText, LeadsBackAndIsChecked) {
  const DeleteNote note{.version = {42, 7}, .run = "0123456789abcdef0123456789abcdef", .tier = kTier};
  const std::string text = serialize(note);
  EXPECT_EQ(parse_delete_note(text, "note"), note);
  EXPECT_EQ(parse_delete_note(text.substr(0, text.size() / 2), "note").error().kind, ErrorKind::kCorrupt);
  std::string other = text;
  other[text.find("42")] = '5';
  EXPECT_EQ(parse_delete_note(other, "note").error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(parse_delete_note(seal_json({{"format", 2}}), "note").error().kind, ErrorKind::kUnsupported);
}

TEST(DeleteNoteText, MeansTheVersionOfItsRunAndNoOther) {
  const DeleteNote note{.version = {42, 7}, .run = "a", .tier = kTier};
  EXPECT_TRUE(is_meant(note, "a"));
  EXPECT_TRUE(is_meant(note, "")) << "it has no manifest that would say whose it is";
  EXPECT_FALSE(is_meant(note, "b"));
}

TEST_F(DeleteNotesTest, ANoteIsInForceOnceTheVersionIsGone) {
  EXPECT_TRUE(pending().empty());
  ASSERT_TRUE(store_->remove(note_.version, "a test"));
  EXPECT_EQ(pending(), std::vector<DeleteNote>{note_});
  ASSERT_TRUE(erase_delete_note(fs_, root(), note_.version, note_.tier));
  EXPECT_TRUE(pending().empty());
  EXPECT_TRUE(erase_delete_note(fs_, root(), note_.version, note_.tier)) << "it is gone already";
}

TEST_F(DeleteNotesTest, ANoteIsDurableBeforeItCounts) {
  fs_.fail(FsCall::kSyncAll, EIO, {.path = "/.delete-"});
  EXPECT_FALSE(write_delete_note(fs_, root(), {.version = {2, 1}, .run = attempt_.run, .tier = kTier}));
  fs_.fail(FsCall::kSyncDirectory, EIO, {.path = kControlDirectory});
  EXPECT_FALSE(write_delete_note(fs_, root(), {.version = {2, 1}, .run = attempt_.run, .tier = kTier}));
  fs_.fail(FsCall::kSyncDirectory, EIO, {.path = kControlDirectory});
  EXPECT_FALSE(erase_delete_note(fs_, root(), note_.version, note_.tier)) << "it may come back";
}

// The same step, attempt and tier, but of a run that is not known here any more; or cut short.
TEST_F(DeleteNotesTest, AnotherTextUnderItsNameIsReplaced) {
  ASSERT_TRUE(write_delete_note(fs_, root(), note_)) << "a second time";
  for (const std::string& text :
       {serialize({.version = note_.version, .run = "another", .tier = kTier}), std::string("cut sho")}) {
    write(path(), text);
    ASSERT_TRUE(write_delete_note(fs_, root(), note_));
    EXPECT_EQ(read(path()), serialize(note_));
  }
}

TEST_F(DeleteNotesTest, ADeleteIsTakenBackOnAllTiersAndOnlyForTheVersionThatIsMeant) {
  DeleteNote below = note_;
  below.tier = "/shared/run";
  ASSERT_TRUE(write_delete_note(fs_, root(), below));
  const DeleteNote other{.version = {2, attempt_.number}, .run = attempt_.run, .tier = kTier};
  ASSERT_TRUE(write_delete_note(fs_, root(), other));
  const auto of_another_run = take_back_delete(fs_, root(), note_.version, "another");
  ASSERT_TRUE(of_another_run);
  EXPECT_TRUE(of_another_run->empty());
  const auto taken_back = take_back_delete(fs_, root(), note_.version, attempt_.run);
  ASSERT_TRUE(taken_back);
  EXPECT_EQ(std::set(taken_back->begin(), taken_back->end()), (std::set<std::string>{kTier, "/shared/run"}));
  EXPECT_EQ(list_delete_notes(fs_, root()).value().notes, std::vector<DeleteNote>{other});
  fs_.fail(FsCall::kSyncDirectory, EIO, {.path = kControlDirectory});
  EXPECT_FALSE(take_back_delete(fs_, root(), other.version, attempt_.run)) << "it may come back after a power cut";
}

// Otherwise retention would make it a delete on the lower tier too.
TEST_F(DeleteNotesTest, AVersionThatGoesForAnotherReasonTakesItsNotesAlong) {
  const auto cleaned = store_->clean_up({.keep = 1});
  ASSERT_TRUE(cleaned) << cleaned.error().to_string();
  EXPECT_EQ(live(), "2.a1");
  EXPECT_FALSE(exists(path()));
}

TEST_F(DeleteNotesTest, AVersionWhoseNotesCannotBeWithdrawnStays) {
  fs_.fail(FsCall::kUnlink, EIO, {.path = "/delete-"});
  EXPECT_FALSE(store_->clean_up({.keep = 1}));
  EXPECT_EQ(live(), "1.a1 2.a1");
}

TEST_F(DeleteNotesTest, OnlyNotesThatAreNotInForceAreWithdrawn) {
  const DeleteNote of_2{.version = {2, 1}, .run = attempt_.run, .tier = kTier};
  ASSERT_TRUE(write_delete_note(fs_, root(), of_2));
  ASSERT_TRUE(store_->remove(note_.version, "a test"));
  ASSERT_TRUE(withdraw_void_delete_notes(fs_, root()));
  EXPECT_TRUE(exists(path()));
  EXPECT_FALSE(exists(control() + "/" + delete_note_file(of_2.version, kTier)));
  // Debris of a version that was deleted is swept without its notes.
  std::filesystem::create_directory(path_of(note_.version));
  ASSERT_TRUE(store_->attempt().claim("test", {}));
  ASSERT_TRUE(store_->clean_up({.keep = 1}));
  EXPECT_FALSE(exists(path_of(note_.version)));
  EXPECT_TRUE(exists(path()));
}

TEST_F(DeleteNotesTest, ADamagedNoteIsIgnoredAndNamed) {
  ASSERT_TRUE(store_->remove(note_.version, "a test"));
  const std::string name = delete_note_file(note_.version, note_.tier);
  flip_byte(path());
  EXPECT_TRUE(pending().empty());
  EXPECT_NE(warnings().find("the note " + name + " of a delete() is ignored"), std::string::npos) << warnings();
  EXPECT_EQ(live(), "2.a1");
}

// Whoever may write here can name only what its file name names as well.
TEST_F(DeleteNotesTest, ANoteThatIsNotWhatItsNameSaysIsIgnored) {
  ASSERT_TRUE(store_->remove(note_.version, "a test"));
  for (const DeleteNote& other : {DeleteNote{.version = {2, 1}, .run = attempt_.run, .tier = kTier},
                                  DeleteNote{.version = note_.version, .run = attempt_.run, .tier = "/shared/run"}}) {
    write(path(), serialize(other));
    EXPECT_TRUE(pending().empty());
    EXPECT_FALSE(warnings().empty());
  }
  std::filesystem::remove(path());
  write(root() + "/elsewhere", serialize(note_));
  std::filesystem::create_symlink(root() + "/elsewhere", path());
  EXPECT_TRUE(pending().empty()) << "a link was followed";
  std::filesystem::remove(path());
  write(path(), std::string(kMaxDeleteNoteBytes + 1, 'x'));
  EXPECT_TRUE(pending().empty());
}

TEST_F(DeleteNotesTest, ADirectoryInPlaceOfANoteKeepsNothingFromBeingDeleted) {
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  EXPECT_TRUE(pending().empty());
  ASSERT_TRUE(store_->clean_up({.keep = 1}));
  EXPECT_EQ(live(), "2.a1");
  EXPECT_TRUE(exists(path()));
}

TEST_F(DeleteNotesTest, OtherFilesOfTheFolderAreNotNotes) {
  write(control() + "/delete-everything", "x");
  write(control() + "/delete-0000000002.a1", "x");
  EXPECT_TRUE(pending().empty());
  EXPECT_EQ(warnings(), "");
}

// An earlier release knows no notes. It passes over every name that it does not know, as this one does.
TEST_F(DeleteNotesTest, ANameThatIsNotKnownHereIsLeftAlone) {
  const std::string unknown = control() + "/some-0000000001.a1.later";
  write(unknown, "of a later release");
  ASSERT_TRUE(store_->clean_up({.keep = 1}));
  store_.reset();
  store_ = open_store();
  const Attempt next = claim(*store_, names_up_to(2));
  commit(*store_, next, 3);
  ASSERT_TRUE(store_->clean_up({.keep = 1}));
  EXPECT_EQ(live(), "3.a2");
  EXPECT_TRUE(scan().warnings.empty());
  EXPECT_TRUE(exists(unknown));
}

TEST_F(DeleteNotesTest, PrivateNamesThatACrashCutShortGo) {
  for (const char* name : {".delete-0000000002.a1.0123456789abcdef.abc.tmp", ".tier.json.abc.tmp",
                           ".tier-0123456789abcdef.json.abc.tmp"}) {
    const std::string left = control() + "/" + name;
    write(left, "half");
    remove_old_attempt_files(fs_, root(), 1, false);
    EXPECT_TRUE(exists(left)) << "it may be under way: " << name;
    remove_old_attempt_files(fs_, root(), 1, true);
    EXPECT_FALSE(exists(left)) << name;
  }
}

}  // namespace
}  // namespace slackwater::test
