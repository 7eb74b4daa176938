#include "coordinator/engine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/page_pool.h"
#include "coordinator/prefix_index.h"
#include "coordinator/request_check.h"
#include "coordinator/sequence.h"

namespace switchyard::coordinator {

namespace v1 = switchyard::worker::v1;

namespace {

// Plans that may be with the worker at once: one runs, the next waits, so that a prompt's chunks
// follow each other without a pause.
constexpr int kMaxOutstandingPlans = 2;

int64_t PagesFor(int64_t num_tokens) { return (num_tokens + kPageTokens - 1) / kPageTokens; }

bool NeedsPromptCounts(const v1::SamplingParams& sampling) {
  return sampling.has_repetition_penalty() && sampling.repetition_penalty() != 1.0f;
}

FinishReason ReasonFor(v1::SlotStop stop, bool limit_is_context) {
  switch (stop) {
    case v1::SLOT_STOP_TOKEN:
      return FinishReason::kStopToken;
    case v1::SLOT_STOP_LENGTH:
      return limit_is_context ? FinishReason::kContextFull : FinishReason::kMaxTokens;
    default:
      return FinishReason::kContextFull;
  }
}

}  // namespace

class Engine::Impl {
 public:
  Impl(std::unique_ptr<WorkerHandle> worker, const model::Tokenizer& tokenizer,
       const EngineOptions& options)
      : worker_(std::move(worker)),
        capacity_(worker_->capacity()),
        tokenizer_(tokenizer),
        options_(options),
        limits_{capacity_.max_context, tokenizer.vocab_size(),
                static_cast<int64_t>(capacity_.num_pages) * kPageTokens},
        pages_(capacity_.num_pages),
        prefixes_(capacity_.num_checkpoints, pages_),
        slots_(capacity_.num_slots, nullptr) {
    options_.scheduler.max_step_rows =
        std::min(options_.scheduler.max_step_rows, capacity_.max_step_rows);
    seeds_.seed(std::random_device{}());
    PublishStats();
    worker_->Start([this](const v1::StepResult& result) { Post(ResultMessage{result, Now()}); });
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    Post(StopMessage{});
    thread_.join();
    worker_->Stop();
  }

