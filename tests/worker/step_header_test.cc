#include "worker/step_header.h"

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard::worker {
namespace {

using ::testing::HasSubstr;

constexpr StepHeaderLimits kLimits = {.num_slots = 4,
                                      .num_pages = 8,
                                      .num_checkpoints = 2,
                                      .max_context = 128,
                                      .max_step_rows = 16,
                                      .vocab_size = 100};

StepHeader Valid() {
  StepHeader header;
  header.epoch = 7;
  header.step = 12;
  header.starts = {{.slot = 3, .clears_state = 1}};
  header.restores = {{.slot = 1, .checkpoint = 1, .position = 64}};
  header.page_updates = {{.slot = 1, .first_entry = 0, .num_pages = 2},
                         {.slot = 3, .first_entry = 1, .num_pages = 1}};
  header.pages = {5, 6, 7};
  header.sequences = {{.first_position = 64,
                       .slot = 1,
                       .row_begin = 0,
                       .num_rows = 3,
                       .num_replay = 0,
                       .num_committed = 2,
                       .num_context = 2},
                      {.first_position = 0,
                       .slot = 3,
                       .row_begin = 3,
                       .num_rows = 1,
                       .num_replay = 0,
                       .num_committed = 1,
                       .num_context = 0}};
  header.context_ids = {98, 99};
  header.token_ids = {1, 2, 3, 4};
  header.output_rows = {2, 3};
  header.num_candidates = {1, 0};
  header.saves = {{.slot = 1, .checkpoint = 0, .position = 66}};
  return header;
}

std::vector<std::byte> BytesOf(const StepHeader& header) {
  std::vector<std::byte> bytes;
  header.Encode(bytes);
  return bytes;
}

TEST(StepHeaderTest, ArrivesAsItWasSent) {
  StepHeader received;
  received.token_ids = {9, 9, 9};  // of the step before
  ASSERT_TRUE(received.Decode(BytesOf(Valid())).ok());
  EXPECT_EQ(BytesOf(received), BytesOf(Valid()));
  EXPECT_EQ(received.epoch, 7u);
  EXPECT_EQ(received.sequences[1].row_begin, 3);
  EXPECT_TRUE(CheckStepHeader(received, kLimits).ok());
}

TEST(StepHeaderTest, EveryCutAndEveryByteTooManyIsNoticed) {
  std::vector<std::byte> bytes = BytesOf(Valid());
  StepHeader header;
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(header.Decode(absl::MakeSpan(bytes).subspan(0, length)).ok()) << length;
  }
  bytes.push_back({});
  EXPECT_FALSE(header.Decode(bytes).ok());
}

TEST(StepHeaderTest, WholeRowsAreNeededIfOneOutputNeedsThem) {
  StepHeader header;
  header.output_rows = {0, 1, 2, 3};
  header.num_candidates = {1, 20, 0, 5};
  EXPECT_EQ(header.NumCandidates(0, 2), 20);
  EXPECT_EQ(header.NumCandidates(0, 3), 0);
  EXPECT_EQ(header.NumCandidates(3, 1), 5);
}

struct Fault {
  std::string names;
  std::function<void(StepHeader&)> make;
};

TEST(StepHeaderTest, NumbersThatARankDoesNotKnowAreRefused) {
  const std::vector<Fault> faults = {
      {"slot", [](StepHeader& h) { h.starts[0].slot = 4; }},
      {"slot", [](StepHeader& h) { h.starts[0].slot = -1; }},
      {"checkpoint", [](StepHeader& h) { h.restores[0].checkpoint = 2; }},
      {"position", [](StepHeader& h) { h.restores[0].position = 129; }},
      {"checkpoint", [](StepHeader& h) { h.saves[0].checkpoint = -1; }},
      {"page_updates", [](StepHeader& h) { h.page_updates[0].first_entry = 2; }},
      {"page_updates", [](StepHeader& h) { h.page_updates[1].num_pages = -1; }},
      {"pages", [](StepHeader& h) { h.pages[1] = 8; }},
      {"pages", [](StepHeader& h) { h.pages.pop_back(); }},
      {"slot", [](StepHeader& h) { h.sequences[0].slot = 9; }},
      {"sequences", [](StepHeader& h) { h.sequences[1].row_begin = 2; }},
      {"sequences", [](StepHeader& h) { h.sequences[0].num_rows = 0; }},
      {"sequences", [](StepHeader& h) { h.sequences[0].num_committed = 4; }},
      {"sequences", [](StepHeader& h) { h.sequences[0].num_replay = 16; }},
      {"sequences", [](StepHeader& h) { h.sequences[1].first_position = 128; }},
      {"token_ids", [](StepHeader& h) { h.token_ids.push_back(1); }},
      {"token_ids", [](StepHeader& h) { h.token_ids.resize(17); }},
      {"token_ids", [](StepHeader& h) { h.token_ids[0] = 100; }},
      {"token_ids", [](StepHeader& h) { h.context_ids[0] = -1; }},
      {"token_ids", [](StepHeader& h) { h.context_ids.pop_back(); }},
      {"output_rows", [](StepHeader& h) { h.output_rows[1] = 4; }},
      {"output_rows", [](StepHeader& h) { h.output_rows[1] = 2; }},
      {"num_candidates", [](StepHeader& h) { h.num_candidates.pop_back(); }},
      {"num_candidates", [](StepHeader& h) { h.num_candidates[0] = 65; }},
  };
  for (size_t i = 0; i < faults.size(); ++i) {
    StepHeader header = Valid();
    faults[i].make(header);
    const absl::Status status = CheckStepHeader(header, kLimits);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << i;
    EXPECT_THAT(std::string(status.message()), HasSubstr(faults[i].names)) << i;
  }
}

}  // namespace
}  // namespace switchyard::worker
