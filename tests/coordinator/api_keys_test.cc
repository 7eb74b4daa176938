#include "coordinator/api_keys.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/status.h"

namespace switchyard::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// printf %s NAME | sha256sum
constexpr char kAlpha[] = "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8";
constexpr char kBeta[] = "f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753";

class ApiKeysTest : public ::testing::Test {
 protected:
  ~ApiKeysTest() override { std::filesystem::remove(path_); }

  absl::StatusOr<std::unique_ptr<ApiKeys>> Load(const std::string& text) {
    Write(text);
    return ApiKeys::Load(path_);
  }
  void Write(const std::string& text) { std::ofstream(path_) << text; }

  const std::string path_ = ::testing::TempDir() + "api_keys_" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                            ".txt";
};

TEST_F(ApiKeysTest, AcceptsEachKeyOfTheFileAndNoOther) {
  const auto keys = Load(std::string("# team\n") + kAlpha + "  # first\n\n\t" + kBeta + "\r\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_TRUE((*keys)->Accepts("alpha"));
  EXPECT_TRUE((*keys)->Accepts("beta"));
  for (const char* key : {"", "gamma", "alph", "alphaa", "Alpha", kAlpha}) {
    EXPECT_FALSE((*keys)->Accepts(key)) << key;
  }
}

TEST_F(ApiKeysTest, ReadsTheHeaderOfARequest) {
  const auto keys = Load(kAlpha);
  EXPECT_TRUE((*keys)->CheckAuthorization("Bearer alpha").ok());
  EXPECT_TRUE((*keys)->CheckAuthorization("bearer alpha").ok());
  for (const char* header : {"", "Bearer", "Bearer ", "Bearer beta", "Basic alpha", "alpha"}) {
    EXPECT_EQ((*keys)->CheckAuthorization(header).code(), absl::StatusCode::kUnauthenticated)
        << header;
  }
}

TEST_F(ApiKeysTest, RefusesWhatIsNoDigestWithoutRepeatingIt) {
  std::string upper = kAlpha;
  upper[0] = 'A';
  for (const std::string& line :
       {std::string("my-secret-key"), upper, std::string(kAlpha) + "0", std::string(kAlpha, 63)}) {
    const absl::Status status = Load(std::string(kBeta) + "\n" + line + "\n").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(Message(status)), HasSubstr(":2"));
    EXPECT_THAT(std::string(Message(status)), Not(HasSubstr(line)));
  }
}

TEST_F(ApiKeysTest, AFileWithoutKeysIsAnErrorNotAnOpenDoor) {
  EXPECT_EQ(Load("# none\n").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ApiKeys::Load(path_ + ".absent").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ApiKeysTest, ReloadTakesNewKeysAndKeepsTheOldOnesOnAnError) {
  const auto keys = Load(kAlpha);
  Write(kBeta);
  EXPECT_TRUE((*keys)->Reload().ok());
  EXPECT_FALSE((*keys)->Accepts("alpha"));
  EXPECT_TRUE((*keys)->Accepts("beta"));
  Write("broken");
  EXPECT_FALSE((*keys)->Reload().ok());
  EXPECT_TRUE((*keys)->Accepts("beta"));
}

}  // namespace
}  // namespace switchyard::coordinator
