#include "coordinator/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error_info.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/request_check.h"
#include "coordinator/sequence.h"
#include "coordinator/state_books.h"

namespace switchyard::coordinator {

namespace v1 = switchyard::worker::v1;

namespace {

// Plans that may be with the worker at once, at least: one runs, the next waits, so that a prompt's
// chunks follow each other without a pause.
constexpr int kLeastOutstandingPlans = 2;

// The engine's thread looks at the clock at least so often while a time limit runs; bounds what is
// handed to the system's wait.
constexpr double kMaxWaitSeconds = 3600;

// What a client is told to wait when the queue is full: a place is free as soon as any generation
// ends.
constexpr double kRetryAfterFullQueueSeconds = 1;

FinishReason ReasonFor(v1::SlotStop stop, bool limit_is_context) {
  switch (stop) {
    case v1::SLOT_STOP_TOKEN:
      return FinishReason::kStopToken;
    case v1::SLOT_STOP_LENGTH:
      return limit_is_context ? FinishReason::kContextFull : FinishReason::kMaxTokens;
    case v1::SLOT_STOP_FAILED:
      return FinishReason::kFailed;
    default:
      return FinishReason::kContextFull;
  }
}

}  // namespace

class Engine::Impl : private WorkerEvents {
 public:
  Impl(std::unique_ptr<WorkerHandle> worker, const model::Tokenizer& tokenizer,
       const EngineOptions& options)
      : worker_(std::move(worker)),
        capacity_(worker_->capacity()),
        tokenizer_(tokenizer),
        options_(options),
        limits_{capacity_.max_context, tokenizer.vocab_size(),
                static_cast<int64_t>(capacity_.num_pages) * kPageTokens},
        books_(capacity_, limits_, tokenizer) {
    options_.scheduler.max_step_rows =
        std::min(options_.scheduler.max_step_rows, capacity_.max_step_rows);
    seeds_.seed(std::random_device{}());
    PublishStats();
    thread_ = std::thread([this] { Run(); });
    worker_->Start(*this);
  }

  ~Impl() override {
    Post(StopMessage{});
    thread_.join();
    worker_->Stop();
  }

  absl::StatusOr<uint64_t> Start(GenerationRequest request, EventCallback callback) {
    SWITCHYARD_RETURN_IF_ERROR(CheckRequest(request, limits_));
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (num_queued_ >= options_.max_waiting) {
      return WithRetryAfter(WithReason(ResourceExhausted("too many generations are waiting: {}",
                                                         options_.max_waiting),
                                       kQueueFull),
                            kRetryAfterFullQueueSeconds);
    }
    // Every generation without a seed gets one of its own, so that no two give the same text.
    if (!request.sampling.has_seed()) request.sampling.set_seed(seeds_());
    const uint64_t id = ++last_id_;
    ++num_queued_;
    inbox_.push_back(StartMessage{id, std::move(request), std::move(callback), Now()});
    wake_.notify_one();
    return id;
  }

  void Cancel(uint64_t id) { Post(CancelMessage{id}); }

  EngineState state() const {
    std::lock_guard lock(mutex_);
    return stats_.state;
  }

  absl::Status failure() const {
    std::lock_guard lock(mutex_);
    return stats_.state == EngineState::kFailed ? failure_ : absl::OkStatus();
  }

  EngineStats stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
  }

  absl::Status CheckInvariants() {
    std::promise<absl::Status> answer;
    std::future<absl::Status> status = answer.get_future();
    Post(CheckMessage{&answer});
    return status.get();
  }

 private:
  struct StartMessage {
    uint64_t id;
    GenerationRequest request;
    EventCallback callback;
    double now_seconds;
  };
  struct CancelMessage {
    uint64_t id;
  };
  struct StopMessage {};
  struct ReadyMessage {
    uint64_t epoch;
  };
  struct LeavingMessage {};
  struct ResultMessage {
    v1::StepResult result;
    double now_seconds;  // when the step ended, not when this thread gets to it
  };
  struct LostMessage {
    // Text, not the status: what a status holds is shared between its copies, so that both threads
    // would free it.
    std::string cause;
    bool returns;
  };
  struct CheckMessage {
    std::promise<absl::Status>* answer;
  };
  using InboxMessage = std::variant<StartMessage, CancelMessage, ReadyMessage, LeavingMessage,
                                    ResultMessage, LostMessage, CheckMessage, StopMessage>;
  using SequencePtr = std::unique_ptr<Sequence>;

