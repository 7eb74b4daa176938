#include "worker/plan_validator.h"

#include <algorithm>

#include "base/status.h"
#include "base/status_macros.h"
#include "kernels/stage_types.h"
#include "worker/sampler.h"

namespace switchyard::worker {
namespace {

// The number `value` of a thing of which there are `count`.
absl::Status CheckIndex(const char* field, uint64_t value, int64_t count) {
  if (value < static_cast<uint64_t>(count)) return absl::OkStatus();
  return InvalidArgument("plan names an unknown number: {}, got: {}, there are: {}", field, value,
                         count);
}

template <typename Ids>
absl::Status CheckTokens(const char* field, const Ids& ids, int64_t vocab_size) {
  for (const uint32_t id : ids) {
    if (static_cast<int64_t>(id) < vocab_size) continue;
    return InvalidArgument("token id is outside the vocabulary: {}, got: {}, size: {}", field, id,
                           vocab_size);
  }
  return absl::OkStatus();
}

absl::Status CheckOnce(const char* field, uint32_t slot, std::vector<uint8_t>& in_list) {
  if (in_list[slot] != 0)
    return InvalidArgument("plan names a slot twice: {}, slot: {}", field, slot);
  in_list[slot] = 1;
  return absl::OkStatus();
}

}  // namespace

PlanValidator::PlanValidator(const PlanLimits& limits)
    : limits_(limits),
      slots_(static_cast<size_t>(limits.num_slots)),
      checkpoints_(static_cast<size_t>(limits.num_checkpoints), -1),
      next_slots_(slots_),
      next_checkpoints_(checkpoints_),
      in_list_(slots_.size()) {}

absl::Status PlanValidator::Accept(const v1::StepPlan& plan) {
  if (plan.epoch() != limits_.epoch) {
    return InvalidArgument("plan is of another epoch: epoch, got: {}, wanted: {}", plan.epoch(),
                           limits_.epoch);
  }
  if (plan.plan() <= last_plan_) {
    return InvalidArgument("plan numbers must grow: plan, got: {}, last: {}", plan.plan(),
                           last_plan_);
  }
  if (plan.run_ahead() == 0) return InvalidArgument("plan runs no step: run_ahead, got: 0");
  next_slots_ = slots_;
  next_checkpoints_ = checkpoints_;
  SWITCHYARD_RETURN_IF_ERROR(ApplyFrees(plan));
  SWITCHYARD_RETURN_IF_ERROR(ApplyStarts(plan));
  SWITCHYARD_RETURN_IF_ERROR(ApplyRestores(plan));
  SWITCHYARD_RETURN_IF_ERROR(ApplyPageTables(plan));
  SWITCHYARD_RETURN_IF_ERROR(ApplyPrefill(plan));
  SWITCHYARD_RETURN_IF_ERROR(ApplyDecode(plan));
  SWITCHYARD_RETURN_IF_ERROR(CheckRows(plan));
  slots_.swap(next_slots_);
  checkpoints_.swap(next_checkpoints_);
  last_plan_ = plan.plan();
  return absl::OkStatus();
}

absl::Status PlanValidator::ApplyFrees(const v1::StepPlan& plan) {
  for (const v1::SlotOperation& operation : plan.operations()) {
    if (operation.operation_case() == v1::SlotOperation::OPERATION_NOT_SET) {
      return InvalidArgument("slot operation is empty: operations.operation");
    }
    if (!operation.has_free()) continue;
    const uint32_t number = operation.free().slot();
    SWITCHYARD_RETURN_IF_ERROR(CheckIndex("operations.free.slot", number, limits_.num_slots));
    next_slots_[number] = SlotView{.incarnation = next_slots_[number].incarnation};
  }
  return absl::OkStatus();
}

absl::Status PlanValidator::ApplyStarts(const v1::StepPlan& plan) {
  std::fill(in_list_.begin(), in_list_.end(), 0);
  for (const v1::SlotStart& start : plan.starts()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckIndex("starts.slot", start.slot(), limits_.num_slots));
    SWITCHYARD_RETURN_IF_ERROR(CheckOnce("starts.slot", start.slot(), in_list_));
    SlotView& slot = next_slots_[start.slot()];
    if (start.incarnation() <= slot.incarnation) {
      return InvalidArgument(
          "incarnation must grow: starts.incarnation, slot: {}, got: {}, last: {}", start.slot(),
          start.incarnation(), slot.incarnation);
    }
    if (start.max_new_tokens() == 0) {
      return InvalidArgument("slot may sample nothing: starts.max_new_tokens, slot: {}",
                             start.slot());
    }
    if (start.has_num_logprobs() &&
        static_cast<int64_t>(start.num_logprobs()) > limits_.num_choices) {
      return InvalidArgument("more log-probabilities than tokens: starts.num_logprobs, got: {}",
                             start.num_logprobs());
    }
    SWITCHYARD_RETURN_IF_ERROR(
        CheckTokens("starts.stop_token_ids", start.stop_token_ids(), limits_.vocab_size));
    SWITCHYARD_RETURN_IF_ERROR(
        CheckTokens("starts.reused_token_ids", start.reused_token_ids(), limits_.vocab_size));
    SWITCHYARD_RETURN_IF_ERROR(WithContext(
        MakeSamplingRule(start.sampling(), limits_.vocab_size).status(), "starts.sampling"));
    slot = SlotView{.incarnation = start.incarnation(), .active = true};
  }
  return absl::OkStatus();
}

