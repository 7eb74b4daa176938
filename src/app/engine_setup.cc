#include "app/engine_setup.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <unistd.h>
#include <utility>

#include "app/bench/machine_description.h"
#include "app/core_claims.h"
#include "app/exit_code.h"
#include "app/group_worker.h"
#include "app/interrupt.h"
#include "app/local_worker.h"
#include "app/placement_options.h"
#include "app/terminal.h"
#include "app/thread_cache.h"
#include "base/cpu_topology.h"
#include "base/log.h"
#include "base/process_memory.h"
#include "base/progress_bar.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/thread_calibration.h"
#include "base/units.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/reference/reference_backend.h"
#include "model/model_digest.h"
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

// Up to here every core is of use, whatever the memory can do.
constexpr int kMostThreadsUnmeasured = 2;

bool MeasuresThreads(const ModelOptions& options, const CpuBudget& budget) {
  return options.num_threads == 0 && budget.num_threads > kMostThreadsUnmeasured;
}

// The least number of threads that is as fast as any; what an earlier start found out is taken
// over.
kernels::cpu::ThreadSweep MeasuredSweep(const CpuBudget& budget, const std::string& cache_key) {
  const ThreadCache cache(cache_key.empty() ? std::filesystem::path() : DefaultThreadCachePath());
  if (const auto known = cache.Find(cache_key); known && *known <= budget.num_threads) {
    LogInfo("threads that run after loading: {} (measured at an earlier start)", *known);
    return {.choose = [known = *known](absl::Span<const ThreadRate>) { return known; }};
  }
  return {.counts = SweepCounts(budget.num_threads),
          .choose = [cache, cache_key](absl::Span<const ThreadRate> rates) {
            const int num_threads = LeastOfBestThreads(rates);
            std::string measured;
            for (const ThreadRate& rate : rates) {
              measured += fmt::format("{}{}: {}", measured.empty() ? "" : ", ", rate.num_threads,
                                      FormatBytesPerSecond(rate.bytes_per_second));
            }
            LogInfo("threads that run: {}, the fewest that read weights as fast as any ({})",
                    num_threads, measured);
            cache.Store(cache_key, num_threads);
            return num_threads;
          }};
}

// What a user loses who insists on more threads than the budget.
kernels::cpu::ThreadSweep ForcedSweep(int num_threads, const CpuBudget& budget) {
  const int num_running = std::min(num_threads, static_cast<int>(AllowedCpus().size()));
  if (num_running <= budget.num_threads) return {};  // the others sleep
  return {.counts = {budget.num_threads, num_running},
          .choose = [](absl::Span<const ThreadRate> rates) {
            const double loss = 1 - rates[1].bytes_per_second / rates[0].bytes_per_second;
            LogWarning("{} threads read weights at {}, {} at {}: {:.0f} % are {}",
                       rates[1].num_threads, FormatBytesPerSecond(rates[1].bytes_per_second),
                       rates[0].num_threads, FormatBytesPerSecond(rates[0].bytes_per_second),
                       100 * std::abs(loss), loss > 0 ? "lost" : "won");
            return rates[1].num_threads;
          }};
}

// Takes cores that no other worker of this host has and reduces the budget to them. Whoever finds
// fewer than it was told to use, or none, runs unpinned beside the others.
std::shared_ptr<CoreClaims> ClaimCores(const ModelOptions& options, CpuBudget& budget) {
  const int num_wanted = options.num_threads > 0 ? options.num_threads : budget.num_threads;
  const std::filesystem::path folder = options.core_claims_folder.empty()
                                           ? DefaultCoreClaimsFolder()
                                           : std::filesystem::path(options.core_claims_folder);
  auto claims = std::make_shared<CoreClaims>(folder, budget.cores, num_wanted);
  if (claims->num_taken() == 0) return claims;
  const int num_free = static_cast<int>(claims->cores().size());
  if (num_free == 0 || num_free < options.num_threads) {
    LogWarning(
        "other workers have {} of {} cores: threads are not pinned, and slow each other down",
        claims->num_taken(), budget.cores.size());
    claims->KeepFirst(0);
    budget.cores.clear();
    return claims;
  }
  const size_t num_allowed = budget.cores.size();
  budget.cores = claims->cores();
  if (num_free < budget.num_threads) {
    budget.num_threads = num_free;
    budget.reason = fmt::format("{} of {} cores allowed, {} have other workers", num_free,
                                num_allowed, claims->num_taken());
  }
  return claims;
}

