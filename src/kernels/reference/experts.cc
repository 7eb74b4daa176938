#include "kernels/reference/experts.h"

#include <algorithm>

#include "kernels/reference/math.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/weight.h"

namespace switchyard::kernels::reference {
namespace {

// Tokens whose experts are worked on together.
constexpr int64_t kTokenTile = 64;

// Matrices of one expert: slab `slab` of each.
struct Expert {
  const Weight* gate = nullptr;
  const Weight* up = nullptr;
  const Weight* gate_up = nullptr;
  const Weight* down = nullptr;
  SlabPlace slab = 0;
  ShardBorders shards;
};

int64_t SlabBytes(const Weight* weight) {
  if (weight == nullptr) return 0;
  // With tiers both keep the bytes of the file.
  return weight->num_slots() == weight->num_slabs()
             ? weight->resident_bytes() / weight->num_slabs()
             : weight->rows() * RowBytes(weight->dtype(), weight->cols());
}
int64_t ExpertBytes(const Expert& expert) {
  return SlabBytes(expert.gate) + SlabBytes(expert.up) + SlabBytes(expert.gate_up) +
         SlabBytes(expert.down);
}

// silu(gate x) * (up x). Shapes: x [n, hidden_size]; the result [n, expert_hidden_size].
MatrixView<const double> Activate(const Expert& expert, MatrixView<const double> x,
                                  Workspace& workspace) {
  const int64_t inner = expert.down->cols();
  const MatrixView<double> both = workspace.TakeMatrix<double>(x.rows, 2 * inner);
  const MatrixView<double> gate(both.data, x.rows, inner, both.row_stride);
  const MatrixView<double> up(both.data + inner, x.rows, inner, both.row_stride);
  if (expert.gate_up != nullptr) {
    MatMul<double>(*expert.gate_up, expert.slab, x, both, workspace);
  } else {
    MatMul<double>(*expert.gate, expert.slab, x, gate, workspace);
    MatMul<double>(*expert.up, expert.slab, x, up, workspace);
  }
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t i = 0; i < inner; ++i) gate.row(t)[i] = Silu(gate.row(t)[i]) * up.row(t)[i];
  }
  return gate;
}

// Adds weights[i] * expert(x[tokens[i]]) to each shard's sums of these tokens.
// Shapes: tokens and weights [n], x [tile, hidden_size], sums [4 * tile, hidden_size].
void AddExpert(const Expert& expert, absl::Span<const int32_t> tokens, const double* weights,
               MatrixView<const double> x, MatrixView<double> sums, Workspace& workspace) {
  const Workspace::Frame frame(workspace);
  const int64_t count = static_cast<int64_t>(tokens.size());
  const MatrixView<double> gathered = workspace.TakeMatrix<double>(count, x.cols);
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(x.row(tokens[static_cast<size_t>(i)]), x.cols, gathered.row(i));
  }
  const MatrixView<const double> hidden = Activate(expert, gathered, workspace);
  const MatrixView<double> parts = workspace.TakeMatrix<double>(4 * count, sums.cols);
  MatMulParts(*expert.down, expert.slab, expert.shards, hidden, parts, workspace);
  for (int64_t s = 0; s < 4; ++s) {
    for (int64_t i = 0; i < count; ++i) {
      double* sum = sums.row(s * x.rows + tokens[static_cast<size_t>(i)]);
      const double* part = parts.row(s * count + i);
      for (int64_t e = 0; e < sums.cols; ++e) sum[e] += weights[i] * part[e];
    }
  }
}

SlabPlace PlaceOf(const MoeWeights& w, int64_t expert) {
  const int64_t slab = w.slot_of(expert);
  if (w.resident_slots.empty()) return slab;
  const int32_t slot = w.resident_slots[static_cast<size_t>(expert)];
  return slot >= 0 ? SlabPlace(slot) : SlabPlace(slab, /*is_in_fast_tier=*/false);
}

