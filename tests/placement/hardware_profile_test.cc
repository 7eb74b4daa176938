#include "placement/hardware_profile.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <google/protobuf/util/message_differencer.h>

#include "base/status.h"
#include "testing/gguf_writer.h"

namespace switchyard::placement {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Spread SpreadOf(double median) {
  v1::Spread spread;
  spread.set_median(median);
  spread.set_min(median / 2);
  spread.set_max(median * 2);
  spread.set_num_samples(5);
  return spread;
}

v1::HardwareProfile Example() {
  v1::HardwareProfile profile;
  profile.set_schema_version(kProfileSchemaVersion);
  profile.mutable_host()->set_boot_id("b1");
  profile.mutable_host()->set_cpu_model("a processor");
  profile.mutable_host()->set_mem_total_bytes(uint64_t{1} << 40);
  v1::MemoryRead& read = *profile.add_memory_reads();
  read.set_threads(2);
  *read.mutable_gb_per_second() = SpreadOf(80.5);
  v1::Collective& collective = *profile.add_collectives();
  collective.set_op("all_reduce");
  collective.set_backend("shm");
  collective.set_nranks(2);
  collective.set_size_bytes(10240);
  *collective.mutable_us() = SpreadOf(7);
  return profile;
}

std::string Refusal(const std::string& json) {
  const absl::StatusOr<v1::HardwareProfile> profile = ParseProfile(json);
  EXPECT_EQ(profile.status().code(), absl::StatusCode::kInvalidArgument) << profile.status();
  std::string message(Message(profile.status()));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  return message;
}

TEST(HardwareProfileTest, JsonGoesThereAndBack) {
  const v1::HardwareProfile profile = Example();
  const absl::StatusOr<std::string> json = ProfileJson(profile);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_THAT(*json, HasSubstr("\"schema_version\": 1"));
  EXPECT_THAT(*json, HasSubstr("\"gb_per_second\""));
  const absl::StatusOr<v1::HardwareProfile> read = ParseProfile(*json);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(profile, *read));
  // Not measured is absent, not zero.
  EXPECT_FALSE(read->host().has_cgroup_cpu_quota());
  EXPECT_THAT(*json, Not(HasSubstr("cgroup_cpu_quota")));
}

TEST(HardwareProfileTest, RefusesEveryTruncation) {
  const std::string json = *ProfileJson(Example());
  const size_t end = json.find_last_of('}');
  for (size_t length = 0; length <= end; ++length) {
    const std::string message = Refusal(json.substr(0, length));
    EXPECT_THAT(message, HasSubstr("no JSON: text ends")) << length;
  }
}

TEST(HardwareProfileTest, SaysWhereJsonIsWrong) {
  EXPECT_THAT(Refusal("{\n  \"schema_version\": 1,\n  \"host\" {}\n}"),
              HasSubstr("wanted a colon at line 3, column 10"));
  EXPECT_THAT(Refusal("{} {}"), HasSubstr("goes on after the value at line 1, column 4"));
  EXPECT_THAT(Refusal("{\"a\": 01x}"), HasSubstr("wanted a comma or } at line 1"));
  EXPECT_THAT(Refusal(std::string(200, '[')), HasSubstr("at most 64 levels"));
  EXPECT_THAT(Refusal("GGUF\1\2"), HasSubstr("wanted a value at line 1, column 1"));
}

TEST(HardwareProfileTest, RefusesForeignFieldsAndVersions) {
  EXPECT_THAT(Refusal("{\"schema_version\": 1, \"speed\": 3}"), HasSubstr("speed"));
  EXPECT_THAT(Refusal("{\"schema_version\": \"one\"}"), HasSubstr("schema_version"));
  EXPECT_THAT(Refusal("{\"schema_version\": 2}"), HasSubstr("unknown schema_version: 2, known: 1"));
  EXPECT_THAT(Refusal("{}"), HasSubstr("unknown schema_version: 0"));
}

TEST(HardwareProfileTest, RefusesFiguresThatCannotBe) {
  v1::HardwareProfile profile = Example();
  profile.mutable_memory_reads(0)->mutable_gb_per_second()->set_median(0);
  EXPECT_THAT(Refusal(*ProfileJson(profile)), HasSubstr("memory_reads.gb_per_second"));
  profile = Example();
  profile.mutable_collectives(0)->mutable_us()->set_max(1);
  EXPECT_THAT(Refusal(*ProfileJson(profile)), HasSubstr("collectives.us"));
  profile = Example();
  profile.mutable_collectives(0)->set_wrong(3);
  EXPECT_THAT(Refusal(*ProfileJson(profile)),
              HasSubstr("wrong: all_reduce over shm of 2 ranks, 3 elements"));
  profile = Example();
  profile.add_gpus()->set_kernel_efficiency(1.2);
  EXPECT_THAT(Refusal(*ProfileJson(profile)), HasSubstr("gpus.kernel_efficiency"));
  profile = Example();
  for (const double share : {0.5, 0.25}) profile.add_misses()->set_resident_share(share);
  EXPECT_THAT(Refusal(*ProfileJson(profile)), HasSubstr("misses"));
}

TEST(HardwareProfileTest, ErrorsNameTheFile) {
  const std::string path = testing::WriteTestFile("profile.json", "{\"schema_version\":");
  EXPECT_THAT(std::string(Message(ReadProfile(path).status())), HasSubstr("profile.json: profile"));
  EXPECT_EQ(ReadProfile(path + ".none").status().code(), absl::StatusCode::kNotFound);
}

TEST(HardwareProfileTest, RefusesAnotherMachineUnlessItIsAnEstimate) {
  v1::HardwareProfile profile = Example();
  EXPECT_TRUE(CheckProfileIsOf(profile, {"b1", "a processor"}).ok());
  const absl::Status other_start = CheckProfileIsOf(profile, {"b2", "a processor"});
  EXPECT_EQ(other_start.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(other_start)), HasSubstr("boot_id, profile: b1, here: b2"));
  const absl::Status other_cpu = CheckProfileIsOf(profile, {"b1", "another"});
  EXPECT_THAT(std::string(Message(other_cpu)), HasSubstr("cpu_model"));
  profile.set_is_estimate(true);
  EXPECT_TRUE(CheckProfileIsOf(profile, {"b2", "another"}).ok());
}

TEST(HardwareProfileTest, ThisMachineIsItself) {
  const MachineIdentity here = ReadMachineIdentity();
  EXPECT_FALSE(here.boot_id.empty());
  v1::HardwareProfile profile = Example();
  profile.mutable_host()->set_boot_id(here.boot_id);
  profile.mutable_host()->set_cpu_model(here.cpu_model);
  EXPECT_TRUE(CheckProfileIsOf(profile, ReadMachineIdentity()).ok());
}

}  // namespace
}  // namespace switchyard::placement
