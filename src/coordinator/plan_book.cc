#include "coordinator/plan_book.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/ledger_check.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

// A window of drafts has at most 15 provisional rows (PrefillChunk.num_provisional_rows): with the
// token that follows them no step brings more tokens for a slot.
constexpr int kMaxTokensPerStep = 16;
constexpr size_t kMaxErrorBytes = 4096;  // becomes part of an answer to a client

}  // namespace

PlanBook::PlanBook(const v1::WorkerSizes& sizes, int64_t vocab_size)
    : sizes_(sizes), vocab_size_(vocab_size), uses_(sizes.num_slots()) {}

void PlanBook::Clear() {
  plans_.clear();
  std::fill(uses_.begin(), uses_.end(), nullptr);
  last_plan_ = 0;
}

int64_t PlanBook::next_rows() const {
  if (plans_.empty()) return 0;
  const Plan& plan = plans_.front();
  return plan.next_step == 0 ? plan.first_rows : plan.decode_rows;
}

// ---- plans --------------------------------------------------------------------------------------

PlanBook::Part& PlanBook::PartOf(Plan& plan, uint32_t slot, uint64_t incarnation) const {
  const auto at = std::lower_bound(plan.parts.begin(), plan.parts.end(), slot,
                                   [](const Part& part, uint32_t s) { return part.slot < s; });
  if (at != plan.parts.end() && at->slot == slot) return *at;
  Part part;
  part.slot = slot;
  part.incarnation = incarnation;
  const std::shared_ptr<Use>& use = uses_[slot];
  if (use != nullptr && use->incarnation == incarnation) part.use = use;
  return *plan.parts.insert(at, part);
}

absl::Status PlanBook::Add(const v1::StepPlan& plan) {
  if (plan.plan() <= last_plan_) {
    return InvalidArgument("plan numbers must grow: plan, got: {}, last: {}", plan.plan(),
                           last_plan_);
  }
  if (plan.run_ahead() == 0) return InvalidArgument("plan runs no step: run_ahead, got: 0");
  const auto is_known = [&](const auto& list) {
    return std::all_of(list.begin(), list.end(),
                       [&](const auto& item) { return item.slot() < sizes_.num_slots(); });
  };
  if (!is_known(plan.starts()) || !is_known(plan.prefill()) || !is_known(plan.decode())) {
    return InvalidArgument("plan names a slot that there is not: there are: {}",
                           sizes_.num_slots());
  }
  for (const v1::SlotStart& start : plan.starts()) {
    uses_[start.slot()] = std::make_shared<Use>(
        Use{.incarnation = start.incarnation(),
            .return_logits = start.return_logits(),
            .num_logprobs = start.has_num_logprobs() ? int64_t{start.num_logprobs()} : -1,
            .num_tokens_left = start.max_new_tokens()});
  }
  Plan entry;
  entry.number = last_plan_ = plan.plan();
  entry.run_ahead = plan.run_ahead();
  for (const v1::PrefillChunk& chunk : plan.prefill()) {
    Part& part = PartOf(entry, chunk.slot(), chunk.incarnation());
    part.has_chunk = true;
    part.num_chunk_tokens = chunk.token_ids_size();
    part.chunk_end = int64_t{chunk.first_position()} + chunk.token_ids_size();
    part.sample = chunk.sample();
    part.return_all_logits = chunk.return_all_logits();
    entry.first_rows += chunk.token_ids_size();
  }
  for (const v1::DecodeSlot& decode : plan.decode()) {
    Part& part = PartOf(entry, decode.slot(), decode.incarnation());
    part.decodes = true;
    ++entry.decode_rows;
    if (!part.has_chunk) ++entry.first_rows;
  }
  plans_.push_back(std::move(entry));
  return absl::OkStatus();
}

// ---- results ------------------------------------------------------------------------------------

absl::Status PlanBook::Accept(const v1::StepResult& result) {
  if (plans_.empty()) return InvalidArgument("result without a plan: plan, got: {}", result.plan());
  Plan& plan = plans_.front();
  if (result.plan() != plan.number || result.step() != plan.next_step) {
    return InvalidArgument("result is out of order: plan and step, got: {} {}, wanted: {} {}",
                           result.plan(), result.step(), plan.number, plan.next_step);
  }
  if (!result.last_of_plan() && result.step() + 1 >= plan.run_ahead) {
    return InvalidArgument("plan has no further step: last_of_plan, plan: {}, steps: {}",
                           plan.number, plan.run_ahead);
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckLedger(result));
  std::vector<bool> seen(sizes_.num_slots());
  for (const v1::SlotResult& slot : result.slots()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckSlot(FindPart(plan, slot.slot()), result.step() == 0, slot));
    if (seen[slot.slot()]) {
      return InvalidArgument("result names a slot twice: slots.slot, got: {}", slot.slot());
    }
    seen[slot.slot()] = true;
  }
  for (const v1::SlotResult& slot : result.slots()) {
    const std::shared_ptr<Use>& use = FindPart(plan, slot.slot())->use;
    if (use == nullptr) continue;
    use->num_tokens_left -= slot.token_ids_size();
    use->has_stopped = slot.stop() != v1::SLOT_STOP_UNSPECIFIED;
  }
  ++plan.next_step;
  if (result.last_of_plan()) plans_.pop_front();
  return absl::OkStatus();
}

