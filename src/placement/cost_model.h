// CostModel: seconds of a decode step and of a prefill chunk of a placement, term by term.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/device_rates.h"
#include "placement/expert_stats.h"
#include "placement/placement.h"
#include "placement/rank_reads.h"

namespace switchyard::placement {

// Where time goes. In brackets the stages of a worker's ledger that a term covers.
enum class CostTerm {
  kDense,        // weights of mixers, attention, delta net, router, n-gram [hc, attention,
                 // qsa_select, delta_net, router, ple, less kState]
  kExperts,      // weights of routed and shared experts in fast memory [experts_device]
  kHead,         // final mixer and output matrix [head]
  kState,        // recurrent states, keys and values [part of delta_net and attention]
  kCollectives,  // sums over ranks [collective]
  kHops,      // messages from stage to stage of a layer split, and to the experts' ranks and back
              // [collective]
  kMiss,      // experts that are not in fast memory [experts_host, expert_fetch]
  kOverhead,  // launches, forks and joins: what grows with layers, not with bytes
};
inline constexpr int kNumCostTerms = 8;
std::string_view TermName(CostTerm term);  // "collectives"

struct TermValues {
  std::array<double, kNumCostTerms> values{};
  double& operator[](CostTerm term) { return values[static_cast<size_t>(term)]; }
  double operator[](CostTerm term) const { return values[static_cast<size_t>(term)]; }
  double total() const;
  CostTerm largest() const;
};

// What a decode step computes.
struct DecodeShape {
  double num_sequences = 1;
  double window_rows = 1;      // of each sequence: one more than drafts
  double tokens_per_pass = 1;  // that a sequence gains; above 1 with drafts that are accepted
  int64_t context_tokens = 0;  // cached, of each sequence
};

// A chunk of one prompt.
struct PrefillShape {
  double num_tokens = 512;
  int64_t context_tokens = 0;  // cached before it
};

struct StepCost {
  TermValues seconds;             // from the step's start to its end: their sum is the step
  std::vector<TermValues> ranks;  // what each rank works, by term, in seconds
  std::vector<TermValues> bytes;  // what each rank reads: weights, states, misses; or sends
  int num_collectives = 0;        // that wait for each other, hops included
  double collective_bytes = 0;    // payload of one
};

class CostModel {
 public:
  struct Setup {
    v1::Placement placement;
    DeviceKind device = DeviceKind::kCpu;
    int threads_per_rank = 1;            // CPU
    std::vector<double> resident_share;  // by rank: experts in fast memory, 0 to 1; empty = all
    ExpertUse expert_use;
    std::string backend;  // of collectives; empty = the fastest in the profile
  };

  // `spec` must outlive the model. GPUs are taken in the profile's order.
  //
  // REQUIRES: CheckPlacement(spec, setup.placement) is OK.
  // Errors:   kFailedPrecondition, naming what the profile lacks.
  static absl::StatusOr<CostModel> Create(const model::ModelSpec& spec,
                                          const v1::HardwareProfile& profile, Setup setup);

  // One step of all sequences together. Layer split: one group that goes through all stages.
  StepCost Decode(const DecodeShape& shape) const;

  // One chunk. Layer split: through all stages. Attention and delta net are taken to multiply as
  // fast as the fastest kernel of weights: a lower bound.
  StepCost Prefill(const PrefillShape& shape) const;
  bool knows_prefill() const;

  // Tokens a second of all sequences together. In a layer split the sequences are divided into as
  // many groups as there are stages, which then work at the same time.
  double TokensPerSecond(const DecodeShape& shape) const;
  // Prompt tokens a second of a long prompt, whose chunks follow each other through the stages.
  double PrefillTokensPerSecond(const PrefillShape& shape) const;

  const std::vector<RankReads>& reads() const { return reads_; }
  // Of the collectives; empty with one rank.
  const std::string& backend() const { return backend_; }

 private:
  struct Rows;

  CostModel(const model::ModelSpec& spec, Setup setup) : spec_(spec), setup_(std::move(setup)) {}

  static Rows RowsOf(const DecodeShape& shape);
  static Rows RowsOf(const PrefillShape& shape);
  StepCost Cost(const Rows& rows) const;
  const DeviceRates& RatesOf(size_t rank, const Rows& rows) const;
  void AddLayer(size_t layer, const Rows& rows, StepCost& cost) const;
  void AddExperts(size_t layer, const Rows& rows, StepCost& cost) const;
  void AddMisses(size_t layer, const Rows& rows, const std::vector<double>& device_seconds,
                 StepCost& cost) const;
  void AddMeetings(const Rows& rows, StepCost& cost) const;
  void AddOverhead(StepCost& cost) const;
  absl::Span<const double> UseOf(size_t layer) const;
  // Share of a rank's distinct experts in a step of a layer that are not in its fast memory, and of
  // a row's choices.
  double MissOfChoices(size_t rank, size_t layer) const;
  double MissOfDistinct(size_t rank, size_t layer, double num_rows) const;
  double Share(size_t rank) const {
    return setup_.resident_share.empty() ? 1.0 : setup_.resident_share[rank];
  }

  const model::ModelSpec& spec_;
  Setup setup_;
  std::vector<RankShare> shares_;
  std::vector<RankReads> reads_;
  std::vector<DeviceRates> rates_;           // by rank
  std::vector<DeviceRates> pipeline_rates_;  // of layer split, when all stages work
  std::vector<CommRates> comm_;              // one, or none with one rank
  std::string backend_;
  // Of experts that are not in fast memory: on the host of a GPU.
  double host_bytes_per_second_ = 0;
  double host_exchange_seconds_ = 0;
  double stream_bytes_per_second_ = 0;  // from the host to a GPU
  double step_overhead_seconds_ = 0;
  v1::HardwareProfile misses_;  // its curve of misses only
};

// The latency of one collective below which an expert-parallel step is faster than a layer split
// whose ranks read the same bytes one after another.
//
// Units: seconds; `expert_seconds` of one rank that reads all chosen experts, `largest_share` that
//        of the busiest of the ranks.
double BreakEvenLatency(double expert_seconds, double largest_share, int num_layers);

}  // namespace switchyard::placement
