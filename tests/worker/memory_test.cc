// What a worker takes: the weights once, its caches as far as they are used, and nothing more in a
// step of decode.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/process_memory.h"
#include "worker/allocation_counter.h"
#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

class DecodeAllocationTest : public testing::TestWithParam<bool> {};

TEST_P(DecodeAllocationTest, SteadyDecodeAllocatesNothing) {
  const Device device{.reference = GetParam(), .num_threads = 2};
  const std::vector<int32_t> tokens = ReadTokens(FixturePath("base.tokens.txt"));
  EngineHarness engine(FixtureModel("base"), device, TestOptions(192, 2));
  v1::StepPlan plan = engine.NewPlan();
  for (const int slot : {0, 1}) {
    v1::SlotStart& start = engine.AddStart(plan, slot);
    if (slot == 1) {
      start.set_return_logits(true);
      start.set_num_logprobs(4);
      start.mutable_sampling()->set_temperature(1);
      start.mutable_sampling()->set_top_p(0.9f);
      start.mutable_sampling()->set_repetition_penalty(1.1f);
    }
    engine.AddChunk(plan, slot, 0, tokens).set_sample(true);
    engine.AddDecode(plan, slot);
  }
  plan.set_run_ahead(60);
  engine.Begin(plan);
  v1::StepResult result;
  uint32_t step = 0;
  // The first steps fill the messages' and arrays' memory, which is kept.
  for (; step < 8; ++step) ASSERT_TRUE(engine.executor().RunStep(plan, step, result).ok());
  const AllocationCounter counter;
  for (; step < 50; ++step) {
    if (!engine.executor().RunStep(plan, step, result).ok()) break;
  }
  const int64_t num_allocations = counter.count();
  EXPECT_EQ(step, 50u);
  EXPECT_EQ(num_allocations, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, DecodeAllocationTest, testing::Bool());

#if defined(SWITCHYARD_SANITIZED)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

int64_t AnonymousBytes() {
  const absl::StatusOr<ProcessMemory> memory = ReadProcessMemory();
  EXPECT_TRUE(memory.ok()) << memory.status();
  return memory->anonymous_bytes;
}

TEST(WorkerMemoryTest, TakesTheWeightsOnceAndTheCachesAsFarAsUsed) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's shadow memory is resident too";
  const int64_t before = AnonymousBytes();
  WorkerOptions options = TestOptions(4096, 4);
  options.num_checkpoints = 64;
  EngineHarness engine(DemoModel(), kCpu, options);
  const int64_t loaded = AnonymousBytes() - before;
  const WorkerMemory& memory = engine.executor().memory();

  // The file: everything but the draft block and the n-gram table, which stays in the map.
  EXPECT_GT(memory.file_bytes, 8 << 20);
  EXPECT_GT(memory.mapped_bytes, 1 << 20);
  // Panels repeat what the file holds; small tensors and recoded formats may take half as much
  // again.
  EXPECT_LE(memory.weight_bytes, memory.file_bytes * 3 / 2);

  // Nothing was touched of pages, checkpoints and activations. On top of the weights come host
  // logits, workspaces, the tables of decoders, and what malloc keeps: 16 MiB.
  constexpr int64_t kSlack = 16 << 20;
  EXPECT_GT(memory.kv_bytes + memory.checkpoint_bytes, 2 * kSlack);  // or the test says nothing
  EXPECT_GE(loaded, memory.weight_bytes);
  EXPECT_LE(loaded, memory.weight_bytes + kSlack);

  // A short sequence touches its own pages and state, not those of the longest.
  const std::vector<int32_t> tokens(100, 5);
  engine.PrefillLogits(0, tokens);
  EXPECT_LE(AnonymousBytes() - before, memory.weight_bytes + 2 * kSlack);
}

}  // namespace
}  // namespace switchyard::worker
