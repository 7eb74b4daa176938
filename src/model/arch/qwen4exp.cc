#include "model/arch/qwen4exp.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/arch/qwen3_blocks.h"

namespace switchyard::model {
namespace {

// Tokens of one page of the KV cache; a block of sparse attention must not cross a page.
constexpr int kCachePageTokens = 64;

// Tokens of one block of sparse attention, for each block of the model; 0 = dense.
using CompressRatios = std::vector<int>;

void ReadIndexerSizes(ArchReader& reader, AttentionSpec& attention) {
  attention.num_index_heads = reader.Size("attention.indexer.head_count");
  attention.index_head_dim = reader.Size("attention.indexer.key_length");
  attention.budget_tokens = reader.Size("attention.indexer.top_k");
  reader.Check(attention.index_head_dim >= attention.num_rotary_dims,
               "attention.indexer.key_length",
               "indexer heads are smaller than the rotated dimensions: {}, rotated: {}",
               attention.index_head_dim, attention.num_rotary_dims);
}

// Block keys are kept in the pages of the cache, and a budget is spent in whole blocks.
CompressRatios ReadRatios(ArchReader& reader, const ModelSpec& spec, const Blocks& blocks) {
  constexpr std::string_view kKey = "attention.compress_ratios";
  CompressRatios ratios = reader.SizePerBlock(kKey, blocks.num_blocks, 0, ArchReader::kMaxSize);
  for (size_t i = 0; i < ratios.size(); ++i) {
    const int ratio = ratios[i];
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
  return ratios;
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

// The indexer may be there, and unused, in a dense layer.
void ReadIndexerTensors(ArchReader& reader, const ModelSpec& spec, const std::string& prefix,
                        bool is_sparse, AttentionTensors& tensors) {
  const int64_t hidden = spec.hidden_size;
  const int64_t index_dim = spec.attention.index_head_dim;
  const auto read = [&](const char* name, std::initializer_list<int64_t> dims) {
    return is_sparse ? reader.Tensor(prefix + name, dims)
                     : reader.OptionalTensor(prefix + name, dims);
  };
  tensors.index_query =
      read("indexer.q_proj.weight", {hidden, spec.attention.num_index_heads * index_dim});
  tensors.index_key = read("indexer.k_proj.weight", {hidden, index_dim});
  tensors.index_query_norm = read("indexer.q_norm.weight", {index_dim});
  tensors.index_key_norm = read("indexer.k_norm.weight", {index_dim});
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

LayerSpec ReadLayer(ArchReader& reader, ModelSpec& spec, const Blocks& blocks,
                    const CompressRatios& ratios, int index) {
  const auto block = static_cast<size_t>(index);
  const std::string prefix = fmt::format("blk.{}.", index);
  LayerSpec layer;
  layer.kind = blocks.kinds[block];
  layer.expert_hidden_size = blocks.expert_hidden_sizes[block];
  layer.mixer = ReadLayerMixer(reader, spec, prefix + "hc_attn_");
  if (layer.kind == LayerKind::kAttention) {
    layer.compress_ratio = ratios[block];
    layer.attention = ReadAttentionTensors(reader, spec, prefix);
    ReadIndexerTensors(reader, spec, prefix, layer.compress_ratio > 0, layer.attention);
  } else {
    layer.delta_net = ReadDeltaNetTensors(reader, spec, prefix, DeltaNetInputs::kSeparate);
  }
  layer.moe_mixer = ReadLayerMixer(reader, spec, prefix + "hc_ffn_");
  layer.moe = ReadMoeTensors(reader, spec, prefix, layer.expert_hidden_size);
  if (spec.ple.has_value() && spec.ple->layer == index) {
    spec.ple->tensors = ReadPleTensors(reader, spec, prefix);
  }
  if (reader.ok()) SetShards(spec, layer);
  return layer;
}

}  // namespace

absl::StatusOr<ModelSpec> LoadQwen4Exp(const GgufFile& file) {
  ArchReader reader(file, "qwen4exp.");
  ModelSpec spec;
  spec.architecture = "qwen4exp";
  Blocks blocks = ReadTrunkSizes(reader, spec);
  spec.num_residual_streams = reader.Size("hyper_connection.count", 2, 64);
  spec.hc_low_rank = reader.Size("hyper_connection.low_rank");
  spec.attention.has_output_gate = true;
  ReadAttentionSizes(reader, spec.attention);
  CheckRopeSections(reader, spec.attention);
  ReadIndexerSizes(reader, spec.attention);
  spec.delta_net = ReadDeltaNetSizes(reader);
  spec.delta_net->value_head_order = ValueHeadOrder::kTiled;
  spec.delta_net->output_gate = GateFunction::kSigmoid;
  ReadLayerKinds(reader, spec, blocks);
  ReadExpertSizes(reader, spec, blocks);
  ReadSharedExpertSize(reader, spec.moe);
  const CompressRatios ratios = ReadRatios(reader, spec, blocks);
  SWITCHYARD_RETURN_IF_ERROR(reader.status());

  ReadEmbedding(reader, spec);
  SWITCHYARD_RETURN_IF_ERROR(reader.status());
  spec.final_mixer = ReadMixer(reader, spec, "output_hc_");
  ReadPle(reader, spec, blocks);
  for (int i = 0; i < spec.num_layers && reader.ok(); ++i) {
    spec.layers.push_back(ReadLayer(reader, spec, blocks, ratios, i));
  }
  SWITCHYARD_RETURN_IF_ERROR(FinishModel(reader, spec));
  return spec;
}

}  // namespace switchyard::model
