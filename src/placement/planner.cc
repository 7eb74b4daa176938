#include "placement/planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace switchyard::placement {
namespace {

constexpr std::array<std::pair<Goal, std::string_view>, 3> kGoals = {{
    {Goal::kLatency, "latency"},
    {Goal::kContext, "context"},
    {Goal::kThroughput, "throughput"},
}};

constexpr int kMostDefaultWorkers = 4;
constexpr double kThroughputSequences = 8;
constexpr int64_t kFastContextTokens = 128 * 1024;
constexpr int64_t kLongContextTokens = 200 * 1024;

std::vector<PlacementWish> WishesFor(int num_workers) {
  if (num_workers == 1) return {PlacementWish{}};
  std::vector<PlacementWish> wishes;
  const auto add = [&](v1::Mode mode, v1::Partition partition, v1::DensePart dense) {
    PlacementWish wish;
    wish.mode = mode;
    wish.world_size = num_workers;
    wish.partition = partition;
    wish.dense = dense;
    wishes.push_back(std::move(wish));
  };
  add(v1::MODE_LAYER_SPLIT, v1::PARTITION_UNSPECIFIED, v1::DENSE_PART_UNSPECIFIED);
  for (const v1::DensePart dense : {v1::DENSE_PART_REPLICATED, v1::DENSE_PART_OWNER}) {
    for (const v1::Partition partition : {v1::PARTITION_WHOLE, v1::PARTITION_SLICED}) {
      add(v1::MODE_EXPERT_PARALLEL, partition, dense);
    }
  }
  add(v1::MODE_TENSOR_EXPERT_PARALLEL, v1::PARTITION_SLICED, v1::DENSE_PART_UNSPECIFIED);
  return wishes;
}

// As a placement that was refused would be called.
v1::Placement WishAsPlacement(const PlacementWish& wish) {
  v1::Placement placement;
  placement.set_mode(wish.mode);
  placement.set_world_size(static_cast<uint32_t>(wish.world_size));
  placement.set_partition(wish.partition);
  placement.set_dense(wish.dense);
  return placement;
}

std::string Size(int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

// Makes one plan at a time.
class PlanMaker {
 public:
  PlanMaker(const model::ModelSpec& spec, const v1::HardwareProfile& profile,
            const PlanRequest& request, DeviceKind device)
      : spec_(spec), profile_(profile), request_(request), device_(device) {
    shape_.num_sequences = request.num_sequences > 0           ? request.num_sequences
                           : request.goal == Goal::kThroughput ? kThroughputSequences
                                                               : 1;
    shape_.window_rows = request.window_rows;
    shape_.tokens_per_pass = request.tokens_per_pass;
    shape_.context_tokens = request.context_tokens;
  }

  Plan Make(PlacementWish wish) const {
    Plan plan;
    plan.num_workers = wish.world_size;
    plan.device = device_;
    plan.placement = WishAsPlacement(wish);
    const absl::Status status = Fill(std::move(wish), plan);
    plan.can_run = status.ok();
    if (!status.ok()) plan.reason = Message(status);
    return plan;
  }

 private:
  absl::Status Fill(PlacementWish wish, Plan& plan) const {
    SWITCHYARD_RETURN_IF_ERROR(CheckDevices(plan));
    wish.expert_use = request_.expert_use;
    SWITCHYARD_ASSIGN_OR_RETURN(plan.placement, MakePlacement(spec_, wish));
    CostModel::Setup setup;
    setup.placement = plan.placement;
    setup.device = device_;
    setup.threads_per_rank = plan.threads_per_worker;
    setup.expert_use = request_.expert_use;
    setup.backend = request_.backend;
    SWITCHYARD_RETURN_IF_ERROR(Fit(plan, setup));
    SWITCHYARD_ASSIGN_OR_RETURN(const CostModel model,
                                CostModel::Create(spec_, profile_, std::move(setup)));
    plan.decode = model.Decode(shape_);
    plan.tokens_per_second = model.TokensPerSecond(shape_);
    plan.limiting = plan.decode.seconds.largest();
    plan.backend = model.backend();
    if (model.knows_prefill()) {
      PrefillShape chunk;
      chunk.num_tokens = request_.chunk_tokens;
      plan.prefill_tokens_per_second = model.PrefillTokensPerSecond(chunk);
    }
    return absl::OkStatus();
  }

  absl::Status CheckDevices(Plan& plan) const {
    if (device_ == DeviceKind::kGpu) {
      if (plan.num_workers <= profile_.gpus_size()) return absl::OkStatus();
      return FailedPrecondition("more workers than GPUs: {}, GPUs: {}", plan.num_workers,
                                profile_.gpus_size());
    }
    plan.threads_per_worker = request_.threads_per_worker;
    if (plan.threads_per_worker == 0) {
      const int cores = profile_.host().has_cores() ? static_cast<int>(profile_.host().cores()) : 1;
      plan.threads_per_worker = std::max(1, cores / plan.num_workers);
    }
    return absl::OkStatus();
  }

  // Distributes memory: what must be resident, caches, then as many experts as there is room for.
  absl::Status Fit(Plan& plan, CostModel::Setup& setup) const {
    std::vector<RankReads> reads;
    for (int r = 0; r < plan.num_workers; ++r) {
      reads.push_back(ReadsOf(spec_, ShareOf(spec_, plan.placement, r)));
    }
    for (const RankReads& rank : reads) {
      RankMemory memory;
      memory.dense_bytes = rank.dense_bytes();
      memory.expert_bytes = rank.expert_bytes();
      memory.cache_bytes = CacheBytes(rank, request_.context_tokens);
      plan.memory.push_back(memory);
    }
    return device_ == DeviceKind::kGpu ? FitGpus(reads, plan, setup) : FitHost(reads, plan);
  }

  int64_t CacheBytes(const RankReads& rank, int64_t context_tokens) const {
    const double bytes = rank.kv_bytes_per_token() * static_cast<double>(context_tokens) +
                         static_cast<double>(rank.state_bytes());
    return static_cast<int64_t>(bytes * shape_.num_sequences);
  }

  // Context that fits into `free_bytes` beside what is not cached.
  int64_t ContextIn(const RankReads& rank, int64_t free_bytes) const {
    const double per_token = rank.kv_bytes_per_token() * shape_.num_sequences;
    const double room = static_cast<double>(free_bytes) -
                        static_cast<double>(rank.state_bytes()) * shape_.num_sequences;
    if (room <= 0) return 0;
    if (per_token <= 0) return spec_.context_length;
    return std::min(spec_.context_length, static_cast<int64_t>(room / per_token));
  }

  int64_t HostBytes() const {
    return static_cast<int64_t>(static_cast<double>(profile_.host().mem_total_bytes()) *
                                (1 - request_.host_reserve_share));
  }

  absl::Status FitHost(const std::vector<RankReads>& reads, Plan& plan) const {
    int64_t weights = 0, all = 0;
    for (RankMemory& memory : plan.memory) {
      memory.resident_expert_bytes = memory.expert_bytes;
      weights += memory.dense_bytes + memory.expert_bytes;
      all += memory.dense_bytes + memory.expert_bytes + memory.cache_bytes;
    }
    plan.most_context_tokens = spec_.context_length;
    if (!profile_.host().has_mem_total_bytes()) return absl::OkStatus();
    const int64_t host_bytes = HostBytes();
    double per_token = 0, states = 0;
    for (size_t r = 0; r < reads.size(); ++r) {
      plan.memory[r].device_bytes = host_bytes / plan.num_workers;
      per_token += reads[r].kv_bytes_per_token() * shape_.num_sequences;
      states += static_cast<double>(reads[r].state_bytes()) * shape_.num_sequences;
    }
    if (per_token > 0) {
      const double room = std::max(0.0, static_cast<double>(host_bytes - weights) - states);
      plan.most_context_tokens =
          std::min(spec_.context_length, static_cast<int64_t>(room / per_token));
    }
    if (all <= host_bytes) return absl::OkStatus();
    return ResourceExhausted(
        "does not fit the host: {} of weights and {} of caches, host has {} free", Size(weights),
        Size(all - weights), Size(host_bytes));
  }

  absl::Status FitGpus(const std::vector<RankReads>& reads, Plan& plan,
                       CostModel::Setup& setup) const {
    int64_t on_host = 0, resident = 0, experts = 0;
    plan.most_context_tokens = spec_.context_length;
    for (size_t r = 0; r < reads.size(); ++r) {
      const v1::Gpu& gpu = profile_.gpus(static_cast<int>(r));
      if (!gpu.has_memory_total_bytes()) {
        return FailedPrecondition(
            "profile has no memory of the GPU: gpus.memory_total_bytes, GPU: {}", gpu.index());
      }
      RankMemory& memory = plan.memory[r];
      memory.device_bytes =
          static_cast<int64_t>(gpu.memory_total_bytes()) - request_.device_reserve_bytes;
      const int64_t room = memory.device_bytes - memory.dense_bytes;
      plan.most_context_tokens = std::min(plan.most_context_tokens, ContextIn(reads[r], room));
      if (room < memory.cache_bytes) {
        return ResourceExhausted(
            "does not fit GPU {}: {} of dense weights and {} of caches, GPU has {} free; context "
            "that fits: {} tokens",
            gpu.index(), Size(memory.dense_bytes), Size(memory.cache_bytes),
            Size(memory.device_bytes), ContextIn(reads[r], room));
      }
      memory.resident_expert_bytes = std::min(room - memory.cache_bytes, memory.expert_bytes);
      setup.resident_share.push_back(memory.expert_bytes == 0
                                         ? 1.0
                                         : static_cast<double>(memory.resident_expert_bytes) /
                                               static_cast<double>(memory.expert_bytes));
      resident += memory.resident_expert_bytes;
      experts += memory.expert_bytes;
    }
    on_host = experts - resident;
    plan.resident_share =
        experts == 0 ? 1 : static_cast<double>(resident) / static_cast<double>(experts);
    if (profile_.host().has_mem_total_bytes() && on_host > HostBytes()) {
      return ResourceExhausted("experts do not fit: {} on the GPUs, {} left, host has {} free",
                               Size(resident), Size(on_host), Size(HostBytes()));
    }
    return absl::OkStatus();
  }

  const model::ModelSpec& spec_;
  const v1::HardwareProfile& profile_;
  const PlanRequest& request_;
  const DeviceKind device_;
  DecodeShape shape_;
};

// Whether a comes before b.
bool IsBetter(const Plan& a, const Plan& b, Goal goal) {
  if (a.can_run != b.can_run) return a.can_run;
  if (!a.can_run) return false;
  if (goal == Goal::kContext && a.most_context_tokens != b.most_context_tokens) {
    return a.most_context_tokens > b.most_context_tokens;
  }
  if (goal == Goal::kThroughput) return a.tokens_per_second > b.tokens_per_second;
  return a.decode.seconds.total() < b.decode.seconds.total();
}

// "+1.90 ms collectives, -0.60 ms experts": the terms that make most of the difference.
std::string Differences(const TermValues& plan, const TermValues& best) {
  std::vector<size_t> order(kNumCostTerms);
  std::iota(order.begin(), order.end(), size_t{0});
  const auto difference = [&](size_t term) { return plan.values[term] - best.values[term]; };
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return std::abs(difference(a)) > std::abs(difference(b)); });
  std::string text;
  for (size_t i = 0; i < 3; ++i) {
    const double d = difference(order[i]);
    // Less than a hundredth of the step explains nothing.
    if (std::abs(d) < 0.01 * best.total()) break;
    text += fmt::format("{}{}{} {}", text.empty() ? "" : ", ", d < 0 ? "-" : "+",
                        FormatSeconds(std::abs(d)), TermName(static_cast<CostTerm>(order[i])));
  }
  return text;
}