PlanBook::Part* PlanBook::FindPart(Plan& plan, uint32_t slot) {
  const auto part = std::find_if(plan.parts.begin(), plan.parts.end(),
                                 [&](const Part& p) { return p.slot == slot; });
  return part != plan.parts.end() ? &*part : nullptr;
}

absl::Status PlanBook::CheckSlot(const Part* part, bool is_first_step,
                                 const v1::SlotResult& result) const {
  const bool runs_chunk = part != nullptr && part->has_chunk && is_first_step;
  if (part == nullptr || part->incarnation != result.incarnation() ||
      (!runs_chunk && !part->decodes)) {
    return InvalidArgument("result is of a slot that the plan does not run: slots.slot, got: {}",
                           result.slot());
  }
  const bool may_sample = !runs_chunk || part->sample;
  if (result.token_ids_size() > (may_sample ? kMaxTokensPerStep : 0)) {
    return InvalidArgument("result has too many tokens: slots.token_ids, slot: {}, got: {}",
                           result.slot(), result.token_ids_size());
  }
  if (part->use != nullptr) SWITCHYARD_RETURN_IF_ERROR(CheckUse(*part->use, result));
  for (const uint32_t id : result.token_ids()) {
    if (int64_t{id} < vocab_size_) continue;
    return InvalidArgument("token id is outside the vocabulary: slots.token_ids, got: {}, size: {}",
                           id, vocab_size_);
  }
  const int64_t position = result.position();
  if (position > static_cast<int64_t>(sizes_.max_context()) ||
      (runs_chunk && position != part->chunk_end)) {
    return InvalidArgument("position is not that of the plan: slots.position, slot: {}, got: {}",
                           result.slot(), position);
  }
  if (int64_t{result.num_rows()} > (runs_chunk ? part->num_chunk_tokens : kMaxTokensPerStep)) {
    return InvalidArgument("result has too many rows: slots.num_rows, slot: {}, got: {}",
                           result.slot(), result.num_rows());
  }
  if (!v1::SlotStop_IsValid(result.stop())) {
    return InvalidArgument("reason is unknown: slots.stop, got: {}",
                           static_cast<int>(result.stop()));
  }
  if (result.error().size() > kMaxErrorBytes) {
    return InvalidArgument("text is too long: slots.error, got bytes: {}", result.error().size());
  }
  const int64_t num_logit_rows = runs_chunk && part->return_all_logits ? part->num_chunk_tokens
                                 : part->use != nullptr && part->use->return_logits && may_sample
                                     ? 1
                                     : 0;
  const int64_t logits_bytes = num_logit_rows * vocab_size_ * int64_t{sizeof(float)};
  if (!result.logits().empty() && static_cast<int64_t>(result.logits().size()) != logits_bytes) {
    return InvalidArgument("logits have another size: slots.logits, got bytes: {}, wanted: {}",
                           result.logits().size(), logits_bytes);
  }
  return CheckLogprobs(*part, result);
}

absl::Status PlanBook::CheckUse(const Use& use, const v1::SlotResult& result) {
  if (use.has_stopped) {
    return InvalidArgument("slot has stopped before: slots.slot, got: {}", result.slot());
  }
  if (result.token_ids_size() > use.num_tokens_left) {
    return InvalidArgument(
        "slot makes more tokens than it may: slots.token_ids, slot: {}, got: {}, left: {}",
        result.slot(), result.token_ids_size(), use.num_tokens_left);
  }
  return absl::OkStatus();
}

absl::Status PlanBook::CheckLogprobs(const Part& part, const v1::SlotResult& result) const {
  const int64_t num_logprobs = part.use != nullptr ? part.use->num_logprobs : -1;
  const int64_t num_tokens = result.token_ids_size();
  const int64_t num_own = num_logprobs >= 0 ? num_tokens : 0;
  const int64_t num_top = std::max<int64_t>(0, num_logprobs) * num_tokens;
  if (result.logprobs_size() != num_own || result.top_logprobs_size() != num_top) {
    return InvalidArgument(
        "log-probabilities are not those asked for: slots.logprobs, got: {} and {}, wanted: {} "
        "and {}",
        result.logprobs_size(), result.top_logprobs_size(), num_own, num_top);
  }
  const auto is_valid = [&](const v1::TokenLogprob& entry) {
    return int64_t{entry.token_id()} < vocab_size_ && !std::isnan(entry.logprob());
  };
  if (std::all_of(result.logprobs().begin(), result.logprobs().end(), is_valid) &&
      std::all_of(result.top_logprobs().begin(), result.top_logprobs().end(), is_valid)) {
    return absl::OkStatus();
  }
  return InvalidArgument("log-probability has no value or no token: slots.logprobs, slot: {}",
                         result.slot());
}

}  // namespace switchyard::coordinator
