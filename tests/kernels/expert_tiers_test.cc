// Experts whose tensors have tiers: the same bits wherever an expert lies.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "base/status.h"
#include "kernels/cpu_step_driver.h"
#include "kernels/quant/dequantize.h"
#include "kernels/reference/reference_backend.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels {
namespace {

using fixtures::FloatRows;
using fixtures::Random;
using fixtures::TensorData;
using IntRows = fixtures::Rows<int32_t>;

constexpr int64_t kHidden = 256, kInner = 256, kShared = 64;
constexpr int kExperts = 7, kTopK = 3;

// Random valid blocks of values near 1.
TensorData RandomTensor(Random& random, std::string name, DType dtype, int64_t slabs, int64_t rows,
                        int64_t cols) {
  TensorData tensor{std::move(name), dtype, slabs, rows, cols, {}};
  const DTypeTraits& traits = Traits(dtype);
  tensor.bytes.resize(static_cast<size_t>(tensor.view().bytes()));
  std::vector<float> decoded(static_cast<size_t>(traits.block_length));
  for (size_t at = 0; at < tensor.bytes.size(); at += static_cast<size_t>(traits.block_bytes)) {
    const auto is_fine = [](float x) { return std::fabs(x) < 1e3f; };
    do {
      for (int i = 0; i < traits.block_bytes; ++i) {
        tensor.bytes[at + static_cast<size_t>(i)] = static_cast<std::byte>(random.Below(256));
      }
      DequantizeRow(dtype, &tensor.bytes[at], traits.block_length, decoded.data());
    } while (!std::all_of(decoded.begin(), decoded.end(), is_fine));
  }
  return tensor;
}

// A layer of random tensors, and a file whose reads can be made to fail.
struct Layer {
  Layer(DType dtype, bool is_fused) : random(71), fused(is_fused) {
    gate = RandomTensor(random, "gate", dtype, kExperts, fused ? 2 * kInner : kInner, kHidden);
    up = RandomTensor(random, "up", dtype, kExperts, kInner, kHidden);
    down = RandomTensor(random, "down", dtype, kExperts, kHidden, kInner);
    shared_gate = RandomTensor(random, "shared_gate", DType::kF32, 1, kShared, kHidden);
    shared_up = RandomTensor(random, "shared_up", DType::kF32, 1, kShared, kHidden);
    shared_down = RandomTensor(random, "shared_down", DType::kF32, 1, kHidden, kShared);
  }
  StepLimits limits() const {
    StepLimits limits;
    limits.max_rows = 600;
    limits.max_sequences = 1;
    limits.max_context = 600;
    limits.hidden_size = kHidden;
    limits.max_inner_size = 2 * kInner;
    limits.num_experts = kExperts;
    limits.top_k = kTopK;
    limits.expert_hidden_size = kInner;
    limits.shared_expert_hidden_size = kShared;
    return limits;
  }

  Random random;
  bool fused;
  bool reads_fail = false;
  TensorData gate, up, down, shared_gate, shared_up, shared_down;
};

struct Loaded {
  MoeWeights weights;
  std::vector<std::unique_ptr<Weight>> owners;

  // `num_slots` < 0: without tiers.
  Loaded(Backend& backend, Layer& layer, int num_slots) {
    const auto load = [&](const TensorData& tensor, bool has_tiers) -> const Weight* {
      WeightSource source{tensor.name, tensor.view(), nullptr, std::nullopt};
      source.read = [&layer, &tensor](int64_t first, int64_t count,
                                      std::byte* out) -> absl::Status {
        if (layer.reads_fail) return DataLoss("file ends early: {}", tensor.name);
        const int64_t row_bytes = tensor.view().row_bytes();
        std::memcpy(out, tensor.bytes.data() + first * row_bytes,
                    static_cast<size_t>(count * row_bytes));
        return absl::OkStatus();
      };
      if (has_tiers && num_slots >= 0) source.num_slots = num_slots;
      auto weight = backend.LoadWeight(source, WeightUse::kMatrix);
      EXPECT_TRUE(weight.ok()) << weight.status();
      owners.push_back(*std::move(weight));
      return owners.back().get();
    };
    (layer.fused ? weights.gate_up : weights.gate) = load(layer.gate, true);
    if (!layer.fused) weights.up = load(layer.up, true);
    weights.down = load(layer.down, true);
    num_tiered = owners.size();
    weights.shared_gate = load(layer.shared_gate, false);
    weights.shared_up = load(layer.shared_up, false);
    weights.shared_down = load(layer.shared_down, false);
    weights.down_shards.border = {0, 0, 0, 0, kInner};
    weights.shared_down_shards.border = {0, 0, kShared / 2, kShared / 2, kShared};
    slots.assign(kExperts, -1);
  }

  // Puts an expert into a slot.
  void Fill(Backend& backend, int expert, int slot, bool beside_steps) {
    for (size_t i = 0; i < num_tiered; ++i) {
      ASSERT_TRUE(backend.LoadSlab(*owners[i], expert, slot, beside_steps).ok());
    }
    std::replace(slots.begin(), slots.end(), slot, -1);
    slots[static_cast<size_t>(expert)] = slot;
    weights.resident_slots = slots;
  }

