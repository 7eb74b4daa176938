// Every buffer of a step, with its shape.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "base/tensor_view.h"
#include "kernels/backend.h"
#include "model/model_spec.h"
#include "placement/rank_share.h"

namespace switchyard::worker {

// Rows of the output matrix's product that are computed at a time: all logits of a long chunk would
// take more memory than the model's activations together.
inline constexpr int kLogitRows = 32;

// T = rows of the largest step. Memory is touched only as far as steps reach.
// Shapes: S = num_residual_streams.
struct Activations {
  MatrixView<float> residual;         // [T, S * hidden_size]
  MatrixView<float> output_residual;  // [T, S * hidden_size]: rows whose logits are needed
  MatrixView<float> sublayer_input;   // [T, hidden_size]
  MatrixView<float> sublayer_output;  // [T, hidden_size]
  MatrixView<float> inject;           // [T, S]; no columns with one stream

  MatrixView<float> query;           // [T, num_heads * head_dim]
  MatrixView<float> query_gate;      // as query; no columns without output gate
  MatrixView<float> index_query;     // [T, num_index_heads * index_head_dim]
  MatrixView<float> attention;       // as query
  MatrixView<int32_t> block_choice;  // [T, largest budget / ratio of any layer]
  MatrixView<int32_t> block_counts;  // [1, T]

  MatrixView<int32_t> experts;       // [T, top_k]
  MatrixView<float> expert_weights;  // [T, top_k]

  MatrixView<float> ngram_rows;  // [T, num_heads * row_width] of the n-gram embedding
  MatrixView<float> logits;      // [kLogitRows, vocab_size]; on the lead rank

  // With several ranks, where they are needed.
  MatrixView<float> expert_job;   // [T, hidden_size + 2 * top_k]: input, chosen experts, weights
  MatrixView<float> own_logits;   // [kLogitRows, rows of the output matrix that are here]
  MatrixView<float> peer_logits;  // [kLogitRows, most rows of any rank]; on the lead rank

  std::unique_ptr<kernels::Buffer> buffer;  // holds all of them

  // Errors: kResourceExhausted.
  static absl::StatusOr<Activations> Create(kernels::Backend& backend, const model::ModelSpec& spec,
                                            const placement::RankShare& share, int64_t max_rows);
};

// Largest number of blocks that one query of any layer may choose.
int64_t MaxBudgetBlocks(const model::ModelSpec& spec);

// Columns of the gathered rows of the n-gram embedding; 0 = the model has none.
int64_t NgramRowSize(const model::ModelSpec& spec);

}  // namespace switchyard::worker
