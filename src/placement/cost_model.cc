#include "placement/cost_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/status_macros.h"

namespace switchyard::placement {
namespace {

constexpr std::string_view kTermNames[] = {"dense",       "experts", "head", "state",
                                           "collectives", "hops",    "miss", "overhead"};
static_assert(std::size(kTermNames) == kNumCostTerms);

// Fork-joins of the cpu backend: 84 a token of 8 layers, 10 a layer and 4 beside them.
constexpr int kStagesPerLayer = 10;
constexpr int kStagesPerStep = 4;

// Layers of the model that HardwareProfile.step_overhead_us is stated for.
constexpr double kOverheadLayers = 48;

// What ranks contribute to sampling: 64 candidates of id and logit, and a sum.
constexpr double kCandidateBytes = 64 * 8 + 8;

// Expert id and weight, sent along by a dense owner for every choice.
constexpr double kRouteBytes = 8;

// A step header of a few sequences, which the lead sends to all ranks.
constexpr double kHeaderBytes = 256;

// Share of a row's choices that miss, from the profile's curve.
double MissOnCurve(const v1::HardwareProfile& profile, double resident_share) {
  double last_x = 0, last_y = 1;
  for (const v1::MissPoint& point : profile.misses()) {
    if (resident_share <= point.resident_share()) {
      const double width = point.resident_share() - last_x;
      if (width <= 0) return point.miss_share();
      return last_y + (point.miss_share() - last_y) * (resident_share - last_x) / width;
    }
    last_x = point.resident_share();
    last_y = point.miss_share();
  }
  return last_x >= 1 ? last_y : last_y * (1 - resident_share) / (1 - last_x);
}

// Bytes a second at which the host computes experts, in the profile's words.
double HostExpertRate(const v1::HardwareProfile& profile) {
  double best = 0;
  for (const v1::KernelRate& rate : profile.kernel_rates()) {
    if (rate.num_rows() == 1) best = std::max(best, rate.gb_per_second().median() * 1e9);
  }
  for (const v1::MemoryRead& read : profile.memory_reads()) {
    if (!profile.kernel_rates().empty()) break;
    best = std::max(best, read.gb_per_second().median() * 1e9);
  }
  return best;
}

double StreamRate(const v1::HardwareProfile& profile) {
  for (const v1::Copy& copy : profile.copies()) {
    if (copy.testcase() == "host_to_device_memcpy_ce") return copy.gb_per_second().median() * 1e9;
  }
  return 0;
}

void Raise(double& value, double other) { value = std::max(value, other); }

}  // namespace

// Rows of activations of a step.
struct CostModel::Rows {
  double num_rows = 1;       // all
  double num_sequences = 1;  // whose states are read
  double kv_reads = 1;       // how often the cache of a sequence is read
  double kv_rows = 0;        // rows of attention's arithmetic: prefill only
  int64_t context_tokens = 0;
  double head_rows = 1;
  bool is_prefill = false;
  bool all_stages_work = false;  // of a layer split, at the same time
};

std::string_view TermName(CostTerm term) { return kTermNames[static_cast<size_t>(term)]; }

double TermValues::total() const { return std::accumulate(values.begin(), values.end(), 0.0); }

CostTerm TermValues::largest() const {
  return static_cast<CostTerm>(std::max_element(values.begin(), values.end()) - values.begin());
}

absl::StatusOr<CostModel> CostModel::Create(const model::ModelSpec& spec,
                                            const v1::HardwareProfile& profile, Setup setup) {
  CostModel model(spec, std::move(setup));
  const v1::Placement& placement = model.setup_.placement;
  const auto nranks = static_cast<int>(placement.world_size());
  const bool is_gpu = model.setup_.device == DeviceKind::kGpu;
  const bool is_split = placement.mode() == v1::MODE_LAYER_SPLIT;
  for (int r = 0; r < nranks; ++r) {
    model.shares_.push_back(ShareOf(spec, placement, r));
    model.reads_.push_back(ReadsOf(spec, model.shares_.back()));
    // One sequence goes through the stages of a layer split one after another: each has the whole
    // memory then.
    SWITCHYARD_ASSIGN_OR_RETURN(
        DeviceRates rates,
        is_gpu ? DeviceRates::OfGpu(profile, r)
               : DeviceRates::OfCpu(profile, model.setup_.threads_per_rank, is_split ? 1 : nranks));
    model.rates_.push_back(std::move(rates));
    if (!is_split) continue;
    SWITCHYARD_ASSIGN_OR_RETURN(
        DeviceRates pipeline,
        is_gpu ? DeviceRates::OfGpu(profile, r)
               : DeviceRates::OfCpu(profile, model.setup_.threads_per_rank, nranks));
    model.pipeline_rates_.push_back(std::move(pipeline));
  }
  if (nranks > 1) {
    SWITCHYARD_ASSIGN_OR_RETURN(CommRates comm,
                                CommRates::Of(profile, model.setup_.device, nranks,
                                              is_gpu ? 0 : model.setup_.threads_per_rank,
                                              4.0 * spec.hidden_size, model.setup_.backend));
    model.backend_ = comm.backend();
    model.comm_.push_back(std::move(comm));
  }
  model.host_bytes_per_second_ = HostExpertRate(profile);
  model.host_exchange_seconds_ = profile.host_expert_us() * 1e-6;
  model.stream_bytes_per_second_ = StreamRate(profile);
  model.step_overhead_seconds_ =
      profile.step_overhead_us() * 1e-6 * spec.num_layers / kOverheadLayers;
  *model.misses_.mutable_misses() = profile.misses();
  return model;
}

bool CostModel::knows_prefill() const {
  return std::all_of(rates_.begin(), rates_.end(),
                     [](const DeviceRates& rates) { return rates.knows_prefill(); });
}

StepCost CostModel::Decode(const DecodeShape& shape) const { return Cost(RowsOf(shape)); }

StepCost CostModel::Prefill(const PrefillShape& shape) const { return Cost(RowsOf(shape)); }

CostModel::Rows CostModel::RowsOf(const DecodeShape& shape) {
  Rows rows;
  rows.num_rows = shape.num_sequences * shape.window_rows;
  rows.num_sequences = shape.num_sequences;
  rows.kv_reads = rows.num_rows;
  rows.context_tokens = shape.context_tokens;
  rows.head_rows = rows.num_rows;
  return rows;
}

CostModel::Rows CostModel::RowsOf(const PrefillShape& shape) {
  Rows rows;
  rows.num_rows = shape.num_tokens;
  rows.num_sequences = 1;
  rows.kv_reads = 1;
  rows.kv_rows = shape.num_tokens;
  // The mean row sees half of the chunk.
  rows.context_tokens = shape.context_tokens + static_cast<int64_t>(shape.num_tokens / 2);
  rows.head_rows = 0;
  rows.is_prefill = true;
  return rows;
}

double CostModel::TokensPerSecond(const DecodeShape& shape) const {
  const auto stages = static_cast<double>(shares_.size());
  const bool is_split = setup_.placement.mode() == v1::MODE_LAYER_SPLIT;
  const double num_groups = is_split ? std::clamp(shape.num_sequences, 1.0, stages) : 1.0;
  DecodeShape group = shape;
  group.num_sequences /= num_groups;
  Rows rows = RowsOf(group);
  rows.all_stages_work = num_groups > 1;
  const StepCost cost = Cost(rows);
  double cycle = cost.seconds.total();
  if (num_groups > 1) {
    // A group comes back when it has gone through all stages; a stage serves every group in
    // between.
    double slowest = 0;
    for (const TermValues& rank : cost.ranks) Raise(slowest, rank.total());
    Raise(cycle, num_groups * slowest);
  }
  return shape.num_sequences * shape.tokens_per_pass / cycle;
}

double CostModel::PrefillTokensPerSecond(const PrefillShape& shape) const {
  Rows rows = RowsOf(shape);
  rows.all_stages_work = true;
  const StepCost cost = Cost(rows);
  if (setup_.placement.mode() != v1::MODE_LAYER_SPLIT) {
    return shape.num_tokens / cost.seconds.total();
  }
  double slowest = 0;
  for (const TermValues& rank : cost.ranks) Raise(slowest, rank.total());
  return shape.num_tokens / slowest;
}

const DeviceRates& CostModel::RatesOf(size_t rank, const Rows& rows) const {
  return rows.all_stages_work && !pipeline_rates_.empty() ? pipeline_rates_[rank] : rates_[rank];
}

absl::Span<const double> CostModel::UseOf(size_t layer) const {
  if (layer >= setup_.expert_use.size()) return {};
  return setup_.expert_use[layer];
}

double CostModel::MissOfChoices(size_t rank, size_t layer) const {
  const double share = Share(rank);
  if (share >= 1) return 0;
  const absl::Span<const double> use = UseOf(layer);
  return use.empty() ? MissOnCurve(misses_, share) : MissShare(use, share);
}

// Experts that are not resident are chosen less often, but a step of many rows chooses nearly all.
double CostModel::MissOfDistinct(size_t rank, size_t layer, double num_rows) const {
  const double miss = MissOfChoices(rank, layer);
  const double share = Share(rank);
  if (miss <= 0) return 0;
  if (share <= 0) return 1;
  const double top_k = spec_.moe.top_k;
  const double absent = spec_.moe.num_experts * (1 - share);
  const double resident = spec_.moe.num_experts * share;
  const auto distinct = [&](double experts, double choices) {
    return experts * (1 - std::pow(1 - std::min(1.0, choices / experts), num_rows));
  };
  const double missed = distinct(absent, miss * top_k);
  return missed / (missed + distinct(resident, (1 - miss) * top_k));
}

StepCost CostModel::Cost(const Rows& rows) const {
  StepCost cost;
  cost.ranks.resize(shares_.size());
  cost.bytes.resize(shares_.size());
  for (size_t l = 0; l < spec_.layers.size(); ++l) {
    AddLayer(l, rows, cost);
    AddExperts(l, rows, cost);
  }
  if (rows.head_rows > 0) {
    double slowest = 0;
    for (size_t r = 0; r < shares_.size(); ++r) {
      const double seconds = RatesOf(r, rows).WeightSeconds(reads_[r].head, rows.head_rows);
      cost.ranks[r][CostTerm::kHead] += seconds;
      cost.bytes[r][CostTerm::kHead] += static_cast<double>(reads_[r].head.total());
      Raise(slowest, seconds);
    }
    cost.seconds[CostTerm::kHead] = slowest;
  }
  AddMeetings(rows, cost);
  AddOverhead(cost);
  return cost;
}

// Dense part and state of a layer: between two meetings the slowest rank counts.
void CostModel::AddLayer(size_t l, const Rows& rows, StepCost& cost) const {
  double dense = 0, state = 0;
  for (size_t r = 0; r < shares_.size(); ++r) {
    const LayerReads& reads = reads_[r].layers[l];
    const DeviceRates& rates = RatesOf(r, rows);
    WeightBytes weights = reads.mixers;
    weights.Add(reads.mixing);
    weights.Add(reads.router);
    weights.Add(reads.ple);
    const double weight_seconds = rates.WeightSeconds(weights, rows.num_rows);
    // A state is read and written.
    const double state_bytes = 2.0 * static_cast<double>(reads.state_bytes) * rows.num_sequences;
    const double kv_bytes =
        KvReadBytes(spec_, spec_.layers[l], shares_[r].layers[l], rows.context_tokens) *
        rows.kv_reads;
    double state_seconds = rates.MemorySeconds(state_bytes + kv_bytes);
    if (rows.kv_rows > 0) {
      // A chunk reads the cache once, but every row multiplies with it: for each query head two
      // operations with each key and value (2 bytes). And three multiplications and additions with
      // each value of the state (8 bytes read and written).
      const double heads_per_kv =
          static_cast<double>(spec_.attention.num_heads) / spec_.attention.num_kv_heads;
      const double ops = rows.kv_rows * (kv_bytes * heads_per_kv + 0.75 * state_bytes);
      Raise(state_seconds, rates.OpsSeconds(ops));
    }
    cost.ranks[r][CostTerm::kDense] += weight_seconds;
    cost.ranks[r][CostTerm::kState] += state_seconds;
    cost.bytes[r][CostTerm::kDense] += static_cast<double>(weights.total());
    cost.bytes[r][CostTerm::kState] += state_bytes + kv_bytes;
    Raise(dense, weight_seconds);
    Raise(state, state_seconds);
  }
  cost.seconds[CostTerm::kDense] += dense;
  cost.seconds[CostTerm::kState] += state;
}

// Experts in fast memory: expected time of the slowest rank.
void CostModel::AddExperts(size_t l, const Rows& rows, StepCost& cost) const {
  const std::vector<double> chances = ChanceInStep(
      ChanceOfExperts(UseOf(l), spec_.moe.num_experts, spec_.moe.top_k), rows.num_rows);
  const double distinct = ExpectedDistinct(chances);
  const double rows_each = rows.num_rows * spec_.moe.top_k / distinct;
  std::vector<RankExperts> ranks(shares_.size());
  std::vector<double> device_seconds(shares_.size(), 0);
  double unit = 0, slowest = 0;
  for (size_t r = 0; r < shares_.size(); ++r) {
    const LayerReads& reads = reads_[r].layers[l];
    const LayerShare& share = shares_[r].layers[l];
    double experts = share.has_experts && share.has_all_experts ? distinct : 0;
    for (const int32_t e : share.experts) {
      ranks[r].chances.push_back(chances[static_cast<size_t>(e)]);
      experts += ranks[r].chances.back();
    }
    const double hit = 1 - MissOfDistinct(r, l, rows.num_rows);
    const double one = RatesOf(r, rows).WeightSeconds(reads.expert, rows_each) * hit;
    ranks[r].offset = RatesOf(r, rows).WeightSeconds(reads.shared, rows.num_rows);
    device_seconds[r] = experts * one + ranks[r].offset;
    cost.ranks[r][CostTerm::kExperts] += device_seconds[r];
    cost.bytes[r][CostTerm::kExperts] += experts * static_cast<double>(reads.expert.total()) * hit +
                                         static_cast<double>(reads.shared.total());
    cost.bytes[r][CostTerm::kMiss] +=
        experts * static_cast<double>(reads.expert.total()) * (1 - hit);
    Raise(unit, one);
    Raise(slowest, device_seconds[r]);
  }
  if (setup_.placement.partition() == v1::PARTITION_WHOLE && unit > 0) {
    for (RankExperts& rank : ranks) rank.offset /= unit;
    slowest = unit * ExpectedLargest(ranks);
  }
  cost.seconds[CostTerm::kExperts] += slowest;
  AddMisses(l, rows, device_seconds, cost);
}

// Experts that a GPU lacks are computed by the host, or in a prefill chunk streamed to the GPU if
// that is faster. A CPU worker has all of its experts in its fast memory, else it does not run.
void CostModel::AddMisses(size_t l, const Rows& rows, const std::vector<double>& device_seconds,
                          StepCost& cost) const {
  if (setup_.resident_share.empty() || host_bytes_per_second_ <= 0) return;
  const std::vector<double> chances = ChanceInStep(
      ChanceOfExperts(UseOf(l), spec_.moe.num_experts, spec_.moe.top_k), rows.num_rows);
  const double distinct = ExpectedDistinct(chances);
  const double choices = rows.num_rows * spec_.moe.top_k;
  double host_bytes = 0, stream_bytes = 0, any = 0, overlap = 0;
  for (size_t r = 0; r < shares_.size(); ++r) {
    if (!shares_[r].layers[l].has_experts) continue;
    const LayerReads& reads = reads_[r].layers[l];
    const double held = static_cast<double>(reads.num_experts) / spec_.moe.num_experts;
    host_bytes += distinct * held * MissOfDistinct(r, l, rows.num_rows) *
                  static_cast<double>(reads.expert.total());
    Raise(stream_bytes, (1 - Share(r)) * static_cast<double>(reads.expert_bytes()));
    Raise(any, 1 - std::pow(1 - MissOfChoices(r, l), choices));
    Raise(overlap, device_seconds[r]);
  }
  if (any <= 0) return;
  // Host and device work at the same time in a layer that misses. Host kernels are taken to be
  // limited by memory up to one row, beyond it by arithmetic.
  const double host = host_bytes / host_bytes_per_second_ * std::max(1.0, choices / distinct);
  double seconds = any * std::max(0.0, host / any + host_exchange_seconds_ - overlap);
  if (rows.is_prefill && stream_bytes_per_second_ > 0) {
    seconds = std::min(seconds, std::max(0.0, stream_bytes / stream_bytes_per_second_ - overlap));
  }
  cost.seconds[CostTerm::kMiss] += seconds;
  for (size_t r = 0; r < shares_.size(); ++r) {
    if (shares_[r].layers[l].has_experts && Share(r) < 1) {
      cost.ranks[r][CostTerm::kMiss] += seconds;
    }
  }
}

void CostModel::AddMeetings(const Rows& rows, StepCost& cost) const {
  if (comm_.empty()) return;
  const CommRates& comm = comm_[0];
  const double hidden = 4.0 * spec_.hidden_size * rows.num_rows;
  const double wide = hidden * spec_.num_residual_streams;
  const auto num_hops = static_cast<int>(shares_.size()) - 1;
  TermValues seconds, bytes;
  // The header of a step goes from the lead to all.
  const double header = comm.Seconds(CollectiveOp::kBroadcast, kHeaderBytes);
  cost.seconds[CostTerm::kHops] += header;
  switch (setup_.placement.mode()) {
    case v1::MODE_LAYER_SPLIT: {
      const double hop = comm.Seconds(CollectiveOp::kSend, wide);
      seconds[CostTerm::kHops] = num_hops * hop;
      cost.num_collectives = num_hops;
      cost.collective_bytes = wide;
      for (int r = 0; r < num_hops; ++r) {
        cost.ranks[static_cast<size_t>(r)][CostTerm::kHops] += hop;
        cost.bytes[static_cast<size_t>(r)][CostTerm::kHops] += wide;
      }
      cost.seconds[CostTerm::kHops] += seconds[CostTerm::kHops];
      return;
    }
    case v1::MODE_EXPERT_PARALLEL:
      if (setup_.placement.dense() == v1::DENSE_PART_OWNER) {
        const double out = hidden + kRouteBytes * spec_.moe.top_k * rows.num_rows;
        seconds[CostTerm::kHops] = spec_.num_layers * (comm.Seconds(CollectiveOp::kBroadcast, out) +
                                                       comm.Seconds(CollectiveOp::kReduce, hidden));
        bytes[CostTerm::kHops] = spec_.num_layers * (out + hidden);
        cost.num_collectives = 2 * spec_.num_layers;
        break;
      }
      seconds[CostTerm::kCollectives] =
          spec_.num_layers * comm.Seconds(CollectiveOp::kAllReduce, hidden);
      bytes[CostTerm::kCollectives] = spec_.num_layers * hidden;
      cost.num_collectives = spec_.num_layers;
      break;
    case v1::MODE_TENSOR_EXPERT_PARALLEL:
      seconds[CostTerm::kCollectives] =
          2 * spec_.num_layers * comm.Seconds(CollectiveOp::kAllReduce, hidden);
      bytes[CostTerm::kCollectives] = 2 * spec_.num_layers * hidden;
      cost.num_collectives = 2 * spec_.num_layers;
      break;
    default:
      return;
  }
  cost.collective_bytes = hidden;
  // Candidates for sampling, where the head is divided.
  if (rows.head_rows > 0 && setup_.placement.dense() != v1::DENSE_PART_OWNER) {
    const double candidates = kCandidateBytes * rows.head_rows;
    seconds[CostTerm::kCollectives] += comm.Seconds(CollectiveOp::kAllReduce, candidates);
    bytes[CostTerm::kCollectives] += candidates;
    ++cost.num_collectives;
  }
  for (size_t term = 0; term < kNumCostTerms; ++term) {
    cost.seconds.values[term] += seconds.values[term];
    for (TermValues& rank : cost.ranks) rank.values[term] += seconds.values[term];
    for (TermValues& rank : cost.bytes) rank.values[term] += bytes.values[term];
  }
}

void CostModel::AddOverhead(StepCost& cost) const {
  double slowest = 0, sum = 0;
  for (size_t r = 0; r < shares_.size(); ++r) {
    const int num_layers = shares_[r].end_layer - shares_[r].first_layer;
    const double stages = kStagesPerLayer * num_layers + (shares_[r].is_lead ? kStagesPerStep : 0);
    const double seconds =
        stages * rates_[r].stage_seconds() + step_overhead_seconds_ * num_layers / spec_.num_layers;
    cost.ranks[r][CostTerm::kOverhead] += seconds;
    Raise(slowest, seconds);
    sum += seconds;
  }
  cost.seconds[CostTerm::kOverhead] +=
      setup_.placement.mode() == v1::MODE_LAYER_SPLIT ? sum : slowest;
}

double BreakEvenLatency(double expert_seconds, double largest_share, int num_layers) {
  return expert_seconds * (1 - largest_share) / num_layers;
}

}  // namespace switchyard::placement
