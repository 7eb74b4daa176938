// Every way to run a model that an experiment asks for.
#pragma once

#include <string>
#include <vector>

#include "app/experiment/experiment_spec.h"

namespace switchyard::app {

// One arrangement of workers.
struct Topology {
  int workers = 1;
  std::string mode = "single";
  std::string partition;    // empty = as the mode has it
  std::string dense;        // empty = as the mode has it
  std::string layer_split;  // cut points; empty = automatic
  int threads = 1;          // of each worker

  friend bool operator==(const Topology&, const Topology&) = default;
};

// "2 x expert_parallel, sliced, 1 thread".
std::string Describe(const Topology& topology);

// An arrangement under a condition.
struct Combination {
  Topology topology;
  Condition condition;
  std::string refusal;  // why it cannot run; empty = it is tried
};

// All combinations, each once: the undisturbed ones first, those of one worker before those of
// several. Lists that mean nothing in a mode (partitions without divided experts) do not multiply
// it. Where there is none, the single worker is added, since answers are compared with its.
std::vector<Combination> Enumerate(const ExperimentSpec& spec);

}  // namespace switchyard::app
