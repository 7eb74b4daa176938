#include "app/inspect/inspect_report.h"

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "model/tokenizer_data.h"
#include "model/vocabulary.h"

namespace switchyard::app {
namespace {

using model::GgufFile;
using model::LayerKind;
using model::LayerSpec;
using model::ModelPart;
using model::ModelSpec;
using model::TokenType;

constexpr int64_t kHalfBytes = 2;
constexpr int64_t kFloatBytes = 4;

int64_t Parameters(DType dtype, int64_t bytes) {
  return bytes / Traits(dtype).block_bytes * Traits(dtype).block_length;
}

absl::StatusOr<std::optional<TokenizerFacts>> ReadTokenizerFacts(const GgufFile& file) {
  if (!file.metadata().Has("tokenizer.ggml.model")) return std::optional<TokenizerFacts>();
  SWITCHYARD_ASSIGN_OR_RETURN(const model::TokenizerData data,
                              model::ReadTokenizerData(file.metadata()));
  TokenizerFacts facts;
  facts.pre_tokenizer = data.pre_tokenizer;
  facts.num_tokens = static_cast<int64_t>(data.tokens.size());
  facts.num_merges = static_cast<int64_t>(data.merges.size());
  for (const int32_t type : data.token_types) {
    if (type == static_cast<int32_t>(TokenType::kControl)) ++facts.num_control;
    if (type == static_cast<int32_t>(TokenType::kUserDefined)) ++facts.num_user_defined;
    if (type == static_cast<int32_t>(TokenType::kUnused)) ++facts.num_unused;
  }
  facts.eos_token_id = data.eos_token_id;
  facts.bos_token_id = data.bos_token_id;
  facts.padding_token_id = data.padding_token_id;
  facts.add_bos = data.add_bos;
  facts.chat_template_bytes = static_cast<int64_t>(data.chat_template.size());
  return std::optional<TokenizerFacts>(facts);
}

CacheBytes CountCacheBytes(const ModelSpec& spec) {
  CacheBytes bytes;
  const model::AttentionSpec& attention = spec.attention;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.kind == LayerKind::kAttention) {
      bytes.kv_per_token += 2 * int64_t{attention.num_kv_heads} * attention.head_dim * kHalfBytes;
      if (layer.compress_ratio > 0) {
        bytes.block_keys_per_token += attention.index_head_dim * kHalfBytes / layer.compress_ratio;
      }
    } else if (spec.delta_net.has_value()) {
      const model::DeltaNetSpec& d = *spec.delta_net;
      const int64_t state = int64_t{d.num_value_heads} * d.head_dim * d.head_dim;
      const int64_t channels = int64_t{2 * d.num_key_heads + d.num_value_heads} * d.head_dim;
      bytes.delta_net_state += (state + (d.conv_kernel - 1) * channels) * kFloatBytes;
    }
  }
  if (spec.ple.has_value()) {
    // The convolution reaches back by its taps, which lie ngram_size tokens apart.
    const int64_t columns = int64_t{spec.ple->conv_kernel - 1} * spec.ple->ngram_size;
    bytes.ple_state = columns * spec.num_residual_streams * spec.hidden_size * kFloatBytes;
  }
  return bytes;
}

}  // namespace

absl::StatusOr<InspectReport> MakeInspectReport(const GgufFile& file, const ModelSpec& spec) {
  InspectReport report;
  report.summary = model::Summarize(spec);
  SWITCHYARD_ASSIGN_OR_RETURN(report.tokenizer, ReadTokenizerFacts(file));
  report.cache = CountCacheBytes(spec);

  int64_t expert_parameters = 0;
  int64_t gathered_parameters = 0;
  for (int i = 0; i < model::kNumModelParts; ++i) {
    const auto part = static_cast<ModelPart>(i);
    for (const model::TypeBytes& type : report.summary.part(part).types) {
      const int64_t parameters = Parameters(type.dtype, type.bytes);
      report.rows.push_back({part, type.dtype, type.num_tensors, parameters, type.bytes});
      report.num_parameters += parameters;
      if (part == ModelPart::kPleTable) report.num_table_parameters += parameters;
      if (part == ModelPart::kRoutedExperts) expert_parameters += parameters;
      if (part == ModelPart::kPleTable || part == ModelPart::kTokenEmbedding ||
          part == ModelPart::kMtp) {
        gathered_parameters += parameters;
      }
    }
  }
  // All experts of a layer have the same number of parameters, so that top_k of them are a share.
  report.num_active_parameters = report.num_parameters - gathered_parameters - expert_parameters +
                                 expert_parameters / spec.moe.num_experts * spec.moe.top_k;
  report.table_bytes = report.summary.part(ModelPart::kPleTable).bytes;
  report.resident_bytes =
      report.summary.bytes - report.table_bytes - report.summary.part(ModelPart::kMtp).bytes;
  report.dense_resident_bytes =
      report.resident_bytes - report.summary.part(ModelPart::kRoutedExperts).bytes;
  report.bytes_per_token =
      report.summary.dense_bytes_per_token + report.summary.expert_bytes_per_token;
  return report;
}

}  // namespace switchyard::app
