#include "worker/ple_table.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/quant/dequantize.h"
#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

constexpr int32_t kEos = 248044;

// The released model's constants.
model::PleSpec ReleasedModel() {
  model::PleSpec spec;
  spec.ngram_size = 3;
  spec.heads_per_ngram = 8;
  spec.eos_token_id = kEos;
  spec.multipliers = {23703573157769, 20109073645365, 8052911324071};
  spec.head_vocab_sizes = {20000003, 20000023, 20000033, 20000047, 20000059, 20000063,
                           20000069, 20000077, 20000081, 20000093, 20000107, 20000147,
                           20000153, 20000159, 20000161, 20000171};
  uint64_t offset = 0;
  for (const uint64_t size : spec.head_vocab_sizes) {
    spec.head_offsets.push_back(offset);
    offset += size;
  }
  return spec;
}

struct HashCase {
  std::vector<int32_t> tokens;  // oldest first; the rows are those of the last
  std::vector<int64_t> rows;
};

class NgramRowsTest : public testing::TestWithParam<HashCase> {};

TEST_P(NgramRowsTest, GivesTheRowsOfTheReleasedModel) {
  const model::PleSpec spec = ReleasedModel();
  std::vector<int64_t> rows(GetParam().tokens.size() * 16);
  NgramRows(spec, {}, GetParam().tokens, absl::MakeSpan(rows));
  EXPECT_EQ(std::vector<int64_t>(rows.end() - 16, rows.end()), GetParam().rows);
}

TEST_P(NgramRowsTest, DoesNotDependOnWhereTheStepBegins) {
  const model::PleSpec spec = ReleasedModel();
  const absl::Span<const int32_t> tokens = GetParam().tokens;
  for (size_t begin = 0; begin < tokens.size(); ++begin) {
    std::vector<int64_t> rows((tokens.size() - begin) * 16);
    NgramRows(spec, tokens.subspan(0, begin), tokens.subspan(begin), absl::MakeSpan(rows));
    EXPECT_EQ(std::vector<int64_t>(rows.end() - 16, rows.end()), GetParam().rows);
  }
}

// Worked out by hand from the rule: products and remainders in 64-bit integers.
INSTANTIATE_TEST_SUITE_P(
    Vectors, NgramRowsTest,
    testing::Values(HashCase{{248045},
                             {13981229, 30076798, 49239434, 61315716, 98540601, 111186732,
                              120378863, 146384625, 173637879, 184336749, 217808755, 222173721,
                              249579227, 277180543, 299757935, 312970430}},
                    HashCase{{248045, 846},
                             {4908448, 36872991, 46611251, 64451521, 83649409, 110850044, 122402102,
                              159207155, 170314019, 195445770, 214314282, 239389039, 254862662,
                              271565595, 284073139, 308659387}},
                    HashCase{{248045, 846, 198},
                             {4582007, 37691206, 44255274, 65455601, 89351473, 103985474, 135938409,
                              145212418, 163775156, 199680439, 200044921, 228961047, 240669798,
                              272736434, 296838250, 317942745}},
                    HashCase{{846, kEos, 198},
                             {15632910, 22689959, 59955968, 72314252, 92508298, 106703653,
                              138744209, 149526814, 170846002, 185983071, 206510390, 224812163,
                              255259252, 266932708, 291096579, 313959329}},
                    HashCase{{846, 198, kEos},
                             {16849591, 37537304, 42290399, 73883125, 88405327, 114186760,
                              123740665, 158125394, 172066454, 182943779, 210981828, 234252677,
                              240798193, 268401662, 284504606, 306781843}},
                    HashCase{{kEos, 846, 198},
                             {4582007, 37691206, 44255274, 65455601, 89351473, 103985474, 135938409,
                              145212418, 179717784, 189775746, 203318555, 232744068, 241529211,
                              270672239, 293799519, 310031334}}));

TEST(PleTableTest, GathersTheRowsOneBehindTheOther) {
  absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(FixtureModel("mixed"));
  ASSERT_TRUE(file.ok()) << file.status();
  absl::StatusOr<model::ModelSpec> spec = model::LoadModelSpec(*file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const PleTable table(*file, *spec->ple);
  const TensorView view = file->View(*spec->ple->table);
  const std::vector<int64_t> rows = {view.rows - 1, 0, 5, 5};
  const auto width = static_cast<size_t>(view.cols);
  std::vector<float> out(rows.size() * width), row(width);
  table.Prefetch(rows);
  table.Gather(rows, out.data());
  for (size_t i = 0; i < rows.size(); ++i) {
    kernels::DequantizeRow(view.dtype, view.row(0, rows[i]), view.cols, row.data());
    EXPECT_EQ(row, std::vector<float>(out.begin() + static_cast<int64_t>(i * width),
                                      out.begin() + static_cast<int64_t>((i + 1) * width)));
  }
}

}  // namespace
}  // namespace switchyard::worker
