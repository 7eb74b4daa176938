#include "kernels/reference/reference_backend.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/arena.h"
#include "base/clock.h"
#include "base/process_memory.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/experts.h"
#include "kernels/reference/gated_delta_net.h"
#include "kernels/reference/math.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/mixer.h"
#include "kernels/reference/ple.h"
#include "kernels/reference/qsa.h"
#include "kernels/reference/router.h"
#include "kernels/reference/weight.h"
#include "kernels/reference/workspace.h"

namespace switchyard::kernels::reference {
namespace {

class ArenaBuffer final : public Buffer {
 public:
  ArenaBuffer(Arena arena, std::byte* data, int64_t bytes)
      : Buffer(data, bytes), arena_(std::move(arena)) {}

 private:
  Arena arena_;
};

int64_t Bytes(const Weight* weight) { return weight == nullptr ? 0 : weight->resident_bytes(); }

// Adds a stage's time and the bytes of weights that it read to its line of the ledger.
class StageStamp {
 public:
  StageStamp(LedgerSlot& ledger, int64_t weight_bytes)
      : ledger_(ledger), start_seconds_(MonotonicClock::Get().NowSeconds()) {
    ledger_.weight_bytes += weight_bytes;
  }
  ~StageStamp() { ledger_.seconds += MonotonicClock::Get().NowSeconds() - start_seconds_; }
  StageStamp(const StageStamp&) = delete;
  StageStamp& operator=(const StageStamp&) = delete;

 private:
  LedgerSlot& ledger_;
  double start_seconds_;
};

// Of MatMul() and MatMulSharded() as stages, for any matrix of a layer and for the head.
int64_t MatMulStageWorkspaceBytes(const StepLimits& limits) {
  const int64_t widest = std::max({limits.num_streams * limits.hidden_size, 2 * limits.hidden_size,
                                   limits.max_inner_size, limits.ple_row_size});
  return TakenBytes<double>(limits.max_rows * widest) +
         MatMulWorkspaceBytes(widest, widest, limits.max_rows);
}

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(const ReferenceOptions& options) : options_(options) {}

  std::string Describe() const override { return "reference"; }

