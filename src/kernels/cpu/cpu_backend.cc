#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/arena.h"
#include "base/check.h"
#include "base/log.h"
#include "base/process_memory.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/causal_conv.h"
#include "kernels/cpu/cpu_weight.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/gated_delta_net.h"
#include "kernels/cpu/mixer.h"
#include "kernels/cpu/ple.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/qsa.h"
#include "kernels/cpu/router.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/stage_context.h"
#include "kernels/cpu/stage_kernels.h"

namespace switchyard::kernels::cpu {
namespace {

const StageKernels& KernelsOf(CpuLevel level) {
  if (level == CpuLevel::kScalar) return PortableStageKernels();
  return level == CpuLevel::kAvx512Vnni ? Avx512StageKernels() : Avx2StageKernels();
}

// Adds the time of a stage to its ledger line.
class StageTimer {
 public:
  explicit StageTimer(LedgerSlot& slot) : slot_(slot), start_(Clock::now()) {}
  ~StageTimer() { slot_.seconds += std::chrono::duration<double>(Clock::now() - start_).count(); }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  LedgerSlot& slot_;
  Clock::time_point start_;
};

class HostBuffer final : public Buffer {
 public:
  HostBuffer(Arena arena, int64_t bytes)
      : Buffer(arena.Allocate(bytes), bytes), arena_(std::move(arena)) {}

 private:
  Arena arena_;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options)
      : options_(options), pool_({.num_threads = options.num_threads, .cores = options.cores}) {}

  std::string Describe() const override {
    return fmt::format("cpu ({}, {} thread{})", CpuLevelName(options_.level), options_.num_threads,
                       options_.num_threads == 1 ? "" : "s");
  }

  absl::Status ReserveWeights(absl::Span<const WeightRequest> weights) override;
  absl::StatusOr<std::unique_ptr<Weight>> LoadWeight(const WeightSource& source,
                                                     WeightUse use) override;
  // Where the choice is left to ReserveWeights(), the larger form: a budget holds either way.
  int64_t SlabBytes(const TensorView& view) const override {
    TensorView slab = view;
    slab.num_slabs = 1;
    return ChooseLayout(slab, WeightUse::kMatrix, options_.recode != Recode::kNever).slab_bytes;
  }
  absl::Status LoadSlab(Weight& weight, int64_t slab, int64_t slot, bool beside_steps) override {
    return static_cast<CpuWeight&>(weight).LoadSlab(slab, slot, beside_steps ? nullptr : &pool_);
  }
  absl::Status Health() const override { return fault_.status(); }
  int64_t resident_weight_bytes() const override { return resident_weight_bytes_; }
  absl::StatusOr<std::unique_ptr<Buffer>> AllocateBuffer(int64_t bytes,
                                                         std::string_view what) override;
  absl::Status Prepare(const StepLimits& limits) override;
  int64_t num_barriers() const override { return pool_.num_barriers(); }
  void BindStepThread() override { pool_.PinCaller(); }

  void Embed(LedgerSlot& ledger, const Weight& table, absl::Span<const int32_t> token_ids,
             int num_streams, MatrixView<float> out) override {
    const StageTimer timer(ledger);
    const CpuWeight& rows = CpuWeight::From(table);
    const int64_t size = rows.cols();
    ForEach(Context(), out.rows, 4 * out.cols, [&](int64_t row, int) {
      const int32_t id = token_ids[static_cast<size_t>(row)];
      SWITCHYARD_DCHECK(id >= 0 && id < rows.rows());
      float* first = out.row(row);
      rows.DecodeRow(id, first);
      for (int s = 1; s < num_streams; ++s) {
        std::memcpy(first + s * size, first, static_cast<size_t>(size) * sizeof(float));
      }
    });
    ledger.weight_bytes += out.rows * RowBytes(rows.dtype(), size);
  }

