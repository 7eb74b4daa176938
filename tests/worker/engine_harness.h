// A worker's executor on a model of the test data, and short ways to feed it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

#include "switchyard/worker/v1/step.pb.h"

#include "kernels/backend.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "worker/plan_validator.h"
#include "worker/step_executor.h"
#include "worker/worker.h"

namespace switchyard::worker {

// Which backend a test runs on.
struct Device {
  bool reference = false;
  int num_threads = 1;  // of the cpu backend
};
inline constexpr Device kReference{.reference = true};
inline constexpr Device kCpu{};

std::unique_ptr<kernels::Backend> MakeBackend(const Device& device);

// Options with room for `max_context` tokens in every slot, F32 keys and values.
WorkerOptions TestOptions(int64_t max_context, int num_slots = 1);

// Path of a model in tests/data/qwen4exp or tests/data/siblings: "base" -> ".../base.gguf"; of a
// split one its first part.
std::string FixtureModel(std::string_view name);
std::string DemoModel();

std::vector<int32_t> ReadTokens(const std::string& path);
std::vector<float> ReadFloats(const std::string& path);
std::string FixturePath(std::string_view file_name);

// Index of the largest value, the lower one on a tie.
int32_t ArgMax(absl::Span<const float> row);

// Opens a model; each slot owns the pages [slot * pages_per_slot, (slot + 1) * pages_per_slot).
// Every failure aborts the test program: a harness that is not there has nothing to say.
class EngineHarness {
 public:
  EngineHarness(const std::string& model_path, const Device& device, const WorkerOptions& options);

  const model::ModelSpec& spec() const { return *spec_; }
  StepExecutor& executor() { return *executor_; }
  int64_t vocab_size() const { return spec_->vocab_size; }

  // An empty plan with the next number.
  v1::StepPlan NewPlan();
  // Begins a new use of the slot: the plan starts it (greedy, up to 1000 tokens) and gives it all
  // its pages. Returns the start for changes.
  v1::SlotStart& AddStart(v1::StepPlan& plan, int slot);
  // Adds the tokens as a chunk of the slot's current use.
  v1::PrefillChunk& AddChunk(v1::StepPlan& plan, int slot, int64_t first_position,
                             absl::Span<const int32_t> tokens);
  void AddDecode(v1::StepPlan& plan, int slot);
  void AddRestore(v1::StepPlan& plan, int slot, int checkpoint, int64_t position);

  // Accepts the plan and begins it.
  void Begin(const v1::StepPlan& plan);
  // Runs one step of a begun plan.
  v1::StepResult Step(const v1::StepPlan& plan, uint32_t step);
  // Both, for step 0.
  v1::StepResult Run(const v1::StepPlan& plan);

  // Starts the slot and feeds the tokens in chunks of `chunk` (0 = all at once).
  // Returns the logits of every position, [tokens, vocab_size].
  std::vector<float> PrefillLogits(int slot, absl::Span<const int32_t> tokens, int64_t chunk = 0);

  // Feeds `tokens` one by one from `first_position` on; logits of each.
  std::vector<float> FeedOneByOne(int slot, int64_t first_position,
                                  absl::Span<const int32_t> tokens);

 private:
  model::GgufFile file_;
  std::unique_ptr<model::ModelSpec> spec_;
  std::unique_ptr<StepExecutor> executor_;
  std::unique_ptr<PlanValidator> validator_;
  std::vector<uint64_t> incarnations_;
  int pages_per_slot_ = 0;
  uint64_t last_plan_ = 0;
};

// The logits that a result carries for its `index`-th slot.
absl::Span<const float> LogitsOf(const v1::StepResult& result, int index = 0);

}  // namespace switchyard::worker
