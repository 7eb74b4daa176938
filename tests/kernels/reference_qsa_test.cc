// Sparse attention of the reference backend: which blocks are chosen, ties, dense equivalence.
#include <algorithm>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/kv_layout.h"
#include "kernels/reference/reference_backend.h"
#include "testing/attention_fixture.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::reference {
namespace {

using fixtures::AttentionLayer;
using fixtures::AttentionOracle;
using fixtures::AttentionResult;
using fixtures::AttentionTensors;
using fixtures::FloatRows;
using fixtures::LayerSizes;
using fixtures::Random;
using fixtures::RandomRows;

struct QsaCase {
  int ratio, budget, num_index_heads;
};

class ReferenceQsaTest : public testing::TestWithParam<QsaCase> {};

TEST_P(ReferenceQsaTest, ChoosesAsBruteForceDoes) {
  LayerSizes sizes;
  sizes.qsa_ratio = GetParam().ratio;
  sizes.qsa_budget = GetParam().budget;
  sizes.num_index_heads = GetParam().num_index_heads;
  auto backend = CreateReferenceBackend();
  ASSERT_TRUE(backend->Prepare(sizes.limits(300, 1, 512)).ok());
  Random random(41);
  const AttentionTensors tensors = fixtures::RandomAttention(random, sizes);
  const FloatRows u = RandomRows(random, 261, sizes.hidden_size);
  AttentionLayer layer(*backend, sizes, tensors, KvType::kF32);
  const AttentionResult result = layer.RunInSteps(u, 100);
  const AttentionOracle oracle = fixtures::ComputeAttention(sizes, tensors, KvType::kF32, u);
  ASSERT_EQ(result.blocks, oracle.blocks);
  // Everything is read while the complete blocks fit the budget, and not one token longer.
  const int64_t first_sparse = sizes.qsa_budget + sizes.qsa_ratio - 1;
  for (int64_t t = 0; t < u.rows(); ++t) {
    EXPECT_EQ(result.blocks[static_cast<size_t>(t)].empty(), t < first_sparse) << t;
  }
}

// Two index heads leave a quarter of the blocks at a score of exactly zero, so that ties decide.
INSTANTIATE_TEST_SUITE_P(Cases, ReferenceQsaTest,
                         testing::Values(QsaCase{4, 16, 8}, QsaCase{4, 128, 2}, QsaCase{2, 6, 4},
                                         QsaCase{8, 64, 1}, QsaCase{64, 64, 4}, QsaCase{1, 5, 2}));

TEST(ReferenceQsaEquivalenceTest, EqualsDenseWhileTheBudgetSuffices) {
  LayerSizes sizes;
  sizes.qsa_budget = 64;
  LayerSizes dense = sizes;
  dense.qsa_ratio = 0;
  auto backend = CreateReferenceBackend();
  ASSERT_TRUE(backend->Prepare(sizes.limits(200, 1, 512)).ok());
  Random random(42);
  const AttentionTensors tensors = fixtures::RandomAttention(random, sizes);
  const FloatRows u = RandomRows(random, 120, sizes.hidden_size);
  const AttentionResult sparse_result =
      AttentionLayer(*backend, sizes, tensors, KvType::kF16).RunInSteps(u, 50);
  const AttentionResult dense_result =
      AttentionLayer(*backend, dense, tensors, KvType::kF16).RunInSteps(u, 50);
  for (int64_t t = 0; t < 120; ++t) {
    if (t < 67) {
      EXPECT_EQ(sparse_result.out.Row(t), dense_result.out.Row(t)) << t;
    } else {
      EXPECT_NE(sparse_result.out.Row(t), dense_result.out.Row(t)) << t;
    }
  }
}

// Runs the choice on block keys written by hand: element 0 of block b's key is keys[b].
std::vector<int32_t> Choose(const std::vector<float>& keys, int budget_blocks, float query,
                            int64_t position) {
  LayerSizes sizes;
  sizes.num_index_heads = 1;
  sizes.qsa_budget = budget_blocks * sizes.qsa_ratio;
  fixtures::KvPages pages(sizes, KvType::kF32, 4);
  fixtures::AttentionState state(sizes, pages, 4 * kPageTokens);
  const KvLayer cache = pages.layer();
  const KvLayout layout(sizes.attention_shape(), KvType::kF32);
  const AttentionSequence sequence = state.Sequence({0, 1, position, 0, 1});
  for (size_t b = 0; b < keys.size(); ++b) {
    std::memcpy(cache.block_keys + layout.BlockKey(sequence, static_cast<int64_t>(b)), &keys[b],
                sizeof(float));
  }
  auto backend = CreateReferenceBackend();
  EXPECT_TRUE(backend->Prepare(sizes.limits(1, 1, 4 * kPageTokens)).ok());
  FloatRows index_query(1, sizes.index_head_dim);
  index_query.values[0] = query;
  fixtures::Rows<int32_t> blocks(1, budget_blocks);
  std::vector<int32_t> counts(1);
  LedgerSlot ledger;
  backend->QsaSelect(ledger, sizes.attention_shape(), cache, {&sequence, 1}, index_query.view(),
                     {blocks.view(), absl::MakeSpan(counts)});
  EXPECT_TRUE(counts[0] == -1 || counts[0] == budget_blocks);
  return counts[0] == -1 ? std::vector<int32_t>{-1} : blocks.values;
}

TEST(ReferenceQsaTieTest, TakesTheLowerBlockOnATie) {
  // Position 31: eight complete blocks.
  EXPECT_THAT(Choose({1, 3, 2, 3, 3, 0, 2, 9}, 4, 1, 31), testing::ElementsAre(1, 3, 4, 7));
  EXPECT_THAT(Choose({1, 3, 2, 3, 3, 0, 2, 9}, 5, 1, 31), testing::ElementsAre(1, 2, 3, 4, 7));
}

TEST(ReferenceQsaTieTest, NegativeScoresTieAtZero) {
  EXPECT_THAT(Choose({-1, 3, -2, -9, 0, -5, 2, -1}, 4, 1, 31), testing::ElementsAre(0, 1, 2, 6));
  EXPECT_THAT(Choose({-1, 3, -2, -9, 0, -5, 2, -1}, 3, -1, 31), testing::ElementsAre(2, 3, 5));
}

TEST(ReferenceQsaTieTest, OnlyCompleteBlocksCompete) {
  // At position 30 the eighth block, the best one, lacks its last token.
  EXPECT_THAT(Choose({1, 3, 2, 3, 3, 0, 2, 9}, 4, 1, 30), testing::ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Choose({1, 3, 2, 3, 3, 0, 2, 9}, 8, 1, 31), testing::ElementsAre(-1));
  EXPECT_THAT(Choose({1, 3, 2, 3, 3, 0, 2, 9}, 7, 1, 30), testing::ElementsAre(-1));
  EXPECT_THAT(Choose({1, 3, 2, 3, 3, 0, 2, 9}, 7, 1, 31),
              testing::ElementsAre(0, 1, 2, 3, 4, 6, 7));
}

}  // namespace
}  // namespace switchyard::kernels::reference
