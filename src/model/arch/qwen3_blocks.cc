#include "model/arch/qwen3_blocks.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::model {
namespace {

constexpr int kMaxBlocks = 4096;
// Expert ids travel in 16 bits.
constexpr int kMaxExperts = 65535;

// Keys that would change the computation in ways that are not implemented.
void CheckUnscaledRope(ArchReader& reader) {
  constexpr std::string_view kScaling = "rope.scaling.type";
  if (!reader.Has(kScaling)) return;
  reader.Check(reader.Text(kScaling) == "none", kScaling, "rope scaling is not supported");
}

// Draft blocks are recognised by name alone: nothing of them is used yet, and publishers differ.
void ReadMtpTensors(ArchReader& reader, ModelSpec& spec) {
  for (int i = 0; i < spec.num_mtp_layers; ++i) {
    const std::vector<TensorRef> tensors =
        reader.TensorsWithPrefix(fmt::format("blk.{}.", spec.num_layers + i));
    reader.Check(!tensors.empty(), "nextn_predict_layers",
                 "file has no tensors of its draft block: block {}", spec.num_layers + i);
    spec.mtp_tensors.insert(spec.mtp_tensors.end(), tensors.begin(), tensors.end());
  }
}

// The file's own names, and what must agree with the vocabulary.
absl::Status ReadTexts(const GgufMetadata& metadata, ModelSpec& spec) {
  if (metadata.Has("general.name")) {
    SWITCHYARD_ASSIGN_OR_RETURN(spec.name, metadata.GetString("general.name"));
  }
  if (metadata.Has("tokenizer.ggml.pre")) {
    SWITCHYARD_ASSIGN_OR_RETURN(spec.pre_tokenizer, metadata.GetString("tokenizer.ggml.pre"));
  }
  // Everything else about the vocabulary is for the tokenizer to check.
  const MetadataEntry* tokens = metadata.Find("tokenizer.ggml.tokens");
  if (tokens != nullptr && tokens->count != static_cast<uint64_t>(spec.vocab_size)) {
    return InvalidArgument("vocabulary and embedding differ in size: tokens: {}, rows: {}, {}",
                           tokens->count, spec.vocab_size, metadata.Where(*tokens));
  }
  return absl::OkStatus();
}

LayerSpec ReadPreNormLayer(ArchReader& reader, const Blocks& blocks, const PreNormNames& names,
                           const ModelSpec& spec, int index) {
  const auto block = static_cast<size_t>(index);
  const std::string prefix = fmt::format("blk.{}.", index);
  LayerSpec layer;
  layer.kind = blocks.kinds[block];
  layer.expert_hidden_size = blocks.expert_hidden_sizes[block];
  layer.mixer.norm = reader.Tensor(prefix + "attn_norm.weight", {spec.hidden_size});
  if (layer.kind == LayerKind::kAttention) {
    layer.attention = ReadAttentionTensors(reader, spec, prefix);
  } else {
    layer.delta_net = ReadDeltaNetTensors(reader, spec, prefix, names.delta_net_inputs);
  }
  layer.moe_mixer.norm =
      reader.Tensor(fmt::format("{}{}.weight", prefix, names.moe_norm), {spec.hidden_size});
  layer.moe = ReadMoeTensors(reader, spec, prefix, layer.expert_hidden_size);
  if (reader.ok()) SetShards(spec, layer);
  return layer;
}

}  // namespace

// ---- metadata ---------------------------------------------------------------------------------

Blocks ReadTrunkSizes(ArchReader& reader, ModelSpec& spec) {
  Blocks blocks;
  blocks.num_blocks = reader.Size("block_count", 1, kMaxBlocks);
  blocks.kinds.assign(static_cast<size_t>(blocks.num_blocks), LayerKind::kAttention);
  spec.num_mtp_layers = reader.SizeOr("nextn_predict_layers", 0, 0, kMaxBlocks);
  reader.Check(spec.num_mtp_layers < blocks.num_blocks, "nextn_predict_layers",
               "draft blocks leave no layer: {} of {} blocks", spec.num_mtp_layers,
               blocks.num_blocks);
  if (!reader.ok()) spec.num_mtp_layers = 0;
  spec.num_layers = blocks.num_blocks - spec.num_mtp_layers;
  spec.hidden_size = reader.Size("embedding_length");
  spec.context_length = reader.Integer("context_length", 1, std::numeric_limits<int32_t>::max());
  spec.rms_epsilon = reader.PositiveFloat("attention.layer_norm_rms_epsilon");
  CheckUnscaledRope(reader);
  return blocks;
}

