// Block selection of the cpu backend: exact, lower block on a tie.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/qsa.h"
#include "kernels/cpu_step_driver.h"
#include "kernels/kv_layout.h"
#include "testing/stage_fixtures.h"

namespace switchyard::kernels::cpu {
namespace {

using fixtures::FloatRows;
using fixtures::LayerSizes;
using fixtures::Random;

std::vector<int32_t> SortedTop(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int32_t> Top(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> counters(kTopBlocksCounters), top(static_cast<size_t>(k));
  TopBlocks(scores.data(), static_cast<int64_t>(scores.size()), k, counters.data(), top.data());
  return top;
}

TEST(TopBlocksTest, EqualsASortForAllKindsOfScores) {
  Random random(1);
  for (const int64_t n : {2, 3, 17, 513, 4000}) {
    for (const int64_t k : {int64_t{1}, n / 2, n - 1}) {
      if (k == 0) continue;
      std::vector<float> scores(static_cast<size_t>(n));
      for (float& x : scores) x = static_cast<float>(random.Uniform());  // all different
      EXPECT_EQ(Top(scores, k), SortedTop(scores, k));
      for (float& x : scores) x = static_cast<float>(random.Below(3));  // few values
      EXPECT_EQ(Top(scores, k), SortedTop(scores, k));
      for (float& x : scores) x = std::max(0.0f, static_cast<float>(random.Normal()));  // zeros
      EXPECT_EQ(Top(scores, k), SortedTop(scores, k));
      std::fill(scores.begin(), scores.end(), 0.0f);
      EXPECT_EQ(Top(scores, k), SortedTop(scores, k));
      // Neighbours in the last bit, and the whole range of exponents.
      for (float& x : scores) x = 1.0f + static_cast<float>(random.Below(4)) * 0x1p-23f;
      EXPECT_EQ(Top(scores, k), SortedTop(scores, k));
      for (float& x : scores) x = std::ldexp(1.0f, static_cast<int>(random.Below(250)) - 140);
      EXPECT_EQ(Top(scores, k), SortedTop(scores, k));
    }
  }
}

class CpuQsaTest : public testing::Test {
 protected:
  static constexpr int kTokens = 300;

  // Keys and queries of small integers: scores are exact, and many are equal.
  CpuQsaTest() : pages_(sizes_, KvType::kF16, 8), state_(sizes_, pages_, kTokens) {
    Random random(7);
    const AttentionShape shape = sizes_.attention_shape();
    const KvLayout layout(shape, KvType::kF16);
    const KvLayer layer = pages_.layer();
    SequenceRows rows;
    rows.num_rows = kTokens;
    rows.num_committed = kTokens;
    sequence_ = state_.Sequence(rows);
    keys_.resize(kTokens / static_cast<size_t>(shape.qsa_ratio));
    for (size_t b = 0; b < keys_.size(); ++b) {
      keys_[b] = SmallIntegers(random, shape.index_head_dim);
      const auto data = fixtures::Encode("key", keys_[b], 1, 1, shape.index_head_dim, DType::kF16);
      std::copy(data.bytes.begin(), data.bytes.end(),
                layer.block_keys + layout.BlockKey(sequence_, static_cast<int64_t>(b)));
    }
    const int64_t query_size = shape.num_index_heads * shape.index_head_dim;
    query_ = FloatRows::Of(query_size, SmallIntegers(random, kTokens * query_size));
  }

  static std::vector<float> SmallIntegers(Random& random, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& x : values)
      x = random.Uniform() < 0.8 ? 0 : static_cast<float>(random.Below(3) - 1);
    return values;
  }

  std::vector<int32_t> Expected(int64_t row, int64_t budget) const {
    const AttentionShape shape = sizes_.attention_shape();
    std::vector<float> scores;
    for (int64_t b = 0; b < (row + 1) / shape.qsa_ratio; ++b) {
      float score = 0;
      for (int a = 0; a < shape.num_index_heads; ++a) {
        float dot = 0;
        for (int i = 0; i < shape.index_head_dim; ++i) {
          dot += query_.Row(row)[static_cast<size_t>(a * shape.index_head_dim + i)] *
                 keys_[static_cast<size_t>(b)][static_cast<size_t>(i)];
        }
        score += std::max(dot, 0.0f);
      }
      scores.push_back(score);
    }
    return SortedTop(scores, budget);
  }

  // Selection of rows [first, first + count) in one step.
  void Check(int64_t first, int64_t count, int num_threads) {
    const AttentionShape shape = sizes_.attention_shape();
    auto cpu = MakeCpuBackend(sizes_.limits(kTokens, 1, kTokens), num_threads);
    AttentionSequence sequence = sequence_;
    sequence.first_position = first;
    sequence.num_rows = static_cast<int>(count);
    const int64_t budget = shape.qsa_budget / shape.qsa_ratio;
    fixtures::Rows<int32_t> blocks(count, budget);
    std::vector<int32_t> counts(static_cast<size_t>(count), 77);
    LedgerSlot ledger;
    cpu->QsaSelect(ledger, shape, pages_.layer(), absl::MakeConstSpan(&sequence, 1),
                   MatrixView<const float>(query_.view()).Rows(first, count),
                   {blocks.view(), absl::MakeSpan(counts)});
    for (int64_t row = 0; row < count; ++row) {
      const int64_t position = first + row;
      if ((position + 1) / shape.qsa_ratio <= budget) {
        EXPECT_EQ(counts[static_cast<size_t>(row)], -1) << position;
      } else {
        EXPECT_EQ(counts[static_cast<size_t>(row)], budget) << position;
        EXPECT_EQ(blocks.Row(row), Expected(position, budget)) << position;
      }
    }
  }

  LayerSizes sizes_;
  fixtures::KvPages pages_;
  fixtures::AttentionState state_;
  AttentionSequence sequence_;
  std::vector<std::vector<float>> keys_;
  FloatRows query_{1, 0};
};

TEST_F(CpuQsaTest, ChoosesExactlyWithManyRows) { Check(0, kTokens, 2); }

TEST_F(CpuQsaTest, ChoosesExactlyRowByRow) {
  for (const int64_t position : {18, 19, 20, 63, 64, 127, 299}) Check(position, 1, 2);
  Check(14, 3, 2);  // the border of the dense range in the middle of a step
}

}  // namespace
}  // namespace switchyard::kernels::cpu
