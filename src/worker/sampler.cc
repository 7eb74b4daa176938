#include "worker/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "worker/philox.h"

namespace switchyard::worker {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

absl::Status CheckRange(const char* field, float value, bool inside) {
  if (std::isfinite(value) && inside) return absl::OkStatus();
  return InvalidArgument("sampling value is out of range: {}, got: {}", field, value);
}

}  // namespace

absl::StatusOr<SamplingRule> MakeSamplingRule(const v1::SamplingParams& params,
                                              int64_t vocab_size) {
  SamplingRule rule;
  if (params.has_temperature()) {
    const float value = params.temperature();
    SWITCHYARD_RETURN_IF_ERROR(CheckRange("temperature", value, value >= 0));
    rule.greedy = value == 0;
    if (!rule.greedy) rule.temperature = value;
  }
  rule.top_k = params.top_k();
  if (params.has_top_p()) {
    const float value = params.top_p();
    SWITCHYARD_RETURN_IF_ERROR(CheckRange("top_p", value, value > 0 && value <= 1));
    rule.top_p = value;
  }
  if (params.has_min_p()) {
    const float value = params.min_p();
    SWITCHYARD_RETURN_IF_ERROR(CheckRange("min_p", value, value >= 0 && value <= 1));
    rule.min_p = value;
  }
  if (params.has_repetition_penalty()) {
    const float value = params.repetition_penalty();
    SWITCHYARD_RETURN_IF_ERROR(CheckRange("repetition_penalty", value, value > 0));
    rule.repetition_penalty = value;
  }
  rule.presence_penalty = params.presence_penalty();
  SWITCHYARD_RETURN_IF_ERROR(CheckRange("presence_penalty", rule.presence_penalty, true));
  rule.frequency_penalty = params.frequency_penalty();
  SWITCHYARD_RETURN_IF_ERROR(CheckRange("frequency_penalty", rule.frequency_penalty, true));
  for (const auto& [token_id, bias] : params.logit_bias()) {
    if (static_cast<int64_t>(token_id) >= vocab_size) {
      return InvalidArgument("logit_bias names an id outside the vocabulary: {}, size: {}",
                             token_id, vocab_size);
    }
    SWITCHYARD_RETURN_IF_ERROR(CheckRange("logit_bias", bias, true));
    rule.logit_bias.emplace_back(static_cast<int32_t>(token_id), bias);
  }
  std::sort(rule.logit_bias.begin(), rule.logit_bias.end());
  rule.seed = params.seed();
  return rule;
}

Sampler::Sampler(int64_t vocab_size, absl::Span<const int32_t> never_sampled)
    : vocab_size_(vocab_size), never_sampled_(never_sampled.begin(), never_sampled.end()) {
  std::sort(never_sampled_.begin(), never_sampled_.end());
  never_sampled_.erase(std::unique(never_sampled_.begin(), never_sampled_.end()),
                       never_sampled_.end());
  adjusted_.resize(static_cast<size_t>(vocab_size));
  entries_.reserve(static_cast<size_t>(vocab_size));
}

void Sampler::ApplyBiasAndPenalties(const SamplingRule& rule, const TokenCounts* counts,
                                    absl::Span<const int32_t> forbidden) {
  // Finite values may overflow, to infinities that are as good as the largest and the lowest float:
  // what a request asks for never masks a token, else it could mask all.
  const auto limit = [](float logit) {
    constexpr float kLargest = std::numeric_limits<float>::max();
    return std::clamp(logit, -kLargest, kLargest);
  };
  for (const auto& [token_id, bias] : rule.logit_bias) {
    float& logit = adjusted_[static_cast<size_t>(token_id)];
    if (logit != -kInfinity) logit = limit(logit + bias);
  }
  for (const int32_t token_id : never_sampled_) {
    adjusted_[static_cast<size_t>(token_id)] = -kInfinity;
  }
  for (const int32_t token_id : forbidden) {
    adjusted_[static_cast<size_t>(token_id)] = -kInfinity;
  }
  if (!rule.needs_counts()) return;
  SWITCHYARD_CHECK(counts != nullptr);
  for (const int32_t token_id : counts->seen()) {
    if (counts->num_in_sequence(token_id) == 0) continue;
    float& logit = adjusted_[static_cast<size_t>(token_id)];
    if (logit == -kInfinity) continue;  // masked, and stays so
    logit = logit > 0 ? logit / rule.repetition_penalty : logit * rule.repetition_penalty;
    if (const int in_output = counts->num_in_output(token_id); in_output > 0) {
      logit -= rule.presence_penalty + rule.frequency_penalty * static_cast<float>(in_output);
    }
    logit = limit(logit);
  }
}