void ReadAttentionSizes(ArchReader& reader, AttentionSpec& attention) {
  constexpr std::string_view kRotated = "rope.dimension_count";
  attention.num_heads = reader.Size("attention.head_count");
  attention.num_kv_heads = reader.Size("attention.head_count_kv");
  attention.head_dim = reader.Size("attention.key_length");
  reader.Check(attention.num_heads % attention.num_kv_heads == 0, "attention.head_count_kv",
               "query heads are not a multiple of KV heads: {} and {}", attention.num_heads,
               attention.num_kv_heads);
  const int value_length = reader.Size("attention.value_length");
  reader.Check(value_length == attention.head_dim, "attention.value_length",
               "heads of keys and values differ in size: {} and {}", attention.head_dim,
               value_length);
  attention.num_rotary_dims = reader.SizeOr(kRotated, attention.head_dim);
  reader.Check(
      attention.num_rotary_dims % 2 == 0 && attention.num_rotary_dims <= attention.head_dim,
      kRotated, "rotated dimensions are odd or more than a head has: {}, head: {}",
      attention.num_rotary_dims, attention.head_dim);
  attention.rope_base = reader.PositiveFloat("rope.freq_base");
}

// Text needs plain rotation only, whatever axis a pair takes its position from; but readers of this
// format leave a pair that no section covers unrotated, so such a file means something else.
void CheckRopeSections(ArchReader& reader, const AttentionSpec& attention) {
  constexpr std::string_view kSections = "rope.dimension_sections";
  const std::vector<uint64_t> sections = reader.Integers(kSections, 3);
  const int num_pairs = attention.num_rotary_dims / 2;
  for (int axis = 0; axis < 3; ++axis) {
    const int wanted = (num_pairs - axis + 2) / 3;  // pairs i < num_pairs with i % 3 == axis
    reader.Check(sections[static_cast<size_t>(axis)] >= static_cast<uint64_t>(wanted), kSections,
                 "rope sections leave pairs uncovered: section {}: {}, wanted: {}", axis,
                 sections[static_cast<size_t>(axis)], wanted);
  }
}

DeltaNetSpec ReadDeltaNetSizes(ArchReader& reader) {
  DeltaNetSpec delta_net;
  delta_net.num_key_heads = reader.Size("ssm.group_count");
  delta_net.num_value_heads = reader.Size("ssm.time_step_rank");
  delta_net.head_dim = reader.Size("ssm.state_size");
  delta_net.conv_kernel = reader.Size("ssm.conv_kernel", 1, 64);
  reader.Check(delta_net.num_value_heads % delta_net.num_key_heads == 0, "ssm.time_step_rank",
               "value heads are not a multiple of key heads: {} and {}", delta_net.num_value_heads,
               delta_net.num_key_heads);
  const int64_t inner = reader.Integer("ssm.inner_size", 1, std::numeric_limits<int32_t>::max());
  reader.Check(inner == int64_t{delta_net.num_value_heads} * delta_net.head_dim, "ssm.inner_size",
               "inner size is not value heads times head size: {}, heads: {} of {}", inner,
               delta_net.num_value_heads, delta_net.head_dim);
  return delta_net;
}

void ReadLayerKinds(ArchReader& reader, const ModelSpec& spec, Blocks& blocks) {
  constexpr std::string_view kRecurrent = "attention.recurrent_layers";
  const int interval = reader.SizeOr("full_attention_interval", 4);
  std::vector<bool> is_recurrent;
  if (reader.Has(kRecurrent)) {
    is_recurrent = reader.BoolOrBoolPerBlock(kRecurrent, blocks.num_blocks);
  }
  for (int i = 0; i < spec.num_layers; ++i) {
    const auto block = static_cast<size_t>(i);
    const bool recurrent =
        is_recurrent.empty() ? (i + 1) % interval != 0 : bool{is_recurrent[block]};
    if (recurrent) blocks.kinds[block] = LayerKind::kDeltaNet;
  }
}