  template <typename T>
  void Post(T message) {
    std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(message));
    wake_.notify_one();
  }

  // ---- from the worker -------------------------------------------------------------------------

  void OnReady(uint64_t epoch) override { Post(ReadyMessage{epoch}); }
  void OnResult(const v1::StepResult& result) override { Post(ResultMessage{result, Now()}); }
  void OnLeaving() override { Post(LeavingMessage{}); }
  void OnLost(const absl::Status& status, bool returns) override {
    Post(LostMessage{std::string(Message(status)), returns});
  }

  // ---- the engine's thread -------------------------------------------------------------------

  void Run() {
    std::deque<InboxMessage> messages;
    while (!stopping_) {
      WaitForMessages(messages);
      for (InboxMessage& message : messages) {
        std::visit([this](auto& m) { Handle(m); }, message);
      }
      messages.clear();
      EndOverdue();
      if (!stopping_ && has_worker()) PlanNext();
      PublishStats();
    }
    FinishAll(FinishReason::kCancelled, absl::OkStatus());
    RefuseLateStarts(Unavailable("the engine is stopping"));
  }

  // Takes what has come, or nothing when the next time limit is over.
  void WaitForMessages(std::deque<InboxMessage>& messages) {
    const std::optional<double> deadline = NextDeadline();
    std::unique_lock lock(mutex_);
    const auto has_message = [&] { return !inbox_.empty(); };
    if (deadline) {
      const double seconds = std::clamp(*deadline - Now(), 0.0, kMaxWaitSeconds);
      wake_.wait_for(lock, std::chrono::duration<double>(seconds), has_message);
    } else {
      wake_.wait(lock, has_message);
    }
    messages.swap(inbox_);
  }

  void Handle(StartMessage& message) {
    auto sequence =
        std::make_unique<Sequence>(message.id, std::move(message.request),
                                   std::move(message.callback), tokenizer_, message.now_seconds);
    waiting_.push_back(std::move(sequence));
    const absl::Status failure = FailureNow();
    if (!failure.ok()) FinishWaiting(std::prev(waiting_.end()), FinishReason::kFailed, failure);
  }

  void Handle(CancelMessage& message) {
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      if ((*it)->id() != message.id) continue;
      FinishWaiting(it, FinishReason::kCancelled, absl::OkStatus());
      return;
    }
    for (const SequencePtr& sequence : running_) {
      if (sequence->id() != message.id) continue;
      Finish(*sequence, FinishReason::kCancelled, absl::OkStatus());
      return;
    }
  }

  void Handle(ReadyMessage& message) {
    if (counters_.state == EngineState::kFailed) return;
    if (has_worker()) LoseWorker(LossStatus("it began anew"));
    epoch_ = message.epoch;
    SetState(EngineState::kServing);
  }

  // What runs goes on; what would have to be started waits for another worker.
  void Handle(LeavingMessage&) {
    if (counters_.state != EngineState::kServing) return;
    is_leaving_ = true;
    SetState(EngineState::kRecovering);
  }

  void Handle(LostMessage& message) {
    if (counters_.state == EngineState::kFailed) return;
    ++counters_.num_losses;
    const absl::Status status = LossStatus(message.cause);
    if (!message.returns) {
      Fail(status);
      return;
    }
    // A worker that dies while it loads is still loading.
    if (counters_.state == EngineState::kServing) SetState(EngineState::kRecovering);
    LoseWorker(status);
  }

  void Handle(ResultMessage& message) {
    if (!has_worker()) return;  // after a failure of our own making
    const v1::StepResult& result = message.result;
    ++counters_.num_steps;
    if (result.plan() == last_plan_) newest_steps_left_ = newest_run_ahead_ - 1 - result.step();
    if (result.last_of_plan()) {
      --outstanding_plans_;
      if (result.plan() == last_plan_) newest_steps_left_ = 0;
    }
    StepCosts costs;
    costs.Add(result);
    counters_.costs += costs;
    for (const v1::SlotResult& slot_result : result.slots()) {
      if (slot_result.slot() >= static_cast<uint32_t>(books_.num_slots())) {
        Fail(LossStatus(fmt::format("it reports an unknown slot: {}", slot_result.slot())));
        return;
      }
      Sequence* sequence = books_.at(slot_result.slot());
      // Steps that were under way when a sequence ended still report it.
      if (sequence == nullptr || sequence->incarnation != slot_result.incarnation()) continue;
      sequence->AddCosts(costs);
      Deliver(*sequence, slot_result, message.now_seconds);
    }
  }

  void Handle(CheckMessage& message) {
    PublishStats();
    message.answer->set_value(CheckBooks());
  }

  void Handle(StopMessage&) { stopping_ = true; }

  // Hands a slot's part of a step to its generation, and ends it where that is due.
  void Deliver(Sequence& sequence, const v1::SlotResult& result, double now_seconds) {
    counters_.completion_tokens += result.token_ids_size();
    if (result.stop() == v1::SLOT_STOP_FAILED) {
      Finish(sequence, FinishReason::kFailed,
             Internal("the model gave no token: {}", result.error()));
      return;
    }
    if (result.token_ids().empty() && result.num_rows() > 0) {
      sequence.DeliverProgress(result.position(), now_seconds);
    }
    if (sequence.DeliverTokens(result, now_seconds)) {
      Finish(sequence, FinishReason::kStopSequence, absl::OkStatus());
    } else if (result.stop() != v1::SLOT_STOP_UNSPECIFIED) {
      Finish(sequence, ReasonFor(result.stop(), sequence.limit_is_context), absl::OkStatus());
    }
  }

  // ---- ends ------------------------------------------------------------------------------------

  void DeliverEnd(Sequence& sequence, FinishReason reason, const absl::Status& error) {
    GenerationEvent event = sequence.LastEvent(reason, error, Now());
    ++counters_.num_finished[static_cast<size_t>(event.reason)];
    PublishStats();  // what the callback asks for must already be true
    sequence.Deliver(std::move(event));
  }

  // Takes a running sequence out, gives back what it holds and delivers its last event.
  void Finish(Sequence& sequence, FinishReason reason, const absl::Status& error) {
    const auto it = std::find_if(running_.begin(), running_.end(),
                                 [&](const SequencePtr& s) { return s.get() == &sequence; });
    SWITCHYARD_CHECK(it != running_.end());
    const SequencePtr owned = std::move(*it);
    running_.erase(it);
    books_.Release(*owned);
    DeliverEnd(*owned, reason, error);
  }

  void FinishWaiting(std::deque<SequencePtr>::iterator it, FinishReason reason,
                     const absl::Status& error) {
    const SequencePtr sequence = TakeWaiting(it);
    DeliverEnd(*sequence, reason, error);
  }

  void FinishAll(FinishReason reason, const absl::Status& error) {
    while (!running_.empty()) Finish(*running_.front(), reason, error);
    while (!waiting_.empty()) FinishWaiting(waiting_.begin(), reason, error);
  }

  // Ends generations whose start arrived with or after the stop; from here on Start() fails.
  void RefuseLateStarts(const absl::Status& status) {
    std::deque<InboxMessage> messages;
    {
      std::lock_guard lock(mutex_);
      if (failure_.ok()) failure_ = status;
      messages.swap(inbox_);
    }
    for (InboxMessage& message : messages) {
      if (auto* start = std::get_if<StartMessage>(&message)) Handle(*start);
      if (auto* check = std::get_if<CheckMessage>(&message)) Handle(*check);
    }
  }

  // ---- time limits -----------------------------------------------------------------------------

  std::optional<double> NextDeadline() const {
    std::optional<double> next;
    const auto add = [&](const SequencePtr& sequence) {
      const std::optional<double> deadline = sequence->deadline_seconds();
      if (deadline && (!next || *deadline < *next)) next = deadline;
    };
    std::for_each(waiting_.begin(), waiting_.end(), add);
    std::for_each(running_.begin(), running_.end(), add);
    return next;
  }

  void EndOverdue() {
    const double now = Now();
    const auto is_overdue = [&](const SequencePtr& sequence) {
      const std::optional<double> deadline = sequence->deadline_seconds();
      return deadline && *deadline <= now;
    };
    while (true) {
      const auto it = std::find_if(running_.begin(), running_.end(), is_overdue);
      if (it == running_.end()) break;
      Finish(**it, FinishReason::kTimeLimit, absl::OkStatus());
    }
    while (true) {
      const auto it = std::find_if(waiting_.begin(), waiting_.end(), is_overdue);
      if (it == waiting_.end()) break;
      FinishWaiting(it, FinishReason::kTimeLimit, absl::OkStatus());
    }
  }

  // ---- losses ----------------------------------------------------------------------------------

  absl::Status LossStatus(std::string_view cause) const {
    return WithRetryAfter(WithReason(Unavailable("the worker was lost: {}", cause), kWorkerLost),
                          options_.retry_after_seconds);
  }

  // Nothing is left of what the worker held. Running sequences wait again, in their order and
  // before all others, or end.
  void LoseWorker(const absl::Status& status) {
    is_leaving_ = false;
    std::vector<SequencePtr> lost = std::exchange(running_, {});
    ForgetPlans();
    std::vector<SequencePtr> given_up;
    for (auto it = lost.rbegin(); it != lost.rend(); ++it) {
      (*it)->Lose();
      const bool replays = options_.on_worker_loss == OnWorkerLoss::kReplay &&
                           (*it)->num_losses() <= options_.max_replays;
      if (!replays) {
        given_up.push_back(std::move(*it));
        continue;
      }
      waiting_.push_front(std::move(*it));
      std::lock_guard lock(mutex_);
      ++num_queued_;
    }
    for (auto it = given_up.rbegin(); it != given_up.rend(); ++it) {
      DeliverEnd(**it, FinishReason::kFailed, status);
    }
  }

  void ForgetPlans() {
    books_.Clear();
    outstanding_plans_ = 0;
    newest_steps_left_ = 0;
  }

  // The worker is lost for good.
  void Fail(const absl::Status& status) {
    {
      std::lock_guard lock(mutex_);
      failure_ = status;
    }
    is_leaving_ = false;
    SetState(EngineState::kFailed);
    FinishAll(FinishReason::kFailed, status);
    ForgetPlans();
  }

  // Whether plans can be carried out.
  bool has_worker() const { return counters_.state == EngineState::kServing || is_leaving_; }

  void SetState(EngineState state) {
    if (counters_.state == state) return;
    counters_.state = state;
    PublishStats();
    if (options_.on_state_change) options_.on_state_change(state);
  }

  // ---- plans ----------------------------------------------------------------------------------

  // Moves waiting generations to free slots, first come first served.
  void AdmitWaiting(v1::StepPlan& plan) {
    while (!waiting_.empty() && books_.Admit(*waiting_.front(), plan)) {
      Sequence& sequence = *waiting_.front();
      running_.push_back(TakeWaiting(waiting_.begin()));
      if (sequence.num_losses() > 0) {
        ++counters_.num_replays;
      } else {
        counters_.cached_tokens += sequence.planned;
        if (sequence.request().reuse_prefix) {
          counters_.prefix_query_tokens += sequence.num_prompt_tokens();
        }
      }
      sequence.Admit(sequence.planned, Now());
    }
  }

  // Takes a sequence out of the queue.
  SequencePtr TakeWaiting(std::deque<SequencePtr>::iterator it) {
    SequencePtr sequence = std::move(*it);
    waiting_.erase(it);
    std::lock_guard lock(mutex_);
    --num_queued_;
    return sequence;
  }

  bool IsWorthAPlan(const v1::StepPlan& plan) const {
    if (plan.starts_size() + plan.operations_size() + plan.prefill_size() > 0) return true;
    return plan.decode_size() > 0 && newest_steps_left_ <= options_.run_ahead / 2;
  }

  void PlanNext() {
    while (outstanding_plans_ < max_outstanding_plans_) {
      v1::StepPlan plan;
      if (!is_leaving_) AdmitWaiting(plan);
      books_.AddFrees(plan);
      AddPrefill(plan);
      AddDecode(plan);
      if (!IsWorthAPlan(plan)) return;
      plan.set_plan(++last_plan_);
      plan.set_epoch(epoch_);
      newest_run_ahead_ = HasPrefillLeft() ? 1 : options_.run_ahead;
      newest_steps_left_ = newest_run_ahead_;
      plan.set_run_ahead(newest_run_ahead_);
      ++outstanding_plans_;
      ++counters_.num_plans;
      if (absl::Status status = worker_->Submit(std::move(plan)); !status.ok()) {
        Fail(LossStatus(fmt::format("it refused a plan: {}", Message(status))));
        return;
      }
    }
  }

  void AddPrefill(v1::StepPlan& plan) {
    std::vector<Sequence*> sequences;
    std::vector<PrefillState> states;
    int num_decoding = 0;
    for (const SequencePtr& sequence : running_) {
      if (sequence->state == SequenceState::kDecode) ++num_decoding;
      if (sequence->state != SequenceState::kPrefill) continue;
      sequences.push_back(sequence.get());
      states.push_back({sequence->planned, sequence->num_prompt_tokens(), sequence->num_tokens(),
                        sequence->checkpoint_positions});
    }
    for (const ScheduledChunk& chunk : SchedulePrefill(states, num_decoding, options_.scheduler)) {
      Sequence& sequence = *sequences[chunk.prefill_index];
      books_.AddChunk(sequence, chunk, plan);
      (sequence.num_losses() > 0 ? counters_.replayed_tokens : counters_.prompt_tokens) +=
          chunk.end - chunk.begin;
    }
  }

  void AddDecode(v1::StepPlan& plan) {
    for (const SequencePtr& sequence : running_) {
      if (sequence->state != SequenceState::kDecode) continue;
      v1::DecodeSlot& decode = *plan.add_decode();
      decode.set_slot(sequence->slot);
      decode.set_incarnation(sequence->incarnation);
    }
  }

  bool HasPrefillLeft() const {
    return std::any_of(running_.begin(), running_.end(), [](const SequencePtr& sequence) {
      return sequence->state == SequenceState::kPrefill;
    });
  }

  // ---- what other threads see -----------------------------------------------------------------

  absl::Status FailureNow() const {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  absl::Status CheckBooks() const {
    SWITCHYARD_RETURN_IF_ERROR(books_.CheckInvariants());
    int num_used = 0;
    for (int slot = 0; slot < books_.num_slots(); ++slot) {
      if (books_.at(static_cast<uint32_t>(slot)) != nullptr) ++num_used;
    }
    if (num_used != static_cast<int>(running_.size())) {
      return Internal("slots in use are not the running generations: {}, running: {}", num_used,
                      running_.size());
    }
    for (const SequencePtr& sequence : running_) {
      if (books_.at(sequence->slot) != sequence.get()) {
        return Internal("a running generation is not in its slot: {}", sequence->slot);
      }
    }
    for (const SequencePtr& sequence : waiting_) {
      if (!sequence->pages.empty()) return Internal("a waiting generation holds pages");
    }
    if (outstanding_plans_ < 0 ||
        outstanding_plans_ > (has_worker() ? max_outstanding_plans_ : 0)) {
      return Internal("plans are not accounted for: {}", outstanding_plans_);
    }
    return absl::OkStatus();
  }

  void PublishStats() {
    counters_.num_running = static_cast<int>(running_.size());
    counters_.num_waiting = static_cast<int>(waiting_.size());
    counters_.num_pages = books_.num_pages();
    counters_.num_free_pages = books_.num_free_pages();
    counters_.num_checkpoints = books_.num_checkpoints();
    counters_.slots.resize(static_cast<size_t>(books_.num_slots()));
    const double now = Now();
    for (size_t i = 0; i < counters_.slots.size(); ++i) {
      const Sequence* sequence = books_.at(static_cast<uint32_t>(i));
      counters_.slots[i] = sequence != nullptr ? sequence->Info(now) : SlotInfo{};
      counters_.slots[i].slot = static_cast<uint32_t>(i);
    }
    std::lock_guard lock(mutex_);
    stats_ = counters_;
  }

  double Now() const { return options_.clock->NowSeconds(); }

  std::unique_ptr<WorkerHandle> worker_;
  const WorkerCapacity capacity_;
  const model::Tokenizer& tokenizer_;
  EngineOptions options_;
  const RequestLimits limits_;

  // Shared between threads.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<InboxMessage> inbox_;
  absl::Status failure_;  // OK while generations can start
  EngineStats stats_;
  uint64_t last_id_ = 0;
  int num_queued_ = 0;  // in the inbox or waiting
  std::mt19937_64 seeds_;

  // The engine thread's own.
  StateBooks books_;
  std::deque<SequencePtr> waiting_;
  std::vector<SequencePtr> running_;  // in order of admission
  EngineStats counters_;
  uint64_t epoch_ = 0;
  uint64_t last_plan_ = 0;
  const int max_outstanding_plans_ = std::max(kLeastOutstandingPlans, capacity_.pipeline_depth);
  int outstanding_plans_ = 0;
  int newest_run_ahead_ = 0;
  int newest_steps_left_ = 0;
  bool is_leaving_ = false;  // the worker; in the state kRecovering
  bool stopping_ = false;

  std::thread thread_;
};

Engine::Engine(std::unique_ptr<WorkerHandle> worker, const model::Tokenizer& tokenizer,
               const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(worker), tokenizer, options)) {}

Engine::~Engine() = default;

absl::StatusOr<uint64_t> Engine::Start(GenerationRequest request, EventCallback callback) {
  return impl_->Start(std::move(request), std::move(callback));
}

void Engine::Cancel(uint64_t id) { impl_->Cancel(id); }

EngineState Engine::state() const { return impl_->state(); }

absl::Status Engine::failure() const { return impl_->failure(); }

EngineStats Engine::stats() const { return impl_->stats(); }

absl::Status Engine::CheckInvariants() { return impl_->CheckInvariants(); }

}  // namespace switchyard::coordinator
