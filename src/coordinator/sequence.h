// State of one generation inside the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/generator.h"
#include "coordinator/stop_matcher.h"
#include "model/detokenizer.h"
#include "model/tokenizer.h"

namespace switchyard::coordinator {

enum class SequenceState {
  kWaiting,  // has no slot yet
  kPrefill,  // part of the prompt is not in a plan yet
  kDecode,   // the whole prompt is planned; generates
};

// One generation from Start() to its last event. Plain bookkeeping: the engine decides.
class Sequence {
 public:
  Sequence(uint64_t id, GenerationRequest request, Generator::EventCallback callback,
           const model::Tokenizer& tokenizer, double now_seconds);

  uint64_t id() const { return id_; }
  const GenerationRequest& request() const { return request_; }
  int64_t num_prompt_tokens() const { return static_cast<int64_t>(request_.prompt.size()); }

  // Delivers the event that tells how much of the prompt was reused.
  void DeliverStarted(int64_t cached_tokens, double now_seconds);

  // Delivers how far the prompt is: `num_prefilled` of its tokens are computed or reused.
  void DeliverProgress(int64_t num_prefilled, double now_seconds);

  // Takes what a step sampled and delivers it. Returns true when a stop string ended the text; the
  // tokens after it are dropped.
  bool DeliverTokens(const switchyard::worker::v1::SlotResult& result, double now_seconds);

  // Delivers the last event, with text that was held back for a stop string or a half character.
  void DeliverFinished(FinishReason reason, std::string_view error, double now_seconds);

  // Set by the engine.
  SequenceState state = SequenceState::kWaiting;
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  int64_t planned = 0;  // tokens of the prompt that are in a checkpoint or in plans
  std::vector<int64_t> checkpoint_positions;
  std::vector<uint32_t> pages;
  int max_new_tokens = 0;
  bool limit_is_context = false;  // max_new_tokens stands for the context's end

 private:
  void Deliver(GenerationEvent event);
  Timings TimingsAt(double now_seconds) const;

  uint64_t id_;
  GenerationRequest request_;
  Generator::EventCallback callback_;
  model::Detokenizer detokenizer_;
  StopMatcher stop_matcher_;
  Usage usage_;
  int64_t num_prefilled_ = 0;
  double created_seconds_;
  std::optional<double> admitted_seconds_;
  double first_token_seconds_ = 0;
  double last_token_seconds_ = 0;
};

}  // namespace switchyard::coordinator
