// Logits to token ids, next to the logits.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "switchyard/worker/v1/step.pb.h"

#include "worker/token_counts.h"

namespace switchyard::worker {

// How one slot's tokens are chosen: SamplingParams with the rules that are off made explicit.
struct SamplingRule {
  bool greedy = true;
  float temperature = 1;
  int64_t top_k = 0;  // 0 = all
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // by ascending id
  uint64_t seed = 0;

  // True if the tokens of the sequence so far change the choice.
  bool needs_counts() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};

// Errors: kInvalidArgument names the field: not finite, out of its range, id not in the vocabulary.
absl::StatusOr<SamplingRule> MakeSamplingRule(const v1::SamplingParams& params, int64_t vocab_size);

// A token and the natural logarithm of its probability under the unmodified logits.
struct Candidate {
  int32_t token_id = 0;
  float logprob = 0;
};

// Chooses tokens. The choice is a function of logits, rule, counts and (seed, position) only.
//
// Threads: one owner; allocates in the constructor only.
class Sampler {
 public:
  // `never_sampled` ids are masked after the bias: rows of the output matrix without a token.
  Sampler(int64_t vocab_size, absl::Span<const int32_t> never_sampled);

  // Number of ids that can be sampled.
  int64_t num_choices() const { return vocab_size_ - static_cast<int64_t>(never_sampled_.size()); }

  // Returns the id of the token that will stand at `position`; not one of `forbidden`. Order of the
  // rules: bias, mask, penalties, temperature, top_k, top_p, min_p, draw; equal logits rank by
  // ascending id.
  //
  // Shapes:   logits [vocab_size].
  // REQUIRES: `counts` is not null if rule.needs_counts().
  // Errors:   kInternal if a logit is NaN or +infinity, or no token is left.
  absl::StatusOr<int32_t> Sample(absl::Span<const float> logits, const SamplingRule& rule,
                                 const TokenCounts* counts, int64_t position,
                                 absl::Span<const int32_t> forbidden = {});

  // Writes the log-probability of `token_id`, and into `top` (its size says how many) those of the
  // most likely tokens that can be sampled, most likely first.
  // REQUIRES: top.size() <= num_choices().
  void LogProbs(absl::Span<const float> logits, int32_t token_id, Candidate& own,
                absl::Span<Candidate> top);

 private:
  struct Entry {
    float logit = 0;
    int32_t token_id = -1;
    double weight = 0;  // unnormalised probability; the most likely token has 1
  };
  static bool Before(const Entry& a, const Entry& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token_id < b.token_id);
  }

  void ApplyBiasAndPenalties(const SamplingRule& rule, const TokenCounts* counts,
                             absl::Span<const int32_t> forbidden);
  // Index of the largest adjusted logit, the lower one on a tie; -1 if all are masked.
  int32_t BestToken() const;
  // Makes entries_ the tokens that are not masked, by ascending id.
  void CollectEntries();
  // Cuts entries_ to the first `count` ones under Before(), in that order.
  void KeepTopK(int64_t count);
  // Cuts entries_ to the smallest set of the most likely tokens that reaches `top_p`.
  void KeepTopP(float top_p);
  int32_t Draw(double uniform) const;

  int64_t vocab_size_;
  std::vector<int32_t> never_sampled_;  // ascending
  std::vector<float> adjusted_;         // [vocab_size]
  std::vector<Entry> entries_;          // capacity vocab_size
};

}  // namespace switchyard::worker