void Explain(std::vector<Plan>& plans, Goal goal) {
  if (plans.empty() || !plans[0].can_run) return;
  const Plan& best = plans[0];
  const double share = best.decode.seconds[best.limiting] / best.decode.seconds.total();
  plans[0].reason = fmt::format("best for {}; {} {:.0f} % of a step", GoalName(goal),
                                TermName(best.limiting), 100 * share);
  for (size_t i = 1; i < plans.size() && plans[i].can_run; ++i) {
    Plan& plan = plans[i];
    std::string why = Differences(plan.decode.seconds, best.decode.seconds);
    if (goal == Goal::kContext && plan.most_context_tokens < best.most_context_tokens) {
      why = fmt::format("room for {} tokens only{}{}", plan.most_context_tokens,
                        why.empty() ? "" : "; ", why);
    }
    if (goal == Goal::kThroughput) {
      why = fmt::format("{:.2f} of the best's tok/s{}{}",
                        plan.tokens_per_second / best.tokens_per_second, why.empty() ? "" : "; ",
                        why);
    }
    plan.reason = why.empty() ? "as fast as the best within a hundredth, with more workers or "
                                "collectives"
                              : why;
  }
}

}  // namespace

std::string_view GoalName(Goal goal) {
  for (const auto& [known, name] : kGoals) {
    if (known == goal) return name;
  }
  return "unknown";
}

