#include "worker/tensor_slice.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "testing/gguf_writer.h"
#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

using switchyard::testing::GgufContents;
using switchyard::testing::TestFilePath;
using ::testing::ElementsAre;

// A file of the fixtures and one of its tensors with slabs.
class TensorSliceTest : public ::testing::Test {
 protected:
  TensorSliceTest()
      : file_(*model::GgufFile::Open(SWITCHYARD_TEST_DATA "/qwen4exp/shards.gguf")),
        tensor_(file_.FindTensor("blk.0.ffn_down_exps.weight")) {}

  // The bytes of the weight that a slice stands for, read in pieces of `piece` rows.
  std::string Read(const TensorSlice& slice, int64_t piece) const {
    const int64_t rows = slice.num_rows() * slice.num_slabs();
    const int64_t row_bytes = slice.View().row_bytes();
    std::string out(static_cast<size_t>(rows * row_bytes), '\0');
    for (int64_t first = 0; first < rows; first += piece) {
      const int64_t count = std::min(piece, rows - first);
      const absl::Status status = slice.Read(
          file_, first, count, reinterpret_cast<std::byte*>(out.data()) + first * row_bytes);
      EXPECT_TRUE(status.ok()) << status;
    }
    return out;
  }
  // Columns [begin, end) of row `row` over all slabs.
  std::string Stored(int64_t row, int64_t begin, int64_t end) const {
    const char* const data = reinterpret_cast<const char*>(file_.View(*tensor_).data);
    const int64_t at = row * tensor_->row_bytes() + RowBytes(tensor_->dtype, begin);
    return std::string(data + at, static_cast<size_t>(RowBytes(tensor_->dtype, end - begin)));
  }

  const model::GgufFile file_;
  const model::TensorRef tensor_;
};

TEST_F(TensorSliceTest, ATensorStandsForAllOfItself) {
  const TensorSlice all = tensor_;
  EXPECT_TRUE(all.is_whole());
  EXPECT_EQ(all.bytes(), tensor_->bytes());
  EXPECT_EQ(all.num_slabs(), tensor_->dims[2]);
  EXPECT_EQ(TensorSlice(nullptr).tensor(), nullptr);
  const auto* data = reinterpret_cast<const char*>(file_.View(*tensor_).data);
  EXPECT_EQ(Read(all, 1000), std::string(data, static_cast<size_t>(tensor_->bytes())));
}

TEST_F(TensorSliceTest, RowsFollowEachOtherInTheOrderGiven) {
  const int64_t cols = tensor_->row_elements();
  const TensorSlice some = TensorSlice::Rows(tensor_, {{7, 9}, {2, 3}, {3, 4}, {20, 20}});
  EXPECT_EQ(some.num_rows(), 4);
  EXPECT_EQ(some.bytes(), 4 * tensor_->row_bytes());
  const std::string wanted =
      Stored(7, 0, cols) + Stored(8, 0, cols) + Stored(2, 0, cols) + Stored(3, 0, cols);
  for (int64_t piece = 1; piece <= 4; ++piece) EXPECT_EQ(Read(some, piece), wanted) << piece;
}

TEST_F(TensorSliceTest, SlabsMayBeChosenAndCut) {
  const int64_t cols = tensor_->row_elements(), rows = tensor_->dims[1];
  ASSERT_GE(tensor_->dims[2], 4);
  const TensorSlice some = TensorSlice::SlabRows(tensor_, {{1, 3}}, {3, 1});
  EXPECT_EQ(some.num_slabs(), 2);
  EXPECT_EQ(some.num_rows(), 2);
  std::string wanted;
  for (const int64_t slab : {3, 1}) {
    for (const int64_t row : {1, 2}) wanted += Stored(slab * rows + row, 0, cols);
  }
  for (int64_t piece = 1; piece <= 4; ++piece) EXPECT_EQ(Read(some, piece), wanted) << piece;
}

// What a rank has of a matrix whose columns belong to heads: the same part of each strip.
TEST_F(TensorSliceTest, ColumnsAreCutOutOfEveryRow) {
  const int64_t block = Traits(tensor_->dtype).block_length, cols = tensor_->row_elements();
  ASSERT_GE(cols, 3 * block);
  const TensorSlice some = TensorSlice::SlabRows(tensor_, {{0, tensor_->dims[1]}}, {2})
                               .Columns({{2 * block, 3 * block}, {0, block}});
  EXPECT_EQ(some.num_columns(), 2 * block);
  EXPECT_EQ(some.View().row_bytes(), RowBytes(tensor_->dtype, 2 * block));
  std::string wanted;
  for (int64_t row = 0; row < tensor_->dims[1]; ++row) {
    const int64_t stored = 2 * tensor_->dims[1] + row;
    wanted += Stored(stored, 2 * block, 3 * block) + Stored(stored, 0, block);
  }
  EXPECT_EQ(Read(some, 7), wanted);
  EXPECT_EQ(Read(some, 1), wanted);
}

TEST_F(TensorSliceTest, ATruncatedFileIsAnErrorAndNoSignal) {
  const std::string path = TestFilePath("cut.gguf");
  GgufContents contents = GgufContents::FromFile(SWITCHYARD_TEST_DATA "/qwen4exp/shards.gguf");
  contents.Write(path);
  const auto file = model::GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const model::TensorRef last = &file->tensors().back();
  ASSERT_EQ(truncate(path.c_str(), static_cast<int64_t>(file->header_bytes(0))), 0);
  std::vector<std::byte> row(static_cast<size_t>(last->row_bytes()));
  EXPECT_EQ(TensorSlice(last).Read(*file, 0, 1, row.data()).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace switchyard::worker
