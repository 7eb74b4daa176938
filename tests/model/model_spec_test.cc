#include "model/model_spec.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "model/arch/arch_reader.h"
#include "model/architectures.h"

namespace switchyard::model {
namespace {

using ::testing::ElementsAre;

TensorInfo OutputMatrix(DType dtype, int64_t columns) {
  TensorInfo tensor;
  tensor.dtype = dtype;
  tensor.num_dims = 2;
  tensor.dims = {columns, 8, 1, 1};
  return tensor;
}

TEST(ModelSpecTest, ShardsOfUnitsThatDoNotDivideByFour) {
  // Shard i holds units floor(i * m / 4) up to floor((i + 1) * m / 4).
  EXPECT_THAT(CutIntoShards(1, 32).border, ElementsAre(0, 0, 0, 0, 32));
  EXPECT_THAT(CutIntoShards(2, 32).border, ElementsAre(0, 0, 32, 32, 64));
  EXPECT_THAT(CutIntoShards(3, 32).border, ElementsAre(0, 0, 32, 64, 96));
  EXPECT_THAT(CutIntoShards(6, 10).border, ElementsAre(0, 10, 30, 40, 60));
  EXPECT_THAT(CutIntoShards(20, 32).border, ElementsAre(0, 160, 320, 480, 640));
  EXPECT_EQ(CutIntoShards(6, 10).strip_columns, 60);
}

TEST(ModelSpecTest, AttentionShardsHoldGroupsOfHeadsThatFillBlocks) {
  // Blocks of 256 hold two heads of 128: six heads are three units.
  EXPECT_THAT(AttentionOutputShards(OutputMatrix(DType::kQ4_K, 768), 6, 128).border,
              ElementsAre(0, 0, 256, 512, 768));
  EXPECT_THAT(AttentionOutputShards(OutputMatrix(DType::kQ8_0, 768), 6, 128).border,
              ElementsAre(0, 128, 384, 512, 768));
  EXPECT_THAT(AttentionOutputShards(OutputMatrix(DType::kF32, 24), 2, 12).border,
              ElementsAre(0, 0, 12, 12, 24));
}

TEST(ModelSpecTest, DeltaNetShardsFollowTheOrderOfValueHeads) {
  DeltaNetSpec spec;
  spec.num_key_heads = 4;
  spec.num_value_heads = 12;
  spec.head_dim = 32;
  // Tiled: three strips, each with one value head of every key head.
  spec.value_head_order = ValueHeadOrder::kTiled;
  ColumnShards shards = DeltaNetOutputShards(OutputMatrix(DType::kQ8_0, 384), spec);
  EXPECT_EQ(shards.num_strips, 3);
  EXPECT_EQ(shards.strip_columns, 128);
  EXPECT_THAT(shards.border, ElementsAre(0, 32, 64, 96, 128));
  // Grouped: the three value heads of a key head are adjacent.
  spec.value_head_order = ValueHeadOrder::kGrouped;
  shards = DeltaNetOutputShards(OutputMatrix(DType::kQ8_0, 384), spec);
  EXPECT_EQ(shards.num_strips, 1);
  EXPECT_EQ(shards.strip_columns, 384);
  EXPECT_THAT(shards.border, ElementsAre(0, 96, 192, 288, 384));
}

TEST(ModelSpecTest, DeltaNetIsOneShardWhereNoGroupOfHeadsFillsBlocks) {
  // 3 key heads of 16: strips of 48 columns begin inside a block of 32.
  DeltaNetSpec spec;
  spec.num_key_heads = 3;
  spec.num_value_heads = 6;
  spec.head_dim = 16;
  const ColumnShards shards = DeltaNetOutputShards(OutputMatrix(DType::kQ8_0, 96), spec);
  EXPECT_EQ(shards.num_strips, 1);
  EXPECT_THAT(shards.border, ElementsAre(0, 0, 0, 0, 96));
}

TEST(ModelSpecTest, DeltaNetIsOneShardWhereStripsAreTooMany) {
  DeltaNetSpec spec;
  spec.num_key_heads = 4;
  spec.head_dim = 32;
  spec.num_value_heads = 4 * kMaxShardStrips;
  EXPECT_EQ(DeltaNetOutputShards(OutputMatrix(DType::kQ8_0, 2048), spec).num_strips, 16);
  spec.num_value_heads = 4 * (kMaxShardStrips + 1);
  const ColumnShards shards = DeltaNetOutputShards(OutputMatrix(DType::kQ8_0, 2176), spec);
  EXPECT_EQ(shards.num_strips, 1);
  EXPECT_THAT(shards.border, ElementsAre(0, 0, 0, 0, 2176));
}

TEST(ModelSpecTest, DownShardsAreBlocks) {
  EXPECT_THAT(DownShards(OutputMatrix(DType::kF32, 8)).border, ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(DownShards(OutputMatrix(DType::kQ5_1, 96)).border, ElementsAre(0, 0, 32, 64, 96));
  EXPECT_THAT(DownShards(OutputMatrix(DType::kQ4_K, 1024)).border,
              ElementsAre(0, 256, 512, 768, 1024));
}

TEST(ModelSpecTest, ArchitecturesHaveDifferentNames) {
  const auto architectures = Architectures();
  for (size_t i = 0; i < architectures.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(architectures[i].name, architectures[j].name);
  }
}

}  // namespace
}  // namespace switchyard::model
