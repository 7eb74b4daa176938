#include "app/engine_setup.h"

#include <algorithm>
#include <cstdlib>
#include <unistd.h>
#include <utility>

#include "app/exit_code.h"
#include "app/interrupt.h"
#include "app/local_worker.h"
#include "app/terminal.h"
#include "base/cpu_topology.h"
#include "base/log.h"
#include "base/process_memory.h"
#include "base/progress_bar.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/reference/reference_backend.h"
#include "worker/cache/recurrent_state.h"

namespace switchyard::app {
namespace {

// Coordinator and worker see each other's pages only as numbers; both must mean the same tokens.
static_assert(coordinator::kPageTokens == kernels::kPageTokens);
static_assert(coordinator::kReplayRows == kernels::kMaxProvisionalRows + 1);

kernels::KvType KvTypeOf(const std::string& name) {
  if (name == "f32") return kernels::KvType::kF32;
  if (name == "q8_0") return kernels::KvType::kQ8_0;
  return kernels::KvType::kF16;
}

absl::StatusOr<kernels::cpu::Recode> RecodeOf(const std::string& name) {
  if (name == "auto") return kernels::cpu::Recode::kAuto;
  if (name == "never") return kernels::cpu::Recode::kNever;
  if (name == "always") return kernels::cpu::Recode::kAlways;
  return InvalidArgument("--recode must be auto, never or always, got: {}", name);
}

absl::StatusOr<std::unique_ptr<kernels::Backend>> MakeCpuBackend(const ModelOptions& options) {
  const CpuBudget budget = DefaultCpuBudget();
  const int num_threads = options.num_threads > 0 ? options.num_threads : budget.num_threads;
  if (const auto warning = ThreadCountWarning(num_threads, budget)) LogWarning("{}", *warning);
  kernels::cpu::CpuBackendOptions backend;
  backend.num_threads = num_threads;
  backend.cores = CoresForThreads(num_threads, budget);
  backend.huge_pages = options.huge_pages;
  SWITCHYARD_ASSIGN_OR_RETURN(backend.recode, RecodeOf(options.recode));
  backend.level = kernels::cpu::DetectCpuLevel();
  if (!options.cpu_level.empty()) {
    const auto level = kernels::cpu::CpuLevelFromName(options.cpu_level);
    if (!level || !kernels::cpu::RunsCpuLevel(*level)) {
      return WithExitCode(InvalidArgument("this machine cannot run CPU level {}; its best is {}",
                                          options.cpu_level, CpuLevelName(backend.level)),
                          ExitCode::kHardwareUnfit);
    }
    backend.level = *level;
  }
  LogInfo("cpu threads: {} ({})", num_threads,
          options.num_threads > 0 ? "as asked for" : budget.reason);
  return kernels::cpu::CreateCpuBackend(backend);
}

void LogMemory(const worker::WorkerMemory& memory) {
  LogInfo("weights: {} in the file, {} resident, {} mapped", FormatBytes(memory.file_bytes),
          FormatBytes(memory.weight_bytes), FormatBytes(memory.mapped_bytes));
  LogInfo("caches: keys and values up to {}, recurrent state {}, prefixes up to {}, activations {}",
          FormatBytes(memory.kv_bytes), FormatBytes(memory.state_bytes),
          FormatBytes(memory.checkpoint_bytes), FormatBytes(memory.activation_bytes));
  const int64_t growth_bytes = memory.kv_bytes + memory.state_bytes + memory.checkpoint_bytes;
  const auto available_bytes = AvailableHostBytes();
  if (available_bytes && growth_bytes > *available_bytes) {
    LogWarning(
        "the caches may grow to {}, but {} are free: lower --context or --prefix-cache-bytes",
        FormatBytes(static_cast<double>(growth_bytes)),
        FormatBytes(static_cast<double>(*available_bytes)));
  }
  const auto process = ReadProcessMemory();
  if (process.ok()) LogInfo("resident memory: {}", FormatBytes(process->resident_bytes()));
}

}  // namespace

int DefaultNumThreads() { return DefaultCpuBudget().num_threads; }

absl::StatusOr<std::unique_ptr<kernels::Backend>> MakeBackend(const ModelOptions& options) {
  if (options.device == "reference") return kernels::reference::CreateReferenceBackend();
  return MakeCpuBackend(options);
}

absl::StatusOr<worker::WorkerOptions> MakeWorkerOptions(const LoadedModel& model,
                                                        const ModelOptions& options) {
  worker::WorkerOptions out;
  out.max_context =
      options.context > 0 ? options.context : std::min(model.spec.context_length, kDefaultContext);
  if (out.max_context > model.spec.context_length) {
    return WithExitCode(
        InvalidArgument("--context is more than the model was made for; at most: {}, got: {}",
                        model.spec.context_length, out.max_context),
        ExitCode::kUsage);
  }
  out.num_slots = options.num_slots;
  const int64_t pages = (out.max_context + kernels::kPageTokens - 1) / kernels::kPageTokens;
  out.num_pages = static_cast<int>(pages * (options.num_slots + 1));
  const int64_t checkpoint_bytes = std::max<int64_t>(1, worker::CommittedStateBytes(model.spec));
  // Every kept prefix has at least one page of its own.
  out.num_checkpoints = static_cast<int>(
      std::min<int64_t>(options.prefix_cache_bytes / checkpoint_bytes, out.num_pages));
  // No step has more rows than tokens of one sequence and a row of each other.
  out.max_step_rows = static_cast<int>(std::min<int64_t>(options.chunk_tokens, out.max_context)) +
                      options.num_slots;
  out.kv_type = KvTypeOf(options.kv_type);
  out.never_sampled = model.tokenizer.unused_ids();
  for (int32_t id = model.tokenizer.vocab_size(); id < model.spec.vocab_size; ++id) {
    out.never_sampled.push_back(id);
  }
  return out;
}

absl::StatusOr<std::unique_ptr<worker::Worker>> LoadWorker(
    const LoadedModel& model, const ModelOptions& options,
    const worker::WorkerOptions& worker_options, const worker::LoadProgress& on_progress) {
  SWITCHYARD_ASSIGN_OR_RETURN(auto backend, MakeBackend(options));
  std::unique_ptr<ProgressBar> bar;
  auto worker = worker::Worker::Create(
      model.file, model.spec, std::move(backend), worker_options, [&](int64_t done, int64_t total) {
        if (bar == nullptr) {
          bar = std::make_unique<ProgressBar>("loading", total, TerminalProgressOptions());
        }
        bar->Set(done);
        if (IsInterrupted()) return InterruptedStatus();
        return on_progress ? on_progress(done, total) : absl::OkStatus();
      });
  bar.reset();
  if (!worker.ok()) {
    const bool lacks_memory = worker.status().code() == absl::StatusCode::kResourceExhausted;
    return WithExitCode(worker.status(),
                        lacks_memory ? ExitCode::kHardwareUnfit : ExitCode::kModelRejected);
  }
  LogInfo("device: {}", (*worker)->backend().Describe());
  LogMemory((*worker)->memory());
  return worker;
}

absl::StatusOr<std::unique_ptr<coordinator::Engine>> StartEngine(const LoadedModel& model,
                                                                 const ModelOptions& options) {
  // Chunks end at page borders, so that a prefix hit continues as the cold run would have.
  if (options.chunk_tokens < kernels::kPageTokens) {
    return WithExitCode(InvalidArgument("--chunk must be at least {}, got: {}",
                                        kernels::kPageTokens, options.chunk_tokens),
                        ExitCode::kUsage);
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const worker::WorkerOptions worker_options,
                              MakeWorkerOptions(model, options));
  SWITCHYARD_ASSIGN_OR_RETURN(auto worker, LoadWorker(model, options, worker_options));
  coordinator::EngineOptions engine_options;
  engine_options.scheduler.max_step_rows = worker_options.max_step_rows;
  engine_options.scheduler.mixed_prefill_rows = options.chunk_tokens;
  return std::make_unique<coordinator::Engine>(
      std::make_unique<LocalWorker>(std::move(worker), worker_options), model.tokenizer,
      engine_options);
}

}  // namespace switchyard::app
