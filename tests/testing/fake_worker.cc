#include "testing/fake_worker.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "coordinator/scheduler.h"

namespace switchyard::testing {

namespace v1 = switchyard::worker::v1;
using coordinator::kPageTokens;

FakeWorker::FakeWorker(const Options& options)
    : options_(options),
      slots_(options.capacity.num_slots),
      page_tokens_(options.capacity.num_pages, std::vector<int32_t>(kPageTokens, -1)) {}

FakeWorker::~FakeWorker() { Stop(); }

void FakeWorker::Start(coordinator::WorkerEvents& events) {
  events_ = &events;
  if (options_.ready_at_start) BecomeReady();
  thread_ = std::thread([this] { Run(); });
}

absl::Status FakeWorker::Submit(v1::StepPlan plan) {
  std::lock_guard lock(mutex_);
  if (!is_ready_ || plan.epoch() != epoch_) {
    if (plan.epoch() > epoch_) violations_.push_back("a plan of an epoch that was never announced");
    return absl::OkStatus();
  }
  plans_.push_back(std::move(plan));
  wake_.notify_one();
  return absl::OkStatus();
}

void FakeWorker::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

int32_t FakeWorker::NextToken(const Options& options, const std::vector<int32_t>& tokens) {
  uint64_t hash = 1469598103934665603u;
  for (int32_t token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 1099511628211u;
    hash ^= hash >> 29;
  }
  if (options.eos_period > 0 && hash % options.eos_period == 0) return options.eos;
  return options.first_token + static_cast<int32_t>((hash >> 20) % options.num_tokens);
}

void FakeWorker::Release() {
  std::lock_guard lock(mutex_);
  is_released_ = true;
  wake_.notify_one();
}

std::vector<std::string> FakeWorker::violations() const {
  std::lock_guard lock(mutex_);
  return violations_;
}

int64_t FakeWorker::num_computed_rows() const {
  std::lock_guard lock(mutex_);
  return num_computed_rows_;
}

int FakeWorker::num_saves() const {
  std::lock_guard lock(mutex_);
  return num_saves_;
}

void FakeWorker::Violate(std::string text) {
  std::lock_guard lock(mutex_);
  violations_.push_back(std::move(text));
}

void FakeWorker::Lose() {
  std::lock_guard lock(mutex_);
  lose_asked_ = true;
  wake_.notify_one();
}

void FakeWorker::Leave() {
  std::lock_guard lock(mutex_);
  leave_asked_ = true;
  wake_.notify_one();
}

void FakeWorker::TellLeaving(std::unique_lock<std::mutex>& lock) {
  if (!std::exchange(leave_asked_, false)) return;
  lock.unlock();
  events_->OnLeaving();
  lock.lock();
}

void FakeWorker::Return() {
  std::lock_guard lock(mutex_);
  return_asked_ = true;
  wake_.notify_one();
}

void FakeWorker::BecomeReady() {
  uint64_t epoch = 0;
  {
    std::lock_guard lock(mutex_);
    return_asked_ = false;
    is_ready_ = true;
    epoch = ++epoch_;
  }
  events_->OnReady(epoch);
}

void FakeWorker::LoseState() {
  {
    std::lock_guard lock(mutex_);
    is_ready_ = false;
    lose_asked_ = false;
    plans_.clear();
  }
  std::fill(slots_.begin(), slots_.end(), Slot{});
  checkpoints_.clear();
  for (auto& page : page_tokens_) std::fill(page.begin(), page.end(), -1);
  events_->OnLost(absl::UnavailableError("made to lose its state"), /*returns=*/true);
  if (options_.returns_by_itself) BecomeReady();
}

bool FakeWorker::TakePlan(v1::StepPlan& plan) {
  while (true) {
    bool lose = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] {
        return stopping_ || lose_asked_ || leave_asked_ || (!is_ready_ && return_asked_) ||
               !plans_.empty();
      });
      if (stopping_) return false;
      if (leave_asked_) {
        TellLeaving(lock);
        continue;
      }
      lose = lose_asked_;
      if (!lose && is_ready_) {
        plan = std::move(plans_.front());
        plans_.pop_front();
        return true;
      }
    }
    if (lose) {
      LoseState();
    } else {
      BecomeReady();
    }
  }
}

void FakeWorker::Run() {
  v1::StepPlan plan;
  while (TakePlan(plan)) {
    if (!RunPlan(plan)) return;
  }
}

