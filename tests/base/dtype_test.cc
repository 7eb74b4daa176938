#include "base/dtype.h"

#include <set>

#include <gtest/gtest.h>

#include "base/tensor_view.h"

namespace switchyard {
namespace {

TEST(DTypeTest, NamesAndIdsLeadBackToTheType) {
  std::set<std::string_view> names;
  int num_types = 0;
  for (uint32_t id = 0; id < 64; ++id) {
    const std::optional<DType> dtype = DTypeFromGgufId(id);
    if (!dtype.has_value()) continue;
    ++num_types;
    EXPECT_EQ(static_cast<uint32_t>(*dtype), id);
    const DTypeTraits& traits = Traits(*dtype);
    EXPECT_EQ(traits.dtype, *dtype);
    EXPECT_EQ(DTypeFromName(traits.name), *dtype);
    EXPECT_TRUE(names.insert(traits.name).second);
  }
  EXPECT_EQ(num_types, 22);
}

TEST(DTypeTest, RefusesRemovedAndUnknownIds) {
  // 4 and 5 were removed from the format; 9 (Q8_1), 15 (Q8_K) never occur in files.
  for (uint32_t id : {4u, 5u, 9u, 15u, 31u, 1000u}) EXPECT_FALSE(DTypeFromGgufId(id)) << id;
  EXPECT_FALSE(DTypeFromName("q8_0"));
  EXPECT_FALSE(DTypeFromName(""));
}

TEST(DTypeTest, RowBytesCountBlocks) {
  EXPECT_EQ(RowBytes(DType::kF32, 3), 12);
  EXPECT_EQ(RowBytes(DType::kQ8_0, 64), 68);
  EXPECT_EQ(RowBytes(DType::kIQ4_XS, 2048), 8 * 136);  // 4.25 bits a weight
  EXPECT_EQ(RowBytes(DType::kQ6_K, 0), 0);
}

TEST(TensorViewTest, RowsFollowSlabs) {
  TensorView tensor{.data = nullptr, .dtype = DType::kQ8_0, .num_slabs = 3, .rows = 4, .cols = 32};
  EXPECT_EQ(tensor.row_bytes(), 34);
  EXPECT_EQ(tensor.bytes(), 3 * 4 * 34);
  std::byte bytes[3 * 4 * 34];
  tensor.data = bytes;
  EXPECT_EQ(tensor.row(2, 1) - bytes, (2 * 4 + 1) * 34);
}

TEST(MatrixViewTest, RowsKeepTheStride) {
  float values[20];
  const MatrixView<float> matrix(values, 4, 3, 5);
  const MatrixView<const float> part = matrix.Rows(1, 2);
  EXPECT_EQ(part.rows, 2);
  EXPECT_EQ(part.row(1), values + 10);
}

}  // namespace
}  // namespace switchyard
