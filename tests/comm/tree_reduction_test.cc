#include "comm/tree_reduction.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace switchyard::comm {
namespace {

template <typename T>
std::vector<T> Reduce(const std::vector<std::vector<T>>& parts, DataType type, RedOp op) {
  std::vector<const std::byte*> pointers;
  for (const auto& part : parts)
    pointers.push_back(reinterpret_cast<const std::byte*>(part.data()));
  std::vector<T> out(parts[0].size());
  TreeReduce(pointers, reinterpret_cast<std::byte*>(out.data()), static_cast<int64_t>(out.size()),
             type, op);
  return out;
}

// Values of which every order of addition has another sum.
std::vector<std::vector<float>> Parts(size_t num_parts, size_t count) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> mantissa(-1.0f, 1.0f);
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<std::vector<float>> parts(num_parts, std::vector<float>(count));
  for (auto& part : parts) {
    for (float& value : part) value = std::ldexp(mantissa(random), exponent(random));
  }
  return parts;
}

TEST(TreeReductionTest, AddsNeighboursAndCarriesTheOddOneUp) {
  // 600 values: more than two blocks of the general loop.
  const auto p = Parts(8, 600);
  const auto expect = [&](size_t num_parts, auto sum) {
    const std::vector<std::vector<float>> parts(p.begin(),
                                                p.begin() + static_cast<long>(num_parts));
    const std::vector<float> got = Reduce(parts, DataType::kF32, RedOp::kSum);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(float{sum(i)}))
          << num_parts << " parts, element " << i;
    }
  };
  expect(1, [&](size_t i) { return p[0][i]; });
  expect(2, [&](size_t i) { return p[0][i] + p[1][i]; });
  expect(3, [&](size_t i) { return (p[0][i] + p[1][i]) + p[2][i]; });
  expect(4, [&](size_t i) { return (p[0][i] + p[1][i]) + (p[2][i] + p[3][i]); });
  expect(5, [&](size_t i) { return ((p[0][i] + p[1][i]) + (p[2][i] + p[3][i])) + p[4][i]; });
  expect(6, [&](size_t i) {
    return ((p[0][i] + p[1][i]) + (p[2][i] + p[3][i])) + (p[4][i] + p[5][i]);
  });
  expect(7, [&](size_t i) {
    return ((p[0][i] + p[1][i]) + (p[2][i] + p[3][i])) + ((p[4][i] + p[5][i]) + p[6][i]);
  });
  expect(8, [&](size_t i) {
    return ((p[0][i] + p[1][i]) + (p[2][i] + p[3][i])) +
           ((p[4][i] + p[5][i]) + (p[6][i] + p[7][i]));
  });
}

TEST(TreeReductionTest, EveryOrderOfThreeDiffers) {
  // What the test above relies on: its values tell orders apart.
  const auto p = Parts(3, 600);
  int differences = 0;
  for (size_t i = 0; i < 600; ++i) {
    differences += (p[0][i] + p[1][i]) + p[2][i] != p[0][i] + (p[1][i] + p[2][i]);
  }
  EXPECT_GT(differences, 100);
}

TEST(TreeReductionTest, RoundsSmallFloatsOnceAtTheEnd) {
  // In binary16, 2048 + 1 rounds to 2048, so rounding after each addition would give 2048.
  const uint16_t large = HalfFromFloat(2048), one = HalfFromFloat(1);
  EXPECT_EQ(Reduce<uint16_t>({{large}, {one}, {one}}, DataType::kF16, RedOp::kSum)[0],
            HalfFromFloat(2050));
  // bfloat16 has 8 bits: 256 + 1 rounds to 256.
  const uint16_t large_b = BFloat16FromFloat(256), one_b = BFloat16FromFloat(1);
  EXPECT_EQ(Reduce<uint16_t>({{large_b}, {one_b}, {one_b}}, DataType::kBF16, RedOp::kSum)[0],
            BFloat16FromFloat(258));
}

TEST(TreeReductionTest, IntegersWrapAndTakeTheMaximum) {
  const int32_t max = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(Reduce<int32_t>({{max}, {1}}, DataType::kI32, RedOp::kSum)[0],
            std::numeric_limits<int32_t>::min());
  EXPECT_EQ(Reduce<int32_t>({{-5}, {-7}, {-6}}, DataType::kI32, RedOp::kMax)[0], -5);
  EXPECT_EQ(Reduce<uint8_t>({{200}, {100}}, DataType::kU8, RedOp::kSum)[0], 44);
  EXPECT_EQ(Reduce<uint8_t>({{200}, {100}}, DataType::kU8, RedOp::kMax)[0], 200);
}

TEST(TreeReductionTest, AMaximumWithANanIsANan) {
  const float nan = std::nanf("");
  for (size_t where = 0; where < 3; ++where) {
    std::vector<std::vector<float>> parts = {{1}, {2}, {3}};
    parts[where][0] = nan;
    EXPECT_TRUE(std::isnan(Reduce(parts, DataType::kF32, RedOp::kMax)[0])) << where;
  }
}

TEST(TreeReductionTest, EveryHalfSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = FloatFromHalf(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FloatFromHalf(HalfFromFloat(value))));
    } else {
      ASSERT_EQ(HalfFromFloat(value), bits);
    }
  }
}

TEST(TreeReductionTest, HalvesRoundToNearestEven) {
  const float unit = 0x1p-10f;  // the last bit of halves from 1 to 2
  EXPECT_EQ(HalfFromFloat(1 + unit / 2), HalfFromFloat(1));
  EXPECT_EQ(HalfFromFloat(1 + 1.5f * unit), HalfFromFloat(1 + 2 * unit));
  EXPECT_EQ(HalfFromFloat(std::nextafter(1 + unit / 2, 2.0f)), HalfFromFloat(1 + unit));
  EXPECT_EQ(HalfFromFloat(65519), 0x7bff);
  EXPECT_EQ(HalfFromFloat(65520), 0x7c00);
  EXPECT_EQ(HalfFromFloat(0x1p-25f), 0);  // half of the least: to even
  EXPECT_EQ(HalfFromFloat(0x1.8p-25f), 1);
  EXPECT_EQ(HalfFromFloat(std::nextafter(0x1p-14f, 0.0f)), 0x0400);
}

}  // namespace
}  // namespace switchyard::comm