  void MatMul(LedgerSlot& ledger, const Weight& w, MatrixView<const float> x,
              MatrixView<float> y) override {
    const StageTimer timer(ledger);
    if (x.rows == 0) return;
    const Scratch::Frame frame(scratch_);
    const StageContext context = Context();
    const ActivationRows rows = Activate(context, x, CpuWeight::From(w).takes_quantized());
    cpu::MatMul(pool_, options_.level, CpuWeight::From(w).matrix(), rows, y, context.matmul);
    ledger.weight_bytes += CpuWeight::From(w).slab_bytes();
  }

  void MatMulSharded(LedgerSlot& ledger, const Weight& w, const ShardBorders& borders,
                     MatrixView<const float> x, MatrixView<float> y) override {
    const StageTimer timer(ledger);
    if (x.rows == 0) return;
    const Scratch::Frame frame(scratch_);
    const StageContext context = Context();
    const ActivationRows rows = Activate(context, x, CpuWeight::From(w).takes_quantized());
    cpu::MatMulSharded(pool_, options_.level, CpuWeight::From(w).matrix(), borders, rows, y,
                       context.matmul);
    ledger.weight_bytes += CpuWeight::From(w).slab_bytes();
  }

  void HcMix(LedgerSlot& ledger, const MixerWeights& w, MatrixView<const float> h,
             MatrixView<float> u, MatrixView<float> inject) override {
    const StageTimer timer(ledger);
    if (h.rows == 0) return;
    ledger.weight_bytes += cpu::HcMix(Context(), w, h, u, inject);
  }

  void HcCombine(LedgerSlot& ledger, MatrixView<const float> inject, MatrixView<const float> y,
                 MatrixView<float> h) override {
    const StageTimer timer(ledger);
    cpu::HcCombine(Context(), inject, y, h);
  }

  void Ple(LedgerSlot& ledger, const PleWeights& w, const PleShape& shape,
           absl::Span<const ConvSequence> sequences, MatrixView<const float> e,
           MatrixView<float> h) override {
    const StageTimer timer(ledger);
    if (h.rows == 0) return;
    ledger.weight_bytes += cpu::Ple(Context(), w, shape, sequences, e, h);
  }

  void GatedDeltaNet(LedgerSlot& ledger, const DeltaNetWeights& w, const DeltaNetShape& shape,
                     absl::Span<const DeltaNetSequence> sequences, MatrixView<const float> u,
                     MatrixView<float> y) override {
    const StageTimer timer(ledger);
    if (u.rows == 0) return;
    ledger.weight_bytes += cpu::GatedDeltaNet(Context(), w, shape, sequences, u, y);
  }

  void AttentionQkv(LedgerSlot& ledger, const AttentionWeights& w, const AttentionShape& shape,
                    const KvLayer& cache, absl::Span<const AttentionSequence> sequences,
                    MatrixView<const float> u, const AttentionInputs& out) override {
    const StageTimer timer(ledger);
    if (u.rows == 0) return;
    ledger.weight_bytes +=
        cpu::AttentionQkv(Context(), rope_, block_scores_, w, shape, cache, sequences, u, out);
  }

  void QsaSelect(LedgerSlot& ledger, const AttentionShape& shape, const KvLayer& cache,
                 absl::Span<const AttentionSequence> sequences, MatrixView<const float> index_query,
                 const QsaSelection& selection) override {
    const StageTimer timer(ledger);
    if (index_query.rows == 0) return;
    cpu::QsaSelect(Context(), block_scores_, shape, cache, sequences, index_query, selection);
  }

  void Attention(LedgerSlot& ledger, const AttentionShape& shape, const KvLayer& cache,
                 absl::Span<const AttentionSequence> sequences, const AttentionInputs& inputs,
                 const QsaSelection& selection, MatrixView<float> out) override {
    const StageTimer timer(ledger);
    if (out.rows == 0) return;
    cpu::Attention(Context(), shape, cache, sequences, inputs, selection, out);
  }

  void Router(LedgerSlot& ledger, const Weight& router, MatrixView<const float> u,
              MatrixView<int32_t> experts, MatrixView<float> weights) override {
    const StageTimer timer(ledger);
    if (u.rows == 0) return;
    ledger.weight_bytes += cpu::Router(Context(), router, u, experts, weights);
  }

