// The folder beside a checkpoint: what it holds, and what is removed.
#include "mxrec/checkpoint_folder.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "mxrec/checkpoint.h"
#include "tests/temporary_directory.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

namespace fs = std::filesystem;

class Directory : public TemporaryDirectory {
 public:
  void Complete(const std::string& checkpoint) const {
    std::ofstream(*this / (checkpoint + ".index")) << "index";
  }
};

std::string TextOf(const std::string& table, bool is_delta = false) {
  SavedTable saved;
  saved.manifest.table = table;
  saved.manifest.dim = 4;
  saved.manifest.is_delta = is_delta;
  saved.files.push_back({".data-00000-of-m0000", "0123456789abcdef", 1});
  return saved.Encode();
}

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(folder_holds_a_manifest_per_table) {
  const Directory directory;
  directory.Complete("m-1");
  ASSERT_OK(
      MakeCheckpointFolder(directory / "m-1", {TextOf("user"), TextOf("a.b")}));
  EXPECT_EQ(Read(directory / "sparse-m-1/user/manifest"), TextOf("user"));
  EXPECT_EQ(Read(directory / "sparse-m-1/a.b/manifest"), TextOf("a.b"));
  // Another save to the same prefix, of one table and a delta.
  ASSERT_OK(MakeCheckpointFolder(directory / "m-1", {TextOf("user", true)}));
  EXPECT_TRUE(!fs::exists(directory / "sparse-m-1"));
  EXPECT_TRUE(fs::exists(directory / "delta-sparse-m-1/user/manifest"));
  EXPECT_TRUE(!fs::exists(directory / "delta-sparse-m-1/a.b"));
}

TEST(folder_names_lead_nowhere_else) {
  const Directory directory;
  ASSERT_OK(MakeCheckpointFolder(
      directory / "m", {TextOf(".."), TextOf("."), TextOf("../x/y z%")}));
  EXPECT_TRUE(fs::exists(directory / "sparse-m/%2E%2E/manifest"));
  EXPECT_TRUE(fs::exists(directory / "sparse-m/%2E/manifest"));
  EXPECT_TRUE(fs::exists(directory / "sparse-m/..%2Fx%2Fy%20z%25/manifest"));
}

TEST(folder_goes_with_its_checkpoint) {
  const Directory directory;
  for (const char* const name : {"m-1", "m-2"}) {
    directory.Complete(name);
    ASSERT_OK(MakeCheckpointFolder(directory / name, {TextOf("user")}));
  }
  EXPECT_TRUE(fs::exists(directory / "sparse-m-1"));
  fs::remove(directory / "m-1.index");
  for (const char* const name : {"m-0", "m-3", "young"}) {
    fs::create_directories(
        directory / (std::string(".sparse-") + name + ".unfinished/user"));
  }
  fs::last_write_time(directory / ".sparse-m-0.unfinished",
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  fs::create_directories(directory / "sparse-m-9/user/key");
  directory.Complete("m-3");
  ASSERT_OK(MakeCheckpointFolder(directory / "m-3", {TextOf("user")}));
  EXPECT_TRUE(!fs::exists(directory / "sparse-m-1"));
  EXPECT_TRUE(!fs::exists(directory / ".sparse-m-0.unfinished"));
  EXPECT_TRUE(!fs::exists(directory / ".sparse-m-3.unfinished"));
  EXPECT_TRUE(fs::exists(directory / "sparse-m-3/user/manifest"));
  // Another process may be making it.
  EXPECT_TRUE(fs::exists(directory / ".sparse-young.unfinished"));
  EXPECT_TRUE(fs::exists(directory / "sparse-m-2"));
  EXPECT_TRUE(fs::exists(directory / "sparse-m-9/user/key"));  // not ours
}

TEST(folder_of_a_saved_model_is_not_made) {
  const Directory directory;
  fs::create_directories(directory / "variables");
  ASSERT_OK(MakeCheckpointFolder(directory / "variables/variables",
                                 {TextOf("user")}));
  EXPECT_TRUE(fs::is_empty(directory / "variables"));
}

TEST(folder_errors_name_the_path) {
  const Directory directory;
  const Status missing =
      MakeCheckpointFolder(directory / "no/m", {TextOf("user")});
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_TRUE(missing.message().find("no/.sparse-m.unfinished") !=
              std::string::npos);
  EXPECT_EQ(MakeCheckpointFolder(directory / "m", {"no manifest"}).code(),
            Code::kDataLoss);
  std::ofstream(directory / "sparse-m") << "a file";
  EXPECT_TRUE(!MakeCheckpointFolder(directory / "m", {TextOf("user")}).ok());
  EXPECT_EQ(Read(directory / "sparse-m"), "a file");
  EXPECT_TRUE(!fs::exists(directory / ".sparse-m.unfinished"));
}

}  // namespace
}  // namespace testing
}  // namespace mxrec