  absl::Status ReserveWeights(absl::Span<const WeightRequest> weights) override {
    int64_t total_bytes = 0;
    for (const WeightRequest& weight : weights) {
      total_bytes += weight.num_slots.has_value() ? *weight.num_slots * SlabBytes(weight.view)
                                                  : weight.view.bytes();
    }
    const std::optional<int64_t> available = AvailableHostBytes();
    if (available.has_value() && total_bytes > *available) {
      return ResourceExhausted("weights do not fit into memory, wanted bytes: {}, available: {}",
                               total_bytes, *available);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Weight>> LoadWeight(const WeightSource& source,
                                                     WeightUse use) override {
    const int64_t decoded_bytes = source.view.num_slabs * source.view.rows * source.view.cols *
                                  static_cast<int64_t>(sizeof(float));
    const bool decode = use == WeightUse::kVector || use == WeightUse::kConvTaps ||
                        source.view.dtype == DType::kF32 ||
                        decoded_bytes <= options_.max_decoded_bytes - decoded_bytes_;
    SWITCHYARD_ASSIGN_OR_RETURN(std::unique_ptr<ReferenceWeight> weight,
                                ReferenceWeight::Read(source, decode, &fault_));
    resident_weight_bytes_ += weight->resident_bytes();
    if (source.num_slots.has_value()) return weight;
    if (decode && source.view.dtype != DType::kF32) decoded_bytes_ += decoded_bytes;
    return weight;
  }

  int64_t SlabBytes(const TensorView& view) const override { return view.rows * view.row_bytes(); }
  absl::Status LoadSlab(Weight& weight, int64_t slab, int64_t slot, bool) override {
    return static_cast<ReferenceWeight&>(weight).LoadSlab(slab, slot);
  }
  absl::Status Health() const override { return fault_.status(); }

  int64_t resident_weight_bytes() const override { return resident_weight_bytes_; }

  absl::StatusOr<std::unique_ptr<Buffer>> AllocateBuffer(int64_t bytes,
                                                         std::string_view what) override {
    absl::StatusOr<Arena> arena =
        Arena::Create(bytes, {.huge_pages = false, .require_available = false});
    if (!arena.ok()) return WithContext(arena.status(), what);
    std::byte* data = arena->Allocate(bytes);
    return std::make_unique<ArenaBuffer>(std::move(arena).value(), data, bytes);
  }

  absl::Status Prepare(const StepLimits& limits) override {
    return workspace_.Reserve(std::max(
        {MatMulStageWorkspaceBytes(limits), HcMixWorkspaceBytes(limits), PleWorkspaceBytes(limits),
         GatedDeltaNetWorkspaceBytes(limits), AttentionQkvWorkspaceBytes(limits),
         AttentionWorkspaceBytes(limits), QsaSelectWorkspaceBytes(limits),
         RouterWorkspaceBytes(limits), ExpertsWorkspaceBytes(limits)}));
  }

  void Embed(LedgerSlot& ledger, const Weight& table, absl::Span<const int32_t> token_ids,
             int num_streams, MatrixView<float> out) override {
    const ReferenceWeight& own = Own(table);
    const StageStamp stamp(ledger,
                           own.row_resident_bytes() * static_cast<int64_t>(token_ids.size()));
    const int64_t hidden_size = table.cols();
    for (int64_t t = 0; t < static_cast<int64_t>(token_ids.size()); ++t) {
      float* row = out.row(t);
      const float* values = own.Row(token_ids[static_cast<size_t>(t)], row);
      for (int s = values == row ? 1 : 0; s < num_streams; ++s) {
        std::copy_n(values, hidden_size, row + s * hidden_size);
      }
    }
  }

  void MatMul(LedgerSlot& ledger, const Weight& w, MatrixView<const float> x,
              MatrixView<float> y) override {
    const StageStamp stamp(ledger, Bytes(&w));
    const Workspace::Frame frame(workspace_);
    reference::MatMul<float>(w, 0, Widen(x, workspace_), y, workspace_);
  }

  void MatMulSharded(LedgerSlot& ledger, const Weight& w, const ShardBorders& borders,
                     MatrixView<const float> x, MatrixView<float> y) override {
    const StageStamp stamp(ledger, Bytes(&w));
    const Workspace::Frame frame(workspace_);
    reference::MatMulSharded(w, borders, Widen(x, workspace_), y, workspace_);
  }

  void HcMix(LedgerSlot& ledger, const MixerWeights& w, MatrixView<const float> h,
             MatrixView<float> u, MatrixView<float> inject) override {
    const StageStamp stamp(ledger, Bytes(w.norm) + Bytes(w.down) + Bytes(w.up) + Bytes(w.inject));
    reference::HcMix(w, h, u, inject, workspace_);
  }

  void HcCombine(LedgerSlot& ledger, MatrixView<const float> inject, MatrixView<const float> y,
                 MatrixView<float> h) override {
    const StageStamp stamp(ledger, 0);
    reference::HcCombine(inject, y, h);
  }

  void Ple(LedgerSlot& ledger, const PleWeights& w, const PleShape& shape,
           absl::Span<const ConvSequence> sequences, MatrixView<const float> e,
           MatrixView<float> h) override {
    const StageStamp stamp(ledger, Bytes(w.key) + Bytes(w.value) + Bytes(w.norm_key) +
                                       Bytes(w.norm_query) + Bytes(w.norm_conv) + Bytes(w.conv));
    reference::Ple(w, shape, sequences, e, h, workspace_);
  }

  void GatedDeltaNet(LedgerSlot& ledger, const DeltaNetWeights& w, const DeltaNetShape& shape,
                     absl::Span<const DeltaNetSequence> sequences, MatrixView<const float> u,
                     MatrixView<float> y) override {
    const StageStamp stamp(ledger, Bytes(w.qkv) + Bytes(w.gate) + Bytes(w.beta) + Bytes(w.alpha) +
                                       Bytes(w.conv) + Bytes(w.a) + Bytes(w.dt_bias) +
                                       Bytes(w.norm) + Bytes(w.output));
    reference::GatedDeltaNet(w, shape, sequences, u, y, workspace_);
  }

  void AttentionQkv(LedgerSlot& ledger, const AttentionWeights& w, const AttentionShape& shape,
                    const KvLayer& cache, absl::Span<const AttentionSequence> sequences,
                    MatrixView<const float> u, const AttentionInputs& out) override {
    const StageStamp stamp(ledger, Bytes(w.query) + Bytes(w.key) + Bytes(w.value) +
                                       Bytes(w.query_norm) + Bytes(w.key_norm) +
                                       Bytes(w.index_query) + Bytes(w.index_key) +
                                       Bytes(w.index_query_norm) + Bytes(w.index_key_norm));
    reference::AttentionQkv(w, shape, cache, sequences, u, out, workspace_);
  }

  void QsaSelect(LedgerSlot& ledger, const AttentionShape& shape, const KvLayer& cache,
                 absl::Span<const AttentionSequence> sequences, MatrixView<const float> index_query,
                 const QsaSelection& selection) override {
    const StageStamp stamp(ledger, 0);
    reference::QsaSelect(shape, cache, sequences, index_query, selection, workspace_);
  }

  void Attention(LedgerSlot& ledger, const AttentionShape& shape, const KvLayer& cache,
                 absl::Span<const AttentionSequence> sequences, const AttentionInputs& inputs,
                 const QsaSelection& selection, MatrixView<float> out) override {
    const StageStamp stamp(ledger, 0);
    reference::Attention(shape, cache, sequences, inputs, selection, out, workspace_);
  }

  void Router(LedgerSlot& ledger, const Weight& router, MatrixView<const float> u,
              MatrixView<int32_t> experts, MatrixView<float> weights) override {
    const StageStamp stamp(ledger, Bytes(&router));
    reference::Router(router, u, experts, weights, workspace_);
  }

  void Experts(LedgerSlot& ledger, const MoeWeights& w, MatrixView<const float> u,
               MatrixView<const int32_t> experts, MatrixView<const float> weights,
               MatrixView<float> y) override {
    const StageStamp stamp(ledger, 0);
    ledger.weight_bytes += reference::Experts(w, u, experts, weights, y, workspace_);
  }

  void GatherRows(LedgerSlot& ledger, MatrixView<const float> in, absl::Span<const int32_t> rows,
                  MatrixView<float> out) override {
    const StageStamp stamp(ledger, 0);
    for (int64_t i = 0; i < static_cast<int64_t>(rows.size()); ++i) {
      std::copy_n(in.row(rows[static_cast<size_t>(i)]), in.cols, out.row(i));
    }
  }

  void Upload(LedgerSlot& ledger, const void* source, int64_t bytes, void* target) override {
    Copy(ledger, source, bytes, target);
  }
  void Download(LedgerSlot& ledger, const void* source, int64_t bytes, void* target) override {
    Copy(ledger, source, bytes, target);
  }

 private:
  static void Copy(LedgerSlot& ledger, const void* source, int64_t bytes, void* target) {
    const StageStamp stamp(ledger, 0);
    if (bytes > 0) std::memcpy(target, source, static_cast<size_t>(bytes));
  }

  ReferenceOptions options_;
  StageFault fault_;
  Workspace workspace_;
  int64_t resident_weight_bytes_ = 0;
  int64_t decoded_bytes_ = 0;  // of matrices that are smaller in the file
};

}  // namespace

std::unique_ptr<Backend> CreateReferenceBackend(const ReferenceOptions& options) {
  return std::make_unique<ReferenceBackend>(options);
}

}  // namespace switchyard::kernels::reference
