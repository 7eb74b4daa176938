// Profiles as files: what was written is read, and what is damaged or foreign is refused.
#include "worker/experts/expert_profile.h"

#include <cstdio>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"

namespace switchyard::worker {
namespace {

using testing::HasSubstr;

class ExpertProfileTest : public testing::Test {
 protected:
  ExpertProfileTest() : path_(testing::TempDir() + "experts.profile") {
    profile_ = {.model_digest = "sha256:abc",
                .num_layers = 2,
                .num_experts = 3,
                .uses = {1, 0, uint64_t{1} << 40, 4, 5, 6}};
  }
  ~ExpertProfileTest() override { std::remove(path_.c_str()); }

  std::string Bytes() const {
    std::ifstream stream(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void Write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  std::string Refusal() const { return std::string(Message(ReadExpertProfile(path_).status())); }

  std::string path_;
  ExpertProfile profile_;
};

TEST_F(ExpertProfileTest, WhatWasWrittenIsRead) {
  ASSERT_TRUE(WriteExpertProfile(path_, profile_).ok());
  const auto read = ReadExpertProfile(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->model_digest, profile_.model_digest);
  EXPECT_EQ(read->num_layers, 2);
  EXPECT_EQ(read->num_experts, 3);
  EXPECT_EQ(read->uses, profile_.uses);
  EXPECT_TRUE(CheckExpertProfile(*read, path_, "sha256:abc", 2, 3).ok());
}

TEST_F(ExpertProfileTest, EveryTruncationIsRefused) {
  ASSERT_TRUE(WriteExpertProfile(path_, profile_).ok());
  const std::string bytes = Bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    Write(bytes.substr(0, size));
    const auto status = ReadExpertProfile(path_).status();
    EXPECT_FALSE(status.ok()) << size;
    if (size > 0) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size;
    }
  }
  Write(bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(Refusal(), HasSubstr("expert profile is truncated"));
}

TEST_F(ExpertProfileTest, EveryChangedByteIsRefused) {
  ASSERT_TRUE(WriteExpertProfile(path_, profile_).ok());
  const std::string bytes = Bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 0x20);
    Write(changed);
    EXPECT_FALSE(ReadExpertProfile(path_).ok()) << i;
  }
  Write(bytes + "x");
  EXPECT_THAT(Refusal(), HasSubstr("damaged"));
}

TEST_F(ExpertProfileTest, OtherFilesAndModelsAreRefusedByName) {
  EXPECT_EQ(ReadExpertProfile(path_ + ".none").status().code(), absl::StatusCode::kNotFound);
  Write("GGUF and more");
  EXPECT_THAT(Refusal(), HasSubstr("not an expert profile"));
  const auto other = CheckExpertProfile(profile_, path_, "sha256:def", 2, 3);
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(other)), HasSubstr("another model"));
  EXPECT_THAT(std::string(Message(CheckExpertProfile(profile_, path_, "sha256:abc", 2, 4))),
              HasSubstr("another shape"));
}

TEST_F(ExpertProfileTest, AFolderThatIsNotThereIsSaid) {
  const auto status = WriteExpertProfile(path_ + "/none/profile", profile_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("cannot be written"));
}

}  // namespace
}  // namespace switchyard::worker
