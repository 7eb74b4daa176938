#include "worker/forward/moe_layer.h"

#include <cstring>

#include "base/status_macros.h"
#include "worker/forward/rank_exchange.h"

namespace switchyard::worker {
namespace {

using placement::Meeting;

constexpr int kOwner = 0;  // rank that has the dense part, in owner mode

// Views into the rows of a job.
struct JobParts {
  MatrixView<float> input;
  MatrixView<int32_t> experts;
  MatrixView<float> weights;
};

void CopyRows(const void* from, void* to, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

// One after the other, so that they travel as one: [T, hidden_size], [T, top_k], [T, top_k].
JobParts PartsOf(float* job, int64_t num_rows, int64_t hidden_size, int64_t top_k) {
  float* const experts = job + num_rows * hidden_size;
  return {MatrixView<float>(job, num_rows, hidden_size),
          MatrixView<int32_t>(reinterpret_cast<int32_t*>(experts), num_rows, top_k),
          MatrixView<float>(experts + num_rows * top_k, num_rows, top_k)};
}

}  // namespace

absl::Status RunMoeLayer(const LayerWeights& weights, int layer, int64_t num_rows,
                         StepContext& step) {
  Activations& activations = step.activations;
  const MatrixView<float> input = activations.sublayer_input.Rows(0, num_rows);
  const MatrixView<float> output = activations.sublayer_output.Rows(0, num_rows);
  const MatrixView<int32_t> experts = activations.experts.Rows(0, num_rows);
  const MatrixView<float> expert_weights = activations.expert_weights.Rows(0, num_rows);
  step.backend.Router(step.ledger[v1::STAGE_ROUTER], *weights.router, input, experts,
                      expert_weights);
  if (step.share.after_experts == Meeting::kOwner) {
    const JobParts job = PartsOf(activations.expert_job.data, num_rows, input.cols, experts.cols);
    CopyRows(input.data, job.input.data, num_rows * input.cols);
    CopyRows(experts.data, job.experts.data, num_rows * experts.cols);
    CopyRows(expert_weights.data, job.weights.data, num_rows * experts.cols);
    SWITCHYARD_RETURN_IF_ERROR(
        RankExchange(*step.ranks, step.ledger)
            .Broadcast(job.input.data, num_rows * activations.expert_job.cols, kOwner));
  }
  step.backend.Experts(step.ledger[v1::STAGE_EXPERTS_DEVICE],
                       step.experts.WeightsOf(weights, layer), input, experts, expert_weights,
                       output);
  switch (step.share.after_experts) {
    case Meeting::kNone:
      return absl::OkStatus();
    case Meeting::kAllReduce: {
      RankExchange exchange(*step.ranks, step.ledger);
      if (step.check_ranks) {
        SWITCHYARD_RETURN_IF_ERROR(exchange.CheckAlike(experts.data, num_rows * experts.cols * 4,
                                                       "chosen experts", layer));
      }
      SWITCHYARD_RETURN_IF_ERROR(exchange.AllReduce(output));
      if (!step.check_ranks) return absl::OkStatus();
      return exchange.CheckAlike(output.data, num_rows * output.cols * 4, "the output of experts",
                                 layer);
    }
    case Meeting::kOwner:
      return RankExchange(*step.ranks, step.ledger).Reduce(output, kOwner);
  }
  return absl::OkStatus();
}

absl::Status ServeMoeLayer(const LayerWeights& weights, int layer, int64_t num_rows, int64_t top_k,
                           StepContext& step) {
  Activations& activations = step.activations;
  const MatrixView<float> output = activations.sublayer_output.Rows(0, num_rows);
  const JobParts job = PartsOf(activations.expert_job.data, num_rows, output.cols, top_k);
  RankExchange ranks(*step.ranks, step.ledger);
  SWITCHYARD_RETURN_IF_ERROR(
      ranks.Broadcast(job.input.data, num_rows * activations.expert_job.cols, kOwner));
  step.backend.Experts(step.ledger[v1::STAGE_EXPERTS_DEVICE],
                       step.experts.WeightsOf(weights, layer), job.input, job.experts, job.weights,
                       output);
  return ranks.Reduce(output, kOwner);
}

}  // namespace switchyard::worker
