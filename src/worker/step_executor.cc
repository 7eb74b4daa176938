#include "worker/step_executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "worker/weight_loader.h"

namespace switchyard::worker {
namespace {

bool HasChunk(const v1::StepPlan& plan, uint32_t slot) {
  return std::any_of(plan.prefill().begin(), plan.prefill().end(),
                     [&](const v1::PrefillChunk& chunk) { return chunk.slot() == slot; });
}

double Now() { return MonotonicClock::Get().NowSeconds(); }

}  // namespace

absl::StatusOr<std::unique_ptr<StepExecutor>> StepExecutor::Create(
    const model::GgufFile& file, const model::ModelSpec& spec,
    std::unique_ptr<kernels::Backend> backend, const WorkerOptions& options,
    const LoadProgress& progress) {
  SWITCHYARD_RETURN_IF_ERROR(CheckWorkerOptions(options, spec));
  std::unique_ptr<StepExecutor> executor(new StepExecutor(spec, options));
  SWITCHYARD_ASSIGN_OR_RETURN(
      executor->rank_, RankExecutor::Create(file, spec, std::move(backend), options, progress));
  SWITCHYARD_RETURN_IF_ERROR(executor->AllocateState());
  return executor;
}

absl::Status StepExecutor::AllocateState() {
  sampler_ = std::make_unique<Sampler>(spec_.vocab_size, options_.never_sampled);
  if (sampler_->num_choices() == 0) {
    return InvalidArgument("no token can be sampled: never_sampled");
  }
  const int64_t max_entries =
      (options_.max_context + kernels::kPageTokens - 1) / kernels::kPageTokens;
  const auto max_rows = static_cast<size_t>(options_.max_step_rows);
  slots_.resize(static_cast<size_t>(options_.num_slots));
  for (Slot& slot : slots_) {
    slot.pages.reserve(static_cast<size_t>(max_entries));
    slot.recent.reserve(rank_->num_context_tokens() + max_rows + kernels::kMaxProvisionalRows);
  }
  saved_.resize(static_cast<size_t>(options_.num_checkpoints));
  // Not initialised: rows that no step fills take no memory.
  host_logits_.reset(
      new float[static_cast<size_t>(kLogitRows) * static_cast<size_t>(spec_.vocab_size)]);
  limits_ = {.num_slots = options_.num_slots,
             .num_pages = options_.num_pages,
             .num_checkpoints = options_.num_checkpoints,
             .max_context = options_.max_context,
             .max_step_rows = options_.max_step_rows,
             .vocab_size = spec_.vocab_size,
             .num_choices = sampler_->num_choices(),
             .epoch = options_.epoch};
  return absl::OkStatus();
}

absl::Status StepExecutor::Reset(const WorkerOptions& options) {
  channel_.reset();
  ledgers_.reset();
  num_sent_steps_ = 0;
  changes_.Clear();
  ledger_.Reset();
  begin_seconds_ = 0;
  options_ = options;
  slots_.clear();
  saved_.clear();
  SWITCHYARD_RETURN_IF_ERROR(rank_->Reset(options));
  return AllocateState();
}

void StepExecutor::Join(comm::Communicator& ranks, comm::Communicator& control) {
  rank_->SetRanks(&ranks);
  const int own_rank = rank_->share().rank;
  channel_ = std::make_unique<StepChannel>(control, own_rank);
  ledgers_ = std::make_unique<RankLedgers>(ranks, own_rank);
}

// ---- between steps ----------------------------------------------------------------------------

void StepExecutor::StartSlot(const v1::SlotStart& start, bool is_restored) {
  Slot& slot = slots_[start.slot()];
  // A checkpoint overwrites the whole committed state.
  changes_.starts.push_back(
      {.slot = static_cast<int32_t>(start.slot()), .clears_state = is_restored ? 0 : 1});
  slot.incarnation = start.incarnation();
  slot.active = true;
  slot.stopped = false;
  slot.committed = 0;
  slot.num_pending = 0;
  slot.pages.clear();
  slot.recent.clear();
  slot.next_token.reset();
  absl::StatusOr<SamplingRule> rule = MakeSamplingRule(start.sampling(), spec_.vocab_size);
  SWITCHYARD_CHECK(rule.ok());  // the validator has asked
  slot.rule = *std::move(rule);
  slot.stop_token_ids.assign(start.stop_token_ids().begin(), start.stop_token_ids().end());
  slot.num_prompt_tokens = start.num_prompt_tokens();
  slot.max_new_tokens = start.max_new_tokens();
  slot.min_new_tokens = start.min_new_tokens();
  slot.num_sampled = 0;
  slot.return_logits = start.return_logits();
  slot.num_logprobs.reset();
  if (start.has_num_logprobs()) {
    slot.num_logprobs = static_cast<int>(start.num_logprobs());
    candidates_.reserve(start.num_logprobs());
  }
  if (!slot.rule.needs_counts()) return;
  slot.counts.Reset(spec_.vocab_size);
  int64_t position = 0;
  for (const uint32_t token_id : start.reused_token_ids()) {
    slot.CountToken(static_cast<int32_t>(token_id), position++);
  }
}

absl::Status StepExecutor::Begin(const v1::StepPlan& plan) {
  const double begin = Now();
  for (const v1::SlotOperation& operation : plan.operations()) {
    if (!operation.has_free()) continue;
    Slot& slot = slots_[operation.free().slot()];
    slot.active = false;
    slot.pages.clear();
  }
  for (const v1::SlotStart& start : plan.starts()) {
    const bool is_restored = std::any_of(
        plan.operations().begin(), plan.operations().end(), [&](const v1::SlotOperation& o) {
          return o.has_restore() && o.restore().slot() == start.slot();
        });
    StartSlot(start, is_restored);
  }
  for (const v1::SlotOperation& operation : plan.operations()) {
    if (!operation.has_restore()) continue;
    const v1::SlotOperation::Restore& restore = operation.restore();
    const int number = static_cast<int>(restore.slot());
    const int checkpoint = static_cast<int>(restore.checkpoint());
    const SavedSequence& saved = saved_[restore.checkpoint()];
    if (saved.position != static_cast<int64_t>(restore.position())) {
      return FailedPrecondition("checkpoint does not hold this position: {}, wanted: {}, holds: {}",
                                checkpoint, restore.position(), saved.position);
    }
    changes_.restores.push_back(
        {.slot = number, .checkpoint = checkpoint, .position = saved.position});
    Slot& slot = slots_[restore.slot()];
    slot.committed = saved.position;
    slot.num_pending = 0;
    slot.recent.assign(saved.recent.begin(), saved.recent.end());
    slot.next_token.reset();
  }
  for (const v1::PageTableUpdate& update : plan.page_tables()) {
    std::vector<int32_t>& pages = slots_[update.slot()].pages;
    const size_t first = update.first_entry();
    const size_t end = first + static_cast<size_t>(update.pages_size());
    if (pages.size() < end) pages.resize(end);
    std::copy(update.pages().begin(), update.pages().end(),
              pages.begin() + static_cast<int64_t>(first));
    changes_.page_updates.push_back({.slot = static_cast<int32_t>(update.slot()),
                                     .first_entry = static_cast<int32_t>(first),
                                     .num_pages = update.pages_size()});
    changes_.pages.insert(changes_.pages.end(), update.pages().begin(), update.pages().end());
  }
  begin_seconds_ = Now() - begin;
  ledger_[v1::STAGE_HOST].seconds += begin_seconds_;
  return absl::OkStatus();
}

bool StepExecutor::HasStepAfter(const v1::StepPlan& plan, uint32_t step) const {
  if (step + 1 >= plan.run_ahead()) return false;
  return std::any_of(plan.decode().begin(), plan.decode().end(), [&](const v1::DecodeSlot& decode) {
    const Slot& slot = slots_[decode.slot()];
    return slot.runs(decode.incarnation()) && slot.next_token.has_value();
  });
}

// ---- one step ---------------------------------------------------------------------------------

int32_t StepExecutor::NumCandidates(const Slot& slot, const Work& work, bool is_sampled) const {
  // A window's other rows are not looked at, unless somebody wants all.
  const bool wants_rows = work.chunk != nullptr && work.chunk->return_all_logits();
  if (wants_rows || slot.return_logits || slot.num_logprobs.has_value()) return 0;
  if (!is_sampled) return 1;
  const SamplingRule& rule = slot.rule;
  if (rule.needs_counts() || !rule.logit_bias.empty()) return 0;
  int64_t count = rule.greedy ? 1 : rule.top_k;
  if (count == 0) return 0;
  if (slot.num_sampled < slot.min_new_tokens) {
    count += static_cast<int64_t>(slot.stop_token_ids.size());  // are masked
  }
  return count <= kMaxCandidates ? static_cast<int32_t>(count) : 0;
}

bool StepExecutor::Part::has_slot(int slot) const {
  return std::any_of(work.begin(), work.end(), [&](const Work& w) { return w.slot == slot; });
}

bool StepExecutor::Part::samples(int slot) const {
  return std::any_of(work.begin(), work.end(),
                     [&](const Work& w) { return w.slot == slot && w.sample; });
}

void StepExecutor::AddRows(Work work, int64_t row_begin, int64_t first_position,
                           int64_t num_provisional, Part& part) {
  Slot& slot = slots_[static_cast<size_t>(work.slot)];
  StepHeader& header = part.header;
  StepHeader::Sequence sequence;
  sequence.slot = work.slot;
  sequence.row_begin = static_cast<int32_t>(row_begin);
  sequence.num_rows = static_cast<int32_t>(work.num_rows);
  sequence.first_position = first_position;
  sequence.num_replay = static_cast<int32_t>(first_position - slot.committed);
  sequence.num_committed = static_cast<int32_t>(work.num_rows - num_provisional);
  const size_t num_context = std::min(slot.recent.size(), rank_->num_context_tokens());
  sequence.num_context = static_cast<int32_t>(num_context);
  header.context_ids.insert(header.context_ids.end(),
                            slot.recent.end() - static_cast<int64_t>(num_context),
                            slot.recent.end());
  header.sequences.push_back(sequence);
  work.first_output = static_cast<int64_t>(header.output_rows.size());
  for (int64_t i = work.num_rows - work.num_outputs; i < work.num_rows; ++i) {
    header.output_rows.push_back(static_cast<int32_t>(row_begin + i));
    const bool is_sampled = work.sample && i + 1 == work.num_rows;
    header.num_candidates.push_back(NumCandidates(slot, work, is_sampled));
  }

  for (int64_t t = 0; t < work.num_rows; ++t) {
    const int32_t token_id = header.token_ids[static_cast<size_t>(row_begin + t)];
    slot.CountToken(token_id, first_position + t);
    slot.recent.push_back(token_id);
  }
  slot.TrimRecent(rank_->num_context_tokens() + kernels::kMaxProvisionalRows);
  slot.committed = first_position + sequence.num_committed;
  slot.num_pending = sequence.num_rows - sequence.num_committed;
  if (work.chunk != nullptr && work.chunk->has_save_checkpoint()) {
    header.saves.push_back({.slot = work.slot,
                            .checkpoint = static_cast<int32_t>(work.chunk->save_checkpoint()),
                            .position = slot.committed});
    part.saved.push_back({.position = slot.committed, .recent = slot.recent});
  }
  work.result->set_slot(static_cast<uint32_t>(work.slot));
  work.result->set_incarnation(slot.incarnation);
  work.result->set_num_rows(static_cast<uint32_t>(work.num_rows));
  work.result->set_position(static_cast<uint32_t>(slot.position()));
  part.work.push_back(work);
}

absl::Status StepExecutor::AddChunk(const v1::PrefillChunk& chunk, Part& part,
                                    v1::StepResult& result) {
  Slot& slot = slots_[chunk.slot()];
  if (!slot.runs(chunk.incarnation())) return absl::OkStatus();
  const int64_t first = chunk.first_position();
  if (first < slot.committed || first > slot.position()) {
    return FailedPrecondition(
        "chunk does not continue its sequence: slot {}, first position: {}, wanted: {} to {}",
        chunk.slot(), first, slot.committed, slot.position());
  }
  slot.RejectFrom(first);
  slot.next_token.reset();
  std::vector<int32_t>& ids = part.header.token_ids;
  const auto row_begin = static_cast<int64_t>(ids.size());
  ids.insert(ids.end(), chunk.token_ids().begin(), chunk.token_ids().end());
  Work work;
  work.slot = static_cast<int>(chunk.slot());
  work.chunk = &chunk;
  work.num_rows = chunk.token_ids_size();
  work.sample = chunk.sample();
  work.num_outputs = chunk.return_all_logits() ? work.num_rows : work.sample ? 1 : 0;
  work.result = result.add_slots();
  AddRows(work, row_begin, first, chunk.num_provisional_rows(), part);
  return absl::OkStatus();
}

void StepExecutor::AddDecode(const v1::DecodeSlot& decode, Part& part, v1::StepResult& result) {
  Slot& slot = slots_[decode.slot()];
  if (!slot.runs(decode.incarnation()) || !slot.next_token.has_value()) return;
  if (slot.position() >= static_cast<int64_t>(slot.pages.size()) * kernels::kPageTokens) {
    slot.stopped = true;
    v1::SlotResult& stopped = *result.add_slots();
    stopped.set_slot(decode.slot());
    stopped.set_incarnation(slot.incarnation);
    stopped.set_position(static_cast<uint32_t>(slot.position()));
    stopped.set_stop(v1::SLOT_STOP_CONTEXT);
    return;
  }
  const auto row_begin = static_cast<int64_t>(part.header.token_ids.size());
  part.header.token_ids.push_back(*slot.next_token);
  slot.next_token.reset();
  Work work;
  work.slot = static_cast<int>(decode.slot());
  work.num_rows = 1;
  work.num_outputs = 1;
  work.sample = true;
  work.result = result.add_slots();
  AddRows(work, row_begin, slot.position(), /*num_provisional=*/0, part);
}

bool StepExecutor::CanBegin(const v1::StepPlan& plan,
                            absl::Span<const Part* const> unfinished) const {
  const auto is_computed = [&](uint32_t slot) {
    return std::none_of(unfinished.begin(), unfinished.end(),
                        [&](const Part* part) { return part->has_slot(static_cast<int>(slot)); });
  };
  const auto is_known = [&](uint32_t slot) {
    return std::none_of(unfinished.begin(), unfinished.end(),
                        [&](const Part* part) { return part->samples(static_cast<int>(slot)); });
  };
  for (const v1::SlotOperation& operation : plan.operations()) {
    const uint32_t slot =
        operation.has_free() ? operation.free().slot() : operation.restore().slot();
    if (!is_computed(slot)) return false;
    // A checkpoint may be saved by a part that is still to be executed.
    if (operation.has_restore() && !unfinished.empty()) return false;
  }
  return std::all_of(plan.starts().begin(), plan.starts().end(),
                     [&](const v1::SlotStart& start) { return is_computed(start.slot()); }) &&
         std::all_of(plan.prefill().begin(), plan.prefill().end(),
                     [&](const v1::PrefillChunk& chunk) { return is_known(chunk.slot()); }) &&
         std::all_of(plan.decode().begin(), plan.decode().end(), [&](const v1::DecodeSlot& slot) {
           return HasChunk(plan, slot.slot()) || is_computed(slot.slot());
         });
}

void StepExecutor::ReportLogprobs(const Slot& slot, int32_t token_id,
                                  absl::Span<const float> logits, v1::SlotResult& result) {
  candidates_.resize(static_cast<size_t>(*slot.num_logprobs));
  Candidate own;
  sampler_->LogProbs(logits, token_id, own, absl::MakeSpan(candidates_));
  const auto fill = [](const Candidate& from, v1::TokenLogprob& to) {
    to.set_token_id(static_cast<uint32_t>(from.token_id));
    to.set_logprob(from.logprob);
  };
  fill(own, *result.add_logprobs());
  for (const Candidate& candidate : candidates_) fill(candidate, *result.add_top_logprobs());
}

void StepExecutor::SampleFor(Work& work, absl::Span<const float> logits) {
  Slot& slot = slots_[static_cast<size_t>(work.slot)];
  absl::Span<const int32_t> forbidden;
  if (slot.num_sampled < slot.min_new_tokens) forbidden = slot.stop_token_ids;
  const absl::StatusOr<int32_t> sampled =
      sampler_->Sample(logits, slot.rule, slot.rule.needs_counts() ? &slot.counts : nullptr,
                       slot.position(), forbidden);
  if (!sampled.ok()) {
    slot.stopped = true;
    work.result->set_stop(v1::SLOT_STOP_FAILED);
    work.result->set_error(std::string(Message(sampled.status())));
    return;
  }
  const int32_t token_id = *sampled;
  work.result->add_token_ids(static_cast<uint32_t>(token_id));
  if (slot.num_logprobs.has_value()) ReportLogprobs(slot, token_id, logits, *work.result);
  slot.next_token = token_id;
  ++slot.num_sampled;
  v1::SlotStop stop = v1::SLOT_STOP_UNSPECIFIED;
  const auto& stop_ids = slot.stop_token_ids;
  if (std::find(stop_ids.begin(), stop_ids.end(), token_id) != stop_ids.end()) {
    stop = v1::SLOT_STOP_TOKEN;
  } else if (slot.num_sampled >= slot.max_new_tokens) {
    stop = v1::SLOT_STOP_LENGTH;
  } else if (slot.position() + 1 >= options_.max_context) {
    stop = v1::SLOT_STOP_CONTEXT;  // with this token the sequence is as long as it may be
  }
  work.result->set_stop(stop);
  slot.stopped = stop != v1::SLOT_STOP_UNSPECIFIED;
}

void StepExecutor::FinishOutput(Work& work, int64_t output, absl::Span<const float> logits) {
  const Slot& slot = slots_[static_cast<size_t>(work.slot)];
  const bool is_last = output == work.first_output + work.num_outputs - 1;
  const bool wants_logits = (work.chunk != nullptr && work.chunk->return_all_logits()) ||
                            (work.sample && is_last && slot.return_logits);
  if (wants_logits) {
    work.result->mutable_logits()->append(reinterpret_cast<const char*>(logits.data()),
                                          logits.size() * sizeof(float));
  }
  if (work.sample && is_last) SampleFor(work, logits);
}

absl::Status StepExecutor::FinishOutputs(Part& part) {
  const auto vocab_size = static_cast<size_t>(spec_.vocab_size);
  const auto num_outputs = static_cast<int64_t>(part.header.output_rows.size());
  auto work = part.work.begin();
  for (int64_t first = 0; first < num_outputs; first += kLogitRows) {
    const int64_t count = std::min<int64_t>(kLogitRows, num_outputs - first);
    SWITCHYARD_ASSIGN_OR_RETURN(const MatrixView<const float> logits,
                                rank_->Logits(part.header, first, count, ledger_));
    rank_->backend().Download(ledger_[v1::STAGE_HEAD], logits.data,
                              count * static_cast<int64_t>(vocab_size * sizeof(float)),
                              host_logits_.get());
    const double start = Now();
    for (int64_t i = 0; i < count; ++i) {
      while (first + i >= work->first_output + work->num_outputs) ++work;
      const absl::Span<const float> row(&host_logits_[static_cast<size_t>(i) * vocab_size],
                                        vocab_size);
      FinishOutput(*work, first + i, row);
    }
    ledger_[v1::STAGE_SAMPLE].seconds += Now() - start;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> StepExecutor::Prepare(const v1::StepPlan& plan, uint32_t step, int part,
                                           int num_parts, Part& to, v1::StepResult& result) {
  const double start = Now();
  to.header.Clear();
  to.work.clear();
  to.saved.clear();
  std::swap(to.header, changes_);
  if (step == 0 && part == 0) {
    for (const v1::PrefillChunk& chunk : plan.prefill()) {
      SWITCHYARD_RETURN_IF_ERROR(AddChunk(chunk, to, result));
    }
  }
  for (int i = part; i < plan.decode_size(); i += num_parts) {
    // A slot joins after its chunk was sampled.
    if (step == 0 && HasChunk(plan, plan.decode(i).slot())) continue;
    AddDecode(plan.decode(i), to, result);
  }
  const bool has_work = !to.header.is_empty();
  if (has_work && channel_ != nullptr) {
    to.header.epoch = options_.epoch;
    to.header.step = num_sent_steps_++;
    SWITCHYARD_RETURN_IF_ERROR(channel_->Send(to.header));
  }
  ledger_[v1::STAGE_HOST].seconds += Now() - start;
  return has_work;
}

absl::Status StepExecutor::Execute(Part& part) {
  SWITCHYARD_RETURN_IF_ERROR(rank_->Run(part.header, ledger_));
  SWITCHYARD_RETURN_IF_ERROR(FinishOutputs(part));
  for (size_t i = 0; i < part.saved.size(); ++i) {
    saved_[static_cast<size_t>(part.header.saves[i].checkpoint)] = std::move(part.saved[i]);
  }
  SWITCHYARD_RETURN_IF_ERROR(rank_->Finish(part.header, ledger_));
  return ledgers_ != nullptr ? ledgers_->Collect() : absl::OkStatus();
}

void StepExecutor::Report(double seconds, v1::StepResult& result) {
  if (ledgers_ != nullptr) {
    ledgers_->Close(ledger_, seconds, result.idle_seconds());
    ledgers_->Report(result);
  }
  result.set_seconds(seconds);
  ledger_.Report(seconds, result);
  ledger_.Reset();
}

absl::Status StepExecutor::RunStep(const v1::StepPlan& plan, uint32_t step,
                                   v1::StepResult& result) {
  const double start = Now() - (step == 0 ? begin_seconds_ : 0);
  result.Clear();
  result.set_plan(plan.plan());
  result.set_step(step);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_work, Prepare(plan, step, 0, 1, part_, result));
  if (has_work) SWITCHYARD_RETURN_IF_ERROR(Execute(part_));
  Report(Now() - start, result);
  return absl::OkStatus();
}

}  // namespace switchyard::worker