void ReadExpertSizes(ArchReader& reader, ModelSpec& spec, Blocks& blocks) {
  spec.moe.num_experts = reader.Size("expert_count", 1, kMaxExperts);
  spec.moe.top_k = reader.Size("expert_used_count", 1, kMaxExperts);
  reader.Check(spec.moe.top_k <= spec.moe.num_experts, "expert_used_count",
               "more experts are used than there are: {} of {}", spec.moe.top_k,
               spec.moe.num_experts);
  blocks.expert_hidden_sizes = reader.SizeOrSizePerBlock(
      "expert_feed_forward_length", blocks.num_blocks, 1, ArchReader::kMaxSize);
  spec.moe.max_expert_hidden_size = *std::max_element(
      blocks.expert_hidden_sizes.begin(), blocks.expert_hidden_sizes.begin() + spec.num_layers);
}

void ReadSharedExpertSize(ArchReader& reader, MoeSpec& moe) {
  moe.shared_expert_hidden_size = reader.Size("expert_shared_feed_forward_length");
}

// ---- tensors ----------------------------------------------------------------------------------

void ReadEmbedding(ArchReader& reader, ModelSpec& spec) {
  constexpr const char* kName = "token_embd.weight";
  const int64_t rows = reader.MatrixRows(kName, spec.hidden_size);
  if (!reader.ok()) return;
  spec.vocab_size = static_cast<int>(rows);
  spec.token_embedding = reader.Tensor(kName, {spec.hidden_size, rows});
  spec.output = reader.OptionalTensor("output.weight", {spec.hidden_size, rows});
  if (spec.output == nullptr) spec.output = spec.token_embedding;
}

AttentionTensors ReadAttentionTensors(ArchReader& reader, const ModelSpec& spec,
                                      const std::string& prefix) {
  const AttentionSpec& attention = spec.attention;
  const int64_t hidden = spec.hidden_size;
  const int64_t query_rows = int64_t{attention.num_heads} * attention.head_dim;
  const int64_t kv_rows = int64_t{attention.num_kv_heads} * attention.head_dim;
  AttentionTensors tensors;
  tensors.query = reader.Tensor(prefix + "attn_q.weight",
                                {hidden, (attention.has_output_gate ? 2 : 1) * query_rows});
  tensors.key = reader.Tensor(prefix + "attn_k.weight", {hidden, kv_rows});
  tensors.value = reader.Tensor(prefix + "attn_v.weight", {hidden, kv_rows});
  tensors.output = reader.Tensor(prefix + "attn_output.weight", {query_rows, hidden});
  tensors.query_norm = reader.Tensor(prefix + "attn_q_norm.weight", {attention.head_dim});
  tensors.key_norm = reader.Tensor(prefix + "attn_k_norm.weight", {attention.head_dim});
  return tensors;
}

DeltaNetTensors ReadDeltaNetTensors(ArchReader& reader, const ModelSpec& spec,
                                    const std::string& prefix, DeltaNetInputs inputs) {
  const DeltaNetSpec& delta_net = *spec.delta_net;
  const int64_t hidden = spec.hidden_size;
  const int64_t num_heads = delta_net.num_value_heads;
  const int64_t value_rows = num_heads * delta_net.head_dim;
  const int64_t channels = 2 * int64_t{delta_net.num_key_heads} * delta_net.head_dim + value_rows;
  const bool is_grouped = inputs == DeltaNetInputs::kGroupedByKeyHead;
  DeltaNetTensors tensors;
  if (is_grouped) {
    tensors.qkv_gate =
        reader.OptionalTensor(prefix + "ssm_in.weight", {hidden, channels + value_rows});
    tensors.beta_alpha = reader.Tensor(prefix + "ssm_ba.weight", {hidden, 2 * num_heads});
  } else {
    tensors.beta = reader.Tensor(prefix + "ssm_beta.weight", {hidden, num_heads});
    tensors.alpha = reader.Tensor(prefix + "ssm_alpha.weight", {hidden, num_heads});
  }
  if (tensors.qkv_gate == nullptr) {
    tensors.qkv = reader.Tensor(prefix + "attn_qkv.weight", {hidden, channels});
    tensors.gate = reader.Tensor(prefix + "attn_gate.weight", {hidden, value_rows});
  }
  tensors.conv = reader.Tensor(prefix + "ssm_conv1d.weight", {delta_net.conv_kernel, channels});
  tensors.a = reader.Tensor(prefix + "ssm_a", {num_heads});
  tensors.dt_bias = reader.Tensor(prefix + "ssm_dt.bias", {num_heads});
  tensors.norm = reader.Tensor(prefix + "ssm_norm.weight", {delta_net.head_dim});
  tensors.output = reader.Tensor(prefix + "ssm_out.weight", {value_rows, hidden});
  return tensors;
}

