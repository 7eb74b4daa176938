#include "coordinator/state_books.h"

#include <algorithm>

#include "base/status.h"

namespace switchyard::coordinator {

namespace v1 = switchyard::worker::v1;

namespace {

int64_t PagesFor(int64_t num_tokens) { return (num_tokens + kPageTokens - 1) / kPageTokens; }

bool NeedsPromptCounts(const v1::SamplingParams& sampling) {
  return sampling.has_repetition_penalty() && sampling.repetition_penalty() != 1.0f;
}

}  // namespace

StateBooks::StateBooks(const WorkerCapacity& capacity, const RequestLimits& limits,
                       const model::Tokenizer& tokenizer)
    : limits_(limits),
      tokenizer_(tokenizer),
      num_checkpoint_numbers_(capacity.num_checkpoints),
      pages_(capacity.num_pages),
      prefixes_(capacity.num_checkpoints, pages_),
      slots_(static_cast<size_t>(capacity.num_slots), nullptr) {}

bool StateBooks::Admit(Sequence& sequence, v1::StepPlan& plan) {
  const auto slot = std::find(slots_.begin(), slots_.end(), nullptr);
  std::optional<PrefixIndex::Hit> hit;
  if (slot == slots_.end() || !TakePages(sequence, hit)) return false;
  sequence.slot = static_cast<uint32_t>(slot - slots_.begin());
  sequence.incarnation = ++last_incarnation_;
  sequence.state = SequenceState::kPrefill;
  *slot = &sequence;
  AddStart(sequence, hit, plan);
  return true;
}

int64_t StateBooks::NumObtainablePages() const {
  std::vector<bool> is_held(static_cast<size_t>(pages_.num_pages()));
  int64_t num_held = 0;
  for (const Sequence* sequence : slots_) {
    if (sequence == nullptr) continue;
    for (uint32_t page : sequence->pages) {
      if (!is_held[page]) ++num_held;
      is_held[page] = true;
    }
  }
  return pages_.num_pages() - num_held;
}

bool StateBooks::TakePages(Sequence& sequence, std::optional<PrefixIndex::Hit>& hit) {
  const GenerationRequest& request = sequence.request();
  const int64_t num_prompt = sequence.num_prompt_tokens();
  const int64_t room = std::min(limits_.max_context, limits_.max_sequence_tokens + 1) - num_prompt;
  sequence.limit_is_context = !request.max_tokens.has_value();
  sequence.max_new_tokens = static_cast<int>(request.max_tokens.value_or(room));

  // What was emitted is not looked up: a checkpoint behind the prompt's end belongs to somebody
  // whose prompt has these tokens, and whose state came from chunks of other sizes.
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
  if (request.reuse_prefix) {
    sequence.checkpoint_positions =
        CheckpointPositions(num_prompt, sequence.planned, request.message_borders);
  }
  return true;
}

void StateBooks::AddStart(const Sequence& sequence, const std::optional<PrefixIndex::Hit>& hit,
                          v1::StepPlan& plan) const {
  const GenerationRequest& request = sequence.request();
  const auto num_emitted = static_cast<int>(sequence.num_emitted());
  v1::SlotStart& start = *plan.add_starts();
  start.set_slot(sequence.slot);
  start.set_incarnation(sequence.incarnation);
  *start.mutable_sampling() = request.sampling;
  if (!request.ignore_eos) {
    for (int32_t id : tokenizer_.end_of_generation_ids()) start.add_stop_token_ids(id);
  }
  for (int32_t id : request.stop_token_ids) start.add_stop_token_ids(id);
  start.set_max_new_tokens(sequence.max_new_tokens - num_emitted);
  start.set_min_new_tokens(std::max(0, request.min_tokens - num_emitted));
  start.set_num_prompt_tokens(static_cast<uint32_t>(sequence.num_prompt_tokens()));
  start.set_return_logits(request.return_logits);
  if (request.num_logprobs) start.set_num_logprobs(*request.num_logprobs);
  if (hit) {
    auto& restore = *plan.add_operations()->mutable_restore();
    restore.set_slot(sequence.slot);
    restore.set_checkpoint(hit->checkpoint);
    restore.set_position(static_cast<uint32_t>(hit->position));
    if (NeedsPromptCounts(request.sampling)) {
      start.mutable_reused_token_ids()->Add(request.prompt.begin(),
                                            request.prompt.begin() + hit->position);
    }
  }
  v1::PageTableUpdate& table = *plan.add_page_tables();
  table.set_slot(sequence.slot);
  table.mutable_pages()->Add(sequence.pages.begin(), sequence.pages.end());
}

void StateBooks::Release(Sequence& sequence) {
  slots_[sequence.slot] = nullptr;
  slots_to_free_.push_back(sequence.slot);
  pages_.Release(sequence.pages);
  sequence.pages.clear();
}

void StateBooks::AddFrees(v1::StepPlan& plan) {
  for (uint32_t slot : slots_to_free_) {
    // A start on the slot ends its former use.
    if (slots_[slot] == nullptr) plan.add_operations()->mutable_free()->set_slot(slot);
  }
  slots_to_free_.clear();
}

void StateBooks::AddChunk(Sequence& sequence, const ScheduledChunk& scheduled, v1::StepPlan& plan) {
  const GenerationRequest& request = sequence.request();
  const absl::Span<const int32_t> tokens = sequence.Tokens(scheduled.begin, scheduled.end);
  v1::PrefillChunk& chunk = *plan.add_prefill();
  chunk.set_slot(sequence.slot);
  chunk.set_incarnation(sequence.incarnation);
  chunk.set_first_position(static_cast<uint32_t>(scheduled.begin));
  chunk.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  sequence.planned = scheduled.end;
  if (scheduled.end == sequence.num_tokens()) {
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

void StateBooks::Clear() {
  for (Sequence*& sequence : slots_) {
    if (sequence == nullptr) continue;
    pages_.Release(sequence->pages);
    sequence->pages.clear();
    sequence = nullptr;
  }
  slots_to_free_.clear();
  while (prefixes_.EvictOne()) {
  }
}

absl::Status StateBooks::CheckInvariants() const {
  std::vector<int> references(static_cast<size_t>(pages_.num_pages()));
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const Sequence* sequence = slots_[slot];
    if (sequence == nullptr) continue;
    if (sequence->slot != slot) {
      return Internal("a sequence is in another slot than it says: {}, says: {}", slot,
                      sequence->slot);
    }
    for (uint32_t page : sequence->pages) ++references[page];
  }
  prefixes_.CountReferences(references);
  int num_free = 0;
  for (size_t page = 0; page < references.size(); ++page) {
    if (references[page] == 0) ++num_free;
    const int counted = pages_.references(static_cast<uint32_t>(page));
    if (counted != references[page]) {
      return Internal("a page has other references than holders: {}, references: {}, holders: {}",
                      page, counted, references[page]);
    }
  }
  if (num_free != pages_.num_free()) {
    return Internal("pages are lost: free: {}, in the list: {}", num_free, pages_.num_free());
  }
  const int num_numbers = prefixes_.num_entries() + prefixes_.num_free_checkpoints();
  if (num_numbers != num_checkpoint_numbers_) {
    return Internal("checkpoints are lost: there are: {}, known: {}", num_checkpoint_numbers_,
                    num_numbers);
  }
  return absl::OkStatus();
}

}  // namespace switchyard::coordinator