  void Experts(LedgerSlot& ledger, const MoeWeights& w, MatrixView<const float> u,
               MatrixView<const int32_t> experts, MatrixView<const float> weights,
               MatrixView<float> y) override {
    const StageTimer timer(ledger);
    if (u.rows == 0) return;
    ledger.weight_bytes += cpu::Experts(Context(), w, u, experts, weights, y);
  }

  void GatherRows(LedgerSlot& ledger, MatrixView<const float> in, absl::Span<const int32_t> rows,
                  MatrixView<float> out) override {
    const StageTimer timer(ledger);
    for (int64_t i = 0; i < out.rows; ++i) {
      std::memcpy(out.row(i), in.row(rows[static_cast<size_t>(i)]),
                  static_cast<size_t>(out.cols) * sizeof(float));
    }
  }

  void Upload(LedgerSlot& ledger, const void* source, int64_t bytes, void* target) override {
    const StageTimer timer(ledger);
    if (bytes > 0) std::memcpy(target, source, static_cast<size_t>(bytes));
  }

  void Download(LedgerSlot& ledger, const void* source, int64_t bytes, void* target) override {
    Upload(ledger, source, bytes, target);
  }

 private:
  StageContext Context() {
    return {pool_,    options_.level,          KernelsOf(options_.level),
            scratch_, absl::MakeSpan(matmul_), fault_};
  }

  void ChooseThreads();

