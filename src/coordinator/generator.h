// Starting and cancelling generations: the face that commands and services use.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "switchyard/worker/v1/step.pb.h"

#include "coordinator/step_costs.h"

namespace switchyard::coordinator {

enum class FinishReason {
  kStopToken,     // an end token of the model, or one of stop_token_ids
  kStopSequence,  // a stop string
  kMaxTokens,     // max_tokens reached
  kContextFull,   // no max_tokens was given and the context is full
  kTimeLimit,     // time_limit_seconds are over
  kCancelled,
  kFailed,  // `error` says how
};
inline constexpr int kNumFinishReasons = static_cast<int>(FinishReason::kFailed) + 1;

// For logs and JSON: "stop_token", "max_tokens".
std::string_view Name(FinishReason reason);

// One generation, converted from whatever the client sent.
struct GenerationRequest {
  std::vector<int32_t> prompt;
  // Positions in `prompt` where messages end (ascending): good places for checkpoints. Without the
  // generation prompt, which the next turn will not contain.
  std::vector<int64_t> message_borders;
  switchyard::worker::v1::SamplingParams sampling;
  std::optional<int> max_tokens;  // absent = until the context is full
  // End tokens and stop_token_ids are not sampled before this many tokens exist.
  int min_tokens = 0;
  // Counted from Start(), also while waiting; the generation ends within one step of it.
  std::optional<double> time_limit_seconds;
  std::vector<std::string> stop;        // text that ends the generation and is not part of it
  std::vector<int32_t> stop_token_ids;  // in addition to the model's end tokens
  bool ignore_eos = false;              // generate through the model's end tokens
  bool reuse_prefix = true;
  std::string cache_salt;  // prefixes are shared only between equal salts
  std::optional<int> num_logprobs;
  bool return_logits = false;      // logits of the sampled positions; for tests
  bool return_step_costs = false;  // in every event the costs of its own step
};

struct Usage {
  int prompt_tokens = 0;
  int cached_tokens = 0;  // of the prompt, taken from a checkpoint
  int completion_tokens = 0;
};

// Seconds since Start(). Prefill speed is evaluated prompt tokens (without reused ones) by
// prefill_seconds; decode speed is (completion_tokens - 1) by decode_seconds, since the first token
// belongs to prefill.
struct Timings {
  double queue_seconds = 0;    // until the first chunk was planned
  double prefill_seconds = 0;  // from there to the first token
  double ttft_seconds = 0;
  double decode_seconds = 0;  // from the first token to the last
  double total_seconds = 0;   // until this event
};

struct TokenInfo {
  int32_t token_id = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // most likely first
};

// What a generation delivers, in order. Exactly one event with `finished` set, and it is the last.
struct GenerationEvent {
  std::string text;                // new text; always valid UTF-8
  std::vector<int32_t> token_ids;  // new tokens, also those that gave no text yet
  std::vector<TokenInfo> logprobs;
  std::vector<float> logits;  // [tokens, vocab_size] when asked for
  bool started = false;       // first event: usage.prompt_tokens and cached_tokens are known
  int64_t num_prefilled = 0;  // tokens of the prompt that are computed or reused so far
  bool finished = false;
  FinishReason reason = FinishReason::kCancelled;
  std::string stop_sequence;  // which one matched
  absl::Status error;         // OK unless kFailed; base/error_info.h reads its details
  bool replayed = false;      // part of the work was done again after the worker was lost
  int num_replays = 0;
  Usage usage;
  Timings timings;
  // Last event: all steps that the generation took part in, whole steps, whoever else was in them.
  StepCosts costs;
};

// Threads: any thread may call Start() and Cancel(). Events of one generation come from the
// engine's thread, one after the other, and must not block it.
class Generator {
 public:
  using EventCallback = std::function<void(const GenerationEvent&)>;

  virtual ~Generator() = default;

  // Queues a generation and returns its id.
  // Errors: kInvalidArgument (empty prompt, prompt plus max_tokens over the context, token id
  // outside the vocabulary, sampling value out of range), kResourceExhausted (queue full),
  // kUnavailable (worker lost for good, or stopping).
  virtual absl::StatusOr<uint64_t> Start(GenerationRequest request, EventCallback callback) = 0;

  // Ends a generation within one step; its last event says kCancelled. Unknown ids are ignored.
  virtual void Cancel(uint64_t id) = 0;
};

}  // namespace switchyard::coordinator
