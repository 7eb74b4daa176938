#include "model/arch/qwen4exp.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/arch/arch_reader.h"

namespace switchyard::model {
namespace {

// Tokens of one page of the KV cache; a block of sparse attention must not cross a page.
constexpr int kCachePageTokens = 64;
constexpr int kMaxBlocks = 4096;
// Expert ids travel in 16 bits.
constexpr int kMaxExperts = 65535;

struct Blocks {
  int num_blocks = 0;  // trunk and draft blocks
  std::vector<LayerKind> kinds;
  std::vector<int> compress_ratios;
  std::vector<int> expert_hidden_sizes;
};

// Without the optional per-block list, every `full_attention_interval`-th layer is attention.
std::vector<LayerKind> ReadKinds(ArchReader& reader, const ModelSpec& spec, int num_blocks) {
  constexpr std::string_view kRecurrent = "attention.recurrent_layers";
  const int interval = reader.SizeOr("full_attention_interval", 4);
  std::vector<bool> is_recurrent;
  if (reader.Has(kRecurrent)) is_recurrent = reader.BoolOrBoolPerBlock(kRecurrent, num_blocks);
  std::vector<LayerKind> kinds(static_cast<size_t>(num_blocks), LayerKind::kAttention);
  for (int i = 0; i < spec.num_layers; ++i) {
    const auto block = static_cast<size_t>(i);
    const bool recurrent =
        is_recurrent.empty() ? (i + 1) % interval != 0 : bool{is_recurrent[block]};
    if (recurrent) kinds[block] = LayerKind::kDeltaNet;
  }
  return kinds;
}

// Text needs plain rotation only, whatever axis a pair takes its position from; but readers of this
// format leave a pair that no section covers unrotated, so such a file means something else.
void CheckRope(ArchReader& reader, const AttentionSpec& attention) {
  constexpr std::string_view kSections = "rope.dimension_sections";
  constexpr std::string_view kDims = "rope.dimension_count";
  reader.Check(
      attention.num_rotary_dims % 2 == 0 && attention.num_rotary_dims <= attention.head_dim, kDims,
      "rotated dimensions are odd or more than a head has: {}, head: {}", attention.num_rotary_dims,
      attention.head_dim);
  const std::vector<uint64_t> sections = reader.Integers(kSections, 3);
  const int num_pairs = attention.num_rotary_dims / 2;
  for (int axis = 0; axis < 3; ++axis) {
    const int wanted = (num_pairs - axis + 2) / 3;  // pairs i < num_pairs with i % 3 == axis
    reader.Check(sections[static_cast<size_t>(axis)] >= static_cast<uint64_t>(wanted), kSections,
                 "rope sections leave pairs uncovered: section {}: {}, wanted: {}", axis,
                 sections[static_cast<size_t>(axis)], wanted);
  }
}

void ReadAttention(ArchReader& reader, AttentionSpec& attention) {
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
  attention.num_rotary_dims = reader.Size("rope.dimension_count");
  attention.rope_base = reader.PositiveFloat("rope.freq_base");
  attention.has_output_gate = true;
  CheckRope(reader, attention);
  attention.num_index_heads = reader.Size("attention.indexer.head_count");
  attention.index_head_dim = reader.Size("attention.indexer.key_length");
  attention.budget_tokens = reader.Size("attention.indexer.top_k");
  reader.Check(attention.index_head_dim >= attention.num_rotary_dims,
               "attention.indexer.key_length",
               "indexer heads are smaller than the rotated dimensions: {}, rotated: {}",
               attention.index_head_dim, attention.num_rotary_dims);
}

DeltaNetSpec ReadDeltaNet(ArchReader& reader) {
  DeltaNetSpec delta_net;
  delta_net.num_key_heads = reader.Size("ssm.group_count");
  delta_net.num_value_heads = reader.Size("ssm.time_step_rank");
  delta_net.head_dim = reader.Size("ssm.state_size");
  delta_net.conv_kernel = reader.Size("ssm.conv_kernel", 1, 64);
  delta_net.value_head_order = ValueHeadOrder::kTiled;
  delta_net.output_gate = GateFunction::kSigmoid;
  reader.Check(delta_net.num_value_heads % delta_net.num_key_heads == 0, "ssm.time_step_rank",
               "value heads are not a multiple of key heads: {} and {}", delta_net.num_value_heads,
               delta_net.num_key_heads);
  const int64_t inner = reader.Integer("ssm.inner_size", 1, std::numeric_limits<int32_t>::max());
  reader.Check(inner == int64_t{delta_net.num_value_heads} * delta_net.head_dim, "ssm.inner_size",
               "inner size is not value heads times head size: {}, heads: {} of {}", inner,
               delta_net.num_value_heads, delta_net.head_dim);
  return delta_net;
}

// Block keys are kept in the pages of the cache, and a budget is spent in whole blocks.
void CheckRatios(ArchReader& reader, const ModelSpec& spec, const Blocks& blocks) {
  constexpr std::string_view kKey = "attention.compress_ratios";
  for (size_t i = 0; i < blocks.compress_ratios.size(); ++i) {
    const int ratio = blocks.compress_ratios[i];
    if (ratio == 0) continue;
    reader.Check(blocks.kinds[i] == LayerKind::kAttention, kKey,
                 "compress ratio of a layer without attention: {}, layer: {}", ratio, i);
    reader.Check(spec.attention.budget_tokens % ratio == 0, kKey,
                 "sparse attention budget is not a multiple of the compress ratio: {}, ratio: {}, "
                 "layer: {}",
                 spec.attention.budget_tokens, ratio, i);
    reader.Check(kCachePageTokens % ratio == 0, kKey,
                 "compress ratio does not divide the {} tokens of a cache page: {}, layer: {}",
                 kCachePageTokens, ratio, i);
  }
}

Blocks ReadSizes(ArchReader& reader, ModelSpec& spec) {
  Blocks blocks;
  blocks.num_blocks = reader.Size("block_count", 1, kMaxBlocks);
  spec.num_mtp_layers = reader.SizeOr("nextn_predict_layers", 0, 0, kMaxBlocks);
  reader.Check(spec.num_mtp_layers < blocks.num_blocks, "nextn_predict_layers",
               "draft blocks leave no layer: {} of {} blocks", spec.num_mtp_layers,
               blocks.num_blocks);
  if (!reader.ok()) return blocks;
  spec.num_layers = blocks.num_blocks - spec.num_mtp_layers;
  spec.hidden_size = reader.Size("embedding_length");
  spec.context_length = reader.Integer("context_length", 1, std::numeric_limits<int32_t>::max());
  spec.rms_epsilon = reader.PositiveFloat("attention.layer_norm_rms_epsilon");
  spec.num_residual_streams = reader.Size("hyper_connection.count", 2, 64);
  spec.hc_low_rank = reader.Size("hyper_connection.low_rank");
  ReadAttention(reader, spec.attention);
  spec.delta_net = ReadDeltaNet(reader);
  spec.moe.num_experts = reader.Size("expert_count", 1, kMaxExperts);
  spec.moe.top_k = reader.Size("expert_used_count", 1, kMaxExperts);
  reader.Check(spec.moe.top_k <= spec.moe.num_experts, "expert_used_count",
               "more experts are used than there are: {} of {}", spec.moe.top_k,
               spec.moe.num_experts);
  spec.moe.shared_expert_hidden_size = reader.Size("expert_shared_feed_forward_length");
  blocks.expert_hidden_sizes = reader.SizeOrSizePerBlock(
      "expert_feed_forward_length", blocks.num_blocks, 1, ArchReader::kMaxSize);
  spec.moe.max_expert_hidden_size = *std::max_element(
      blocks.expert_hidden_sizes.begin(), blocks.expert_hidden_sizes.begin() + spec.num_layers);
  blocks.kinds = ReadKinds(reader, spec, blocks.num_blocks);
  blocks.compress_ratios =
      reader.SizePerBlock("attention.compress_ratios", blocks.num_blocks, 0, ArchReader::kMaxSize);
  CheckRatios(reader, spec, blocks);
  return blocks;
}

// REQUIRES: sizes, kinds and vocab_size have been read.
void ReadPle(ArchReader& reader, ModelSpec& spec, const Blocks& blocks) {
  constexpr std::string_view kLayers = "ple.layers";
  if (!reader.Has(kLayers)) return;
  const std::vector<uint64_t> layers = reader.Integers(kLayers, 0);
  if (layers.empty()) return;
  reader.Check(layers.size() == 1, kLayers, "more than one layer has an n-gram embedding: {}",
               layers.size());
  reader.Check(layers[0] < static_cast<uint64_t>(spec.num_layers) &&
                   blocks.kinds[layers[0]] == LayerKind::kDeltaNet,
               kLayers, "n-gram embedding is not in a linear-attention layer: {}", layers[0]);
  PleSpec ple;
  ple.layer = static_cast<int>(layers[0]);
  ple.ngram_size = reader.Size("ple.ngram_size", 2, 16);
  ple.heads_per_ngram = reader.Size("ple.heads_per_ngram", 1, 1024);
  ple.conv_kernel = reader.Size("ple.conv_kernel", 1, 64);
  ple.row_width = reader.Size("embedding_length_per_layer_input");
  reader.Check(int64_t{ple.num_heads()} * ple.row_width == spec.hidden_size,
               "embedding_length_per_layer_input",
               "n-gram rows do not fill the hidden size: {} heads of {}, wanted: {}",
               ple.num_heads(), ple.row_width, spec.hidden_size);
  ple.eos_token_id = reader.Size("ple.eos_token_id", 0, spec.vocab_size - 1);
  if (reader.Has("ple.image_token_id")) {
    ple.image_token_id = reader.Size("ple.image_token_id", 0, spec.vocab_size - 1);
  }
  const auto num_heads = static_cast<size_t>(ple.num_heads());
  ple.multipliers = reader.Integers("ple.layer_multipliers", static_cast<size_t>(ple.ngram_size));
  ple.head_vocab_sizes = reader.Integers("ple.head_vocab_sizes", num_heads);
  ple.head_offsets = reader.Integers("ple.head_offsets", num_heads);
  const int64_t rows = reader.MatrixRows("per_layer_token_embd.weight", ple.row_width);
  ple.table = reader.Tensor("per_layer_token_embd.weight", {ple.row_width, rows});
  if (!reader.ok()) return;
  ple.multipliers.resize(static_cast<size_t>(ple.ngram_size));
  ple.head_vocab_sizes.resize(num_heads);
  ple.head_offsets.resize(num_heads);
  const uint64_t limit =
      std::min(static_cast<uint64_t>(rows), uint64_t{std::numeric_limits<int32_t>::max()});
  for (size_t head = 0; head < num_heads; ++head) {
    const uint64_t size = ple.head_vocab_sizes[head];
    const uint64_t offset = ple.head_offsets[head];
    reader.Check(size > 0, "ple.head_vocab_sizes", "n-gram head has no rows: head {}", head);
    reader.Check(offset <= limit && size <= limit - offset, "ple.head_offsets",
                 "n-gram rows end beyond the table: head {}: {} rows from {}, table rows: {}", head,
                 size, offset, rows);
  }
  spec.ple = std::move(ple);
}

MixerTensors ReadMixer(ArchReader& reader, const ModelSpec& spec, const std::string& prefix) {
  const int64_t wide = int64_t{spec.num_residual_streams} * spec.hidden_size;
  MixerTensors mixer;
  mixer.norm = reader.Tensor(prefix + "norm.weight", {wide});
  mixer.down = reader.Tensor(prefix + "down.weight", {wide, spec.hc_low_rank});
  mixer.up = reader.Tensor(prefix + "up.weight", {spec.hc_low_rank, wide});
  return mixer;
}

MixerTensors ReadLayerMixer(ArchReader& reader, const ModelSpec& spec, const std::string& prefix) {
  const int64_t wide = int64_t{spec.num_residual_streams} * spec.hidden_size;
  MixerTensors mixer = ReadMixer(reader, spec, prefix);
  mixer.inject = reader.Tensor(prefix + "inject.weight", {wide, spec.num_residual_streams});
  return mixer;
}

AttentionTensors ReadAttentionTensors(ArchReader& reader, const ModelSpec& spec,
                                      const std::string& prefix, bool is_sparse) {
  const AttentionSpec& attention = spec.attention;
  const int64_t hidden = spec.hidden_size;
  const int64_t query_rows = int64_t{attention.num_heads} * attention.head_dim;
  const int64_t kv_rows = int64_t{attention.num_kv_heads} * attention.head_dim;
  const int64_t index_dim = attention.index_head_dim;
  AttentionTensors tensors;
  tensors.query = reader.Tensor(prefix + "attn_q.weight", {hidden, 2 * query_rows});
  tensors.key = reader.Tensor(prefix + "attn_k.weight", {hidden, kv_rows});
  tensors.value = reader.Tensor(prefix + "attn_v.weight", {hidden, kv_rows});
  tensors.output = reader.Tensor(prefix + "attn_output.weight", {query_rows, hidden});
  tensors.query_norm = reader.Tensor(prefix + "attn_q_norm.weight", {attention.head_dim});
  tensors.key_norm = reader.Tensor(prefix + "attn_k_norm.weight", {attention.head_dim});
  const auto index_tensor = [&](const char* name, std::initializer_list<int64_t> dims) {
    return is_sparse ? reader.Tensor(prefix + name, dims)
                     : reader.OptionalTensor(prefix + name, dims);
  };
  tensors.index_query =
      index_tensor("indexer.q_proj.weight", {hidden, attention.num_index_heads * index_dim});
  tensors.index_key = index_tensor("indexer.k_proj.weight", {hidden, index_dim});
  tensors.index_query_norm = index_tensor("indexer.q_norm.weight", {index_dim});
  tensors.index_key_norm = index_tensor("indexer.k_norm.weight", {index_dim});
  return tensors;
}

DeltaNetTensors ReadDeltaNetTensors(ArchReader& reader, const ModelSpec& spec,
                                    const std::string& prefix) {
  const DeltaNetSpec& delta_net = *spec.delta_net;
  const int64_t hidden = spec.hidden_size;
  const int64_t value_rows = int64_t{delta_net.num_value_heads} * delta_net.head_dim;
  const int64_t channels = 2 * int64_t{delta_net.num_key_heads} * delta_net.head_dim + value_rows;
  DeltaNetTensors tensors;
  tensors.qkv = reader.Tensor(prefix + "attn_qkv.weight", {hidden, channels});
  tensors.gate = reader.Tensor(prefix + "attn_gate.weight", {hidden, value_rows});
  tensors.beta = reader.Tensor(prefix + "ssm_beta.weight", {hidden, delta_net.num_value_heads});
  tensors.alpha = reader.Tensor(prefix + "ssm_alpha.weight", {hidden, delta_net.num_value_heads});
  tensors.conv = reader.Tensor(prefix + "ssm_conv1d.weight", {delta_net.conv_kernel, channels});
  tensors.a = reader.Tensor(prefix + "ssm_a", {delta_net.num_value_heads});
  tensors.dt_bias = reader.Tensor(prefix + "ssm_dt.bias", {delta_net.num_value_heads});
  tensors.norm = reader.Tensor(prefix + "ssm_norm.weight", {delta_net.head_dim});
  tensors.output = reader.Tensor(prefix + "ssm_out.weight", {value_rows, hidden});
  return tensors;
}

MoeTensors ReadMoeTensors(ArchReader& reader, const ModelSpec& spec, const std::string& prefix,
                          int64_t expert_hidden) {
  const int64_t hidden = spec.hidden_size;
  const int64_t num_experts = spec.moe.num_experts;
  const int64_t shared_hidden = spec.moe.shared_expert_hidden_size;
  MoeTensors tensors;
  tensors.router = reader.Tensor(prefix + "ffn_gate_inp.weight", {hidden, num_experts});
  tensors.gate_up = reader.OptionalTensor(prefix + "ffn_gate_up_exps.weight",
                                          {hidden, 2 * expert_hidden, num_experts});
  if (tensors.gate_up == nullptr) {
    tensors.gate =
        reader.Tensor(prefix + "ffn_gate_exps.weight", {hidden, expert_hidden, num_experts});
    tensors.up = reader.Tensor(prefix + "ffn_up_exps.weight", {hidden, expert_hidden, num_experts});
  }
  tensors.down =
      reader.Tensor(prefix + "ffn_down_exps.weight", {expert_hidden, hidden, num_experts});
  tensors.shared_gate_input = reader.Tensor(prefix + "ffn_gate_inp_shexp.weight", {hidden});
  tensors.shared_gate = reader.Tensor(prefix + "ffn_gate_shexp.weight", {hidden, shared_hidden});
  tensors.shared_up = reader.Tensor(prefix + "ffn_up_shexp.weight", {hidden, shared_hidden});
  tensors.shared_down = reader.Tensor(prefix + "ffn_down_shexp.weight", {shared_hidden, hidden});
  return tensors;
}

PleTensors ReadPleTensors(ArchReader& reader, const ModelSpec& spec, const std::string& prefix) {
  const int64_t hidden = spec.hidden_size;
  const int64_t wide = int64_t{spec.num_residual_streams} * hidden;
  PleTensors tensors;
  tensors.key = reader.Tensor(prefix + "ple_key.weight", {hidden, wide});
  tensors.value = reader.Tensor(prefix + "ple_value.weight", {hidden, hidden});
  tensors.norm_key = reader.Tensor(prefix + "ple_norm_key.weight", {wide});
  tensors.norm_query = reader.Tensor(prefix + "ple_norm_query.weight", {wide});
  tensors.norm_conv = reader.Tensor(prefix + "ple_norm_conv.weight", {wide});
  tensors.conv = reader.Tensor(prefix + "ple_conv1d.weight", {spec.ple->conv_kernel, wide});
  return tensors;
}

LayerSpec ReadLayer(ArchReader& reader, ModelSpec& spec, const Blocks& blocks, int index) {
  const auto block = static_cast<size_t>(index);
  const std::string prefix = fmt::format("blk.{}.", index);
  LayerSpec layer;
  layer.kind = blocks.kinds[block];
  layer.expert_hidden_size = blocks.expert_hidden_sizes[block];
  layer.mixer = ReadLayerMixer(reader, spec, prefix + "hc_attn_");
  if (layer.kind == LayerKind::kAttention) {
    layer.compress_ratio = blocks.compress_ratios[block];
    layer.attention = ReadAttentionTensors(reader, spec, prefix, layer.compress_ratio > 0);
  } else {
    layer.delta_net = ReadDeltaNetTensors(reader, spec, prefix);
  }
  layer.moe_mixer = ReadLayerMixer(reader, spec, prefix + "hc_ffn_");
  layer.moe = ReadMoeTensors(reader, spec, prefix, layer.expert_hidden_size);
  if (spec.ple.has_value() && spec.ple->layer == index) {
    spec.ple->tensors = ReadPleTensors(reader, spec, prefix);
  }
  if (!reader.ok()) return layer;
  layer.output_shards =
      layer.kind == LayerKind::kAttention
          ? AttentionOutputShards(*layer.attention.output, spec.attention.num_heads,
                                  spec.attention.head_dim)
          : DeltaNetOutputShards(*layer.delta_net.output, *spec.delta_net);
  layer.down_shards = DownShards(*layer.moe.down);
  layer.shared_down_shards = DownShards(*layer.moe.shared_down);
  return layer;
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

// Keys that would change the computation in ways that are not implemented.
void CheckUnsupported(ArchReader& reader, const GgufMetadata& metadata) {
  constexpr std::string_view kScaling = "rope.scaling.type";
  if (!reader.Has(kScaling)) return;
  const absl::StatusOr<std::string_view> type =
      metadata.GetString("qwen4exp." + std::string(kScaling));
  reader.Check(type.ok() && *type == "none", kScaling, "rope scaling is not supported");
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

}  // namespace

absl::StatusOr<ModelSpec> LoadQwen4Exp(const GgufFile& file) {
  ArchReader reader(file, "qwen4exp.");
  ModelSpec spec;
  spec.architecture = "qwen4exp";
  const Blocks blocks = ReadSizes(reader, spec);
  CheckUnsupported(reader, file.metadata());
  SWITCHYARD_RETURN_IF_ERROR(reader.status());

  const int64_t rows = reader.MatrixRows("token_embd.weight", spec.hidden_size);
  SWITCHYARD_RETURN_IF_ERROR(reader.status());
  if (rows > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("embedding has too many rows: token_embd.weight, rows: {}, file: {}",
                           rows, file.metadata().path());
  }
  spec.vocab_size = static_cast<int>(rows);
  spec.token_embedding = reader.Tensor("token_embd.weight", {spec.hidden_size, rows});
  spec.output = reader.OptionalTensor("output.weight", {spec.hidden_size, rows});
  if (spec.output == nullptr) spec.output = spec.token_embedding;
  spec.final_mixer = ReadMixer(reader, spec, "output_hc_");
  ReadPle(reader, spec, blocks);
  SWITCHYARD_RETURN_IF_ERROR(reader.status());

  for (int i = 0; i < spec.num_layers; ++i) {
    spec.layers.push_back(ReadLayer(reader, spec, blocks, i));
    SWITCHYARD_RETURN_IF_ERROR(reader.status());
  }
  ReadMtpTensors(reader, spec);
  reader.CheckAllTensorsUsed();
  SWITCHYARD_RETURN_IF_ERROR(reader.status());
  SWITCHYARD_RETURN_IF_ERROR(ReadTexts(file.metadata(), spec));
  return spec;
}

}  // namespace switchyard::model