  const CpuBackendOptions options_;
  ThreadPool pool_;
  bool threads_are_chosen_ = false;
  std::optional<Arena> weights_;
  bool recode_ = true;
  int64_t resident_weight_bytes_ = 0;
  StageFault fault_;
  Scratch scratch_;
  std::vector<MatMulScratch> matmul_;  // one a thread
  RopeCache rope_;
  BlockScores block_scores_;
};

absl::Status CpuBackend::ReserveWeights(absl::Span<const WeightRequest> weights) {
  if (weights_.has_value()) return FailedPrecondition("memory for weights is reserved already");
  int64_t stored_bytes = 0, recoded_bytes = 0;
  for (const WeightRequest& weight : weights) {
    stored_bytes += CpuWeight::ArenaBytesOf(weight, /*recode=*/false);
    recoded_bytes += CpuWeight::ArenaBytesOf(weight, /*recode=*/true);
  }
  if (options_.recode != Recode::kAuto) {
    recode_ = options_.recode == Recode::kAlways;
  } else {
    // A tenth is left to caches, buffers and the rest of the host.
    const std::optional<int64_t> available = AvailableHostBytes();
    recode_ = !available.has_value() || recoded_bytes <= *available / 10 * 9;
  }
  if (recoded_bytes != stored_bytes) {
    LogInfo("IQ3_S and IQ3_XXS are kept {}: weights take {} instead of {}",
            recode_ ? "recoded to 4 bits" : "as stored, which is slow",
            FormatBytes(static_cast<double>(recode_ ? recoded_bytes : stored_bytes)),
            FormatBytes(static_cast<double>(recode_ ? stored_bytes : recoded_bytes)));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(
      Arena arena, Arena::Create(recode_ ? recoded_bytes : stored_bytes,
                                 {.huge_pages = options_.huge_pages, .require_available = true}));
  weights_ = std::move(arena);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Weight>> CpuBackend::LoadWeight(const WeightSource& source,
                                                               WeightUse use) {
  SWITCHYARD_ASSIGN_OR_RETURN(
      std::unique_ptr<CpuWeight> weight,
      CpuWeight::Load(source, use, recode_, weights_.has_value() ? &*weights_ : nullptr, pool_));
  resident_weight_bytes_ += weight->resident_bytes();
  return weight;
}

absl::StatusOr<std::unique_ptr<Buffer>> CpuBackend::AllocateBuffer(int64_t bytes,
                                                                   std::string_view what) {
  absl::StatusOr<Arena> arena =
      Arena::Create(bytes, {.huge_pages = false, .require_available = false});
  if (!arena.ok()) return WithContext(arena.status(), what);
  return std::make_unique<HostBuffer>(std::move(arena).value(), bytes);
}

void CpuBackend::ChooseThreads() {
  const ThreadSweep& sweep = options_.sweep;
  if (std::exchange(threads_are_chosen_, true) || !sweep.choose) return;
  std::vector<ThreadRate> rates;
  if (!sweep.counts.empty()) {
    if (!weights_.has_value() || weights_->used_bytes() == 0) return;
    const auto num_bytes = static_cast<size_t>(weights_->used_bytes());
    rates = MeasureThreadRates(pool_, {weights_->data(), num_bytes}, sweep.counts);
  }
  pool_.SetNumRunning(std::clamp(sweep.choose(rates), 1, options_.num_threads));
}

absl::Status CpuBackend::Prepare(const StepLimits& limits) {
  if (limits.delta_head_dim % 8 != 0 || limits.head_dim % 8 != 0 ||
      limits.index_head_dim % 8 != 0) {
    return Unimplemented(
        "head sizes must be multiples of 8: delta net {}, attention {}, indexer {}",
        limits.delta_head_dim, limits.head_dim, limits.index_head_dim);
  }
  if (std::max(limits.delta_conv_kernel, limits.ple_conv_kernel) > kMaxConvTaps) {
    return Unimplemented("convolutions have at most {} taps: delta net {}, n-gram embedding {}",
                         kMaxConvTaps, limits.delta_conv_kernel, limits.ple_conv_kernel);
  }
  const int num_threads = options_.num_threads;
  const int64_t wide = limits.num_streams * limits.hidden_size;
  const int64_t max_cols = std::max(
      {wide, limits.max_inner_size, limits.ple_row_size, limits.expert_hidden_size,
       limits.shared_expert_hidden_size, limits.hc_low_rank,
       limits.num_value_heads * limits.delta_head_dim, limits.num_heads * limits.head_dim});
  Scratch scratch;
  MeasureHcMix(scratch, num_threads, limits);
  MeasurePle(scratch, num_threads, limits);
  MeasureGatedDeltaNet(scratch, num_threads, limits);
  MeasureAttentionQkv(scratch, num_threads, limits);
  MeasureQsaSelect(scratch, num_threads, limits);
  MeasureAttention(scratch, num_threads, limits);
  MeasureRouter(scratch, limits);
  MeasureExperts(scratch, num_threads, limits);
  {
    const Scratch::Frame frame(scratch);  // MatMul() and MatMulSharded()
    TakeActivations(scratch, limits.max_rows, max_cols, true);
  }
  SWITCHYARD_RETURN_IF_ERROR(scratch.Reserve());
  ChooseThreads();
  scratch_ = std::move(scratch);
  matmul_.clear();
  for (int thread = 0; thread < num_threads; ++thread) matmul_.emplace_back(max_cols);
  rope_.Prepare(limits.max_rows, limits.head_dim);
  if (limits.min_qsa_ratio != 0) {
    block_scores_.Prepare(limits.max_rows, limits.max_context / limits.min_qsa_ratio);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuBackendOptions& options) {
  if (options.num_threads < 1) {
    return InvalidArgument("the cpu backend needs at least one thread, got: {}",
                           options.num_threads);
  }
  if (!options.cores.empty() && static_cast<int>(options.cores.size()) != options.num_threads) {
    return InvalidArgument("list of cores has another length than the pool: {}, threads: {}",
                           options.cores.size(), options.num_threads);
  }
  for (const int count : options.sweep.counts) {
    if (count < 1 || count > options.num_threads) {
      return InvalidArgument("the sweep of threads leaves the pool: {}, threads: {}", count,
                             options.num_threads);
    }
  }
  if (!RunsCpuLevel(options.level)) {
    return FailedPrecondition("this machine does not run level: {}, fastest: {}",
                              CpuLevelName(options.level), CpuLevelName(DetectCpuLevel()));
  }
  return std::make_unique<CpuBackend>(options);
}

}  // namespace switchyard::kernels::cpu
