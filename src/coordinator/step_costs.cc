#include "coordinator/step_costs.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

void AddStages(const google::protobuf::RepeatedPtrField<v1::StageCost>& costs,
               StageTotals& stages) {
  for (const v1::StageCost& cost : costs) {
    // A newer worker may know stages that this side does not: their time stays unattributed.
    if (!v1::Stage_IsValid(cost.stage()) || cost.stage() == v1::STAGE_UNSPECIFIED ||
        cost.stage() == v1::STAGE_IDLE) {
      continue;
    }
    StageTotal& total = stages[static_cast<size_t>(cost.stage())];
    total.seconds += cost.seconds();
    total.weight_bytes += static_cast<int64_t>(cost.weight_bytes());
  }
}

void AddStages(const StageTotals& more, StageTotals& stages) {
  for (size_t i = 0; i < stages.size(); ++i) {
    stages[i].seconds += more[i].seconds;
    stages[i].weight_bytes += more[i].weight_bytes;
  }
}

double Uncovered(const StageTotals& stages, double seconds) {
  for (const StageTotal& total : stages) seconds -= total.seconds;
  return seconds;
}

}  // namespace

std::string StageName(int stage) {
  constexpr std::string_view kPrefix = "STAGE_";
  std::string name = v1::Stage_Name(static_cast<v1::Stage>(stage)).substr(kPrefix.size());
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return name;
}

double RankTotal::unattributed_seconds() const { return Uncovered(stages, seconds); }

double StepCosts::unattributed_seconds() const { return Uncovered(stages, seconds); }

RankTotal& StepCosts::Rank(int rank) {
  const auto place =
      std::lower_bound(ranks.begin(), ranks.end(), rank,
                       [](const RankTotal& total, int wanted) { return total.rank < wanted; });
  if (place != ranks.end() && place->rank == rank) return *place;
  return *ranks.insert(place, RankTotal{.rank = rank});
}

LinkTotal& StepCosts::Link(int from, int to) {
  const auto place =
      std::lower_bound(links.begin(), links.end(), std::pair(to, from),
                       [](const LinkTotal& total, const std::pair<int, int>& wanted) {
                         return std::pair(total.to, total.from) < wanted;
                       });
  if (place != links.end() && place->from == from && place->to == to) return *place;
  return *links.insert(place, LinkTotal{.from = from, .to = to});
}

void StepCosts::Add(const v1::StepResult& result) {
  AddStages(result.costs(), stages);
  seconds += result.seconds();
  idle_seconds += result.idle_seconds();
  ++num_steps;
  if (result.ranks().empty()) return;
  if (ranks.empty()) ranks.reserve(static_cast<size_t>(result.ranks_size()));
  for (const v1::RankCost& cost : result.ranks()) {
    const int rank = static_cast<int>(cost.rank());
    RankTotal& total = Rank(rank);
    AddStages(cost.costs(), total.stages);
    total.seconds += cost.seconds();
    total.idle_seconds += cost.idle_seconds();
    ++total.num_steps;
    for (const v1::PeerTraffic& traffic : cost.received()) {
      LinkTotal& link = Link(static_cast<int>(traffic.peer()), rank);
      link.bytes += static_cast<int64_t>(traffic.bytes());
      link.num_messages += static_cast<int64_t>(traffic.num_messages());
      link.transfer_seconds += traffic.transfer_seconds();
      link.flight_seconds += traffic.flight_seconds();
    }
  }
}

StepCosts& StepCosts::operator+=(const StepCosts& other) {
  AddStages(other.stages, stages);
  seconds += other.seconds;
  idle_seconds += other.idle_seconds;
  num_steps += other.num_steps;
  for (const RankTotal& more : other.ranks) {
    RankTotal& total = Rank(more.rank);
    AddStages(more.stages, total.stages);
    total.seconds += more.seconds;
    total.idle_seconds += more.idle_seconds;
    total.num_steps += more.num_steps;
  }
  for (const LinkTotal& more : other.links) {
    LinkTotal& total = Link(more.from, more.to);
    total.bytes += more.bytes;
    total.num_messages += more.num_messages;
    total.transfer_seconds += more.transfer_seconds;
    total.flight_seconds += more.flight_seconds;
  }
  return *this;
}

}  // namespace switchyard::coordinator
