#include "app/synth/tensor_list.h"

#include <cmath>
#include <fmt/format.h>
#include <utility>

#include "app/synth/ple_constants.h"
#include "app/synth/router_skew.h"

namespace switchyard::app {
namespace {

// What sublayers add to the residual, next to an embedding of deviation 1.
constexpr double kBranch = 0.2;

// Deviation of the routers' logits for inputs of deviation 1.
constexpr double kRouterGain = 8;

class TensorLister {
 public:
  TensorLister(const SynthOptions& options, const TypeRules& types) : o_(options), types_(types) {}

  std::vector<SynthTensor> List() {
    // Logits come from one matrix either way, so a tied embedding has the output's deviation.
    const double output_deviation = 5 / std::sqrt(o_.hidden_size);
    Add("token_embd.weight", {o_.hidden_size, o_.vocab_size}, 0,
        o_.tied_output ? output_deviation : 1);
    if (o_.router_skew != 0) {
      tensors_.back().num_fixed_columns = FixedColumns(tensors_.back().dtype);
      embedding_ = std::make_shared<const SynthTensor>(tensors_.back());
    }
    if (!o_.tied_output) {
      Add("output.weight", {o_.hidden_size, o_.vocab_size}, 0, output_deviation);
    }
    tensors_.back().num_zero_rows = o_.num_unused_tokens;
    if (has().has_mixers) {
      AddMixer("output_hc_", /*has_inject=*/false);
    } else {
      AddNorm("output_norm.weight", o_.hidden_size);
    }
    if (o_.ple_layer >= 0) AddPleTable();
    for (int layer = 0; layer < o_.num_layers; ++layer) {
      AddBlock(fmt::format("blk.{}.", layer), IsAttentionLayer(o_, layer));
      if (o_.router_skew != 0) SkewRouter(layer);
      if (layer == o_.ple_layer) AddPle(fmt::format("blk.{}.", layer));
    }
    for (int i = 0; i < o_.num_mtp_layers; ++i) {
      const std::string prefix = fmt::format("blk.{}.", o_.num_layers + i);
      AddBlock(prefix, /*is_attention=*/true);
      AddMtp(prefix);
    }
    return std::move(tensors_);
  }

 private:
  const SynthArchitecture& has() const { return o_.architecture; }
  int64_t wide() const { return int64_t{o_.num_residual_streams} * o_.hidden_size; }

  void Add(const std::string& name, std::vector<int64_t> dims, double mean, double deviation) {
    SynthTensor tensor;
    tensor.name = name;
    tensor.dtype = types_.Choose(name, dims[0], dims.size() == 1);
    tensor.dims = std::move(dims);
    tensor.mean = mean;
    tensor.deviation = deviation;
    tensors_.push_back(std::move(tensor));
  }

  // Of inputs of deviation 1 the product has deviation `gain`.
  void AddMatrix(const std::string& name, std::vector<int64_t> dims, double gain) {
    const double deviation = gain / std::sqrt(static_cast<double>(dims[0]));
    Add(name, std::move(dims), 0, deviation);
  }

  void AddNorm(const std::string& name, int64_t size, double mean = 1) {
    Add(name, {size}, mean, 0.1);
  }

  void AddMixer(const std::string& prefix, bool has_inject) {
    AddNorm(prefix + "norm.weight", wide());
    AddMatrix(prefix + "down.weight", {wide(), o_.hc_low_rank}, 4);
    AddMatrix(prefix + "up.weight", {o_.hc_low_rank, wide()}, 2.5);
    if (has_inject) AddMatrix(prefix + "inject.weight", {wide(), o_.num_residual_streams}, 4);
  }

  // What is in front of a sublayer: a mixer, or a norm.
  void AddSublayerInput(const std::string& prefix, const char* mixer, const std::string& norm) {
    if (has().has_mixers) {
      AddMixer(prefix + mixer, /*has_inject=*/true);
    } else {
      AddNorm(prefix + norm + ".weight", o_.hidden_size);
    }
  }

