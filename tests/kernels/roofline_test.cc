// The measuring loops do what they are timed for.
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/dot_peak.h"
#include "kernels/cpu/read_bandwidth.h"

namespace switchyard::kernels::cpu {
namespace {

class RooflineTest : public testing::TestWithParam<CpuLevel> {
 protected:
  void SetUp() override {
    if (!RunsCpuLevel(GetParam())) GTEST_SKIP() << "this machine cannot run the level";
  }
};

// Words with carries in every byte, aligned to a cache line.
class Words {
 public:
  explicit Words(int64_t count) : memory_(static_cast<size_t>(count) + 8), count_(count) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    data_ = memory_.data() + (-address % 64) / sizeof(uint64_t);
    for (int64_t i = 0; i < count; ++i) {
      data_[i] = static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15;
    }
  }
  uint64_t& operator[](int64_t i) { return data_[i]; }
  uint64_t Sum() const { return std::accumulate(data_, data_ + count_, uint64_t{0}); }
  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(data_); }

 private:
  std::vector<uint64_t> memory_;
  int64_t count_;
  uint64_t* data_;
};

TEST_P(RooflineTest, SumCountsEveryWordOnce) {
  for (const int num_streams : {1, 2, 4, 8}) {
    for (const int lines_per_stream : {0, 1, 2, 5}) {
      const int64_t bytes = int64_t{num_streams} * lines_per_stream * kReadLineBytes;
      const int64_t count = bytes / 8;
      Words words(count);
      EXPECT_EQ(SumWords(GetParam(), words.bytes(), bytes, num_streams), words.Sum());
      for (int64_t i = 0; i < count; ++i) {
        words[i] += 1;
        EXPECT_EQ(SumWords(GetParam(), words.bytes(), bytes, num_streams), words.Sum()) << i;
      }
    }
  }
}

TEST_P(RooflineTest, DotPeakRunsTheOperationsAskedFor) {
  constexpr int64_t kWanted = 1'000'000;
  const DotPeakRun run = RunDotPeak(GetParam(), kWanted);
  EXPECT_TRUE(run.is_correct);
  if (GetParam() == CpuLevel::kScalar) {
    EXPECT_EQ(run.num_operations, 0);
    return;
  }
  EXPECT_GE(run.num_operations, kWanted);
  EXPECT_LE(run.num_operations, kWanted + 100'000);
}

INSTANTIATE_TEST_SUITE_P(Levels, RooflineTest,
                         testing::Values(CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvxVnni,
                                         CpuLevel::kAvx512Vnni),
                         [](const auto& info) { return std::string(CpuLevelName(info.param)); });

}  // namespace
}  // namespace switchyard::kernels::cpu