  absl::StatusOr<uint64_t> Start(GenerationRequest request, EventCallback callback) {
    SWITCHYARD_RETURN_IF_ERROR(CheckRequest(request, limits_));
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (num_queued_ >= options_.max_waiting) {
      return ResourceExhausted("too many generations are waiting: {}", options_.max_waiting);
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

  EngineStats stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
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
  struct ResultMessage {
    v1::StepResult result;
    double now_seconds;  // when the step ended, not when this thread gets to it
  };
  using InboxMessage = std::variant<StartMessage, CancelMessage, ResultMessage, StopMessage>;
  using SequencePtr = std::unique_ptr<Sequence>;

  template <typename T>
  void Post(T message) {
    std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(message));
    wake_.notify_one();
  }

  // ---- the engine's thread -------------------------------------------------------------------

  void Run() {
    std::deque<InboxMessage> messages;
    while (!stopping_) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return !inbox_.empty(); });
        messages.swap(inbox_);
      }
      for (InboxMessage& message : messages) {
        std::visit([this](auto& m) { Handle(m); }, message);
      }
      messages.clear();
      if (!stopping_ && IsHealthy()) PlanNext();
      PublishStats();
    }
    FinishAll(FinishReason::kCancelled, "the engine is stopping");
    RefuseLateStarts(Unavailable("the engine is stopping"));
  }

  void Handle(StartMessage& message) {
    auto sequence =
        std::make_unique<Sequence>(message.id, std::move(message.request),
                                   std::move(message.callback), tokenizer_, message.now_seconds);
    waiting_.push_back(std::move(sequence));
    if (IsHealthy()) return;
    TakeWaiting(std::prev(waiting_.end()))
        ->DeliverFinished(FinishReason::kFailed, Message(failure_), Now());
  }

  void Handle(CancelMessage& message) {
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      if ((*it)->id() != message.id) continue;
      const SequencePtr sequence = TakeWaiting(it);
      PublishStats();
      sequence->DeliverFinished(FinishReason::kCancelled, "", Now());
      return;
    }
    for (const SequencePtr& sequence : running_) {
      if (sequence->id() != message.id) continue;
      Finish(*sequence, FinishReason::kCancelled, "");
      return;
    }
  }

  void Handle(ResultMessage& message) {
    const v1::StepResult& result = message.result;
    ++counters_.num_steps;
    if (result.plan() == last_plan_) newest_steps_left_ = newest_run_ahead_ - 1 - result.step();
    if (result.last_of_plan()) {
      --outstanding_plans_;
      if (result.plan() == last_plan_) newest_steps_left_ = 0;
    }
    if (!result.error().empty()) {
      Fail(Unavailable("the worker failed: {}", result.error()));
      return;
    }
    for (const v1::SlotResult& slot_result : result.slots()) {
      if (slot_result.slot() >= slots_.size()) {
        Fail(Unavailable("the worker failed: it reports an unknown slot: {}", slot_result.slot()));
        return;
      }
      Sequence* sequence = slots_[slot_result.slot()];
      // Steps that were under way when a sequence ended still report it.
      if (sequence == nullptr || sequence->incarnation != slot_result.incarnation()) continue;
      counters_.completion_tokens += slot_result.token_ids_size();
      if (slot_result.token_ids().empty() && slot_result.num_rows() > 0) {
        sequence->DeliverProgress(slot_result.position(), message.now_seconds);
      }
      if (sequence->DeliverTokens(slot_result, message.now_seconds)) {
        Finish(*sequence, FinishReason::kStopSequence, "");
      } else if (slot_result.stop() != v1::SLOT_STOP_UNSPECIFIED) {
        Finish(*sequence, ReasonFor(slot_result.stop(), sequence->limit_is_context), "");
      }
    }
  }

  void Handle(StopMessage&) { stopping_ = true; }

  // ---- ends ------------------------------------------------------------------------------------

  // Takes a running sequence out, gives back what it holds and delivers its last event.
  void Finish(Sequence& sequence, FinishReason reason, std::string_view error) {
    const auto it = std::find_if(running_.begin(), running_.end(),
                                 [&](const SequencePtr& s) { return s.get() == &sequence; });
    SWITCHYARD_CHECK(it != running_.end());
    const SequencePtr owned = std::move(*it);
    running_.erase(it);
    slots_[owned->slot] = nullptr;
    // Until the worker has seen this, steps under way may still write to the sequence's pages. The
    // plan that could give them to somebody else carries it first.
    slots_to_free_.push_back(owned->slot);
    pages_.Release(owned->pages);
    PublishStats();
    owned->DeliverFinished(reason, error, Now());
  }

  void FinishAll(FinishReason reason, std::string_view error) {
    while (!running_.empty()) Finish(*running_.front(), reason, error);
    while (!waiting_.empty()) {
      const SequencePtr sequence = TakeWaiting(waiting_.begin());
      PublishStats();
      sequence->DeliverFinished(reason, error, Now());
    }
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
    }
  }

  void Fail(const absl::Status& status) {
    {
      std::lock_guard lock(mutex_);
      failure_ = status;
    }
    FinishAll(FinishReason::kFailed, Message(status));
  }

  // ---- admission ------------------------------------------------------------------------------

  // Moves waiting generations to free slots, first come first served. All pages that a generation
  // can ever need are taken here, so that no step lacks memory later.
  void AdmitWaiting(v1::StepPlan& plan) {
    while (!waiting_.empty()) {
      const auto slot = std::find(slots_.begin(), slots_.end(), nullptr);
      if (slot == slots_.end() || !TakePages(*waiting_.front())) return;
      Sequence& sequence = *waiting_.front();
      sequence.slot = static_cast<uint32_t>(slot - slots_.begin());
      sequence.incarnation = ++last_incarnation_;
      sequence.state = SequenceState::kPrefill;
      *slot = &sequence;
      AddStart(sequence, plan);
      running_.push_back(TakeWaiting(waiting_.begin()));
      sequence.DeliverStarted(sequence.planned, Now());
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

  // Pages that no running sequence holds: free ones, and those of kept prefixes only.
  int64_t NumObtainablePages() const {
    std::vector<bool> is_held(static_cast<size_t>(pages_.num_pages()));
    int64_t num_held = 0;
    for (const SequencePtr& sequence : running_) {
      for (uint32_t page : sequence->pages) {
        if (!is_held[page]) ++num_held;
        is_held[page] = true;
      }
    }
    return pages_.num_pages() - num_held;
  }

  // Finds reusable state and takes the pages of the rest. False: not now, nothing is held.
  bool TakePages(Sequence& sequence) {
    const GenerationRequest& request = sequence.request();
    const int64_t num_prompt = sequence.num_prompt_tokens();
    const int64_t room =
        std::min(limits_.max_context, limits_.max_sequence_tokens + 1) - num_prompt;
    sequence.limit_is_context = !request.max_tokens.has_value();
    sequence.max_new_tokens = static_cast<int>(request.max_tokens.value_or(room));

    std::optional<PrefixIndex::Hit> hit;
    if (request.reuse_prefix) hit = prefixes_.Find(request.cache_salt, request.prompt);
    if (hit) sequence.pages = hit->pages;
    // The last sampled token is delivered but never computed.
    const int64_t wanted = PagesFor(num_prompt + sequence.max_new_tokens - 1) -
                           static_cast<int64_t>(sequence.pages.size());
    // Prefixes are given up only where that is enough. (Pages of the hit itself count as obtainable
    // although they are not: then the attempt below fails and costs some prefixes.)
    if (wanted <= NumObtainablePages()) {
      while (pages_.num_free() < wanted && prefixes_.EvictOne()) {
      }
    }
    const auto fresh = pages_.Allocate(static_cast<int>(wanted));
    if (!fresh) {
      pages_.Release(sequence.pages);
      sequence.pages.clear();
      return false;
    }
    sequence.pages.insert(sequence.pages.end(), fresh->begin(), fresh->end());
    sequence.planned = hit ? hit->position : 0;
    restore_checkpoint_ = hit ? std::optional(hit->checkpoint) : std::nullopt;
    if (request.reuse_prefix) {
      sequence.checkpoint_positions =
          CheckpointPositions(num_prompt, sequence.planned, request.message_borders);
    }
    return true;
  }

  void AddStart(Sequence& sequence, v1::StepPlan& plan) {
    const GenerationRequest& request = sequence.request();
    v1::SlotStart& start = *plan.add_starts();
    start.set_slot(sequence.slot);
    start.set_incarnation(sequence.incarnation);
    *start.mutable_sampling() = request.sampling;
    if (!request.ignore_eos) {
      for (int32_t id : tokenizer_.end_of_generation_ids()) start.add_stop_token_ids(id);
    }
    for (int32_t id : request.stop_token_ids) start.add_stop_token_ids(id);
    start.set_max_new_tokens(sequence.max_new_tokens);
    start.set_num_prompt_tokens(static_cast<uint32_t>(sequence.num_prompt_tokens()));
    start.set_return_logits(request.return_logits);
    if (request.num_logprobs) start.set_num_logprobs(*request.num_logprobs);
    if (restore_checkpoint_) {
      auto& restore = *plan.add_operations()->mutable_restore();
      restore.set_slot(sequence.slot);
      restore.set_checkpoint(*restore_checkpoint_);
      restore.set_position(static_cast<uint32_t>(sequence.planned));
      if (NeedsPromptCounts(request.sampling)) {
        start.mutable_reused_token_ids()->Add(request.prompt.begin(),
                                              request.prompt.begin() + sequence.planned);
      }
    }
    v1::PageTableUpdate& table = *plan.add_page_tables();
    table.set_slot(sequence.slot);
    table.mutable_pages()->Add(sequence.pages.begin(), sequence.pages.end());
    counters_.cached_tokens += sequence.planned;
  }

  // ---- plans ----------------------------------------------------------------------------------

  bool IsWorthAPlan(const v1::StepPlan& plan) const {
    if (plan.starts_size() + plan.operations_size() + plan.prefill_size() > 0) return true;
    return plan.decode_size() > 0 && newest_steps_left_ <= options_.run_ahead / 2;
  }

  void PlanNext() {
    while (outstanding_plans_ < kMaxOutstandingPlans) {
      v1::StepPlan plan;
      AdmitWaiting(plan);
      AddFrees(plan);
      AddPrefill(plan);
      AddDecode(plan);
      if (!IsWorthAPlan(plan)) return;
      plan.set_plan(++last_plan_);
      plan.set_epoch(capacity_.epoch);
      newest_run_ahead_ = HasPrefillLeft() ? 1 : options_.run_ahead;
      newest_steps_left_ = newest_run_ahead_;
      plan.set_run_ahead(newest_run_ahead_);
      slots_to_free_.clear();
      ++outstanding_plans_;
      ++counters_.num_plans;
      if (absl::Status status = worker_->Submit(std::move(plan)); !status.ok()) {
        Fail(status);
        return;
      }
    }
  }

  void AddFrees(v1::StepPlan& plan) {
    for (uint32_t slot : slots_to_free_) {
      // A start on the slot ends its former use.
      if (slots_[slot] == nullptr) plan.add_operations()->mutable_free()->set_slot(slot);
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
      states.push_back(
          {sequence->planned, sequence->num_prompt_tokens(), sequence->checkpoint_positions});
    }
    for (const ScheduledChunk& chunk : SchedulePrefill(states, num_decoding, options_.scheduler)) {
      AddChunk(*sequences[chunk.prefill_index], chunk, plan);
    }
  }

  void AddChunk(Sequence& sequence, const ScheduledChunk& scheduled, v1::StepPlan& plan) {
    const GenerationRequest& request = sequence.request();
    v1::PrefillChunk& chunk = *plan.add_prefill();
    chunk.set_slot(sequence.slot);
    chunk.set_incarnation(sequence.incarnation);
    chunk.set_first_position(static_cast<uint32_t>(scheduled.begin));
    chunk.mutable_token_ids()->Add(request.prompt.begin() + scheduled.begin,
                                   request.prompt.begin() + scheduled.end);
    sequence.planned = scheduled.end;
    counters_.prompt_tokens += scheduled.end - scheduled.begin;
    if (scheduled.end == sequence.num_prompt_tokens()) {
      chunk.set_sample(true);
      sequence.state = SequenceState::kDecode;
    } else if (std::binary_search(sequence.checkpoint_positions.begin(),
                                  sequence.checkpoint_positions.end(), scheduled.end)) {
      const absl::Span<const int32_t> prefix(request.prompt.data(), scheduled.end);
      if (prefixes_.Touch(request.cache_salt, prefix)) return;
      const absl::Span<const uint32_t> pages(sequence.pages.data(), scheduled.end / kPageTokens);
      if (const auto number = prefixes_.Insert(request.cache_salt, prefix, pages)) {
        chunk.set_save_checkpoint(*number);
      }
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

  bool IsHealthy() const {
    std::lock_guard lock(mutex_);
    return failure_.ok();
  }

  void PublishStats() {
    counters_.num_running = static_cast<int>(running_.size());
    counters_.num_waiting = static_cast<int>(waiting_.size());
    counters_.num_free_pages = pages_.num_free();
    counters_.num_checkpoints = prefixes_.num_entries();
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
  absl::Status failure_;  // OK while the worker works
  EngineStats stats_;
  uint64_t last_id_ = 0;
  int num_queued_ = 0;  // in the inbox or waiting
  std::mt19937_64 seeds_;

  // The engine thread's own.
  PagePool pages_;
  PrefixIndex prefixes_;
  std::vector<Sequence*> slots_;
  std::deque<SequencePtr> waiting_;
  std::vector<SequencePtr> running_;  // in order of admission
  std::vector<uint32_t> slots_to_free_;
  std::optional<uint32_t> restore_checkpoint_;  // of the sequence that is being admitted
  EngineStats counters_;
  uint64_t last_incarnation_ = 0;
  uint64_t last_plan_ = 0;
  int outstanding_plans_ = 0;
  int newest_run_ahead_ = 0;
  int newest_steps_left_ = 0;
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

EngineStats Engine::stats() const { return impl_->stats(); }

}  // namespace switchyard::coordinator
