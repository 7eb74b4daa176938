#include "app/step_driver.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "app/exit_code.h"
#include "app/interrupt.h"
#include "app/local_worker.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {

namespace v1 = switchyard::worker::v1;

StepDriver::StepDriver(std::unique_ptr<worker::Worker> worker, const worker::WorkerOptions& options)
    : local_(worker.get()),
      worker_(std::make_unique<LocalWorker>(std::move(worker), options)),
      options_(options) {
  worker_->Start(*this);
}

StepDriver::StepDriver(std::unique_ptr<coordinator::WorkerHandle> worker,
                       const worker::WorkerOptions& options)
    : worker_(std::move(worker)), options_(options) {
  worker_->Start(*this);
}

StepDriver::~StepDriver() { worker_->Stop(); }

void StepDriver::OnReady(uint64_t epoch) {
  std::lock_guard lock(mutex_);
  epoch_ = epoch;
  changed_.notify_one();
}

void StepDriver::OnResult(const StepResult& result) {
  std::lock_guard lock(mutex_);
  if (result.plan() != plan_) return;
  if (on_result_ != nullptr) (*on_result_)(result);
  if (!result.last_of_plan()) return;
  is_done_ = true;
  changed_.notify_one();
}

void StepDriver::OnLost(const absl::Status& status, bool) {
  std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = status;
  changed_.notify_one();
}

absl::Status StepDriver::WaitFor(const std::function<bool()>& what) {
  std::unique_lock lock(mutex_);
  // Signals do not wake a condition variable, so it looks up now and then.
  while (!changed_.wait_for(lock, std::chrono::milliseconds(20),
                            [&] { return !failure_.ok() || what(); })) {
    if (!IsInterrupted()) continue;
    lock.unlock();
    worker_->Stop();  // after the running step; no result comes any more
    return InterruptedStatus();
  }
  if (failure_.ok()) return absl::OkStatus();
  return WithExitCode(failure_, ExitCode::kWorkerLost);
}

absl::Status StepDriver::Submit(v1::StepPlan plan,
                                const std::function<void(const StepResult&)>* on_result) {
  if (IsInterrupted()) return InterruptedStatus();
  SWITCHYARD_RETURN_IF_ERROR(WaitFor([&] { return epoch_ != 0; }));
  if (needs_start_) {
    v1::SlotStart& start = *plan.add_starts();
    start.set_incarnation(++incarnation_);
    start.mutable_sampling()->set_seed(0);
    // Whoever drives counts tokens; the slot must not stop by itself.
    start.set_max_new_tokens(static_cast<uint32_t>(options_.max_context) + 1);
    start.set_num_prompt_tokens(0);
    v1::PageTableUpdate& table = *plan.add_page_tables();
    const int64_t num_pages =
        std::min<int64_t>(options_.num_pages,
                          (options_.max_context + kernels::kPageTokens - 1) / kernels::kPageTokens);
    for (int64_t page = 0; page < num_pages; ++page) table.add_pages(static_cast<uint32_t>(page));
    needs_start_ = false;
  }
  for (auto& chunk : *plan.mutable_prefill()) chunk.set_incarnation(incarnation_);
  for (auto& decode : *plan.mutable_decode()) decode.set_incarnation(incarnation_);
  {
    std::lock_guard lock(mutex_);
    plan.set_plan(++plan_);
    plan.set_epoch(epoch_);
    is_done_ = false;
    on_result_ = on_result;
  }
  return worker_->Submit(std::move(plan));
}

absl::Status StepDriver::Run(v1::StepPlan plan,
                             const std::function<void(const StepResult&)>& on_result) {
  absl::Status status = Submit(std::move(plan), &on_result);
  if (status.ok()) status = WaitFor([&] { return is_done_; });
  std::lock_guard lock(mutex_);
  on_result_ = nullptr;
  return status;
}

void StepDriver::Reset() {
  needs_start_ = true;
  position_ = 0;
}

absl::Status StepDriver::Prefill(absl::Span<const int32_t> token_ids, int chunk_tokens, bool sample,
                                 const LogitsCallback& on_logits) {
  chunk_tokens = std::min(chunk_tokens, options_.max_step_rows);
  for (size_t begin = 0; begin < token_ids.size(); begin += static_cast<size_t>(chunk_tokens)) {
    const auto piece = token_ids.subspan(begin, static_cast<size_t>(chunk_tokens));
    v1::StepPlan plan;
    plan.set_run_ahead(1);
    v1::PrefillChunk& chunk = *plan.add_prefill();
    chunk.set_first_position(static_cast<uint32_t>(position_));
    chunk.mutable_token_ids()->Add(piece.begin(), piece.end());
    chunk.set_return_all_logits(static_cast<bool>(on_logits));
    chunk.set_sample(sample && begin + piece.size() == token_ids.size());
    // Nobody looks at the other chunks: ranks of a layer split can work on several.
    if (!on_logits && begin + piece.size() < token_ids.size()) {
      SWITCHYARD_RETURN_IF_ERROR(Submit(std::move(plan), nullptr));
      position_ += static_cast<int64_t>(piece.size());
      continue;
    }
    absl::Status delivered;
    const auto take = [&](const StepResult& result) {
      if (!on_logits) return;
      const std::string& bytes = result.slots(0).logits();
      const auto* logits = reinterpret_cast<const float*>(bytes.data());
      const size_t vocab_size = bytes.size() / sizeof(float) / piece.size();
      for (size_t i = 0; i < piece.size() && delivered.ok(); ++i) {
        delivered = on_logits({logits + i * vocab_size, vocab_size});
      }
    };
    SWITCHYARD_RETURN_IF_ERROR(Run(std::move(plan), take));
    SWITCHYARD_RETURN_IF_ERROR(delivered);
    position_ += static_cast<int64_t>(piece.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> StepDriver::Decode(int count,
                                                        const ResultCallback& on_result) {
  v1::StepPlan plan;
  plan.set_run_ahead(static_cast<uint32_t>(count));
  plan.add_decode();
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(count));
  SWITCHYARD_RETURN_IF_ERROR(Run(std::move(plan), [&](const StepResult& result) {
    for (uint32_t id : result.slots(0).token_ids()) tokens.push_back(static_cast<int32_t>(id));
    if (on_result) on_result(result);
  }));
  if (static_cast<int>(tokens.size()) != count) {
    return ResourceExhausted("the context of {} tokens is full", options_.max_context);
  }
  position_ += count;
  return tokens;
}

}  // namespace switchyard::app
