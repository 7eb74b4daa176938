// synth: writes a synthetic model.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "app/command.h"
#include "app/exit_code.h"
#include "app/interrupt.h"
#include "app/synth/synth_options.h"
#include "app/synth/synth_presets.h"
#include "app/synth/synthetic_model.h"
#include "app/terminal.h"
#include "base/progress_bar.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace switchyard::app {
namespace {

struct SizeFlag {
  const char* name;
  int SynthOptions::*member;
  const char* help;
};

constexpr SizeFlag kSizeFlags[] = {
    {"--layers", &SynthOptions::num_layers, "Layers, draft blocks not counted"},
    {"--hidden", &SynthOptions::hidden_size, "Hidden size"},
    {"--vocab", &SynthOptions::vocab_size, "Vocabulary rows"},
    {"--unused", &SynthOptions::num_unused_tokens, "Vocabulary rows at the end without a token"},
    {"--context", &SynthOptions::context_length, "Context length in tokens"},
    {"--interval", &SynthOptions::full_attention_interval, "Every n-th layer is attention"},
    {"--streams", &SynthOptions::num_residual_streams, "Residual streams"},
    {"--low-rank", &SynthOptions::hc_low_rank, "Rank of the mixers between streams"},
    {"--heads", &SynthOptions::num_heads, "Query heads"},
    {"--kv-heads", &SynthOptions::num_kv_heads, "Key and value heads"},
    {"--head-dim", &SynthOptions::head_dim, "Size of an attention head"},
    {"--rotary-dims", &SynthOptions::num_rotary_dims, "Rotated dimensions of a head"},
    {"--index-heads", &SynthOptions::num_index_heads, "Indexer heads of sparse attention"},
    {"--index-dim", &SynthOptions::index_head_dim, "Size of an indexer head"},
    {"--budget", &SynthOptions::budget_tokens, "Tokens that sparse attention reads"},
    {"--ratio", &SynthOptions::compress_ratio, "Tokens of a block of sparse attention, 0 = dense"},
    {"--key-heads", &SynthOptions::num_key_heads, "Key heads of delta nets"},
    {"--value-heads", &SynthOptions::num_value_heads, "Value heads of delta nets"},
    {"--state", &SynthOptions::delta_head_dim, "Size of a delta-net head"},
    {"--conv-kernel", &SynthOptions::conv_kernel, "Taps of the delta nets' convolution"},
    {"--experts", &SynthOptions::num_experts, "Routed experts of a layer"},
    {"--top-k", &SynthOptions::top_k, "Experts chosen per token"},
    {"--expert-hidden", &SynthOptions::expert_hidden_size, "Inner width of a routed expert"},
    {"--shared-expert-hidden", &SynthOptions::shared_expert_hidden_size,
     "Inner width of the shared expert"},
    {"--ple-layer", &SynthOptions::ple_layer, "Layer of the n-gram embedding, -1 = none"},
    {"--ngram", &SynthOptions::ngram_size, "Longest n-gram in tokens"},
    {"--heads-per-ngram", &SynthOptions::heads_per_ngram, "N-gram heads of each length"},
    {"--ple-conv", &SynthOptions::ple_conv_kernel, "Taps of the n-gram convolution"},
    {"--ple-rows", &SynthOptions::ple_rows_per_head,
     "N-gram table rows of a head; each head takes the next prime from here on"},
    {"--mtp", &SynthOptions::num_mtp_layers, "Draft blocks"},
    {"--split", &SynthOptions::num_shards, "Files; the first of several holds no tensors"},
};

// What was given on the command line; the preset fills in the rest.
struct Arguments {
  std::string path;
  std::string architecture = "qwen4exp";
  std::string preset = "tiny";
  uint64_t seed = 1;
  std::vector<std::optional<int>> sizes = std::vector<std::optional<int>>(std::size(kSizeFlags));
  std::optional<std::string> types;
  std::string gate_up_type;
  std::string down_type;
  std::string dense_type;
  double router_skew = 0;
  bool tied = false;
  bool fused_gate_up = false;
  bool sparse = false;
  bool force = false;
  std::string output;
};

absl::StatusOr<SynthOptions> MakeOptions(const Arguments& arguments) {
  SWITCHYARD_ASSIGN_OR_RETURN(SynthOptions options,
                              SynthPreset(arguments.preset, arguments.architecture));
  options.seed = arguments.seed;
  for (size_t i = 0; i < std::size(kSizeFlags); ++i) {
    if (arguments.sizes[i].has_value()) options.*kSizeFlags[i].member = *arguments.sizes[i];
  }
  if (arguments.types.has_value()) options.types = *arguments.types;
  options.gate_up_type = arguments.gate_up_type;
  options.down_type = arguments.down_type;
  options.dense_type = arguments.dense_type;
  options.router_skew = arguments.router_skew;
  options.tied_output = arguments.tied;
  options.fused_gate_up = arguments.fused_gate_up;
  options.sparse = options.sparse || arguments.sparse;
  return options;
}

absl::StatusOr<SynthResult> Write(const Arguments& arguments, const SynthOptions& options) {
  std::optional<ProgressBar> bar;
  return WriteSyntheticModel(options, arguments.path, arguments.force,
                             [&](int64_t done, int64_t total) -> absl::Status {
                               if (IsInterrupted()) return InterruptedStatus();
                               if (!bar.has_value())
                                 bar.emplace("writing", total, TerminalProgressOptions());
                               bar->Set(done);
                               return absl::OkStatus();
                             });
}

absl::Status Run(const Arguments& arguments) {
  // A limit on file sizes is to show as an error of write(), like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  absl::StatusOr<SynthOptions> options = MakeOptions(arguments);
  if (!options.ok()) return WithExitCode(options.status(), ExitCode::kUsage);
  const absl::StatusOr<SynthResult> result = Write(arguments, *options);
  if (!result.ok()) {
    const bool is_usage = result.status().code() == absl::StatusCode::kInvalidArgument;
    return WithExitCode(result.status(), is_usage ? ExitCode::kUsage : ExitCode::kFailed);
  }
  if (arguments.output == "json") {
    const nlohmann::ordered_json json = {{"paths", result->paths},
                                         {"file_bytes", result->file_bytes},
                                         {"tensors", result->num_tensors},
                                         {"sparse", options->sparse}};
    return WriteOutput(json.dump() + "\n");
  }
  std::string text;
  for (const std::string& path : result->paths) text += path + "\n";
  WriteMessage(fmt::format("wrote {} tensors, {}{}\n", result->num_tensors,
                           FormatBytes(static_cast<double>(result->file_bytes)),
                           options->sparse ? ", data left out (holes)" : ""));
  return WriteOutput(text);
}

}  // namespace

void AddSynthCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command = app.add_subcommand("synth", "Write a synthetic model with random weights");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("OUT", arguments->path, "File to write (.gguf)")->required();
  command->add_option("--arch", arguments->architecture, "Architecture")
      ->check(CLI::IsMember(SynthArchitectureNames()))
      ->capture_default_str();
  command->add_option("--preset", arguments->preset, "Sizes to start from")
      ->check(CLI::IsMember(SynthPresetNames()))
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "Seed of the weights")->capture_default_str();
  for (size_t i = 0; i < std::size(kSizeFlags); ++i) {
    command->add_option(kSizeFlags[i].name, arguments->sizes[i], kSizeFlags[i].help)
        ->group("Sizes");
  }
  command
      ->add_option("--router-skew", arguments->router_skew,
                   "Popularity of the experts: exponent of Zipf's law, 0 = all alike")
      ->group("Sizes");
  command->add_flag("--tied", arguments->tied, "Use the embedding as output matrix")
      ->group("Sizes");
  command
      ->add_flag("--fused-gate-up", arguments->fused_gate_up,
                 "One tensor for gate and up of the routed experts")
      ->group("Sizes");
  command
      ->add_option(
          "--types", arguments->types,
          "f32, mixed (as a published 4-bit file), and regex=TYPE items after a comma; the "
          "last that matches a tensor's name wins")
      ->group("Types");
  command->add_option("--gate-up", arguments->gate_up_type, "Type of the experts' gate and up")
      ->group("Types");
  command->add_option("--down", arguments->down_type, "Type of the experts' down")->group("Types");
  command->add_option("--dense", arguments->dense_type, "Type of the matrices of the dense side")
      ->group("Types");
  command->add_flag("--sparse", arguments->sparse, "Leave the data out: holes that read as zeros");
  command->add_flag("-f,--force", arguments->force, "Replace a file that exists");
  AddOutputOption(*command, arguments->output, {"text", "json"});
  command->footer(
      "Examples:\n"
      "  switchyard synth tiny.gguf\n"
      "  switchyard synth bench.gguf --preset bench --gate-up IQ4_XS\n"
      "  switchyard synth skewed.gguf --preset bench --router-skew 1.0\n"
      "  switchyard synth moe.gguf --arch qwen3moe --preset bench --types mixed,exps=Q4_K\n"
      "  switchyard synth q4.gguf --hidden 256 --types 'mixed,down_exps=Q5_1,^output=Q8_0'");
  command->callback([&body, arguments] { body = [arguments] { return Run(*arguments); }; });
}

}  // namespace switchyard::app