  size_t num_tiered = 0;
  std::vector<int32_t> slots;
};

struct Routed {
  Routed(Random& random, int64_t rows) : experts(rows, kTopK), weights(rows, kTopK) {
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<int32_t> ids(kExperts);
      std::iota(ids.begin(), ids.end(), 0);
      for (int i = 0; i < kTopK; ++i) {
        std::swap(ids[static_cast<size_t>(i)],
                  ids[static_cast<size_t>(i + random.Below(kExperts - i))]);
        weights.view().row(row)[i] = 0.1f + static_cast<float>(random.Uniform());
      }
      std::sort(ids.begin(), ids.begin() + kTopK);
      std::copy_n(ids.begin(), kTopK, experts.view().row(row));
    }
  }
  IntRows experts;
  FloatRows weights;
};

FloatRows RunExperts(Backend& backend, const MoeWeights& weights, const FloatRows& u,
                     const Routed& routed, LedgerSlot& ledger) {
  FloatRows y(u.rows(), kHidden);
  backend.Experts(ledger, weights, u.view(), routed.experts.view(), routed.weights.view(),
                  y.view());
  return y;
}

std::unique_ptr<Backend> MakeBackend(const std::string& name, const StepLimits& limits) {
  if (name == "cpu") return cpu::MakeCpuBackend(limits, 2);
  auto backend = reference::CreateReferenceBackend();
  SWITCHYARD_CHECK(backend->Prepare(limits).ok());
  return backend;
}

struct TiersCase {
  std::string backend;
  DType dtype;
  bool fused = false;
};
// Both compare bits: NaNs of overflow are as good as numbers.
bool SameBits(const FloatRows& a, const FloatRows& b) {
  return a.values.size() == b.values.size() &&
         std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0;
}

class ExpertTiersTest : public testing::TestWithParam<TiersCase> {};

TEST_P(ExpertTiersTest, SameBitsWhereverAnExpertLies) {
  Layer layer(GetParam().dtype, GetParam().fused);
  auto whole_backend = MakeBackend(GetParam().backend, layer.limits());
  const Loaded whole(*whole_backend, layer, -1);
  for (const int num_slots : {0, 1, 3, kExperts - 1}) {
    auto backend = MakeBackend(GetParam().backend, layer.limits());
    Loaded tiered(*backend, layer, num_slots);
    tiered.weights.resident_slots = tiered.slots;
    for (int slot = 0; slot < num_slots; ++slot) {
      tiered.Fill(*backend, (5 * slot + 2) % kExperts, slot, /*beside_steps=*/slot % 2 == 1);
    }
    for (const int64_t rows : {1, 3, 40}) {
      const FloatRows u = RandomRows(layer.random, rows, kHidden);
      const Routed routed(layer.random, rows);
      std::vector<uint32_t> uses(kExperts);
      tiered.weights.use_counts = uses.data();
      LedgerSlot ledger, whole_ledger;
      const FloatRows y = RunExperts(*backend, tiered.weights, u, routed, ledger);
      EXPECT_TRUE(SameBits(y, RunExperts(*whole_backend, whole.weights, u, routed, whole_ledger)))
          << "slots " << num_slots << ", rows " << rows;
      std::vector<uint32_t> expected(kExperts);
      for (const int32_t e : routed.experts.values) ++expected[static_cast<size_t>(e)];
      EXPECT_EQ(uses, expected);
      EXPECT_GT(ledger.weight_bytes, 0);
      // Another expert takes the slot over.
      if (num_slots > 0) tiered.Fill(*backend, static_cast<int>(rows) % kExperts, 0, true);
    }
    EXPECT_TRUE(backend->Health().ok());
  }
}

TEST_P(ExpertTiersTest, AFileThatEndsEarlyIsAFault) {
  Layer layer(GetParam().dtype, GetParam().fused);
  auto backend = MakeBackend(GetParam().backend, layer.limits());
  Loaded tiered(*backend, layer, 1);
  tiered.weights.resident_slots = tiered.slots;
  const FloatRows u = RandomRows(layer.random, 2, kHidden);
  const Routed routed(layer.random, 2);
  LedgerSlot ledger;
  RunExperts(*backend, tiered.weights, u, routed, ledger);
  EXPECT_TRUE(backend->Health().ok());
  layer.reads_fail = true;
  RunExperts(*backend, tiered.weights, u, routed, ledger);
  EXPECT_EQ(backend->Health().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(backend->LoadSlab(*tiered.owners[0], 0, 0, true).code(), absl::StatusCode::kDataLoss);
}

std::vector<TiersCase> AllCases() {
  std::vector<TiersCase> cases;
  for (const char* backend : {"reference", "cpu"}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                              DType::kQ4_K, DType::kQ6_K, DType::kIQ4_XS, DType::kIQ4_NL,
                              DType::kIQ3_S, DType::kIQ3_XXS, DType::kIQ2_XS, DType::kQ3_K}) {
      cases.push_back({backend, dtype});
    }
    cases.push_back({backend, DType::kIQ3_S, true});
    cases.push_back({backend, DType::kF32, true});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, ExpertTiersTest, testing::ValuesIn(AllCases()), [](const auto& info) {
  return info.param.backend + "_" + std::string(Traits(info.param.dtype).name) +
         (info.param.fused ? "_fused" : "");
});

}  // namespace
}  // namespace switchyard::kernels