bool FakeWorker::RunPlan(const v1::StepPlan& plan) {
  Apply(plan);
  for (int step = 0;; ++step) {
    {
      std::unique_lock lock(mutex_);
      const auto may_go_on = [&] {
        return stopping_ || lose_asked_ || is_released_ || num_steps_ != options_.hold_at_step;
      };
      do {
        wake_.wait(lock, [&] { return leave_asked_ || may_go_on(); });
        TellLeaving(lock);
      } while (!may_go_on());
    }
    v1::StepResult result;
    result.set_plan(plan.plan());
    result.set_step(step);
    RunStep(plan, step, result);
    AddCosts(step, result);
    bool last = step + 1 == static_cast<int>(plan.run_ahead()) || !AnySlotGoesOn(plan);
    int64_t number = 0;
    bool lose = false;
    {
      std::lock_guard lock(mutex_);
      last = last || stopping_ || !plans_.empty();
      number = num_steps_++;
      lose = lose_asked_;
    }
    if (number == options_.fail_at_step) {
      events_->OnLost(absl::InternalError("made to fail"), /*returns=*/false);
      return false;
    }
    const auto loss = options_.losses.find(number);
    result.set_last_of_plan(last);
    if (loss == options_.losses.end() || loss->second) events_->OnResult(result);
    if (loss != options_.losses.end() || lose) {
      LoseState();
      return true;
    }
    if (last) return true;
  }
}

void FakeWorker::AddCosts(int step, v1::StepResult& result) {
  const auto add = [&](v1::Stage stage, double seconds, uint64_t bytes) {
    v1::StageCost& cost = *result.add_costs();
    cost.set_stage(stage);
    cost.set_seconds(seconds);
    cost.set_weight_bytes(bytes);
  };
  add(v1::STAGE_EXPERTS_DEVICE, kStepSeconds / 2, kExpertBytes);
  add(v1::STAGE_HEAD, kStepSeconds / 4, kHeadBytes);
  result.set_seconds(kStepSeconds);
  if (step == 0) result.set_idle_seconds(kIdleSeconds);
}

void FakeWorker::Apply(const v1::StepPlan& plan) {
  if (plan.run_ahead() < 1) Violate("run_ahead is 0");
  for (const v1::SlotOperation& operation : plan.operations()) {
    if (operation.has_free()) slots_.at(operation.free().slot()) = Slot{};
  }
  for (const v1::SlotStart& start : plan.starts()) {
    Slot& slot = slots_.at(start.slot());
    if (start.incarnation() <= slot.incarnation) Violate("incarnation does not grow");
    if (!start.sampling().has_seed()) Violate("a slot starts without a seed");
    slot = Slot{};
    slot.in_use = true;
    slot.incarnation = start.incarnation();
    slot.start = start;
  }
  for (const v1::PageTableUpdate& update : plan.page_tables()) {
    std::vector<uint32_t>& pages = slots_.at(update.slot()).pages;
    pages.resize(std::max<size_t>(pages.size(), update.first_entry() + update.pages_size()));
    std::copy(update.pages().begin(), update.pages().end(), pages.begin() + update.first_entry());
  }
  for (const v1::SlotOperation& operation : plan.operations()) {
    if (!operation.has_restore()) continue;
    const auto& restore = operation.restore();
    const auto it = checkpoints_.find(restore.checkpoint());
    if (it == checkpoints_.end() || it->second.tokens.size() != restore.position()) {
      Violate(
          fmt::format("restore of checkpoint {} at {}", restore.checkpoint(), restore.position()));
      continue;
    }
    slots_.at(restore.slot()).tokens = it->second.tokens;
  }
}

void FakeWorker::Compute(Slot& slot, int32_t token) {
  const size_t position = slot.tokens.size();
  slot.tokens.push_back(token);
  {
    std::lock_guard lock(mutex_);
    ++num_computed_rows_;
  }
  if (position / kPageTokens >= slot.pages.size()) {
    Violate(fmt::format("no page for position {}", position));
    return;
  }
  page_tokens_.at(slot.pages[position / kPageTokens])[position % kPageTokens] = token;
}