  void AddBlock(const std::string& prefix, bool is_attention) {
    AddSublayerInput(prefix, "hc_attn_", "attn_norm");
    if (is_attention) {
      AddAttention(prefix);
    } else {
      AddDeltaNet(prefix);
    }
    AddSublayerInput(prefix, "hc_ffn_", has().moe_norm);
    AddMoe(prefix);
  }

  void AddAttention(const std::string& prefix) {
    const int64_t hidden = o_.hidden_size;
    const int64_t query_rows = int64_t{o_.num_heads} * o_.head_dim;
    const int64_t kv_rows = int64_t{o_.num_kv_heads} * o_.head_dim;
    AddMatrix(prefix + "attn_q.weight", {hidden, (has().has_output_gate ? 2 : 1) * query_rows}, 2);
    AddMatrix(prefix + "attn_k.weight", {hidden, kv_rows}, 2);
    AddMatrix(prefix + "attn_v.weight", {hidden, kv_rows}, 3);
    AddMatrix(prefix + "attn_output.weight", {query_rows, hidden}, 2 * kBranch);
    // Above 1: scores spread enough for attention to look at single tokens.
    AddNorm(prefix + "attn_q_norm.weight", o_.head_dim, 1.5);
    AddNorm(prefix + "attn_k_norm.weight", o_.head_dim, 1.5);
    if (!has().has_sparse_attention) return;
    const int64_t index_rows = int64_t{o_.num_index_heads} * o_.index_head_dim;
    AddMatrix(prefix + "indexer.q_proj.weight", {hidden, index_rows}, 1);
    AddMatrix(prefix + "indexer.k_proj.weight", {hidden, o_.index_head_dim}, 1);
    AddNorm(prefix + "indexer.q_norm.weight", o_.index_head_dim);
    AddNorm(prefix + "indexer.k_norm.weight", o_.index_head_dim);
  }

  void AddDeltaNet(const std::string& prefix) {
    const int64_t hidden = o_.hidden_size;
    const int64_t value_rows = int64_t{o_.num_value_heads} * o_.delta_head_dim;
    const int64_t channels = 2 * int64_t{o_.num_key_heads} * o_.delta_head_dim + value_rows;
    AddMatrix(prefix + "attn_qkv.weight", {hidden, channels}, 2);
    AddMatrix(prefix + "attn_gate.weight", {hidden, value_rows}, 2);
    Add(prefix + "ssm_conv1d.weight", {o_.conv_kernel, channels}, 0, 0.6);
    if (has().fused_beta_alpha) {
      AddMatrix(prefix + "ssm_ba.weight", {hidden, 2 * int64_t{o_.num_value_heads}}, 2.5);
    } else {
      AddMatrix(prefix + "ssm_beta.weight", {hidden, o_.num_value_heads}, 3);
      AddMatrix(prefix + "ssm_alpha.weight", {hidden, o_.num_value_heads}, 2);
    }
    // Memories from about one token to a few hundred.
    Add(prefix + "ssm_a", {o_.num_value_heads}, std::log(0.02), std::log(1.5));
    tensors_.back().distribution = Distribution::kDecay;
    Add(prefix + "ssm_dt.bias", {o_.num_value_heads}, -1, 1);
    AddNorm(prefix + "ssm_norm.weight", o_.delta_head_dim);
    AddMatrix(prefix + "ssm_out.weight", {value_rows, hidden}, 1.5 * kBranch);
  }

