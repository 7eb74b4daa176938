#include "worker/forward/forward.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker/forward/attention_layer.h"
#include "worker/forward/delta_net_layer.h"
#include "worker/forward/moe_layer.h"
#include "worker/forward/rank_exchange.h"

namespace switchyard::worker {
namespace {

kernels::StepLimits MakeStepLimits(const model::ModelSpec& spec, const ForwardLimits& limits) {
  kernels::StepLimits result;
  result.max_rows = limits.max_rows;
  result.max_sequences = limits.max_sequences;
  result.max_context = limits.max_context;
  result.hidden_size = spec.hidden_size;
  result.num_streams = spec.num_residual_streams;
  result.hc_low_rank = spec.hc_low_rank;
  result.vocab_size = spec.vocab_size;
  result.num_experts = spec.moe.num_experts;
  result.top_k = spec.moe.top_k;
  result.expert_hidden_size = spec.moe.max_expert_hidden_size;
  result.shared_expert_hidden_size = spec.moe.shared_expert_hidden_size;
  result.num_heads = spec.attention.num_heads;
  result.head_dim = spec.attention.head_dim;
  result.num_index_heads = spec.attention.num_index_heads;
  result.index_head_dim = spec.attention.index_head_dim;
  result.qsa_budget_blocks = MaxBudgetBlocks(spec);
  for (const model::LayerSpec& layer : spec.layers) {
    if (layer.kind != model::LayerKind::kAttention || layer.compress_ratio == 0) continue;
    if (result.min_qsa_ratio == 0 || layer.compress_ratio < result.min_qsa_ratio) {
      result.min_qsa_ratio = layer.compress_ratio;
    }
  }
  const int64_t wide = int64_t{spec.num_residual_streams} * spec.hidden_size;
  const int64_t query = int64_t{spec.attention.num_heads} * spec.attention.head_dim;
  result.max_inner_size =
      std::max({wide, query * (spec.attention.has_output_gate ? 2 : 1),
                int64_t{spec.moe.max_expert_hidden_size} * 2,
                int64_t{spec.moe.shared_expert_hidden_size} * 2, int64_t{spec.moe.num_experts}});
  if (spec.delta_net.has_value()) {
    const model::DeltaNetSpec& delta_net = *spec.delta_net;
    result.num_key_heads = delta_net.num_key_heads;
    result.num_value_heads = delta_net.num_value_heads;
    result.delta_head_dim = delta_net.head_dim;
    result.delta_conv_kernel = delta_net.conv_kernel;
    const int64_t channels =
        int64_t{2 * delta_net.num_key_heads + delta_net.num_value_heads} * delta_net.head_dim;
    result.max_inner_size = std::max(result.max_inner_size, channels);
  }
  if (spec.ple.has_value()) {
    result.ple_row_size = NgramRowSize(spec);
    result.ple_conv_kernel = spec.ple->conv_kernel;
    result.ple_dilation = spec.ple->ngram_size;
  }
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Forward>> Forward::Create(
    const model::GgufFile& file, const model::ModelSpec& spec, const placement::RankShare& share,
    const ModelWeights& weights, kernels::Backend& backend, const ForwardLimits& limits) {
  std::unique_ptr<Forward> forward(new Forward(spec, share, weights, backend));
  SWITCHYARD_RETURN_IF_ERROR(backend.Prepare(MakeStepLimits(spec, limits)));
  SWITCHYARD_ASSIGN_OR_RETURN(forward->activations_,
                              Activations::Create(backend, spec, share, limits.max_rows));
  if (weights.has_ple()) {
    forward->ple_table_.emplace(file, *spec.ple);
    const auto max_rows = static_cast<size_t>(limits.max_rows);
    forward->ngram_ids_.resize(max_rows * static_cast<size_t>(spec.ple->num_heads()));
    forward->ngram_staging_.resize(max_rows * static_cast<size_t>(NgramRowSize(spec)));
  }
  if (!share.output_rows.empty() && !share.has_whole_output(spec)) {
    forward->head_.emplace(spec.vocab_size, share, limits.never_sampled);
  }
#ifndef NDEBUG
  forward->check_ranks_ = true;
#else
  forward->check_ranks_ = limits.check_ranks;
#endif
  const auto max_sequences = static_cast<size_t>(limits.max_sequences);
  forward->attention_sequences_.reserve(max_sequences);
  forward->delta_net_sequences_.reserve(max_sequences);
  forward->conv_sequences_.reserve(max_sequences);
  return forward;
}

absl::Span<int64_t> Forward::NgramIds(const Batch& batch) {
  return absl::MakeSpan(ngram_ids_.data(), static_cast<size_t>(batch.num_rows()) *
                                               static_cast<size_t>(spec_.ple->num_heads()));
}

void Forward::PrefetchNgramRows(StepContext& step) {
  const double start = MonotonicClock::Get().NowSeconds();
  const model::PleSpec& ple = *spec_.ple;
  const Batch& batch = step.batch;
  const auto num_heads = static_cast<size_t>(ple.num_heads());
  const absl::Span<int64_t> ids = NgramIds(batch);
  const absl::Span<const int32_t> tokens = batch.token_ids;
  for (const BatchSequence& sequence : batch.sequences) {
    const auto begin = static_cast<size_t>(sequence.row_begin);
    const auto count = static_cast<size_t>(sequence.num_rows);
    NgramRows(ple, sequence.context, tokens.subspan(begin, count),
              ids.subspan(begin * num_heads, count * num_heads));
  }
  ple_table_->Prefetch(ids);
  step.ledger[v1::STAGE_PLE].seconds += MonotonicClock::Get().NowSeconds() - start;
}

void Forward::AddNgramEmbedding(StepContext& step) {
  const double start = MonotonicClock::Get().NowSeconds();
  kernels::LedgerSlot& ledger = step.ledger[v1::STAGE_PLE];
  ple_table_->Gather(NgramIds(step.batch), ngram_staging_.data());
  ledger.seconds += MonotonicClock::Get().NowSeconds() - start;
  backend_.Upload(ledger, ngram_staging_.data(),
                  step.batch.num_rows() * NgramRowSize(spec_) * static_cast<int64_t>(sizeof(float)),
                  activations_.ngram_rows.data);
  step.conv_sequences.clear();
  for (const BatchSequence& rows : step.batch.sequences) {
    kernels::ConvSequence sequence;
    static_cast<kernels::SequenceRows&>(sequence) = rows;
    step.state.Bind(rows.slot, sequence);
    step.conv_sequences.push_back(sequence);
  }
  const int64_t t = step.batch.num_rows();
  backend_.Ple(ledger, weights_.ple, weights_.ple_shape, step.conv_sequences,
               activations_.ngram_rows.Rows(0, t), activations_.residual.Rows(0, t));
}

absl::StatusOr<MatrixView<float>> Forward::RunLayers(StepContext& step,
                                                     MatrixView<float> residual) {
  kernels::LedgerSlot& mixing = step.ledger[v1::STAGE_HC];
  const auto mix = [&](const kernels::MixerWeights& mixer) {
    const MatrixView<float> inject =
        mixer.inject == nullptr ? MatrixView<float>() : activations_.inject.Rows(0, residual.rows);
    backend_.HcMix(mixing, mixer, residual, activations_.sublayer_input.Rows(0, residual.rows),
                   inject);
    return inject;
  };
  const auto combine = [&](const MatrixView<float>& inject) {
    backend_.HcCombine(mixing, inject, activations_.sublayer_output.Rows(0, residual.rows),
                       residual);
  };

  for (int l = share_.first_layer; l < share_.end_layer; ++l) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(l)];
    if (weights_.has_ple() && spec_.ple->layer == l) AddNgramEmbedding(step);
    MatrixView<float> inject = mix(layer.mixer);
    if (layer.kind == model::LayerKind::kAttention) {
      RunAttentionLayer(layer, l, step);
    } else {
      RunDeltaNetLayer(layer, l, step);
    }
    if (share_.after_mixing == placement::Meeting::kAllReduce) {
      const MatrixView<float> output = activations_.sublayer_output.Rows(0, residual.rows);
      RankExchange exchange(*step.ranks, step.ledger);
      SWITCHYARD_RETURN_IF_ERROR(exchange.AllReduce(output));
      if (step.check_ranks) {
        SWITCHYARD_RETURN_IF_ERROR(exchange.CheckAlike(output.data, output.rows * output.cols * 4,
                                                       "the output of attention", l));
      }
    }
    combine(inject);
    if (l == spec_.num_layers - 1) {
      // Nothing later reads the other rows.
      const MatrixView<float> outputs =
          activations_.output_residual.Rows(0, step.batch.num_outputs());
      backend_.GatherRows(step.ledger[v1::STAGE_HEAD], residual, step.batch.output_rows, outputs);
      residual = outputs;
      if (residual.rows == 0) return residual;
    }
    inject = mix(layer.moe_mixer);
    SWITCHYARD_RETURN_IF_ERROR(RunMoeLayer(layer, l, residual.rows, step));
    combine(inject);
    if (observer_) observer_(l, residual);
  }
  return residual;
}

absl::Status Forward::Run(const Batch& batch, const KvCache& kv_cache, const RecurrentState& state,
                          comm::Communicator* ranks, const StepExperts& experts, Ledger& ledger) {
  StepContext step{backend_,
                   activations_,
                   kv_cache,
                   state,
                   ledger,
                   batch,
                   attention_sequences_,
                   delta_net_sequences_,
                   conv_sequences_,
                   ranks,
                   share_,
                   experts,
                   check_ranks_};
  if (share_.after_experts == placement::Meeting::kOwner && share_.rank > 0) {
    for (int l = 0; l < spec_.num_layers; ++l) {
      const int64_t num_rows = l < spec_.num_layers - 1 ? batch.num_rows() : batch.num_outputs();
      if (num_rows == 0) break;
      SWITCHYARD_RETURN_IF_ERROR(ServeMoeLayer(weights_.layers[static_cast<size_t>(l)], l, num_rows,
                                               spec_.moe.top_k, step));
    }
    return absl::OkStatus();
  }
  if (weights_.has_ple()) PrefetchNgramRows(step);

  MatrixView<float> residual = activations_.residual.Rows(0, batch.num_rows());
  if (share_.first_layer == 0) {
    backend_.Embed(ledger[v1::STAGE_EMBED], *weights_.token_embedding, batch.token_ids,
                   spec_.num_residual_streams, residual);
  } else {
    SWITCHYARD_RETURN_IF_ERROR(RankExchange(*ranks, ledger).Receive(residual, share_.rank - 1));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(residual, RunLayers(step, residual));
  if (share_.end_layer < spec_.num_layers) {
    return RankExchange(*ranks, ledger).Send(residual, share_.rank + 1);
  }
  if (residual.rows == 0) return absl::OkStatus();
  backend_.HcMix(ledger[v1::STAGE_HEAD], weights_.final_mixer, residual,
                 activations_.sublayer_input.Rows(0, residual.rows), {});
  return absl::OkStatus();
}

absl::StatusOr<MatrixView<const float>> Forward::Logits(int64_t first, int64_t count,
                                                        int num_candidates,
                                                        comm::Communicator* ranks, Ledger& ledger) {
  if (share_.output_rows.empty()) return MatrixView<const float>();
  const MatrixView<const float> input = activations_.sublayer_input.Rows(first, count);
  kernels::LedgerSlot& slot = ledger[v1::STAGE_HEAD];
  if (!head_.has_value()) {
    const MatrixView<float> logits = activations_.logits.Rows(0, count);
    backend_.MatMul(slot, *weights_.output, input, logits);
    return logits;
  }
  const MatrixView<float> own = activations_.own_logits.Rows(0, count);
  backend_.MatMul(slot, *weights_.output, input, own);
  RankExchange exchange(*ranks, ledger);
  if (!share_.is_lead) {
    SWITCHYARD_RETURN_IF_ERROR(head_->Send(own, num_candidates, exchange));
    return MatrixView<const float>();
  }
  const MatrixView<float> logits = activations_.logits.Rows(0, count);
  SWITCHYARD_RETURN_IF_ERROR(
      head_->Collect(own, num_candidates, activations_.peer_logits, exchange, logits));
  return logits;
}

}  // namespace switchyard::worker