std::optional<Goal> GoalFromName(std::string_view name) {
  for (const auto& [goal, known] : kGoals) {
    if (known == name) return goal;
  }
  return std::nullopt;
}

std::string PlanName(const Plan& plan) {
  std::string name(ModeName(plan.placement.mode()));
  if (plan.placement.partition() != v1::PARTITION_UNSPECIFIED) {
    name += fmt::format(" {}", PartitionName(plan.placement.partition()));
  }
  if (plan.placement.mode() == v1::MODE_EXPERT_PARALLEL) {
    name += plan.placement.dense() == v1::DENSE_PART_OWNER ? " owner" : " replicated";
  }
  return name;
}

absl::StatusOr<std::vector<Plan>> MakePlans(const model::ModelSpec& spec,
                                            const v1::HardwareProfile& profile,
                                            const PlanRequest& request) {
  if (request.context_tokens < 1 || request.context_tokens > spec.context_length) {
    return InvalidArgument("model has no context of so many tokens: {}, most: {}",
                           request.context_tokens, spec.context_length);
  }
  const DeviceKind device =
      request.device.value_or(profile.gpus().empty() ? DeviceKind::kCpu : DeviceKind::kGpu);
  std::vector<int> counts = request.worker_counts;
  if (counts.empty()) {
    const int most = device == DeviceKind::kGpu ? std::min(profile.gpus_size(), kMostDefaultWorkers)
                                                : kMostDefaultWorkers;
    counts.resize(static_cast<size_t>(std::max(1, most)));
    std::iota(counts.begin(), counts.end(), 1);
  }
  for (const int count : counts) {
    if (count < 1 || count > kMaxWorldSize) {
      return InvalidArgument("number of workers is out of range: {}, wanted: 1 to {}", count,
                             kMaxWorldSize);
    }
  }
  // What no plan can do without.
  SWITCHYARD_RETURN_IF_ERROR((device == DeviceKind::kGpu ? DeviceRates::OfGpu(profile, 0)
                                                         : DeviceRates::OfCpu(profile, 1, 1))
                                 .status());
  const PlanMaker maker(spec, profile, request, device);
  std::vector<Plan> plans;
  for (const int count : counts) {
    for (PlacementWish& wish : WishesFor(count)) plans.push_back(maker.Make(std::move(wish)));
  }
  std::stable_sort(plans.begin(), plans.end(),
                   [&](const Plan& a, const Plan& b) { return IsBetter(a, b, request.goal); });
  Explain(plans, request.goal);
  return plans;
}