  void AddMoe(const std::string& prefix) {
    const int64_t hidden = o_.hidden_size;
    const int64_t expert = o_.expert_hidden_size;
    const int64_t shared = o_.shared_expert_hidden_size;
    // Steep, so that the choice of experts rarely hangs on rounding.
    AddMatrix(prefix + "ffn_gate_inp.weight", {hidden, o_.num_experts}, kRouterGain);
    if (o_.fused_gate_up) {
      AddMatrix(prefix + "ffn_gate_up_exps.weight", {hidden, 2 * expert, o_.num_experts}, 2);
    } else {
      AddMatrix(prefix + "ffn_gate_exps.weight", {hidden, expert, o_.num_experts}, 2);
      AddMatrix(prefix + "ffn_up_exps.weight", {hidden, expert, o_.num_experts}, 2);
    }
    AddMatrix(prefix + "ffn_down_exps.weight", {expert, hidden, o_.num_experts}, 2.5 * kBranch);
    if (!has().has_shared_expert) return;
    AddMatrix(prefix + "ffn_gate_inp_shexp.weight", {hidden}, 2);
    AddMatrix(prefix + "ffn_gate_shexp.weight", {hidden, shared}, 2);
    AddMatrix(prefix + "ffn_up_shexp.weight", {hidden, shared}, 2);
    AddMatrix(prefix + "ffn_down_shexp.weight", {shared, hidden}, kBranch);
  }

  // Biases the router of the layer that was added last. Its logits are
  //   gain * (random value of deviation `spread` + bias * mean)
  // where `spread` and `mean` are those of the factor by which the mixer in front scales what the
  // residual holds, and the fixed columns are a smaller part of it from layer to layer.
  void SkewRouter(int layer) {
    const std::string name = fmt::format("blk.{}.ffn_gate_inp.weight", layer);
    for (SynthTensor& tensor : tensors_) {
      if (tensor.name != name) continue;
      // Gates are sigmoids of nearly normal values of deviation 1.5, of which four streams have a
      // mean of 0.5 and a root mean square of 0.52.
      const double gate = has().has_mixers ? 0.52 / 0.5 : 1;
      const double residual = std::sqrt(1 + 2 * kBranch * kBranch * (layer + 0.5));
      tensor.row_biases = RouterBiases(o_.router_skew, o_.num_experts, o_.top_k, o_.seed, name);
      for (float& bias : tensor.row_biases) {
        bias *= static_cast<float>(kRouterGain * gate * residual * embedding_->deviation);
      }
      tensor.biased_by = embedding_;
    }
  }

  void AddPleTable() {
    const int num_heads = NumPleHeads(o_);
    const int64_t rows =
        PleTableRows(PrimesFrom(static_cast<uint64_t>(o_.ple_rows_per_head), num_heads));
    Add("per_layer_token_embd.weight", {o_.hidden_size / num_heads, rows}, 0, 1);
  }

  void AddPle(const std::string& prefix) {
    AddMatrix(prefix + "ple_key.weight", {o_.hidden_size, wide()}, 1);
    AddMatrix(prefix + "ple_value.weight", {o_.hidden_size, o_.hidden_size}, kBranch);
    for (const char* name : {"key", "query", "conv"}) {
      AddNorm(fmt::format("{}ple_norm_{}.weight", prefix, name), wide());
    }
    Add(prefix + "ple_conv1d.weight", {o_.ple_conv_kernel, wide()}, 0, 0.5);
  }

  void AddMtp(const std::string& prefix) {
    AddNorm(prefix + "nextn.enorm.weight", o_.hidden_size);
    AddNorm(prefix + "nextn.hnorm.weight", wide());
    AddMatrix(prefix + "nextn.eh_proj.weight", {2 * int64_t{o_.hidden_size}, o_.hidden_size}, 1.4);
    if (has().has_mixers) {
      AddMixer(prefix + "nextn.hc_head_", /*has_inject=*/false);
    } else {
      AddNorm(prefix + "nextn.shared_head_norm.weight", o_.hidden_size);
    }
  }

  const SynthOptions& o_;
  const TypeRules& types_;
  std::vector<SynthTensor> tensors_;
  std::shared_ptr<const SynthTensor> embedding_;  // with a router skew
};

}  // namespace

int64_t SynthTensor::num_rows() const {
  int64_t rows = 1;
  for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
  return rows;
}

std::vector<SynthTensor> ListTensors(const SynthOptions& options, const TypeRules& types) {
  return TensorLister(options, types).List();
}

}  // namespace switchyard::app