MoeTensors ReadMoeTensors(ArchReader& reader, const ModelSpec& spec, const std::string& prefix,
                          int64_t expert_hidden_size) {
  const int64_t hidden = spec.hidden_size;
  const int64_t num_experts = spec.moe.num_experts;
  const int64_t shared_hidden = spec.moe.shared_expert_hidden_size;
  MoeTensors tensors;
  tensors.router = reader.Tensor(prefix + "ffn_gate_inp.weight", {hidden, num_experts});
  tensors.gate_up = reader.OptionalTensor(prefix + "ffn_gate_up_exps.weight",
                                          {hidden, 2 * expert_hidden_size, num_experts});
  if (tensors.gate_up == nullptr) {
    tensors.gate =
        reader.Tensor(prefix + "ffn_gate_exps.weight", {hidden, expert_hidden_size, num_experts});
    tensors.up =
        reader.Tensor(prefix + "ffn_up_exps.weight", {hidden, expert_hidden_size, num_experts});
  }
  tensors.down =
      reader.Tensor(prefix + "ffn_down_exps.weight", {expert_hidden_size, hidden, num_experts});
  if (shared_hidden == 0) return tensors;
  tensors.shared_gate_input = reader.Tensor(prefix + "ffn_gate_inp_shexp.weight", {hidden});
  tensors.shared_gate = reader.Tensor(prefix + "ffn_gate_shexp.weight", {hidden, shared_hidden});
  tensors.shared_up = reader.Tensor(prefix + "ffn_up_shexp.weight", {hidden, shared_hidden});
  tensors.shared_down = reader.Tensor(prefix + "ffn_down_shexp.weight", {shared_hidden, hidden});
  return tensors;
}

void SetShards(const ModelSpec& spec, LayerSpec& layer) {
  layer.output_shards =
      layer.kind == LayerKind::kAttention
          ? AttentionOutputShards(*layer.attention.output, spec.attention.num_heads,
                                  spec.attention.head_dim)
          : DeltaNetOutputShards(*layer.delta_net.output, *spec.delta_net);
  layer.down_shards = DownShards(*layer.moe.down);
  if (layer.moe.shared_down != nullptr) {
    layer.shared_down_shards = DownShards(*layer.moe.shared_down);
  }
}

// ---- whole models -----------------------------------------------------------------------------

void ReadPreNormModel(ArchReader& reader, const Blocks& blocks, const PreNormNames& names,
                      ModelSpec& spec) {
  if (!reader.ok()) return;
  ReadEmbedding(reader, spec);
  spec.final_mixer.norm = reader.Tensor("output_norm.weight", {spec.hidden_size});
  for (int i = 0; i < spec.num_layers && reader.ok(); ++i) {
    spec.layers.push_back(ReadPreNormLayer(reader, blocks, names, spec, i));
  }
}

absl::Status FinishModel(ArchReader& reader, ModelSpec& spec) {
  SWITCHYARD_RETURN_IF_ERROR(reader.status());
  ReadMtpTensors(reader, spec);
  reader.CheckAllTensorsUsed();
  SWITCHYARD_RETURN_IF_ERROR(reader.status());
  return ReadTexts(reader.metadata(), spec);
}

}  // namespace switchyard::model