int32_t Sampler::BestToken() const {
  int32_t best = -1;
  float best_logit = -kInfinity;
  for (size_t i = 0; i < adjusted_.size(); ++i) {
    if (adjusted_[i] > best_logit) {
      best_logit = adjusted_[i];
      best = static_cast<int32_t>(i);
    }
  }
  return best;
}

void Sampler::CollectEntries() {
  entries_.clear();
  for (size_t i = 0; i < adjusted_.size(); ++i) {
    if (adjusted_[i] == -kInfinity) continue;
    entries_.push_back({.logit = adjusted_[i], .token_id = static_cast<int32_t>(i)});
  }
}

void Sampler::KeepTopK(int64_t count) {
  if (count >= static_cast<int64_t>(entries_.size())) return;
  std::nth_element(entries_.begin(), entries_.begin() + count, entries_.end(), Before);
  entries_.resize(static_cast<size_t>(count));
  // nth_element leaves an order that is an accident of the library; the draw walks a known one.
  std::sort(entries_.begin(), entries_.end(), Before);
}

void Sampler::KeepTopP(float top_p) {
  double total = 0;
  for (const Entry& entry : entries_) total += entry.weight;
  const double wanted = static_cast<double>(top_p) * total;
  // Sort a growing front: likely tokens are few, and the vocabulary is large.
  double sum = 0;
  auto done = entries_.begin();
  for (int64_t front = 64; done != entries_.end(); front *= 8) {
    const auto end = done + std::min(front, static_cast<int64_t>(entries_.end() - done));
    std::nth_element(done, end - 1, entries_.end(), Before);
    std::sort(done, end, Before);
    for (; done != end; ++done) {
      sum += done->weight;
      if (sum >= wanted) {
        entries_.erase(done + 1, entries_.end());
        return;
      }
    }
  }
}

int32_t Sampler::Draw(double uniform) const {
  double total = 0;
  for (const Entry& entry : entries_) total += entry.weight;
  double sum = 0;
  int32_t drawn = -1;
  for (const Entry& entry : entries_) {
    if (entry.weight == 0) continue;  // rounded to nothing: must not win by being last
    drawn = entry.token_id;
    sum += entry.weight;
    if (sum > uniform * total) break;
  }
  return drawn;  // the most likely token has weight 1, so there is one
}

absl::StatusOr<int32_t> Sampler::Sample(absl::Span<const float> logits, const SamplingRule& rule,
                                        const TokenCounts* counts, int64_t position,
                                        absl::Span<const int32_t> forbidden) {
  SWITCHYARD_CHECK(static_cast<int64_t>(logits.size()) == vocab_size_);
  // One comparison finds NaN and +infinity.
  bool valid = true;
  for (const float logit : logits) valid &= logit < kInfinity;
  if (!valid) return Internal("a logit is not finite: position {}", position);
  std::copy(logits.begin(), logits.end(), adjusted_.begin());
  ApplyBiasAndPenalties(rule, counts, forbidden);
  const int32_t best = BestToken();
  if (best < 0) return Internal("no token can be sampled: position {}", position);
  if (rule.greedy) return best;
  CollectEntries();
  if (rule.top_k > 0) KeepTopK(rule.top_k);
  const double max_logit = adjusted_[static_cast<size_t>(best)];
  for (Entry& entry : entries_) {
    entry.weight = std::exp((entry.logit - max_logit) / rule.temperature);
  }
  if (rule.top_p < 1) KeepTopP(rule.top_p);
  if (rule.min_p > 0) {
    std::erase_if(entries_, [&](const Entry& entry) { return entry.weight < rule.min_p; });
  }
  return Draw(UniformDraw(rule.seed, static_cast<uint64_t>(position)));
}

void Sampler::LogProbs(absl::Span<const float> logits, int32_t token_id, Candidate& own,
                       absl::Span<Candidate> top) {
  const float max_logit = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - max_logit);
  const double log_total = std::log(total) + max_logit;
  own = {token_id, static_cast<float>(logits[static_cast<size_t>(token_id)] - log_total)};
  if (top.empty()) return;
  entries_.clear();
  auto masked = never_sampled_.begin();
  for (int32_t i = 0; i < vocab_size_; ++i) {
    if (masked != never_sampled_.end() && *masked == i) {
      ++masked;
      continue;
    }
    entries_.push_back({.logit = logits[static_cast<size_t>(i)], .token_id = i});
  }
  SWITCHYARD_CHECK(top.size() <= entries_.size());
  std::partial_sort(entries_.begin(), entries_.begin() + static_cast<int64_t>(top.size()),
                    entries_.end(), Before);
  for (size_t i = 0; i < top.size(); ++i) {
    top[i] = {entries_[i].token_id, static_cast<float>(entries_[i].logit - log_total)};
  }
}

}  // namespace switchyard::worker