absl::StatusOr<std::unique_ptr<kernels::Backend>> MakeCpuBackend(const ModelOptions& options,
                                                                 const std::string& model_digest) {
  CpuBudget budget = DefaultCpuBudget();
  if (options.num_threads > 0) {
    if (const auto warning = ThreadCountWarning(options.num_threads, budget)) {
      LogWarning("{}", *warning);
    }
  }
  const auto claims = ClaimCores(options, budget);
  const int num_threads = options.num_threads > 0 ? options.num_threads : budget.num_threads;
  kernels::cpu::CpuBackendOptions backend;
  backend.claims = claims;
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
  if (MeasuresThreads(options, budget)) {
    const std::string key = model_digest.empty()
                                ? ""
                                : ThreadCacheKey(ReadMachineDescription("/").cpu_model,
                                                 CpuLevelName(backend.level), model_digest, budget);
    backend.sweep = MeasuredSweep(budget, key);
    // Cores that are of no use here are free for others.
    backend.sweep.choose = [choose = std::move(backend.sweep.choose),
                            claims](absl::Span<const ThreadRate> rates) {
      const int num_running = choose(rates);
      claims->KeepFirst(num_running);
      return num_running;
    };
  } else if (num_threads > budget.num_threads) {
    backend.sweep = ForcedSweep(num_threads, budget);
  }
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

absl::StatusOr<std::unique_ptr<kernels::Backend>> MakeBackend(const ModelOptions& options,
                                                              const std::string& model_digest) {
  if (options.device == "reference") return kernels::reference::CreateReferenceBackend();
  return MakeCpuBackend(options, model_digest);
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
  out.residency.fast_bytes = options.host_expert_bytes;
  out.residency.profile_path = options.expert_profile;
  out.never_sampled = model.tokenizer.unused_ids();
  for (int32_t id = model.tokenizer.vocab_size(); id < model.spec.vocab_size; ++id) {
    out.never_sampled.push_back(id);
  }
  return out;
}

absl::StatusOr<std::unique_ptr<worker::Worker>> LoadWorker(
    const LoadedModel& model, const ModelOptions& options,
    const worker::WorkerOptions& worker_options, const worker::LoadProgress& on_progress) {
  std::string digest;
  if (MeasuresThreads(options, DefaultCpuBudget())) {
    SWITCHYARD_ASSIGN_OR_RETURN(digest, model::ModelDigest(model.file));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(auto backend, MakeBackend(options, digest));
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

absl::StatusOr<std::unique_ptr<coordinator::WorkerHandle>> StartWorker(
    const LoadedModel& model, const ModelOptions& options,
    const worker::WorkerOptions& worker_options) {
  WorkerGroupOptions group;
  SWITCHYARD_ASSIGN_OR_RETURN(group.placement,
                              PlacementFor(model.spec, options, std::max(1, options.num_workers)));
  if (options.num_workers == 0) {
    SWITCHYARD_ASSIGN_OR_RETURN(auto worker, LoadWorker(model, options, worker_options));
    return std::make_unique<LocalWorker>(std::move(worker), worker_options);
  }
  SWITCHYARD_ASSIGN_OR_RETURN(auto started,
                              WorkerGroup::Start(model, options, worker_options, group));
  return std::make_unique<GroupWorker>(std::move(started));
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
  SWITCHYARD_ASSIGN_OR_RETURN(auto worker, StartWorker(model, options, worker_options));
  coordinator::EngineOptions engine_options;
  engine_options.scheduler.max_step_rows = worker_options.max_step_rows;
  engine_options.scheduler.mixed_prefill_rows = options.chunk_tokens;
  return std::make_unique<coordinator::Engine>(std::move(worker), model.tokenizer, engine_options);
}

}  // namespace switchyard::app