absl::Status PlanValidator::ApplyRestores(const v1::StepPlan& plan) {
  for (const v1::SlotOperation& operation : plan.operations()) {
    if (!operation.has_restore()) continue;
    const v1::SlotOperation::Restore& restore = operation.restore();
    SWITCHYARD_RETURN_IF_ERROR(
        CheckIndex("operations.restore.slot", restore.slot(), limits_.num_slots));
    SWITCHYARD_RETURN_IF_ERROR(
        CheckIndex("operations.restore.checkpoint", restore.checkpoint(), limits_.num_checkpoints));
    SlotView& slot = next_slots_[restore.slot()];
    if (!slot.active) {
      return InvalidArgument("slot was not started: operations.restore.slot, got: {}",
                             restore.slot());
    }
    const int64_t saved = next_checkpoints_[restore.checkpoint()];
    if (saved != static_cast<int64_t>(restore.position())) {
      return InvalidArgument(
          "checkpoint does not hold this position: operations.restore.position, checkpoint: {}, "
          "got: {}, saved: {}",
          restore.checkpoint(), restore.position(), saved);
    }
    slot.sampled = false;
    slot.committed = slot.position = saved;
  }
  return absl::OkStatus();
}

absl::Status PlanValidator::ApplyPageTables(const v1::StepPlan& plan) {
  const int64_t max_entries =
      (limits_.max_context + kernels::kPageTokens - 1) / kernels::kPageTokens;
  for (const v1::PageTableUpdate& update : plan.page_tables()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckIndex("page_tables.slot", update.slot(), limits_.num_slots));
    SlotView& slot = next_slots_[update.slot()];
    const int64_t first = update.first_entry();
    const int64_t end = first + update.pages_size();
    if (first > slot.num_entries || end > max_entries) {
      return InvalidArgument(
          "page table entries do not fit: page_tables.first_entry, slot: {}, got: {} to {}, "
          "present: {}, at most: {}",
          update.slot(), first, end, slot.num_entries, max_entries);
    }
    for (const uint32_t page : update.pages()) {
      SWITCHYARD_RETURN_IF_ERROR(CheckIndex("page_tables.pages", page, limits_.num_pages));
    }
    slot.num_entries = std::max(slot.num_entries, end);
  }
  return absl::OkStatus();
}

absl::Status PlanValidator::ApplyPrefill(const v1::StepPlan& plan) {
  std::fill(in_list_.begin(), in_list_.end(), 0);
  for (const v1::PrefillChunk& chunk : plan.prefill()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckIndex("prefill.slot", chunk.slot(), limits_.num_slots));
    SWITCHYARD_RETURN_IF_ERROR(CheckOnce("prefill.slot", chunk.slot(), in_list_));
    SWITCHYARD_RETURN_IF_ERROR(WithContext(ApplyChunk(chunk, next_slots_[chunk.slot()]),
                                           fmt::format("slot {}", chunk.slot())));
  }
  return absl::OkStatus();
}

