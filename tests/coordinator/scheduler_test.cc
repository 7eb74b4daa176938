#include "coordinator/scheduler.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Runs a prompt to its end and returns the borders of its chunks.
std::vector<int64_t> Borders(PrefillState state, int num_decoding, SchedulerOptions options) {
  std::vector<int64_t> borders = {state.position};
  while (state.position < state.end) {
    const auto chunks = SchedulePrefill({state}, num_decoding, options);
    if (chunks.empty()) return {};
    EXPECT_EQ(chunks[0].begin, state.position);
    state.position = chunks[0].end;
    borders.push_back(state.position);
  }
  return borders;
}

TEST(SchedulerTest, ChunksEndAtMultiplesOfThePageSize) {
  EXPECT_THAT(Borders({0, 300, 300, {}}, 0, {.max_step_rows = 150}), ElementsAre(0, 128, 256, 300));
  EXPECT_THAT(Borders({0, 128, 128, {}}, 0, {.max_step_rows = 512}), ElementsAre(0, 128));
  EXPECT_THAT(Borders({0, 1, 1, {}}, 0, {.max_step_rows = 512}), ElementsAre(0, 1));
}

TEST(SchedulerTest, ChunksEndAtCheckpoints) {
  const std::vector<int64_t> checkpoints = {64, 192, 448};
  EXPECT_THAT(Borders({0, 500, 500, checkpoints}, 0, {.max_step_rows = 512}),
              ElementsAre(0, 64, 192, 448, 500));
  EXPECT_THAT(Borders({128, 500, 500, checkpoints}, 0, {.max_step_rows = 128}),
              ElementsAre(128, 192, 320, 448, 500));
}

TEST(SchedulerTest, DecodingRowsComeFirst) {
  const PrefillState state{0, 1000, 1000, {}};
  EXPECT_THAT(SchedulePrefill({state}, 10, {.max_step_rows = 138, .mixed_prefill_rows = 512}),
              ElementsAre(ScheduledChunk{0, 0, 128}));
  EXPECT_THAT(SchedulePrefill({state}, 10, {.max_step_rows = 512, .mixed_prefill_rows = 64}),
              ElementsAre(ScheduledChunk{0, 0, 64}));
  EXPECT_THAT(SchedulePrefill({state}, 0, {.max_step_rows = 512, .mixed_prefill_rows = 64}),
              ElementsAre(ScheduledChunk{0, 0, 512}));
  EXPECT_THAT(SchedulePrefill({state}, 100, {.max_step_rows = 128}), IsEmpty());
}

TEST(SchedulerTest, PromptsShareAStepInOrder) {
  const std::vector<PrefillState> states = {
      {0, 100, 100, {}}, {64, 90, 90, {}}, {0, 1000, 1000, {}}};
  EXPECT_THAT(
      SchedulePrefill(states, 0, {.max_step_rows = 256}),
      ElementsAre(ScheduledChunk{0, 0, 100}, ScheduledChunk{1, 64, 90}, ScheduledChunk{2, 0, 128}));
  // The third does not fit beside the first two, and nobody overtakes.
  EXPECT_THAT(SchedulePrefill(states, 0, {.max_step_rows = 180}),
              ElementsAre(ScheduledChunk{0, 0, 100}, ScheduledChunk{1, 64, 90}));
}

// What was decoded is computed again in pieces that give the same bits.
TEST(SchedulerTest, EmittedTokensFollowThePromptInSmallChunks) {
  EXPECT_THAT(Borders({0, 150, 190, {}}, 0, {.max_step_rows = 512}),
              ElementsAre(0, 150, 166, 182, 190));
  EXPECT_THAT(Borders({0, 64, 65, {}}, 0, {.max_step_rows = 512}), ElementsAre(0, 64, 65));
  EXPECT_THAT(SchedulePrefill({{160, 150, 190, {}}, {0, 1000, 1000, {}}}, 0, {.max_step_rows = 75}),
              ElementsAre(ScheduledChunk{0, 160, 176}));
  EXPECT_THAT(SchedulePrefill({{160, 150, 190, {}}}, 60, {.max_step_rows = 64}),
              ElementsAre(ScheduledChunk{0, 160, 164}));
}

TEST(CheckpointPositionsTest, LastPageBorderStrictlyBeforeTheEnd) {
  EXPECT_THAT(CheckpointPositions(64, 0, {}), IsEmpty());
  EXPECT_THAT(CheckpointPositions(65, 0, {}), ElementsAre(64));
  EXPECT_THAT(CheckpointPositions(128, 0, {}), ElementsAre(64));
  EXPECT_THAT(CheckpointPositions(129, 0, {}), ElementsAre(128));
  EXPECT_THAT(CheckpointPositions(1, 0, {}), IsEmpty());
}

TEST(CheckpointPositionsTest, MessageBordersAreRoundedDown) {
  EXPECT_THAT(CheckpointPositions(1000, 0, {70, 130, 190, 640}), ElementsAre(64, 128, 640, 960));
  EXPECT_THAT(CheckpointPositions(1000, 128, {70, 130, 190, 640}), ElementsAre(640, 960));
  EXPECT_THAT(CheckpointPositions(100, 64, {70}), IsEmpty());
  EXPECT_THAT(CheckpointPositions(100, 0, {100}), ElementsAre(64));
}

TEST(CheckpointPositionsTest, LongPromptsGetIntermediateOnes) {
  EXPECT_THAT(CheckpointPositions(40000, 0, {}), ElementsAre(16384, 32768, 39936));
}

}  // namespace
}  // namespace switchyard::coordinator
