// The program in odd surroundings: closed streams, folders and pipes for files, mistyped settings.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "testing/process.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ProcessResult;

constexpr char kRun[] = "run " SWITCHYARD_DEMO_MODEL " --greedy --thinking off";

// Runs the program through a shell, for redirections.
ProcessResult Shell(const std::string& arguments) {
  return testing::RunProcess({"/bin/sh", "-c", "exec " SWITCHYARD_BINARY " -q " + arguments});
}

class SurroundingsTest : public ::testing::Test {
 protected:
  SurroundingsTest() {
    std::string name = (std::filesystem::temp_directory_path() / "switchyard_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    std::ofstream(folder_ + "/ids.txt") << "1 2 3";
  }
  ~SurroundingsTest() override { std::filesystem::remove_all(folder_); }

  std::string WriteConfig(const std::string& text) const {
    std::ofstream(folder_ + "/config.toml") << text;
    return folder_ + "/config.toml";
  }

  std::string folder_;
};

TEST_F(SurroundingsTest, ClosedErrorStreamLosesMessagesOnly) {
  const ProcessResult normal = Shell(std::string(kRun) + " -p hi -n 4");
  const ProcessResult closed = Shell(std::string(kRun) + " -p hi -n 4 2>&-");
  EXPECT_EQ(closed.exit_code, 0);
  EXPECT_EQ(closed.out, normal.out);
  EXPECT_EQ(Shell("run /nowhere.gguf 2>&-").exit_code, 3);
  if (access("/dev/full", W_OK) == 0) {
    EXPECT_EQ(Shell(std::string(kRun) + " -p hi -n 4 2>/dev/full").out, normal.out);
  }
}

TEST_F(SurroundingsTest, ClosedInputIsAnEmptyOne) {
  // Not the model file, which would get the free number.
  const ProcessResult tokenize = Shell("tokenize " SWITCHYARD_DEMO_MODEL " <&-");
  EXPECT_EQ(tokenize.exit_code, 0);
  EXPECT_EQ(tokenize.out, "\n");
  const ProcessResult chat = Shell(std::string(kRun) + " <&-");
  EXPECT_EQ(chat.exit_code, 0);
  EXPECT_THAT(chat.out, IsEmpty());
}

TEST_F(SurroundingsTest, ClosedOutputIsAnError) {
  for (const char* command : {"version", "completion bash", "inspect " SWITCHYARD_DEMO_MODEL}) {
    const ProcessResult result = Shell(std::string(command) + " >&-");
    EXPECT_EQ(result.exit_code, 1) << command;
    EXPECT_THAT(result.err, HasSubstr("cannot write to standard output")) << command;
  }
}

TEST_F(SurroundingsTest, FolderIsNoInput) {
  const std::string eval = "eval " SWITCHYARD_DEMO_MODEL;
  for (const std::string& arguments :
       {eval + " --perplexity " + folder_, eval + " --logits-out x --tokens " + folder_,
        "tokenize " SWITCHYARD_DEMO_MODEL " <" + folder_}) {
    const ProcessResult result = Shell(arguments);
    EXPECT_EQ(result.exit_code, 1) << arguments;
    EXPECT_THAT(result.err, HasSubstr("Is a directory")) << arguments;
  }
}

TEST_F(SurroundingsTest, OutputReplacesFilesOnly) {
  const std::string eval =
      "eval " SWITCHYARD_DEMO_MODEL " --tokens " + folder_ + "/ids.txt --logits-out ";
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, folder_}) {
    const ProcessResult result = Shell(eval + path);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("is not a regular file"));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));

  std::ofstream(folder_ + "/old.f32") << "old";
  std::filesystem::create_symlink("old.f32", folder_ + "/link.f32");
  EXPECT_EQ(Shell(eval + folder_ + "/link.f32").exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ + "/link.f32"));
  EXPECT_GT(std::filesystem::file_size(folder_ + "/old.f32"), 1000u);
}

TEST_F(SurroundingsTest, MistypedSettingIsRefused) {
  for (const char* text : {"nonsense = 3\n", "[run]\nmax-token = 3\n"}) {
    const ProcessResult result =
        Shell("--config " + WriteConfig(text) + " " + kRun + " -p hi -n 2");
    EXPECT_EQ(result.exit_code, 2) << text;
    EXPECT_THAT(result.err, ::testing::AnyOf(HasSubstr("max-token"), HasSubstr("nonsense")))
        << text;
  }
  // Settings of another command are not in the way.
  const std::string config = WriteConfig("[run]\nmax-tokens = 3\n");
  EXPECT_EQ(Shell("--config " + config + " tokenize " SWITCHYARD_DEMO_MODEL " -p hi").exit_code, 0);
}

TEST_F(SurroundingsTest, ChunkBelowAPageIsRefusedInsteadOfWaiting) {
  const ProcessResult result = Shell(std::string(kRun) + " -p hi -n 2 --chunk 63");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--chunk must be at least 64"));
  const std::string words = "'" + std::string(200, 'x') + "'";
  EXPECT_EQ(Shell(std::string(kRun) + " -n 2 --chunk 64 -p " + words).exit_code, 0);
}

}  // namespace
}  // namespace switchyard
