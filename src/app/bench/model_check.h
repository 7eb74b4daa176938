// Whether a model computes what it should, before its speed is believed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "app/loaded_model.h"
#include "app/model_options.h"
#include "app/step_driver.h"

namespace switchyard::app {

// Fixed pseudo-random tokens from position `first` on, so that every run routes alike.
std::vector<int32_t> BenchTokens(int first, int count, int vocab_size);

// What a model makes of the fixed tokens.
struct ModelAnswer {
  std::vector<float> logits;    // of the last prompt rows, [rows, vocab_size]
  std::vector<int32_t> tokens;  // that it generates behind them
};

// Tokens of a prompt whose answer is compared, how many of its rows are kept, and how many tokens
// are generated. With the first kCheckRows of them `reference` is asked, which is slow.
inline constexpr int kCheckPrompt = 40;
inline constexpr int kCheckRows = 8;
inline constexpr int kCheckTokens = 16;

// Feeds `num_prompt` tokens in chunks of `chunk_tokens`, keeps the logits of the last `kCheckRows`
// of them and generates `num_tokens` tokens.
// REQUIRES: num_prompt >= kCheckRows, and the context has room for all of it.
absl::StatusOr<ModelAnswer> AskModel(StepDriver& driver, int vocab_size, int num_prompt,
                                     int chunk_tokens, int num_tokens);

// What rounding may do to logits: activations are rounded to 8 bits in groups of 32, which moves
// the logits of trained models by 0.012 to 0.06 of their deviation, but those of random ones by up
// to 0.42, because routers near a tie choose other experts (llama.cpp: 0.30;
// docs/benchmarks/2026-11-30-cpu-baseline.md, "Accuracy"). Unrelated answers differ by sqrt(2):
// half of that is taken for wrong, and what was measured is reported.
inline constexpr double kMaxDifference = 0.7;

// Both answers must have the same bits. `what` says whose they are: "1 and 2 threads".
// Errors: kInternal.
absl::Status CheckSameAnswer(const ModelAnswer& a, const ModelAnswer& b, const std::string& what);

// The logits of `got` must be those of `wanted` within rounding. Returns the median over
// the rows of the relative difference: root mean square of the difference by the deviation of the
// wanted logits. Single rows may differ more, where rounding decides which expert is chosen; work
// that is left out shows in all of them.
// Errors: kInternal if that is above kMaxDifference.
absl::StatusOr<double> CheckCloseAnswer(const ModelAnswer& got, const ModelAnswer& wanted,
                                        const std::string& what);

// Loads the model into the reference backend, asks it with the first kCheckRows tokens, and
// compares with the logits of `driver` for the same.
//
// Returns the median relative difference, as CheckCloseAnswer().
// Errors: kInternal if that is above kMaxDifference; those of loading.
absl::StatusOr<double> CheckAgainstReference(const LoadedModel& model, const ModelOptions& options,
                                             StepDriver& driver);

}  // namespace switchyard::app
