// State of one generation inside the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "coordinator/generator.h"
#include "coordinator/slot_info.h"
#include "coordinator/stop_matcher.h"
#include "model/detokenizer.h"
#include "model/tokenizer.h"

namespace switchyard::coordinator {

// One generation from Start() to its last event. Plain bookkeeping: the engine decides.
//
// All that a generation needs to go on after its worker was lost is here: what was emitted, and the
// state of the text that was delivered.
class Sequence {
 public:
  Sequence(uint64_t id, GenerationRequest request, Generator::EventCallback callback,
           const model::Tokenizer& tokenizer, double now_seconds);

  uint64_t id() const { return id_; }
  const GenerationRequest& request() const { return request_; }
  int64_t num_prompt_tokens() const { return static_cast<int64_t>(request_.prompt.size()); }
  int64_t num_emitted() const { return static_cast<int64_t>(emitted_.size()); }
  // Prompt and emitted tokens: what a worker must have computed to sample the next one.
  int64_t num_tokens() const { return num_prompt_tokens() + num_emitted(); }
  // Tokens [begin, end) of those. REQUIRES: all in the prompt, or none.
  absl::Span<const int32_t> Tokens(int64_t begin, int64_t end) const;
  // When its time is over, on the engine's clock; absent = never.
  std::optional<double> deadline_seconds() const;
  int num_losses() const { return num_losses_; }
  SlotInfo Info(double now_seconds) const;

  // The worker took the sequence in, with `cached_tokens` of it. The first time delivers the event
  // that tells how much of the prompt was reused; later ones are replays, of which nothing is said.
  void Admit(int64_t cached_tokens, double now_seconds);

  // The worker that had it was lost: all but what was emitted must be computed again.
  void Lose();

  // Counts a step that the sequence took part in, to be delivered with the event that follows.
  void AddCosts(const StepCosts& step);

  // Delivers how far the prompt is: `num_prefilled` of its tokens are computed or reused. Says
  // nothing once a token was emitted.
  void DeliverProgress(int64_t num_prefilled, double now_seconds);

  // Takes what a step sampled and delivers it. Returns true when a stop string ended the text; the
  // tokens after it are dropped.
  bool DeliverTokens(const switchyard::worker::v1::SlotResult& result, double now_seconds);

  // Makes the last event, with text that was held back for a stop string or a half character; it
  // has another reason if that text completes a stop string.
  GenerationEvent LastEvent(FinishReason reason, const absl::Status& error, double now_seconds);

  // Calls the callback.
  void Deliver(GenerationEvent event);

  // Set by the engine.
  SequenceState state = SequenceState::kWaiting;
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  int64_t planned = 0;  // of its tokens, those that are in a checkpoint or in plans
  std::vector<int64_t> checkpoint_positions;
  std::vector<uint32_t> pages;
  int max_new_tokens = 0;         // of the whole generation
  bool limit_is_context = false;  // max_new_tokens stands for the context's end

 private:
  Timings TimingsAt(double now_seconds) const;

  uint64_t id_;
  GenerationRequest request_;
  Generator::EventCallback callback_;
  model::Detokenizer detokenizer_;
  StopMatcher stop_matcher_;
  std::vector<int32_t> emitted_;
  Usage usage_;
  StepCosts costs_;
  StepCosts step_costs_;  // since the last event
  int num_losses_ = 0;
  int num_replays_ = 0;
  int64_t num_prefilled_ = 0;
  double created_seconds_;
  std::optional<double> admitted_seconds_;
  double first_token_seconds_ = 0;
  double last_token_seconds_ = 0;
};

}  // namespace switchyard::coordinator
