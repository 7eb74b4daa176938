#include "worker/forward/activations.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace switchyard::worker {
namespace {

static_assert(sizeof(float) == sizeof(int32_t));
constexpr int64_t kElementBytes = sizeof(float);
constexpr int64_t kAlignment = 64;

}  // namespace

int64_t MaxBudgetBlocks(const model::ModelSpec& spec) {
  int64_t blocks = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    if (layer.kind != model::LayerKind::kAttention || layer.compress_ratio == 0) continue;
    blocks = std::max<int64_t>(blocks, spec.attention.budget_tokens / layer.compress_ratio);
  }
  return blocks;
}

int64_t NgramRowSize(const model::ModelSpec& spec) {
  return spec.ple.has_value() ? int64_t{spec.ple->num_heads()} * spec.ple->row_width : 0;
}

absl::StatusOr<Activations> Activations::Create(kernels::Backend& backend,
                                                const model::ModelSpec& spec,
                                                const placement::RankShare& share,
                                                int64_t max_rows) {
  Activations activations;
  int64_t total = 0;
  std::byte* base = nullptr;
  // Runs twice: first to add up the bytes, then with a base to set the pointers.
  const auto place = [&](auto& view, int64_t rows, int64_t cols) {
    using View = std::remove_reference_t<decltype(view)>;
    using Element = std::remove_pointer_t<decltype(view.data)>;
    view = View(base == nullptr ? nullptr : reinterpret_cast<Element*>(base + total), rows, cols);
    total += (rows * cols * kElementBytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  const auto place_all = [&] {
    total = 0;
    const int64_t t = max_rows;
    const int64_t wide = int64_t{spec.num_residual_streams} * spec.hidden_size;
    const model::AttentionSpec& attention = spec.attention;
    const int64_t heads = int64_t{attention.num_heads} * attention.head_dim;
    place(activations.residual, t, wide);
    place(activations.output_residual, t, wide);
    place(activations.sublayer_input, t, spec.hidden_size);
    place(activations.sublayer_output, t, spec.hidden_size);
    place(activations.inject, t, spec.num_residual_streams > 1 ? spec.num_residual_streams : 0);
    place(activations.query, t, heads);
    place(activations.query_gate, t, attention.has_output_gate ? heads : 0);
    place(activations.index_query, t,
          int64_t{attention.num_index_heads} * attention.index_head_dim);
    place(activations.attention, t, heads);
    place(activations.block_choice, t, MaxBudgetBlocks(spec));
    place(activations.block_counts, 1, t);
    place(activations.experts, t, spec.moe.top_k);
    place(activations.expert_weights, t, spec.moe.top_k);
    place(activations.ngram_rows, t, NgramRowSize(spec));
    const int64_t logit_rows = std::min<int64_t>(kLogitRows, t);
    place(activations.logits, share.is_lead ? logit_rows : 0, spec.vocab_size);
    const bool is_owner_mode = share.after_experts == placement::Meeting::kOwner;
    place(activations.expert_job, is_owner_mode ? t : 0, spec.hidden_size + 2 * spec.moe.top_k);
    const bool is_divided = !share.output_rows.empty() && !share.has_whole_output(spec);
    place(activations.own_logits, is_divided ? logit_rows : 0, share.output_rows.size());
    const int64_t most_rows = (spec.vocab_size + share.world_size - 1) / share.world_size;
    place(activations.peer_logits, is_divided && share.is_lead ? logit_rows : 0, most_rows);
  };
  place_all();
  SWITCHYARD_ASSIGN_OR_RETURN(activations.buffer, backend.AllocateBuffer(total, "activations"));
  base = activations.buffer->data();
  place_all();
  return activations;
}

}  // namespace switchyard::worker
