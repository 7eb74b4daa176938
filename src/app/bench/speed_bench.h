// Prefill and decode speed of a model in the rows of llama-bench: `bench` without a part.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "app/model_options.h"

namespace switchyard::app {

struct SpeedBenchOptions {
  ModelOptions model;
  std::vector<int> num_prompt = {512};
  std::vector<int> num_gen = {128};
  std::vector<int> depth = {0};
  std::vector<int> threads;  // empty = as many as the machine allows
  int repetitions = 5;
  std::string output;  // "md", "json" or "csv"
};

// Measures the cross product of the lists and prints it.
absl::Status RunSpeedBench(SpeedBenchOptions options);

}  // namespace switchyard::app
