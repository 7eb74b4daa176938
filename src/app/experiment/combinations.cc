#include "app/experiment/combinations.h"

#include <algorithm>
#include <fmt/format.h>

namespace switchyard::app {
namespace {

// What can be known without the model: the server checks the rest.
std::string RefusalOf(const Topology& topology) {
  if (topology.mode == "single" && topology.workers != 1) {
    return fmt::format("mode single has one worker, not {}; nearest: layer_split",
                       topology.workers);
  }
  if (topology.mode == "tensor_expert_parallel" && topology.partition == "whole") {
    return "tensor_expert_parallel divides every expert: partition sliced, not whole";
  }
  return "";
}

// Whether a rule names a rank that the group has not; what is no number is left to the server.
std::string RefusalOf(const Condition& condition, const Topology& topology) {
  if (condition.competitor_rank >= topology.workers) {
    return fmt::format("there is no rank {} to disturb; the last of {} is {}",
                       condition.competitor_rank, topology.workers, topology.workers - 1);
  }
  if (topology.workers == 1 && !condition.link_rules.empty()) {
    return "one worker has no links to disturb";
  }
  const std::string& rules = condition.link_rules;
  for (size_t i = 0; i < rules.size(); ++i) {
    const size_t arrow = rules.find("->", i);
    if (arrow == std::string::npos) break;
    size_t begin = arrow;
    while (begin > 0 && rules[begin - 1] >= '0' && rules[begin - 1] <= '9') --begin;
    for (const std::string& text : {rules.substr(begin, arrow - begin), rules.substr(arrow + 2)}) {
      const size_t digits = std::min<size_t>(text.find_first_not_of("0123456789"), 3);
      const std::string number = text.substr(0, digits);
      if (!number.empty() && std::stoi(number) >= topology.workers) {
        return fmt::format("rule {} names rank {}; the last of {} is {}", rules, number,
                           topology.workers, topology.workers - 1);
      }
    }
    i = arrow;
  }
  return "";
}

template <typename T>
std::vector<T> OrDefault(const std::vector<T>& list) {
  return list.empty() ? std::vector<T>{T()} : list;
}

std::vector<Topology> Expand(const TopologyMatrix& matrix) {
  std::vector<Topology> out;
  for (const int threads : matrix.threads) {
    for (const int workers : matrix.workers) {
      for (const std::string& mode : matrix.modes) {
        const bool divides_experts = mode == "expert_parallel" || mode == "tensor_expert_parallel";
        const bool has_dense = mode == "expert_parallel";
        const bool has_cuts = mode == "layer_split";
        const std::vector<std::string> none = {""};
        for (const std::string& partition : divides_experts ? OrDefault(matrix.partitions) : none) {
          for (const std::string& dense : has_dense ? OrDefault(matrix.dense) : none) {
            for (const std::string& cuts : has_cuts ? OrDefault(matrix.layer_splits) : none) {
              out.push_back({workers, mode, partition, dense, cuts, threads});
            }
          }
        }
      }
    }
  }
  return out;
}

}  // namespace

std::string Describe(const Topology& topology) {
  std::string text = fmt::format("{} x {}", topology.workers, topology.mode);
  for (const std::string* part : {&topology.partition, &topology.dense}) {
    if (!part->empty()) text += ", " + *part;
  }
  if (!topology.layer_split.empty()) text += ", cut at " + topology.layer_split;
  return text + fmt::format(", {} thread{}", topology.threads, topology.threads == 1 ? "" : "s");
}

std::vector<Combination> Enumerate(const ExperimentSpec& spec) {
  std::vector<Topology> topologies;
  const auto add = [&](const Topology& topology) {
    if (std::find(topologies.begin(), topologies.end(), topology) == topologies.end()) {
      topologies.push_back(topology);
    }
  };
  for (const TopologyMatrix& matrix : spec.topologies) {
    for (const Topology& topology : Expand(matrix)) add(topology);
  }
  const auto is_single = [](const Topology& t) { return t.mode == "single" && t.workers == 1; };
  if (std::none_of(topologies.begin(), topologies.end(), is_single)) {
    Topology single;
    single.threads = topologies.front().threads;
    topologies.insert(topologies.begin(), single);
  }
  std::stable_sort(topologies.begin(), topologies.end(), [&](const auto& a, const auto& b) {
    return std::make_pair(!is_single(a), a.workers) < std::make_pair(!is_single(b), b.workers);
  });
  std::vector<Combination> out;
  for (const Condition& condition : spec.conditions) {
    for (const Topology& topology : topologies) {
      Combination combination{topology, condition, RefusalOf(topology)};
      if (combination.refusal.empty()) combination.refusal = RefusalOf(condition, topology);
      out.push_back(std::move(combination));
    }
  }
  return out;
}

}  // namespace switchyard::app
