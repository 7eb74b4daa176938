// The operations of a forward pass, as large as one fused launch or one fork-join stage. The worker
// walks the layers once and calls these; implementations are reference, cpu and, later, cuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/dtype.h"
#include "base/tensor_view.h"
#include "kernels/ledger_slot.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels {

// One forward pass's worth of mathematics on one device.
//
// Conventions: T is the number of rows (tokens) of the step, of any mix of sequences; rows of one
// sequence are adjacent and in order. Wide rows hold num_streams * hidden_size values,
// stream-major. All activations are F32. A stage with zero rows does nothing. Nothing is allocated
// in a stage: Prepare() is told the largest step beforehand.
//
// Batch invariance: a row's result is a function of its own inputs and its sequence's state only:
// every output element is accumulated in one fixed order, whatever the number of rows or threads.
//
// Threads: one thread, the worker's step thread, calls the stages.
// Errors: stages return none; a device fault, or a file that ends early under a tensor with tiers,
// makes Health() non-OK.
class Backend {
 public:
  virtual ~Backend() = default;

  // "reference", "cpu (avx2, 2 threads)": for logs and reports.
  virtual std::string Describe() const = 0;

  // First error of the device, or of a slow tier that a stage could not read; sticky. What the
  // stages computed since is of no use.
  virtual absl::Status Health() const { return absl::OkStatus(); }

  // ---- memory -------------------------------------------------------------------------------

  // Makes room for the tensors that LoadWeight() will take. Called once, before loading.
  //
  // Errors: kResourceExhausted, kFailedPrecondition (a second call).
  virtual absl::Status ReserveWeights(absl::Span<const WeightRequest> weights) = 0;

  // Takes a tensor of the file into the layout that this backend likes best for `use`. The source
  // is read through `read` (row ranges of the flattened [num_slabs * rows] rows, whole rows), so
  // that a truncated file is an error and not a signal.
  //
  // Errors: kResourceExhausted, what `read` returns, kUnimplemented (no kernel for this type).
  virtual absl::StatusOr<std::unique_ptr<Weight>> LoadWeight(const WeightSource& source,
                                                             WeightUse use) = 0;

  // Bytes of one slab in the fast tier of a tensor with tiers.
  virtual int64_t SlabBytes(const TensorView& view) const = 0;

  // Fills a slot of the fast tier. With `beside_steps` it runs on the calling thread alone, which
  // may be any; without, no stage may run, and all threads are used.
  //
  // REQUIRES: `weight` has tiers, and no stage that runs meanwhile is told that the slot holds
  //           something.
  // Errors:   what the source's `read` returns.
  virtual absl::Status LoadSlab(Weight& weight, int64_t slab, int64_t slot, bool beside_steps) = 0;

  // Bytes that the loaded weights occupy.
  virtual int64_t resident_weight_bytes() const = 0;