absl::StatusOr<NamedPlans> MakeNamedPlans(const model::ModelSpec& spec,
                                          const v1::HardwareProfile& profile,
                                          const PlanRequest& request) {
  NamedPlans named;
  const auto best = [&](std::vector<int> counts,
                        int64_t context) -> absl::StatusOr<std::optional<Plan>> {
    if (counts.empty()) return std::nullopt;
    PlanRequest wanted = request;
    wanted.goal = Goal::kLatency;
    wanted.num_sequences = 1;
    wanted.worker_counts = std::move(counts);
    wanted.context_tokens = std::min(context, spec.context_length);
    SWITCHYARD_ASSIGN_OR_RETURN(std::vector<Plan> plans, MakePlans(spec, profile, wanted));
    if (!plans[0].can_run) return std::nullopt;
    return std::move(plans[0]);
  };
  SWITCHYARD_ASSIGN_OR_RETURN(named.fast, best({1}, kFastContextTokens));
  std::vector<int> several = request.worker_counts;
  if (several.empty()) several = {2, 3, 4};
  several.erase(std::remove(several.begin(), several.end(), 1), several.end());
  SWITCHYARD_ASSIGN_OR_RETURN(named.large_context, best(several, kLongContextTokens));
  return named;
}

}  // namespace switchyard::placement
