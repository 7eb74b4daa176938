#include "app/model_options.h"

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"
#include "placement/placement.h"

namespace switchyard::app {
namespace {

constexpr int kMostThreads = 1024;

// Reads "4096" or "16k" into a count.
template <typename T>
CLI::Option* AddCount(CLI::App& command, const std::string& name, T& value,
                      const std::string& description) {
  return command
      .add_option_function<std::string>(
          name,
          [&value, name](const std::string& text) {
            const auto count = ParseCount(text);
            if (!count.ok() || *count < 1 || *count > (int64_t{1} << 30)) {
              throw CLI::ValidationError(name, "wants a count such as 4096 or 16k, got: " + text);
            }
            value = static_cast<T>(*count);
          },
          description)
      ->type_name("COUNT");
}

}  // namespace

void AddBackendOptions(CLI::App& command, ModelOptions& options) {
  command.add_option("--device", options.device, "Where to compute")
      ->check(CLI::IsMember({"cpu", "reference"}))
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "-t,--threads",
          [&options](const std::string& text) {
            if (text == "auto") {
              options.num_threads = 0;
              return;
            }
            const auto count = ParseCount(text);
            if (!count.ok() || *count < 1 || *count > kMostThreads) {
              throw CLI::ValidationError(
                  "--threads",
                  fmt::format("wants auto or a number from 1 to {}, got: {}", kMostThreads, text));
            }
            options.num_threads = static_cast<int>(*count);
          },
          "Threads that compute, or auto: what cores and CPU quota allow, on more than two cores\n"
          "as many as memory can feed, measured at the first start (default: auto)")
      ->type_name("COUNT")
      ->envname("SWITCHYARD_THREADS");
  command
      .add_option("--cpu-level", options.cpu_level,
                  "Instruction set of the CPU kernels (default: the best this machine has)")
      ->check(CLI::IsMember({"scalar", "avx2", "avxvnni", "avx512vnni"}))
      ->envname("SWITCHYARD_CPU_LEVEL");
}

void AddDeviceOptions(CLI::App& command, ModelOptions& options) {
  AddBackendOptions(command, options);
  command.add_option("--kv-type", options.kv_type, "Type of cached keys and values")
      ->check(CLI::IsMember({"f32", "f16", "q8_0"}))
      ->capture_default_str();
  AddCount(command, "--chunk", options.chunk_tokens,
           "Prompt tokens computed at once (default: 512)");
  command.add_flag("--huge-pages,!--no-huge-pages", options.huge_pages,
                   "Ask for huge pages for the weights (default: on)");
  command
      .add_option("--recode", options.recode,
                  "Keep IQ3_S and IQ3_XXS in a quarter more bytes, several times faster: auto = if "
                  "they fit")
      ->check(CLI::IsMember({"auto", "never", "always"}))
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--host-expert-bytes",
          [&options](const std::string& text) {
            options.host_expert_bytes = -1;
            if (text == "all") return;
            const auto bytes = ParseBytes(text);
            if (!bytes.ok()) {
              throw CLI::ValidationError("--host-expert-bytes",
                                         "wants all or a size such as 2GiB, got: " + text);
            }
            options.host_expert_bytes = *bytes;
          },
          "Experts that are kept in memory, those used most; the others are computed from the\n"
          "file, which is slow (default: all)")
      ->type_name("BYTES");
  command
      .add_option("--expert-profile", options.expert_profile,
                  "File where use counts of experts are kept: the next start loads those first\n"
                  "that were used most")
      ->type_name("FILE");
}

void AddModelOptions(CLI::App& command, ModelOptions& options) {
  command.add_option("MODEL", options.path, "GGUF file; any part of a split model")->required();
  AddCount(command, "-c,--context", options.context,
           "Tokens that a sequence may have (default: the model's, at most 32k)");
  command
      .add_option_function<std::string>(
          "--prefix-cache-bytes",
          [&options](const std::string& text) {
            const auto bytes = ParseBytes(text);
            if (!bytes.ok()) {
              throw CLI::ValidationError("--prefix-cache-bytes",
                                         std::string(Message(bytes.status())));
            }
            options.prefix_cache_bytes = *bytes;
          },
          "Memory for saved states of prompt prefixes, such as 2GiB")
      ->type_name("BYTES");
  AddDeviceOptions(command, options);
}

CLI::Option* AddGroupOptions(CLI::App& command, ModelOptions& options) {
  AddModeOptions(command, options);
  return command
      .add_option("--workers", options.num_workers,
                  "Worker processes to start, which compute together; --threads is for each\n"
                  "(default: none, all in one process)")
      ->check(CLI::Range(1, placement::kMaxWorldSize));
}

void AddModeOptions(CLI::App& command, ModelOptions& options) {
  command
      .add_option("--mode", options.mode,
                  "What several workers divide: layers, experts, or every matrix\n"
                  "(default: layer_split)")
      ->check(
          CLI::IsMember({"single", "layer_split", "expert_parallel", "tensor_expert_parallel"}));
  command
      .add_option("--partition", options.partition,
                  "How experts are divided: each to one worker, or a slice of each to every\n"
                  "worker (default: sliced)")
      ->check(CLI::IsMember({"whole", "sliced"}));
  command
      .add_option("--dense", options.dense,
                  "Who computes what is no expert, in expert_parallel: every worker, or the\n"
                  "first one (default: replicated)")
      ->check(CLI::IsMember({"replicated", "owner"}));
  command
      .add_option("--layer-split", options.layer_cuts,
                  "First layer of each worker but the first, such as 14,32 (default: by bytes)")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  command.add_flag("--check-ranks", options.check_ranks,
                   "Compare in each step what all workers should have alike; slower");
}

}  // namespace switchyard::app
