#include "worker/row_selection.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::worker {
namespace {

using ::testing::ElementsAre;

model::TensorInfo Tensor(int64_t rows, int64_t num_slabs) {
  model::TensorInfo tensor;
  tensor.num_dims = 3;
  tensor.dims = {4, rows, num_slabs, 1};
  tensor.dtype = DType::kF32;
  return tensor;
}

// The rows of the file that the selection's rows [first, first + count) are.
std::vector<int64_t> FileRows(const RowSelection& selection, int64_t first, int64_t count) {
  std::vector<int64_t> rows;
  const absl::Status status =
      selection.ForEachStretch(first, count, [&](int64_t file_row, int64_t num_rows) {
        EXPECT_GT(num_rows, 0);
        for (int64_t i = 0; i < num_rows; ++i) rows.push_back(file_row + i);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return rows;
}

TEST(RowSelectionTest, ATensorStandsForAllItsRows) {
  const model::TensorInfo tensor = Tensor(5, 2);
  const RowSelection all(&tensor);
  EXPECT_EQ(all.num_rows(), 5);
  EXPECT_EQ(all.bytes(), 10 * 16);
  EXPECT_THAT(FileRows(all, 3, 4), ElementsAre(3, 4, 5, 6));  // over slabs
  EXPECT_EQ(RowSelection(nullptr).tensor(), nullptr);
}

// Two groups of a a b c c c.
TEST(RowSelectionTest, PartsFollowEachOtherGroupByGroup) {
  const model::TensorInfo tensor = Tensor(12, 1);
  const RowSelection some(&tensor, 6, {{0, 2}, {3, 3}});
  EXPECT_EQ(some.num_rows(), 10);
  EXPECT_EQ(some.bytes(), 10 * 16);
  EXPECT_THAT(FileRows(some, 0, 10), ElementsAre(0, 1, 6, 7, 3, 4, 5, 9, 10, 11));
}

// Loaders read in pieces of any size.
TEST(RowSelectionTest, AnyPieceIsAPieceOfTheWhole) {
  const model::TensorInfo tensor = Tensor(21, 1);
  const RowSelection some(&tensor, 7, {{5, 2}, {0, 1}, {1, 3}});
  const std::vector<int64_t> all = FileRows(some, 0, some.num_rows());
  ASSERT_EQ(all.size(), 18u);
  for (int64_t first = 0; first < 18; ++first) {
    for (int64_t count = 0; first + count <= 18; ++count) {
      EXPECT_EQ(FileRows(some, first, count),
                std::vector<int64_t>(all.begin() + first, all.begin() + first + count));
    }
  }
}

TEST(RowSelectionTest, StopsAtTheFirstError) {
  const model::TensorInfo tensor = Tensor(12, 1);
  const RowSelection some(&tensor, 6, {{0, 2}});
  int num_calls = 0;
  const absl::Status status = some.ForEachStretch(0, 4, [&](int64_t, int64_t) {
    ++num_calls;
    return absl::DataLossError("cut");
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(num_calls, 1);
}

}  // namespace
}  // namespace switchyard::worker