// One tile of at most kTokenTile tokens; marks the experts that it reads.
void ComputeTile(const MoeWeights& w, MatrixView<const float> u, MatrixView<const int32_t> experts,
                 MatrixView<const float> weights, MatrixView<float> y, bool* used,
                 Workspace& workspace) {
  const Workspace::Frame frame(workspace);
  const MatrixView<const double> x = Widen(u, workspace);
  const MatrixView<double> sums = workspace.TakeMatrix<double>(4 * u.rows, y.cols);
  std::fill_n(sums.data, sums.rows * sums.cols, 0.0);
  int32_t* tokens = workspace.Take<int32_t>(u.rows);
  double* token_weights = workspace.Take<double>(u.rows);

  for (int64_t id = 0; id < w.num_experts(); ++id) {
    if (w.slot_of(id) < 0) continue;
    size_t count = 0;
    for (int64_t t = 0; t < u.rows; ++t) {
      for (int64_t i = 0; i < experts.cols; ++i) {
        if (experts.row(t)[i] != id) continue;
        tokens[count] = static_cast<int32_t>(t);
        token_weights[count++] = static_cast<double>(weights.row(t)[i]);
      }
    }
    if (count == 0) continue;
    used[id] = true;
    if (w.use_counts != nullptr) w.use_counts[id] += static_cast<uint32_t>(count);
    AddExpert({w.gate, w.up, w.gate_up, w.down, PlaceOf(w, id), w.down_shards}, {tokens, count},
              token_weights, x, sums, workspace);
  }
  if (w.shared_down != nullptr) {
    for (int64_t t = 0; t < u.rows; ++t) {
      tokens[t] = static_cast<int32_t>(t);
      token_weights[t] = w.shared_gate_input == nullptr
                             ? 1
                             : Sigmoid(Dot(Values(w.shared_gate_input), x.row(t), x.cols));
    }
    AddExpert({w.shared_gate, w.shared_up, nullptr, w.shared_down, 0, w.shared_down_shards},
              {tokens, static_cast<size_t>(u.rows)}, token_weights, x, sums, workspace);
  }
  for (int64_t t = 0; t < u.rows; ++t) {
    const double* part[4];
    for (int64_t s = 0; s < 4; ++s) part[s] = sums.row(s * u.rows + t);
    for (int64_t e = 0; e < y.cols; ++e) {
      y.row(t)[e] = static_cast<float>((part[0][e] + part[1][e]) + (part[2][e] + part[3][e]));
    }
  }
}

}  // namespace

int64_t Experts(const MoeWeights& w, MatrixView<const float> u, MatrixView<const int32_t> experts,
                MatrixView<const float> weights, MatrixView<float> y, Workspace& workspace) {
  if (u.rows == 0) return 0;
  const Workspace::Frame frame(workspace);
  const int64_t num_experts = w.num_experts();
  bool* used = workspace.Take<bool>(num_experts);
  std::fill_n(used, num_experts, false);
  for (int64_t first = 0; first < u.rows; first += kTokenTile) {
    const int64_t count = std::min(kTokenTile, u.rows - first);
    ComputeTile(w, u.Rows(first, count), experts.Rows(first, count), weights.Rows(first, count),
                y.Rows(first, count), used, workspace);
  }
  const Expert routed = {w.gate, w.up, w.gate_up, w.down, 0, {}};
  const Expert shared = {w.shared_gate, w.shared_up, nullptr, w.shared_down, 0, {}};
  return ExpertBytes(shared) + SlabBytes(w.shared_gate_input) +
         ExpertBytes(routed) * std::count(used, used + num_experts, true);
}

int64_t ExpertsWorkspaceBytes(const StepLimits& limits) {
  const int64_t inner = std::max(limits.expert_hidden_size, limits.shared_expert_hidden_size);
  return TakenBytes<bool>(limits.num_experts) +
         TakenBytes<double>(kTokenTile * limits.hidden_size) +          // inputs
         2 * TakenBytes<double>(4 * kTokenTile * limits.hidden_size) +  // sums, parts
         TakenBytes<int32_t>(kTokenTile) + TakenBytes<double>(kTokenTile) +
         TakenBytes<double>(kTokenTile * limits.hidden_size) +  // gathered
         TakenBytes<double>(kTokenTile * 2 * inner) +
         MatMulWorkspaceBytes(std::max(limits.hidden_size, inner));
}

}  // namespace switchyard::kernels::reference