absl::Status PlanValidator::ApplyChunk(const v1::PrefillChunk& chunk, SlotView& slot) {
  SWITCHYARD_RETURN_IF_ERROR(
      CheckTokens("prefill.token_ids", chunk.token_ids(), limits_.vocab_size));
  const int64_t num_tokens = chunk.token_ids_size();
  const int64_t first = chunk.first_position();
  const int64_t end = first + num_tokens;
  const int64_t num_provisional = chunk.num_provisional_rows();
  if (num_tokens == 0) return InvalidArgument("chunk has no tokens: prefill.token_ids");
  if (num_provisional >= num_tokens || num_provisional > kernels::kMaxProvisionalRows) {
    return InvalidArgument(
        "too many provisional rows: prefill.num_provisional_rows, got: {}, tokens: {}, at most: {}",
        num_provisional, num_tokens, kernels::kMaxProvisionalRows);
  }
  if (end > limits_.max_context) {
    return InvalidArgument(
        "chunk exceeds the context: prefill.first_position, end: {}, context: {}", end,
        limits_.max_context);
  }
  if (chunk.has_save_checkpoint()) {
    SWITCHYARD_RETURN_IF_ERROR(
        CheckIndex("prefill.save_checkpoint", chunk.save_checkpoint(), limits_.num_checkpoints));
    if (end % kernels::kPageTokens != 0 || num_provisional != 0) {
      return InvalidArgument(
          "checkpoint is not at a page border: prefill.save_checkpoint, chunk end: {}, provisional "
          "rows: {}",
          end, num_provisional);
    }
  }
  if (chunk.incarnation() > slot.incarnation) {
    return InvalidArgument("incarnation was not started: prefill.incarnation, got: {}, last: {}",
                           chunk.incarnation(), slot.incarnation);
  }
  if (!slot.active || chunk.incarnation() < slot.incarnation) return absl::OkStatus();  // dropped
  if (slot.position && (first < *slot.committed || first > *slot.position)) {
    return InvalidArgument(
        "position is out of order: prefill.first_position, got: {}, wanted: {} to {}", first,
        *slot.committed, *slot.position);
  }
  if (end > slot.num_entries * kernels::kPageTokens) {
    return InvalidArgument("chunk has no pages: prefill.first_position, end: {}, pages: {}", end,
                           slot.num_entries);
  }
  slot.position = end;
  slot.committed = end - num_provisional;
  slot.sampled = chunk.sample();
  if (chunk.has_save_checkpoint()) next_checkpoints_[chunk.save_checkpoint()] = end;
  return absl::OkStatus();
}

absl::Status PlanValidator::ApplyDecode(const v1::StepPlan& plan) {
  std::fill(in_list_.begin(), in_list_.end(), 0);
  for (const v1::DecodeSlot& decode : plan.decode()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckIndex("decode.slot", decode.slot(), limits_.num_slots));
    SWITCHYARD_RETURN_IF_ERROR(CheckOnce("decode.slot", decode.slot(), in_list_));
    SlotView& slot = next_slots_[decode.slot()];
    if (decode.incarnation() > slot.incarnation) {
      return InvalidArgument("incarnation was not started: decode.incarnation, got: {}, last: {}",
                             decode.incarnation(), slot.incarnation);
    }
    if (!slot.active || decode.incarnation() < slot.incarnation) continue;  // a no-op
    if (!slot.sampled) {
      return InvalidArgument("slot has no token to go on from: decode.slot, got: {}",
                             decode.slot());
    }
    slot.position.reset();
    slot.committed.reset();
  }
  return absl::OkStatus();
}

absl::Status PlanValidator::CheckRows(const v1::StepPlan& plan) const {
  // in_list_ holds the decoding slots; one that is also in `prefill` has no row of its own in the
  // first step. The later steps have fewer rows than num_slots, which the worker's options allow.
  int64_t num_rows = plan.decode_size();
  for (const v1::PrefillChunk& chunk : plan.prefill()) {
    num_rows += chunk.token_ids_size() - (in_list_[chunk.slot()] != 0 ? 1 : 0);
  }
  if (num_rows <= limits_.max_step_rows) return absl::OkStatus();
  return InvalidArgument("step has too many rows: prefill.token_ids, got: {}, at most: {}",
                         num_rows, limits_.max_step_rows);
}

}  // namespace switchyard::worker
