// One forward pass: walks the layers of any architecture and calls the backend's stages.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "comm/communicator.h"
#include "kernels/backend.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "placement/rank_share.h"
#include "worker/cache/kv_cache.h"
#include "worker/cache/recurrent_state.h"
#include "worker/forward/activations.h"
#include "worker/forward/batch.h"
#include "worker/forward/rank_head.h"
#include "worker/forward/step_context.h"
#include "worker/ledger.h"
#include "worker/model_weights.h"
#include "worker/ple_table.h"

namespace switchyard::worker {

struct ForwardLimits {
  int max_rows = 0;
  int max_sequences = 0;
  int64_t max_context = 0;
  absl::Span<const int32_t> never_sampled;  // ids
  bool check_ranks = false;
};

// An architecture is a list of layer kinds and sizes: there is no branch on its name.
//
// Call order: for each step Run(), then Logits() for the rows that were asked for.
// Threads:    the step thread. Allocates in Create() only.
class Forward {
 public:
  // Sees the residual after a layer. In the last layer only the rows whose logits are needed exist.
  using LayerObserver = std::function<void(int layer, MatrixView<const float> residual)>;

  // The arguments must outlive the object.
  // Errors: kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Forward>> Create(
      const model::GgufFile& file, const model::ModelSpec& spec, const placement::RankShare& share,
      const ModelWeights& weights, kernels::Backend& backend, const ForwardLimits& limits);

  // Computes the rank's share of all layers and advances caches and states. The last layer's
  // experts, the final mixer and the head run only for batch.output_rows. `ranks` are the others;
  // null if there are none. All ranks run the same batch. Adds to experts.uses.
  // Errors: those of the communicator; the state is undefined then.
  absl::Status Run(const Batch& batch, const KvCache& kv_cache, const RecurrentState& state,
                   comm::Communicator* ranks, const StepExperts& experts, Ledger& ledger);

  // Logits of `count` outputs of the last Run(), from output `first` on, on the device; valid until
  // the next call. On other ranks than the lead one: computes what is here of them and returns
  // none. `num_candidates`: only so many of each row are looked at, so that all others may be
  // -infinity; 0 = all. REQUIRES: count <= kLogitRows, num_candidates <= kMaxCandidates; the same
  // on all ranks. Shapes: [count, vocab_size]. Errors: those of the communicator.
  absl::StatusOr<MatrixView<const float>> Logits(int64_t first, int64_t count, int num_candidates,
                                                 comm::Communicator* ranks, Ledger& ledger);

  int64_t activation_bytes() const { return activations_.buffer->bytes(); }

  // For diagnosis and tests; empty = none.
  void set_layer_observer(LayerObserver observer) { observer_ = std::move(observer); }

 private:
  Forward(const model::ModelSpec& spec, const placement::RankShare& share,
          const ModelWeights& weights, kernels::Backend& backend)
      : spec_(spec), share_(share), weights_(weights), backend_(backend) {}

  // The table rows of the step, [T, num_heads].
  absl::Span<int64_t> NgramIds(const Batch& batch);
  // Finds the rows, which depend on token ids only, and has them read while the layers before the
  // embedding run.
  void PrefetchNgramRows(StepContext& step);
  // Decodes the rows and adds the embedding to the residual.
  void AddNgramEmbedding(StepContext& step);

  // Runs the layers [share_.first_layer, share_.end_layer) on the residual; returns the rows of it
  // that are left after the model's last layer.
  absl::StatusOr<MatrixView<float>> RunLayers(StepContext& step, MatrixView<float> residual);

  const model::ModelSpec& spec_;
  const placement::RankShare& share_;
  const ModelWeights& weights_;
  kernels::Backend& backend_;
  Activations activations_;
  std::optional<PleTable> ple_table_;
  std::vector<int64_t> ngram_ids_;    // [T, num_heads] rows of the table
  std::vector<float> ngram_staging_;  // [T, num_heads * row_width] on the host
  std::vector<kernels::AttentionSequence> attention_sequences_;
  std::vector<kernels::DeltaNetSequence> delta_net_sequences_;
  std::vector<kernels::ConvSequence> conv_sequences_;
  bool check_ranks_ = false;
  std::optional<RankHead> head_;  // of a divided output matrix
  LayerObserver observer_;
};

}  // namespace switchyard::worker
