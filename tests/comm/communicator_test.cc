#include "comm/communicator.h"

#include <set>
#include <string_view>

#include <gtest/gtest.h>

namespace switchyard::comm {
namespace {

TEST(CommunicatorTest, NamesTellAllKindsApart) {
  std::set<std::string_view> names;
  for (int kind = 0; kind < kNumOpKinds; ++kind) names.insert(Name(static_cast<OpKind>(kind)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumOpKinds));
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_EQ(Name(static_cast<OpKind>(kNumOpKinds)), "unknown");
}

TEST(CommunicatorTest, KnowsElementSizes) {
  EXPECT_EQ(BytesOf(DataType::kF32), 4);
  EXPECT_EQ(BytesOf(DataType::kF16), 2);
  EXPECT_EQ(BytesOf(DataType::kBF16), 2);
  EXPECT_EQ(BytesOf(DataType::kI32), 4);
  EXPECT_EQ(BytesOf(DataType::kU8), 1);
}

}  // namespace
}  // namespace switchyard::comm
