#include "worker/engine_harness.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"

namespace switchyard::worker {
namespace {

void CheckOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

model::GgufFile OpenOrDie(const std::string& path) {
  absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(path);
  CheckOk(file.status());
  return *std::move(file);
}

std::string ReadAll(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::abort();
  }
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

std::unique_ptr<kernels::Backend> MakeBackend(const Device& device) {
  if (device.reference) return kernels::reference::CreateReferenceBackend();
  kernels::cpu::CpuBackendOptions options;
  options.num_threads = device.num_threads;
  absl::StatusOr<std::unique_ptr<kernels::Backend>> backend =
      kernels::cpu::CreateCpuBackend(options);
  CheckOk(backend.status());
  return *std::move(backend);
}

WorkerOptions TestOptions(int64_t max_context, int num_slots) {
  WorkerOptions options;
  options.num_slots = num_slots;
  options.num_pages =
      static_cast<int>((max_context + kernels::kPageTokens - 1) / kernels::kPageTokens * num_slots);
  options.num_checkpoints = 4;
  options.max_context = max_context;
  options.max_step_rows = 512;
  options.kv_type = kernels::KvType::kF32;
  return options;
}

std::string FixturePath(std::string_view file_name) {
  const std::string name(file_name);
  const std::string path = SWITCHYARD_TEST_DATA "/siblings/" + name;
  return std::filesystem::exists(path) ? path : SWITCHYARD_TEST_DATA "/qwen4exp/" + name;
}

std::string FixtureModel(std::string_view name) {
  if (name == "split") return FixturePath("split-00001-of-00004.gguf");
  if (name == "base_eos") name = "base";
  return FixturePath(std::string(name) + ".gguf");
}

std::string DemoModel() { return SWITCHYARD_SOURCE_DIR "/deploy/demo/switchyard-demo.gguf"; }

std::vector<int32_t> ReadTokens(const std::string& path) {
  std::ifstream stream(path);
  std::vector<int32_t> tokens(std::istream_iterator<int32_t>(stream), {});
  SWITCHYARD_CHECK(!tokens.empty());
  return tokens;
}

std::vector<float> ReadFloats(const std::string& path) {
  const std::string bytes = ReadAll(path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), values.size() * sizeof(float), reinterpret_cast<char*>(values.data()));
  return values;
}

int32_t ArgMax(absl::Span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

EngineHarness::EngineHarness(const std::string& model_path, const Device& device,
                             const WorkerOptions& options)
    : file_(OpenOrDie(model_path)) {
  absl::StatusOr<model::ModelSpec> spec = model::LoadModelSpec(file_);
  CheckOk(spec.status());
  spec_ = std::make_unique<model::ModelSpec>(*std::move(spec));
  absl::StatusOr<std::unique_ptr<StepExecutor>> executor =
      StepExecutor::Create(file_, *spec_, MakeBackend(device), options, {});
  CheckOk(executor.status());
  executor_ = *std::move(executor);
  validator_ = std::make_unique<PlanValidator>(executor_->limits());
  incarnations_.resize(static_cast<size_t>(options.num_slots));
  pages_per_slot_ = options.num_pages / options.num_slots;
}

v1::StepPlan EngineHarness::NewPlan() {
  v1::StepPlan plan;
  plan.set_plan(++last_plan_);
  plan.set_epoch(executor_->limits().epoch);
  plan.set_run_ahead(1);
  return plan;
}

v1::SlotStart& EngineHarness::AddStart(v1::StepPlan& plan, int slot) {
  v1::SlotStart& start = *plan.add_starts();
  start.set_slot(static_cast<uint32_t>(slot));
  start.set_incarnation(++incarnations_[static_cast<size_t>(slot)]);
  start.set_max_new_tokens(1000);
  v1::PageTableUpdate& pages = *plan.add_page_tables();
  pages.set_slot(static_cast<uint32_t>(slot));
  for (int i = 0; i < pages_per_slot_; ++i) {
    // Backwards, so that no test passes because pages happen to be adjacent.
    pages.add_pages(static_cast<uint32_t>((slot + 1) * pages_per_slot_ - 1 - i));
  }
  return start;
}

v1::PrefillChunk& EngineHarness::AddChunk(v1::StepPlan& plan, int slot, int64_t first_position,
                                          absl::Span<const int32_t> tokens) {
  v1::PrefillChunk& chunk = *plan.add_prefill();
  chunk.set_slot(static_cast<uint32_t>(slot));
  chunk.set_incarnation(incarnations_[static_cast<size_t>(slot)]);
  chunk.set_first_position(static_cast<uint32_t>(first_position));
  for (const int32_t token : tokens) chunk.add_token_ids(static_cast<uint32_t>(token));
  return chunk;
}

void EngineHarness::AddDecode(v1::StepPlan& plan, int slot) {
  v1::DecodeSlot& decode = *plan.add_decode();
  decode.set_slot(static_cast<uint32_t>(slot));
  decode.set_incarnation(incarnations_[static_cast<size_t>(slot)]);
}

void EngineHarness::AddRestore(v1::StepPlan& plan, int slot, int checkpoint, int64_t position) {
  v1::SlotOperation::Restore& restore = *plan.add_operations()->mutable_restore();
  restore.set_slot(static_cast<uint32_t>(slot));
  restore.set_checkpoint(static_cast<uint32_t>(checkpoint));
  restore.set_position(static_cast<uint32_t>(position));
}

void EngineHarness::Begin(const v1::StepPlan& plan) {
  CheckOk(validator_->Accept(plan));
  CheckOk(executor_->Begin(plan));
}

v1::StepResult EngineHarness::Step(const v1::StepPlan& plan, uint32_t step) {
  v1::StepResult result;
  CheckOk(executor_->RunStep(plan, step, result));
  return result;
}

v1::StepResult EngineHarness::Run(const v1::StepPlan& plan) {
  Begin(plan);
  return Step(plan, 0);
}

std::vector<float> EngineHarness::PrefillLogits(int slot, absl::Span<const int32_t> tokens,
                                                int64_t chunk) {
  std::vector<float> logits;
  const auto size = static_cast<int64_t>(tokens.size());
  const int64_t limit = executor_->limits().max_step_rows;
  const int64_t rows = chunk == 0 ? limit : std::min(chunk, limit);
  for (int64_t first = 0; first < size; first += rows) {
    v1::StepPlan plan = NewPlan();
    if (first == 0) AddStart(plan, slot);
    AddChunk(plan, slot, first,
             tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(rows)))
        .set_return_all_logits(true);
    const v1::StepResult result = Run(plan);
    const absl::Span<const float> part = LogitsOf(result);
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

std::vector<float> EngineHarness::FeedOneByOne(int slot, int64_t first_position,
                                               absl::Span<const int32_t> tokens) {
  std::vector<float> logits;
  for (size_t i = 0; i < tokens.size(); ++i) {
    v1::StepPlan plan = NewPlan();
    AddChunk(plan, slot, first_position + static_cast<int64_t>(i), tokens.subspan(i, 1))
        .set_return_all_logits(true);
    const v1::StepResult result = Run(plan);
    const absl::Span<const float> part = LogitsOf(result);
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

absl::Span<const float> LogitsOf(const v1::StepResult& result, int index) {
  const std::string& bytes = result.slots(index).logits();
  // The allocator aligns what a string holds, and a result with logits is never a short string.
  SWITCHYARD_CHECK(reinterpret_cast<uintptr_t>(bytes.data()) % alignof(float) == 0);
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace switchyard::worker
