// Runs one stage of the cpu backend over whole sequences, cut into steps in any way, and compares
// the results.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include <gtest/gtest.h>

#include "base/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::cpu {

inline std::unique_ptr<Backend> MakeCpuBackend(const StepLimits& limits, int num_threads = 1,
                                               CpuLevel level = DetectCpuLevel()) {
  CpuBackendOptions options;
  options.num_threads = num_threads;
  options.level = level;
  auto backend = CreateCpuBackend(options);
  SWITCHYARD_CHECK(backend.ok());
  SWITCHYARD_CHECK(backend.value()->Prepare(limits).ok());
  return std::move(backend).value();
}

// Pools and levels whose results must be the same bits; the first is the one to compare with.
struct Machine {
  int num_threads;
  CpuLevel level;
};
inline std::vector<Machine> AllMachines() {
  std::vector<Machine> machines;
  for (const CpuLevel level :
       {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvxVnni, CpuLevel::kAvx512Vnni}) {
    if (RunsCpuLevel(level)) machines.push_back({1, level});
  }
  machines.push_back({2, DetectCpuLevel()});
  machines.push_back({3, DetectCpuLevel()});
  return machines;
}

inline double MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  SWITCHYARD_CHECK(a.size() == b.size());
  double max = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= max)) max = difference;  // a NaN wins
  }
  return max;
}

// Root mean square of a - b over that of b.
inline double RelativeRms(const std::vector<float>& a, const std::vector<float>& b) {
  SWITCHYARD_CHECK(a.size() == b.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    error += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(error / norm);
}

// How a sequence is fed: one window a step.
using Plan = std::vector<fixtures::Window>;

// Steps of `chunk` rows, all of them final; the last may be shorter.
inline Plan Chunks(int64_t num_rows, int64_t chunk) {
  Plan plan;
  for (int64_t row = 0; row < num_rows; row += chunk) {
    const int count = static_cast<int>(std::min(chunk, num_rows - row));
    plan.push_back({count, count, 0});
  }
  return plan;
}

// Feeds sequences together: step i takes window i of every sequence that has one. The rows of a
// window that will be rejected are random, so that nothing of them may stay. Returns for each
// sequence the outputs of the rows that were kept.
//
// stage(sequences, in, out): runs one step.
template <typename Sequence, typename State, typename Stage>
std::vector<fixtures::FloatRows> RunPlans(absl::Span<State> states,
                                          const std::vector<fixtures::FloatRows>& inputs,
                                          const std::vector<Plan>& plans, int64_t out_cols,
                                          Stage stage) {
  const size_t num_sequences = inputs.size();
  const int64_t cols = inputs[0].cols;
  std::vector<fixtures::SequenceCursor> cursors(num_sequences);
  std::vector<int64_t> num_kept(num_sequences, 0);
  std::vector<fixtures::FloatRows> results;
  for (const auto& input : inputs) results.emplace_back(input.rows(), out_cols);
  size_t num_steps = 0;
  for (const Plan& plan : plans) num_steps = std::max(num_steps, plan.size());
  fixtures::Random random(99);
  for (size_t step = 0; step < num_steps; ++step) {
    std::vector<Sequence> sequences;
    std::vector<float> in;
    for (size_t i = 0; i < num_sequences; ++i) {
      if (step >= plans[i].size()) continue;
      const fixtures::Window& window = plans[i][step];
      const int row_begin = static_cast<int>(static_cast<int64_t>(in.size()) / cols);
      const int num_good = window.num_committed + window.num_accepted;
      const auto& values = inputs[i].values;
      const auto first = values.begin() + num_kept[i] * cols;
      in.insert(in.end(), first, first + num_good * cols);
      const auto bad = random.Normals((window.num_rows - num_good) * cols, 2);
      in.insert(in.end(), bad.begin(), bad.end());
      sequences.push_back(
          states[i].Sequence(cursors[i].Next(row_begin, window.num_rows, window.num_committed)));
      cursors[i].Accept(window.num_accepted);
    }
    const fixtures::FloatRows rows = fixtures::FloatRows::Of(cols, std::move(in));
    fixtures::FloatRows out(rows.rows(), out_cols);
    stage(absl::MakeConstSpan(sequences), rows.view(), out.view());
    size_t next = 0;
    for (size_t i = 0; i < num_sequences; ++i) {
      if (step >= plans[i].size()) continue;
      const fixtures::Window& window = plans[i][step];
      const int64_t num_good = window.num_committed + window.num_accepted;
      std::copy_n(out.values.begin() + sequences[next++].row_begin * out_cols, num_good * out_cols,
                  results[i].values.begin() + num_kept[i] * out_cols);
      num_kept[i] += num_good;
    }
  }
  for (size_t i = 0; i < num_sequences; ++i) SWITCHYARD_CHECK(num_kept[i] == inputs[i].rows());
  return results;
}

}  // namespace switchyard::kernels::cpu
