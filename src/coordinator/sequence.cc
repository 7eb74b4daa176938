#include "coordinator/sequence.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace switchyard::coordinator {

namespace v1 = switchyard::worker::v1;

Sequence::Sequence(uint64_t id, GenerationRequest request, Generator::EventCallback callback,
                   const model::Tokenizer& tokenizer, double now_seconds)
    : id_(id),
      request_(std::move(request)),
      callback_(std::move(callback)),
      detokenizer_(tokenizer),
      stop_matcher_(request_.stop),
      created_seconds_(now_seconds) {
  usage_.prompt_tokens = static_cast<int>(request_.prompt.size());
}

absl::Span<const int32_t> Sequence::Tokens(int64_t begin, int64_t end) const {
  const int64_t num_prompt = num_prompt_tokens();
  SWITCHYARD_CHECK(end <= num_prompt || begin >= num_prompt);
  const auto length = static_cast<size_t>(end - begin);
  return begin < num_prompt ? absl::MakeConstSpan(request_.prompt).subspan(begin, length)
                            : absl::MakeConstSpan(emitted_).subspan(begin - num_prompt, length);
}

std::optional<double> Sequence::deadline_seconds() const {
  if (!request_.time_limit_seconds) return std::nullopt;
  return created_seconds_ + *request_.time_limit_seconds;
}

SlotInfo Sequence::Info(double now_seconds) const {
  SlotInfo info;
  info.slot = slot;
  info.generation_id = id_;
  info.state = state;
  info.prompt_tokens = usage_.prompt_tokens;
  info.num_prefilled = num_prefilled_;
  info.completion_tokens = usage_.completion_tokens;
  const double seconds = now_seconds - first_token_seconds_;
  if (usage_.completion_tokens > 1 && seconds > 0) {
    info.decode_per_second = (usage_.completion_tokens - 1) / seconds;
  }
  return info;
}

void Sequence::Lose() {
  ++num_losses_;
  state = SequenceState::kWaiting;
  planned = 0;
  checkpoint_positions.clear();
}

void Sequence::AddCosts(const StepCosts& step) {
  StepCosts own = step;
  if (costs_.num_steps == 0) own.idle_seconds = 0;  // the worker did not wait for this generation
  costs_ += own;
  if (request_.return_step_costs) step_costs_ += own;
}

void Sequence::Admit(int64_t cached_tokens, double now_seconds) {
  if (num_losses_ > 0) ++num_replays_;
  if (emitted_.empty()) num_prefilled_ = cached_tokens;
  if (admitted_seconds_) return;
  admitted_seconds_ = now_seconds;
  usage_.cached_tokens = static_cast<int>(cached_tokens);
  GenerationEvent event;
  event.started = true;
  event.timings = TimingsAt(now_seconds);
  Deliver(std::move(event));
}

void Sequence::DeliverProgress(int64_t num_prefilled, double now_seconds) {
  if (!emitted_.empty()) return;
  num_prefilled_ = num_prefilled;
  GenerationEvent event;
  event.timings = TimingsAt(now_seconds);
  Deliver(std::move(event));
}

bool Sequence::DeliverTokens(const v1::SlotResult& result, double now_seconds) {
  if (result.token_ids().empty()) return false;
  const bool ends_with_stop_token = result.stop() == v1::SLOT_STOP_TOKEN;
  num_prefilled_ = num_prompt_tokens();
  if (usage_.completion_tokens == 0) first_token_seconds_ = now_seconds;
  last_token_seconds_ = now_seconds;

  GenerationEvent event;
  const int num_tokens = result.token_ids_size();
  const int num_top = result.logprobs_size() > 0 ? result.top_logprobs_size() / num_tokens : 0;
  for (int i = 0; i < num_tokens && !stop_matcher_.has_match(); ++i) {
    const auto token_id = static_cast<int32_t>(result.token_ids(i));
    event.token_ids.push_back(token_id);
    emitted_.push_back(token_id);
    ++usage_.completion_tokens;
    if (i < result.logprobs_size()) {
      TokenInfo& info = event.logprobs.emplace_back();
      info.token_id = token_id;
      info.logprob = result.logprobs(i).logprob();
      for (int j = i * num_top; j < (i + 1) * num_top; ++j) {
        const v1::TokenLogprob& top = result.top_logprobs(j);
        info.top.emplace_back(static_cast<int32_t>(top.token_id()), top.logprob());
      }
    }
    // The token that ends the generation is reported but is not part of the text.
    if (ends_with_stop_token && i == num_tokens - 1) break;
    event.text += stop_matcher_.Push(detokenizer_.Push(token_id));
  }
  if (!result.logits().empty()) {
    event.logits.resize(result.logits().size() / sizeof(float));
    std::memcpy(event.logits.data(), result.logits().data(), event.logits.size() * sizeof(float));
  }
  event.timings = TimingsAt(now_seconds);
  Deliver(std::move(event));
  return stop_matcher_.has_match();
}

GenerationEvent Sequence::LastEvent(FinishReason reason, const absl::Status& error,
                                    double now_seconds) {
  GenerationEvent event;
  event.finished = true;
  event.reason = reason;
  if (!stop_matcher_.has_match()) {
    // Bytes of an unfinished character and text held for a stop string belong to the answer.
    event.text = stop_matcher_.Push(detokenizer_.Flush());
    if (stop_matcher_.has_match() && error.ok()) event.reason = FinishReason::kStopSequence;
    event.text += stop_matcher_.Flush();
  }
  event.stop_sequence = stop_matcher_.matched();
  event.error = error;
  event.replayed = num_replays_ > 0;
  event.num_replays = num_replays_;
  event.timings = TimingsAt(now_seconds);
  event.costs = costs_;
  return event;
}

void Sequence::Deliver(GenerationEvent event) {
  event.usage = usage_;
  event.num_prefilled = num_prefilled_;
  if (!event.finished) event.costs = std::exchange(step_costs_, {});
  callback_(event);
}

Timings Sequence::TimingsAt(double now_seconds) const {
  Timings timings;
  timings.total_seconds = now_seconds - created_seconds_;
  if (!admitted_seconds_) {
    timings.queue_seconds = now_seconds - created_seconds_;
    return timings;
  }
  timings.queue_seconds = *admitted_seconds_ - created_seconds_;
  const bool has_token = usage_.completion_tokens > 0;
  timings.prefill_seconds = (has_token ? first_token_seconds_ : now_seconds) - *admitted_seconds_;
  if (has_token) {
    timings.ttft_seconds = first_token_seconds_ - created_seconds_;
    timings.decode_seconds = last_token_seconds_ - first_token_seconds_;
  }
  return timings;
}

}  // namespace switchyard::coordinator
