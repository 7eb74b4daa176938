#include "app/bench/model_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "app/bench/spread.h"
#include "app/engine_setup.h"
#include "base/check.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

// Root mean square of a - b by the deviation of b.
double RelativeDifference(absl::Span<const float> a, absl::Span<const float> b) {
  double mean = 0, squares = 0, difference = 0;
  for (const float value : b) mean += value;
  mean /= static_cast<double>(b.size());
  for (size_t i = 0; i < b.size(); ++i) {
    squares += (b[i] - mean) * (b[i] - mean);
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  }
  return squares > 0 ? std::sqrt(difference / squares) : INFINITY;
}

}  // namespace

std::vector<int32_t> BenchTokens(int first, int count, int vocab_size) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    tokens[static_cast<size_t>(i)] =
        static_cast<int32_t>((int64_t{first + i} * 7919 + 13) % vocab_size);
  }
  return tokens;
}

absl::StatusOr<ModelAnswer> AskModel(StepDriver& driver, int vocab_size, int num_prompt,
                                     int chunk_tokens, int num_tokens) {
  const std::vector<int32_t> prompt = BenchTokens(0, num_prompt, vocab_size);
  const auto all = absl::MakeConstSpan(prompt);
  ModelAnswer answer;
  driver.Reset();
  int row = 0;
  SWITCHYARD_RETURN_IF_ERROR(driver.Prefill(
      all, chunk_tokens, /*sample=*/num_tokens > 0, [&](absl::Span<const float> logits) {
        if (row++ >= num_prompt - kCheckRows) {
          answer.logits.insert(answer.logits.end(), logits.begin(), logits.end());
        }
        return absl::OkStatus();
      }));
  if (num_tokens > 0) {
    SWITCHYARD_ASSIGN_OR_RETURN(answer.tokens, driver.Decode(num_tokens));
  }
  for (const float logit : answer.logits) {
    if (!std::isfinite(logit)) return Internal("the model's logits are no numbers");
  }
  return answer;
}

absl::Status CheckSameAnswer(const ModelAnswer& a, const ModelAnswer& b, const std::string& what) {
  const bool same_logits =
      a.logits.size() == b.logits.size() &&
      std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)) == 0;
  if (!same_logits) return Internal("the results are wrong: logits differ between {}", what);
  if (a.tokens != b.tokens) {
    return Internal("the results are wrong: tokens differ between {}", what);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> CheckCloseAnswer(const ModelAnswer& got, const ModelAnswer& wanted,
                                        const std::string& what) {
  SWITCHYARD_CHECK(got.logits.size() == wanted.logits.size());  // of one model and prompt
  const size_t row_size = wanted.logits.size() / kCheckRows;
  std::vector<double> differences;
  for (size_t row = 0; row < kCheckRows; ++row) {
    const auto of = [&](const ModelAnswer& answer) {
      return absl::MakeConstSpan(answer.logits).subspan(row * row_size, row_size);
    };
    differences.push_back(RelativeDifference(of(got), of(wanted)));
  }
  const double typical = SpreadOf(differences).median;
  if (!(typical <= kMaxDifference)) {
    return Internal(
        "the results are wrong: logits differ between {} by {:.3f} of their deviation, allowed: {}",
        what, typical, kMaxDifference);
  }
  return typical;
}

absl::StatusOr<double> CheckAgainstReference(const LoadedModel& model, const ModelOptions& options,
                                             StepDriver& driver) {
  const int vocab_size = model.tokenizer.vocab_size();
  SWITCHYARD_ASSIGN_OR_RETURN(const ModelAnswer got,
                              AskModel(driver, vocab_size, kCheckRows, kCheckRows, 0));
  ModelOptions reference_options = options;
  reference_options.device = "reference";
  reference_options.kv_type = "f32";
  reference_options.context = kCheckRows;
  SWITCHYARD_ASSIGN_OR_RETURN(const worker::WorkerOptions worker_options,
                              MakeWorkerOptions(model, reference_options));
  SWITCHYARD_ASSIGN_OR_RETURN(auto worker, LoadWorker(model, reference_options, worker_options));
  StepDriver reference(std::move(worker), worker_options);
  SWITCHYARD_ASSIGN_OR_RETURN(const ModelAnswer wanted,
                              AskModel(reference, vocab_size, kCheckRows, kCheckRows, 0));
  return CheckCloseAnswer(got, wanted, "cpu and reference backend");
}

}  // namespace switchyard::app