  // A zeroed buffer on the device, for activations, caches and states. On the CPU a large buffer
  // takes memory only where it is touched.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> AllocateBuffer(int64_t bytes,
                                                                 std::string_view what) = 0;

  // Allocates the workspaces of every stage for steps of at most these sizes.
  virtual absl::Status Prepare(const StepLimits& limits) = 0;

  // Tells which thread will call the stages: the calling one. It may be tied to a core by that.
  virtual void BindStepThread() {}

  // Number of fork-joins since the start; a test bounds it per token.
  virtual int64_t num_barriers() const { return 0; }

  // ---- dense --------------------------------------------------------------------------------

  // out[t] = `num_streams` copies of row token_ids[t] of `table`.
  // Shapes: table [vocab_size, hidden_size], out [T, num_streams * hidden_size].
  virtual void Embed(LedgerSlot& ledger, const Weight& table, absl::Span<const int32_t> token_ids,
                     int num_streams, MatrixView<float> out) = 0;

  // y = x w^T. Shapes: x [T, cols], w [rows, cols], y [T, rows].
  virtual void MatMul(LedgerSlot& ledger, const Weight& w, MatrixView<const float> x,
                      MatrixView<float> y) = 0;

  // y = x w^T with the inner dimension cut at shard borders and summed as (0+1)+(2+3), so that any
  // partition over ranks gives the same bits (ShardBorders says where).
  virtual void MatMulSharded(LedgerSlot& ledger, const Weight& w, const ShardBorders& borders,
                             MatrixView<const float> x, MatrixView<float> y) = 0;

  // Collapses the wide residual to the input of a sublayer (gated mean of the normalised streams):
  //   xn = rms per stream(h) * norm;  gate = sigmoid(up silu((down xn) / S));
  //   u = mean over streams of gate * xn;  inject = (inject weight) xn
  // Shapes: h [T, S * hidden_size], u [T, hidden_size], inject [T, S] or empty when the mixer has
  // no inject weight. With S = 1 and no down weight this is a plain RMS norm.
  // Source: the model's hyper-connections (docs/architecture.md, "Residual streams").
  virtual void HcMix(LedgerSlot& ledger, const MixerWeights& w, MatrixView<const float> h,
                     MatrixView<float> u, MatrixView<float> inject) = 0;

  // h[t, s] += 2 sigmoid(inject[t, s] / S) * y[t]; with an empty inject, h += y.
  virtual void HcCombine(LedgerSlot& ledger, MatrixView<const float> inject,
                         MatrixView<const float> y, MatrixView<float> h) = 0;

  // ---- n-gram per-layer embedding -----------------------------------------------------------

  // h += gated value + silu(causal convolution), from the gathered table rows `e`.
  // Shapes: e [T, num_heads * row width], h [T, S * hidden_size].
  virtual void Ple(LedgerSlot& ledger, const PleWeights& w, const PleShape& shape,
                   absl::Span<const ConvSequence> sequences, MatrixView<const float> e,
                   MatrixView<float> h) = 0;

  // ---- gated delta net ----------------------------------------------------------------------

  // Projections, convolution, delta rule, gated norm and output projection of one layer.
  // Shapes: u and y [T, hidden_size]. Advances the sequences' states as DeltaNetSequence says.
  virtual void GatedDeltaNet(LedgerSlot& ledger, const DeltaNetWeights& w,
                             const DeltaNetShape& shape,
                             absl::Span<const DeltaNetSequence> sequences,
                             MatrixView<const float> u, MatrixView<float> y) = 0;

  // ---- attention ----------------------------------------------------------------------------

  // Projects, normalises and rotates; writes keys and values (and, with an indexer, raw index keys
  // and the keys of completed blocks) into the cache; leaves queries, output gates and index
  // queries for the two calls below.
  // Shapes: u [T, hidden_size]; out.query and out.gate [T, num_heads * head_dim];
  // out.index_query [T, num_index_heads * index_head_dim].
  virtual void AttentionQkv(LedgerSlot& ledger, const AttentionWeights& w,
                            const AttentionShape& shape, const KvLayer& cache,
                            absl::Span<const AttentionSequence> sequences,
                            MatrixView<const float> u, const AttentionInputs& out) = 0;

  // Chooses for every row the blocks that it may read: the `budget / ratio` best complete blocks,
  // ascending, the lower block on a tie. A row that may read everything gets count -1.
  // Shapes: selection.blocks [T, budget / ratio], selection.counts [T].
  virtual void QsaSelect(LedgerSlot& ledger, const AttentionShape& shape, const KvLayer& cache,
                         absl::Span<const AttentionSequence> sequences,
                         MatrixView<const float> index_query, const QsaSelection& selection) = 0;

  // Softmax attention over the allowed positions (the selected blocks and the incomplete tail, or
  // all up to the row itself), times sigmoid of the output gate when there is one.
  // Shapes: out [T, num_heads * head_dim]. `selection` is empty for dense layers.
  virtual void Attention(LedgerSlot& ledger, const AttentionShape& shape, const KvLayer& cache,
                         absl::Span<const AttentionSequence> sequences,
                         const AttentionInputs& inputs, const QsaSelection& selection,
                         MatrixView<float> out) = 0;

  // ---- experts ------------------------------------------------------------------------------

  // Softmax over all experts, the top_k best (lower id on a tie), weights renormalised with their
  // sum clamped to at least 2^-14. Rows of `experts` are sorted by ascending id.
  // Shapes: router [num_experts, hidden_size]; experts and weights [T, top_k].
  virtual void Router(LedgerSlot& ledger, const Weight& router, MatrixView<const float> u,
                      MatrixView<int32_t> experts, MatrixView<float> weights) = 0;

  // y = sum over chosen experts of weight * down(silu(gate u) * (up u)), plus the shared expert
  // times sigmoid of its gate. Per virtual shard: experts by ascending id, the shared expert last;
  // the four shards are summed as (0+1)+(2+3). Experts that are not here (MoeWeights) add nothing.
  // Shapes: u and y [T, hidden_size].
  virtual void Experts(LedgerSlot& ledger, const MoeWeights& w, MatrixView<const float> u,
                       MatrixView<const int32_t> experts, MatrixView<const float> weights,
                       MatrixView<float> y) = 0;

  // ---- copies -------------------------------------------------------------------------------

  // out[i] = in[rows[i]].
  virtual void GatherRows(LedgerSlot& ledger, MatrixView<const float> in,
                          absl::Span<const int32_t> rows, MatrixView<float> out) = 0;

  // Host to device and back; plain copies on the CPU. Upload returns when `source` may be reused,
  // Download when the data has arrived.
  virtual void Upload(LedgerSlot& ledger, const void* source, int64_t bytes, void* target) = 0;
  virtual void Download(LedgerSlot& ledger, const void* source, int64_t bytes, void* target) = 0;
};

}  // namespace switchyard::kernels
