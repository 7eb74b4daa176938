#include "app/inspect/inspect_output.h"
#include "base/dtype.h"

namespace switchyard::app {
namespace {

using Json = nlohmann::ordered_json;
using model::LayerKind;
using model::ModelSpec;

Json Optional(const std::optional<int64_t>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

Json FileJson(const model::GgufFile& file) {
  Json paths = Json::array();
  for (int i = 0; i < file.num_shards(); ++i) paths.push_back(file.path(i));
  return {{"paths", paths},
          {"version", file.version()},
          {"bytes", file.total_bytes()},
          {"tensors", file.tensors().size()},
          {"metadata_keys", file.metadata().entries().size()}};
}

int CountLayers(const ModelSpec& spec, LayerKind kind) {
  int count = 0;
  for (const model::LayerSpec& layer : spec.layers) count += layer.kind == kind ? 1 : 0;
  return count;
}

Json ModelJson(const ModelSpec& spec) {
  const model::AttentionSpec& a = spec.attention;
  Json json = {{"architecture", spec.architecture},
               {"name", spec.name},
               {"layers", spec.num_layers},
               {"attention_layers", CountLayers(spec, LayerKind::kAttention)},
               {"delta_net_layers", CountLayers(spec, LayerKind::kDeltaNet)},
               {"draft_layers", spec.num_mtp_layers},
               {"hidden_size", spec.hidden_size},
               {"vocab_size", spec.vocab_size},
               {"context_length", spec.context_length},
               {"residual_streams", spec.num_residual_streams},
               {"attention",
                {{"heads", a.num_heads},
                 {"kv_heads", a.num_kv_heads},
                 {"head_dim", a.head_dim},
                 {"rotary_dims", a.num_rotary_dims},
                 {"rope_base", a.rope_base}}},
               {"moe",
                {{"experts", spec.moe.num_experts},
                 {"top_k", spec.moe.top_k},
                 {"expert_hidden_size", spec.moe.max_expert_hidden_size},
                 {"shared_expert_hidden_size", spec.moe.shared_expert_hidden_size}}}};
  if (spec.has_sparse_attention()) {
    json["sparse_attention"] = {{"index_heads", a.num_index_heads},
                                {"index_head_dim", a.index_head_dim},
                                {"budget_tokens", a.budget_tokens}};
  }
  if (spec.delta_net.has_value()) {
    json["delta_net"] = {{"key_heads", spec.delta_net->num_key_heads},
                         {"value_heads", spec.delta_net->num_value_heads},
                         {"head_dim", spec.delta_net->head_dim},
                         {"conv_kernel", spec.delta_net->conv_kernel}};
  }
  if (spec.ple.has_value()) {
    json["ple"] = {{"layer", spec.ple->layer},
                   {"ngram_size", spec.ple->ngram_size},
                   {"heads", spec.ple->num_heads()},
                   {"row_width", spec.ple->row_width},
                   {"table_rows", spec.ple->table->num_rows()}};
  }
  return json;
}

Json TokenizerJson(const std::optional<TokenizerFacts>& facts) {
  if (!facts.has_value()) return nullptr;
  return {{"pre_tokenizer", facts->pre_tokenizer},
          {"tokens", facts->num_tokens},
          {"merges", facts->num_merges},
          {"control_tokens", facts->num_control},
          {"user_defined_tokens", facts->num_user_defined},
          {"unused_tokens", facts->num_unused},
          {"eos_token_id", Optional(facts->eos_token_id)},
          {"bos_token_id", Optional(facts->bos_token_id)},
          {"padding_token_id", Optional(facts->padding_token_id)},
          {"add_bos", facts->add_bos},
          {"chat_template_bytes", facts->chat_template_bytes}};
}

Json BytesJson(const InspectReport& report) {
  const model::ModelSummary& s = report.summary;
  return {{"tensors", s.bytes},
          {"dense_resident_without_table", report.dense_resident_bytes},
          {"routed_experts", s.part(model::ModelPart::kRoutedExperts).bytes},
          {"resident_without_table", report.resident_bytes},
          {"ple_table", report.table_bytes},
          {"dense_per_token", s.dense_bytes_per_token},
          {"experts_per_token", s.expert_bytes_per_token},
          {"per_token", report.bytes_per_token},
          {"expert_typical", s.typical_bytes_per_expert},
          {"expert_mean", s.mean_bytes_per_expert},
          {"expert_min", s.min_bytes_per_expert},
          {"expert_max", s.max_bytes_per_expert},
          {"kv_per_token_f16", report.cache.kv_per_token},
          {"block_keys_per_token_f16", report.cache.block_keys_per_token},
          {"delta_net_state_per_sequence", report.cache.delta_net_state},
          {"ple_state_per_sequence", report.cache.ple_state}};
}

Json LayersJson(const InspectReport& report) {
  Json layers = Json::array();
  for (size_t i = 0; i < report.summary.layers.size(); ++i) {
    const model::LayerBytes& layer = report.summary.layers[i];
    layers.push_back({{"layer", i},
                      {"kind", layer.kind == LayerKind::kAttention ? "attention" : "delta_net"},
                      {"dense_bytes", layer.dense_bytes},
                      {"expert_bytes", layer.expert_bytes},
                      {"bytes_per_expert", layer.bytes_per_expert}});
  }
  return layers;
}

Json TensorsJson(const model::GgufFile& file) {
  Json tensors = Json::array();
  for (const model::TensorInfo& tensor : file.tensors()) {
    Json dims = Json::array();
    for (int i = 0; i < tensor.num_dims; ++i) dims.push_back(tensor.dims[static_cast<size_t>(i)]);
    tensors.push_back({{"name", tensor.name},
                       {"type", Traits(tensor.dtype).name},
                       {"dims", dims},
                       {"bytes", tensor.bytes()},
                       {"file", tensor.shard},
                       {"offset", tensor.offset}});
  }
  return tensors;
}

}  // namespace

nlohmann::ordered_json InspectJson(const InspectOutput& output) {
  const InspectReport& report = output.report;
  Json json = {{"file", FileJson(output.file)},
               {"model", ModelJson(output.spec)},
               {"tokenizer", TokenizerJson(report.tokenizer)},
               {"parameters",
                {{"total", report.num_parameters},
                 {"without_table", report.num_parameters - report.num_table_parameters},
                 {"active_per_token", report.num_active_parameters}}},
               {"bytes", BytesJson(report)}};
  Json& parts = json["parts"] = Json::array();
  for (const PartTypeRow& row : report.rows) {
    parts.push_back({{"part", model::Name(row.part)},
                     {"type", Traits(row.dtype).name},
                     {"tensors", row.num_tensors},
                     {"parameters", row.num_parameters},
                     {"bytes", row.bytes}});
  }
  Json& types = json["types"] = Json::array();
  for (const model::TypeBytes& type : report.summary.types) {
    types.push_back(
        {{"type", Traits(type.dtype).name}, {"tensors", type.num_tensors}, {"bytes", type.bytes}});
  }
  json["layers"] = LayersJson(report);
  if (output.with_metadata) {
    Json& metadata = json["metadata"] = Json::array();
    for (const model::MetadataEntry& entry : output.file.metadata().entries()) {
      metadata.push_back({{"key", model::Printable(entry.key)},
                          {"type", model::Name(entry.type)},
                          {"count", entry.count},
                          {"value", output.file.metadata().Describe(entry)}});
    }
  }
  if (output.with_tensors) json["tensors"] = TensorsJson(output.file);
  if (output.steps != nullptr) {
    Json& steps = json["verified"] = Json::array();
    for (const VerifyStep& step : *output.steps) {
      steps.push_back(
          {{"check", step.name}, {"finding", step.finding}, {"warning", step.is_warning}});
    }
  }
  return json;
}

}  // namespace switchyard::app