namespace {

// The token has half of the probability, each of the ids from 0 on half of what is left.
void AddLogprobs(int32_t token, uint32_t num_top, v1::SlotResult& out) {
  constexpr float kLogHalf = -0.6931472f;
  v1::TokenLogprob& sampled = *out.add_logprobs();
  sampled.set_token_id(static_cast<uint32_t>(token));
  sampled.set_logprob(kLogHalf);
  for (uint32_t i = 0; i < num_top; ++i) {
    v1::TokenLogprob& top = *out.add_top_logprobs();
    top.set_token_id(i == 0 ? static_cast<uint32_t>(token) : i);
    top.set_logprob(static_cast<float>(i + 1) * kLogHalf);
  }
}

}  // namespace

void FakeWorker::Sample(uint32_t index, Slot& slot, v1::StepResult& result) {
  for (size_t t = 0; t < slot.tokens.size(); ++t) {
    if (page_tokens_.at(slot.pages[t / kPageTokens])[t % kPageTokens] != slot.tokens[t]) {
      Violate(fmt::format("slot {}: the page of position {} holds another token", index, t));
      break;
    }
  }
  v1::SlotResult& out = *result.add_slots();
  out.set_slot(index);
  out.set_incarnation(slot.incarnation);
  out.set_position(static_cast<uint32_t>(slot.tokens.size()));
  if (std::find(slot.tokens.begin(), slot.tokens.end(), options_.failing_token) !=
      slot.tokens.end()) {
    out.set_stop(v1::SLOT_STOP_FAILED);
    out.set_error("made to fail");
    slot.generating = false;
    return;
  }
  int32_t token = NextToken(options_, slot.tokens);
  if (token == options_.eos && slot.num_sampled < slot.start.min_new_tokens()) {
    token = options_.first_token;
  }
  slot.last_sampled = token;
  ++slot.num_sampled;
  out.add_token_ids(token);
  if (slot.start.has_num_logprobs()) AddLogprobs(token, slot.start.num_logprobs(), out);
  const auto& stops = slot.start.stop_token_ids();
  if (std::find(stops.begin(), stops.end(), static_cast<uint32_t>(token)) != stops.end()) {
    out.set_stop(v1::SLOT_STOP_TOKEN);
  } else if (slot.num_sampled == slot.start.max_new_tokens()) {
    out.set_stop(v1::SLOT_STOP_LENGTH);
  }
  slot.generating = out.stop() == v1::SLOT_STOP_UNSPECIFIED;
}

void FakeWorker::RunStep(const v1::StepPlan& plan, int step, v1::StepResult& result) {
  int num_rows = 0;
  for (const v1::DecodeSlot& decode : plan.decode()) {
    Slot& slot = slots_.at(decode.slot());
    if (slot.incarnation != decode.incarnation() || !slot.generating) continue;
    ++num_rows;
    Compute(slot, slot.last_sampled);
    Sample(decode.slot(), slot, result);
  }
  if (step > 0) return;
  for (const v1::PrefillChunk& chunk : plan.prefill()) {
    Slot& slot = slots_.at(chunk.slot());
    if (!slot.in_use || slot.incarnation != chunk.incarnation()) continue;
    if (chunk.first_position() != slot.tokens.size()) Violate("a chunk does not follow the last");
    num_rows += chunk.token_ids_size();
    for (uint32_t token : chunk.token_ids()) Compute(slot, static_cast<int32_t>(token));
    if (chunk.has_save_checkpoint()) {
      if (slot.tokens.size() % kPageTokens != 0) Violate("checkpoint inside a page");
      checkpoints_[chunk.save_checkpoint()] = {slot.tokens};
      std::lock_guard lock(mutex_);
      ++num_saves_;
    }
    if (chunk.sample()) {
      Sample(chunk.slot(), slot, result);
    } else {
      v1::SlotResult& out = *result.add_slots();
      out.set_slot(chunk.slot());
      out.set_incarnation(slot.incarnation);
      out.set_position(static_cast<uint32_t>(slot.tokens.size()));
      out.set_num_rows(static_cast<uint32_t>(chunk.token_ids_size()));
    }
  }
  if (num_rows > options_.capacity.max_step_rows) Violate("more rows than a step may have");
}

bool FakeWorker::AnySlotGoesOn(const v1::StepPlan& plan) const {
  return std::any_of(plan.decode().begin(), plan.decode().end(), [&](const v1::DecodeSlot& d) {
    const Slot& slot = slots_.at(d.slot());
    return slot.incarnation == d.incarnation() && slot.generating;
  });
}

}  // namespace switchyard::testing
