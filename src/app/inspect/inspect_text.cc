#include <fmt/format.h>
#include <string>
#include <string_view>

#include "app/inspect/inspect_output.h"
#include "base/dtype.h"
#include "base/units.h"

namespace switchyard::app {
namespace {

using model::LayerKind;

// "1234567890" as "1,234,567,890".
std::string Grouped(int64_t value) {
  std::string digits = fmt::format("{}", value);
  for (auto i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) {
    digits.insert(static_cast<size_t>(i), 1, ',');
  }
  return digits;
}

std::string Size(int64_t bytes) {
  return fmt::format("{:>16}  {:>8}", Grouped(bytes), FormatBytes(static_cast<double>(bytes)));
}

// A line of the list of figures.
void AddLine(std::string& text, std::string_view name, std::string_view value) {
  text += fmt::format("  {:<34}{}\n", name, value);
}

void AddBytes(std::string& text, std::string_view name, int64_t bytes) {
  AddLine(text, name, Size(bytes));
}

void AddFile(std::string& text, const model::GgufFile& file) {
  text += "file\n";
  for (int i = 0; i < file.num_shards(); ++i) AddLine(text, i == 0 ? "path" : "", file.path(i));
  AddLine(text, "format",
          fmt::format("GGUF version {}, {} metadata keys, {} tensors", file.version(),
                      file.metadata().entries().size(), file.tensors().size()));
  AddBytes(text, "bytes", static_cast<int64_t>(file.total_bytes()));
}

void AddModel(std::string& text, const model::ModelSpec& spec) {
  const model::AttentionSpec& a = spec.attention;
  text += "model\n";
  AddLine(text, "architecture",
          spec.name.empty()
              ? spec.architecture
              : fmt::format("{} ({})", spec.architecture, model::Printable(spec.name)));
  int num_attention = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    num_attention += layer.kind == LayerKind::kAttention ? 1 : 0;
  }
  AddLine(text, "layers",
          fmt::format("{}: {} attention, {} delta net; {} draft", spec.num_layers, num_attention,
                      spec.num_layers - num_attention, spec.num_mtp_layers));
  AddLine(text, "hidden size",
          spec.num_residual_streams == 1 ? fmt::format("{}", spec.hidden_size)
                                         : fmt::format("{}, {} residual streams", spec.hidden_size,
                                                       spec.num_residual_streams));
  AddLine(text, "vocabulary, context",
          fmt::format("{} rows{}, {} tokens", spec.vocab_size,
                      spec.is_output_tied() ? " (tied)" : "", spec.context_length));
  AddLine(text, "attention",
          fmt::format("{} query and {} KV heads of {}, {} rotated", a.num_heads, a.num_kv_heads,
                      a.head_dim, a.num_rotary_dims));
  if (spec.has_sparse_attention()) {
    AddLine(text, "sparse attention",
            fmt::format("{} indexer heads of {}, budget {} tokens", a.num_index_heads,
                        a.index_head_dim, a.budget_tokens));
  }
  if (spec.delta_net.has_value()) {
    AddLine(text, "delta net",
            fmt::format("{} key and {} value heads of {}, convolution {}",
                        spec.delta_net->num_key_heads, spec.delta_net->num_value_heads,
                        spec.delta_net->head_dim, spec.delta_net->conv_kernel));
  }
  AddLine(text, "experts",
          fmt::format("{} of width {}, {} per token{}", spec.moe.num_experts,
                      spec.moe.max_expert_hidden_size, spec.moe.top_k,
                      spec.moe.shared_expert_hidden_size == 0
                          ? ""
                          : fmt::format("; shared expert of width {}",
                                        spec.moe.shared_expert_hidden_size)));
  if (spec.ple.has_value()) {
    AddLine(text, "n-gram embedding",
            fmt::format("layer {}, {} heads, {} rows of {}", spec.ple->layer, spec.ple->num_heads(),
                        spec.ple->table->num_rows(), spec.ple->row_width));
  }
}

void AddTokenizer(std::string& text, const std::optional<TokenizerFacts>& facts) {
  text += "tokenizer\n";
  if (!facts.has_value()) {
    AddLine(text, "none", "");
    return;
  }
  AddLine(text, "kind", fmt::format("byte-level BPE, {}", model::Printable(facts->pre_tokenizer)));
  AddLine(text, "tokens",
          fmt::format("{}: {} control, {} user-defined, {} unused; {} merges", facts->num_tokens,
                      facts->num_control, facts->num_user_defined, facts->num_unused,
                      facts->num_merges));
  if (facts->eos_token_id.has_value()) {
    AddLine(text, "end token", fmt::format("{}", *facts->eos_token_id));
  }
  AddLine(text, "chat template",
          facts->chat_template_bytes == 0 ? "none"
                                          : fmt::format("{} bytes", facts->chat_template_bytes));
}

void AddParts(std::string& text, const InspectReport& report) {
  text += fmt::format("{:<18}{:<9}{:>8}{:>18}{:>18}{:>11}{:>8}\n", "part", "type", "tensors",
                      "parameters", "bytes", "", "share");
  for (const PartTypeRow& row : report.rows) {
    text += fmt::format(
        "{:<18}{:<9}{:>8}{:>18}{:>18}{:>11}{:>7.1f}%\n", model::Name(row.part),
        Traits(row.dtype).name, row.num_tensors, Grouped(row.num_parameters), Grouped(row.bytes),
        FormatBytes(static_cast<double>(row.bytes)),
        100.0 * static_cast<double>(row.bytes) / static_cast<double>(report.summary.bytes));
  }
  text += fmt::format("{:<27}{:>8}{:>18}{:>18}{:>11}\n", "all", report.summary.num_tensors,
                      Grouped(report.num_parameters), Grouped(report.summary.bytes),
                      FormatBytes(static_cast<double>(report.summary.bytes)));
}

void AddFigures(std::string& text, const InspectReport& report) {
  const model::ModelSummary& s = report.summary;
  text += "one token reads\n";
  AddBytes(text, "dense side", s.dense_bytes_per_token);
  AddBytes(text, "experts", s.expert_bytes_per_token);
  AddBytes(text, "together", report.bytes_per_token);
  AddLine(text, "parameters", Grouped(report.num_active_parameters));
  text += "one expert has\n";
  AddBytes(text, "in most layers", s.typical_bytes_per_expert);
  AddBytes(text, "on average", static_cast<int64_t>(s.mean_bytes_per_expert + 0.5));
  AddLine(text, "least, most",
          fmt::format("{}, {}", Grouped(s.min_bytes_per_expert), Grouped(s.max_bytes_per_expert)));
  text += "memory\n";
  AddBytes(text, "dense side without n-gram table", report.dense_resident_bytes);
  AddBytes(text, "routed experts", report.summary.part(model::ModelPart::kRoutedExperts).bytes);
  AddBytes(text, "together", report.resident_bytes);
  AddBytes(text, "n-gram table (stays in the file)", report.table_bytes);
  AddBytes(text, "KV cache per token, F16", report.cache.kv_per_token);
  AddBytes(text, "block keys per token, F16", report.cache.block_keys_per_token);
  AddBytes(text, "delta-net state per sequence", report.cache.delta_net_state);
  AddBytes(text, "n-gram state per sequence", report.cache.ple_state);
}

void AddLayers(std::string& text, const model::ModelSpec& spec, const InspectReport& report) {
  text += fmt::format("{:<7}{:<11}{:>16}{:>18}{:>14}  {}\n", "layer", "kind", "dense", "experts",
                      "per expert", "gate/up, down");
  for (size_t i = 0; i < report.summary.layers.size(); ++i) {
    const model::LayerBytes& layer = report.summary.layers[i];
    const model::MoeTensors& moe = spec.layers[i].moe;
    const model::TensorRef gate = moe.gate_up != nullptr ? moe.gate_up : moe.gate;
    text += fmt::format("{:<7}{:<11}{:>16}{:>18}{:>14}  {}, {}\n", i,
                        layer.kind == LayerKind::kAttention ? "attention" : "delta net",
                        Grouped(layer.dense_bytes), Grouped(layer.expert_bytes),
                        Grouped(layer.bytes_per_expert), Traits(gate->dtype).name,
                        Traits(moe.down->dtype).name);
  }
}

void AddMetadata(std::string& text, const model::GgufMetadata& metadata) {
  text += "metadata\n";
  for (const model::MetadataEntry& entry : metadata.entries()) {
    AddLine(text, model::Printable(entry.key), fmt::format(" {}", metadata.Describe(entry)));
  }
}

void AddTensors(std::string& text, const model::GgufFile& file) {
  text += fmt::format("{:<44}{:<9}{:<26}{:>16}{:>6}{:>16}\n", "tensor", "type", "shape", "bytes",
                      "file", "offset");
  for (const model::TensorInfo& tensor : file.tensors()) {
    text += fmt::format("{:<44}{:<9}{:<26}{:>16}{:>6}{:>16}\n", model::Printable(tensor.name),
                        Traits(tensor.dtype).name, model::DimsText(tensor), Grouped(tensor.bytes()),
                        tensor.shard, tensor.offset);
  }
}

void AddSteps(std::string& text, const std::vector<VerifyStep>& steps) {
  text += "verified\n";
  for (const VerifyStep& step : steps) {
    AddLine(text, step.name, (step.is_warning ? "WARNING: " : "") + step.finding);
  }
}

}  // namespace

std::string InspectText(const InspectOutput& output) {
  std::string text;
  AddFile(text, output.file);
  AddModel(text, output.spec);
  AddTokenizer(text, output.report.tokenizer);
  text += "\n";
  AddParts(text, output.report);
  text += "\n";
  AddFigures(text, output.report);
  text += "\n";
  AddLayers(text, output.spec, output.report);
  if (output.with_metadata) {
    text += "\n";
    AddMetadata(text, output.file.metadata());
  }
  if (output.with_tensors) {
    text += "\n";
    AddTensors(text, output.file);
  }
  if (output.steps != nullptr) {
    text += "\n";
    AddSteps(text, *output.steps);
  }
  return text;
}

}  // namespace switchyard::app
