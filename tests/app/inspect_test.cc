#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/inspect/inspect_output.h"
#include "app/inspect/inspect_report.h"
#include "app/inspect/verify.h"
#include "app/synth/synth_presets.h"
#include "app/synth_test_models.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"

namespace switchyard::app {
namespace {

using model::ModelPart;
using ::testing::HasSubstr;

// A file with what is known about it. Not movable: the parts point to each other.
struct Inspected {
  explicit Inspected(const std::string& path)
      : file(*model::GgufFile::Open(path)),
        spec(*model::LoadModelSpec(file)),
        report(*MakeInspectReport(file, spec)) {}
  Inspected(const Inspected&) = delete;

  const model::GgufFile file;
  const model::ModelSpec spec;
  const InspectReport report;
};

const PartTypeRow& Row(const InspectReport& report, ModelPart part, DType dtype) {
  for (const PartTypeRow& row : report.rows) {
    if (row.part == part && row.dtype == dtype) return row;
  }
  ADD_FAILURE() << model::Name(part) << " has no " << Traits(dtype).name;
  return report.rows.front();
}

int64_t PartParameters(const InspectReport& report, ModelPart part) {
  int64_t parameters = 0;
  for (const PartTypeRow& row : report.rows)
    parameters += row.part == part ? row.num_parameters : 0;
  return parameters;
}

// The released model's shapes and types, in a file of holes. Its figures are those of the table of
// parameters and bytes that was worked out by hand from the published files.
class FlashNextTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = WriteTestModel(*SynthPreset("flash-next"), "flash_next.gguf");
    struct stat status;
    ASSERT_EQ(stat(path_.c_str(), &status), 0);
    ASSERT_LT(status.st_blocks * 512, 64 << 20) << "the file system does not support holes";
    inspected_ = new Inspected(path_);
  }
  static void TearDownTestSuite() {
    delete inspected_;
    inspected_ = nullptr;
    unlink(path_.c_str());
  }
  const InspectReport& report() const { return inspected_->report; }
  int64_t Bytes(ModelPart part, DType dtype) const { return Row(report(), part, dtype).bytes; }

  static std::string path_;
  static Inspected* inspected_;
};

std::string FlashNextTest::path_;
Inspected* FlashNextTest::inspected_ = nullptr;

TEST_F(FlashNextTest, ParametersEqualThePublishedOnes) {
  EXPECT_EQ(PartParameters(report(), ModelPart::kRoutedExperts), 120795955200);
  EXPECT_EQ(PartParameters(report(), ModelPart::kPleTable), 51200245760);
  EXPECT_EQ(PartParameters(report(), ModelPart::kDeltaNet), 2086510464);
  EXPECT_EQ(PartParameters(report(), ModelPart::kAttention), 597694464);
  EXPECT_EQ(PartParameters(report(), ModelPart::kIndexer), 19663872);
  EXPECT_EQ(PartParameters(report(), ModelPart::kMixers), 640624640);
  EXPECT_EQ(PartParameters(report(), ModelPart::kRouters), 62914560);
  EXPECT_EQ(PartParameters(report(), ModelPart::kSharedExperts), 236052480);
  EXPECT_EQ(PartParameters(report(), ModelPart::kPle), 32839680);
  EXPECT_EQ(PartParameters(report(), ModelPart::kTokenEmbedding) +
                PartParameters(report(), ModelPart::kOutput),
            1271398400);
  EXPECT_EQ(report().num_parameters, 176943899520);
  EXPECT_EQ(report().num_parameters - report().num_table_parameters, 125743653760);
  EXPECT_EQ(report().num_active_parameters, 6671295360);
  EXPECT_EQ(report().summary.num_tensors, 1224);
}

TEST_F(FlashNextTest, BytesPerExpertEqualThePublishedOnes) {
  EXPECT_EQ(report().summary.typical_bytes_per_expert, 2329600);
  EXPECT_EQ(static_cast<int64_t>(report().summary.mean_bytes_per_expert + 0.5), 2421867);
  EXPECT_EQ(report().summary.part(ModelPart::kRoutedExperts).bytes, 59519795200);
  EXPECT_EQ(report().summary.expert_bytes_per_token, 1162496000);
}

TEST_F(FlashNextTest, DenseBytesEqualThePublishedOnes) {
  EXPECT_EQ(Bytes(ModelPart::kDeltaNet, DType::kQ8_0), 2205941760);
  EXPECT_EQ(Bytes(ModelPart::kDeltaNet, DType::kF32), 41319936);
  // The table of the norms of attention, 12 * 2 * 256 values, is not listed there.
  EXPECT_EQ(Bytes(ModelPart::kAttention, DType::kQ8_0), 635043840);
  EXPECT_EQ(Bytes(ModelPart::kAttention, DType::kF32) + Bytes(ModelPart::kIndexer, DType::kBF16) +
                Bytes(ModelPart::kIndexer, DType::kF32),
            39358464);
  EXPECT_EQ(Bytes(ModelPart::kMixers, DType::kQ8_0), 675430400);
  EXPECT_EQ(Bytes(ModelPart::kMixers, DType::kF32), 19701760);
  // The gates of the shared experts are counted with the routers there.
  EXPECT_EQ(Bytes(ModelPart::kRouters, DType::kF32) + Bytes(ModelPart::kSharedExperts, DType::kF32),
            252149760);
  EXPECT_EQ(Bytes(ModelPart::kSharedExperts, DType::kQ8_0), 250675200);
  EXPECT_EQ(report().summary.part(ModelPart::kPle).bytes, 35102720);
  EXPECT_EQ(Bytes(ModelPart::kOutput, DType::kQ6_K), 521472000);
  EXPECT_EQ(report().summary.dense_bytes_per_token, 4676195840);
  EXPECT_EQ(Bytes(ModelPart::kTokenEmbedding, DType::kQ8_0), 675430400);
  EXPECT_EQ(report().dense_resident_bytes, 5351626240);
  EXPECT_EQ(report().resident_bytes, 5351626240 + 59519795200);
  EXPECT_EQ(Bytes(ModelPart::kPleTable, DType::kIQ4_NL), 28800138240);
  EXPECT_EQ(report().bytes_per_token, 4676195840 + 1162496000);
  EXPECT_EQ(report().summary.bytes, 93671559680);
}

TEST_F(FlashNextTest, CacheBytesEqualTheComputedOnes) {
  EXPECT_EQ(report().cache.kv_per_token, 24576);
  EXPECT_EQ(report().cache.block_keys_per_token, 768);
  EXPECT_EQ(report().cache.delta_net_state, 117669888);
  EXPECT_EQ(report().cache.ple_state, 368640);
}

TEST_F(FlashNextTest, LayersDifferByKind) {
  const std::vector<model::LayerBytes>& layers = report().summary.layers;
  EXPECT_EQ(layers[0].dense_bytes, 87235456);
  EXPECT_EQ(layers[3].dense_bytes, 81011712);
  EXPECT_EQ(layers[0].bytes_per_expert, 1408000 + 921600);
  EXPECT_EQ(layers[2].bytes_per_expert, 1740800 + 1740800);
  EXPECT_EQ(layers[47].bytes_per_expert, 1408000 + 1740800);
}

TEST_F(FlashNextTest, ReportTakesLittleTime) {
  const auto start = std::chrono::steady_clock::now();
  const Inspected inspected(path_);
  const std::string text =
      InspectText({inspected.file, inspected.spec, inspected.report, nullptr, true, true});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_THAT(text, HasSubstr("59,519,795,200"));
  EXPECT_THAT(text, HasSubstr("4,676,195,840"));
  // Measured 0.15 s; reading any data would take minutes. Sanitizers are allowed their share.
  EXPECT_LT(seconds, 20);
}

TEST(InspectTest, BenchModelReadsMostlyItsDenseSide) {
  SynthOptions options = *SynthPreset("bench");
  options.sparse = true;
  const Inspected bench(WriteTestModel(options, "bench.gguf"));
  const model::ModelSummary& summary = bench.report.summary;
  EXPECT_NEAR(static_cast<double>(summary.bytes) / (1 << 30), 1.4, 0.05);  // GiB
  const double dense_share = static_cast<double>(summary.dense_bytes_per_token) /
                             static_cast<double>(bench.report.bytes_per_token);
  EXPECT_NEAR(dense_share, 0.79, 0.01);
}

TEST(InspectTest, JsonHasTheTotalsOfTheModel) {
  SynthOptions options;
  options.num_mtp_layers = 1;
  const Inspected tiny(WriteTestModel(options, "json.gguf"));
  const nlohmann::ordered_json json =
      InspectJson({tiny.file, tiny.spec, tiny.report, nullptr, true, true});
  EXPECT_EQ(json["file"]["version"], 3);
  EXPECT_EQ(json["model"]["architecture"], "qwen4exp");
  EXPECT_EQ(json["model"]["layers"], 4);
  EXPECT_EQ(json["model"]["attention_layers"], 1);
  EXPECT_EQ(json["model"]["draft_layers"], 1);
  EXPECT_EQ(json["tokenizer"]["tokens"], 512);
  EXPECT_EQ(json["tokenizer"]["unused_tokens"], 16);
  // gate, up and down of 32 times 64 values, F32.
  EXPECT_EQ(json["bytes"]["expert_typical"], 3 * 32 * 64 * 4);
  EXPECT_EQ(json["bytes"]["experts_per_token"], 4 * 4 * 3 * 32 * 64 * 4);
  EXPECT_EQ(json["bytes"]["kv_per_token_f16"], 2 * 2 * 32 * 2);
  int64_t tensor_bytes = 0;
  for (const auto& tensor : json["tensors"]) tensor_bytes += tensor["bytes"].get<int64_t>();
  EXPECT_EQ(json["bytes"]["tensors"], tensor_bytes);
  int64_t part_bytes = 0;
  for (const auto& part : json["parts"]) part_bytes += part["bytes"].get<int64_t>();
  EXPECT_EQ(part_bytes, tensor_bytes);
  EXPECT_EQ(json["layers"].size(), 4u);
  EXPECT_EQ(json["tensors"].size(), json["file"]["tensors"].get<size_t>());
  EXPECT_EQ(json["metadata"].size(), json["file"]["metadata_keys"].get<size_t>());
  EXPECT_FALSE(json.contains("verified"));
}

TEST(InspectTest, FixtureHasTheTotalsThatItsMakerCounted) {
  const Inspected mixed(std::string(SWITCHYARD_TEST_DATA) + "/qwen4exp/mixed.gguf");
  const nlohmann::ordered_json json = InspectJson({mixed.file, mixed.spec, mixed.report});
  EXPECT_EQ(json["model"]["layers"], 4);
  EXPECT_EQ(json["model"]["hidden_size"], 256);
  EXPECT_EQ(json["model"]["moe"]["experts"], 16);
  // gate and up: 32 rows of one IQ3_S block of 110 bytes; down: 256 rows of one IQ4_NL block.
  EXPECT_EQ(json["bytes"]["expert_typical"], 2 * 32 * 110 + 256 * 18);
  EXPECT_EQ(json["layers"][2]["bytes_per_expert"], 2 * 32 * 136 + 256 * 34);
}

// Counted with the Python package gguf.
TEST(InspectTest, DemoModelHasTheTotalsOfAnIndependentReader) {
  const Inspected demo(std::string(SWITCHYARD_SOURCE_DIR) + "/deploy/demo/switchyard-demo.gguf");
  const nlohmann::ordered_json json = InspectJson({demo.file, demo.spec, demo.report});
  EXPECT_EQ(json["file"]["bytes"], 11514176);
  EXPECT_EQ(json["file"]["tensors"], 246);
  EXPECT_EQ(json["file"]["metadata_keys"], 52);
  EXPECT_EQ(json["model"]["layers"], 8);
  EXPECT_EQ(json["model"]["draft_layers"], 1);
  EXPECT_EQ(json["tokenizer"]["unused_tokens"], 79);
  EXPECT_EQ(json["parameters"]["total"], 14644040);
  EXPECT_EQ(json["bytes"]["tensors"], 11435040);
  EXPECT_EQ(json["bytes"]["ple_table"], 1186560);
  EXPECT_EQ(json["bytes"]["dense_per_token"], 4987424);
  EXPECT_EQ(json["bytes"]["experts_per_token"], 429056);
  EXPECT_EQ(json["bytes"]["routed_experts"], 3432448);
  // All but the table and the draft block, which has 1271552 bytes.
  EXPECT_EQ(json["bytes"]["resident_without_table"], 11435040 - 1186560 - 1271552);
}

// ---- verify ----

TEST(VerifyTest, ListsWhatItHasChecked) {
  const Inspected tiny(WriteTestModel(SynthOptions(), "verify.gguf"));
  int64_t last_done = 0;
  int64_t last_total = -1;
  const auto steps = VerifyModel(tiny.file, tiny.spec, [&](int64_t done, int64_t total) {
    last_done = done;
    last_total = total;
    return absl::OkStatus();
  });
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(last_done, last_total);
  EXPECT_EQ(last_done, tiny.report.summary.bytes);
  std::vector<std::string> names;
  for (const VerifyStep& step : *steps) {
    names.push_back(step.name);
    EXPECT_FALSE(step.is_warning) << step.finding;
  }
  EXPECT_THAT(names, ::testing::ElementsAre("container", "model", "tokenizer", "chat template",
                                            "norm weights", "tensor data", "unchanged"));
}

TEST(VerifyTest, StopsWhenToldTo) {
  const Inspected tiny(WriteTestModel(SynthOptions(), "verify_stop.gguf"));
  const auto steps = VerifyModel(tiny.file, tiny.spec, [](int64_t done, int64_t) {
    return done > 0 ? absl::CancelledError("interrupted") : absl::OkStatus();
  });
  EXPECT_EQ(steps.status().code(), absl::StatusCode::kCancelled);
}

// Overwrites two bytes of a file.
void Patch(const std::string& path, uint64_t offset, uint16_t value) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(reinterpret_cast<const char*>(&value), sizeof(value));
}

TEST(VerifyTest, NamesTensorBlockAndOffsetOfAnInfiniteScale) {
  SynthOptions options = BlockSizedOptions();
  options.types = "mixed";
  const std::string path = WriteTestModel(options, "infinite.gguf");
  uint64_t offset = 0;
  {
    const Inspected before(path);
    const model::TensorInfo* tensor = before.file.FindTensor("blk.1.ffn_down_exps.weight");
    ASSERT_EQ(tensor->dtype, DType::kIQ4_NL);
    offset = tensor->offset + 1000 * 18;
  }
  Patch(path, offset, 0x7c00);
  const Inspected after(path);
  const auto steps = VerifyModel(after.file, after.spec, nullptr);
  EXPECT_EQ(steps.status().code(), absl::StatusCode::kDataLoss);
  const std::string message(steps.status().message());
  EXPECT_THAT(message, HasSubstr("blk.1.ffn_down_exps.weight, IQ4_NL block: 1000"));
  EXPECT_THAT(message, HasSubstr("offset: " + std::to_string(offset)));
}

TEST(VerifyTest, WarnsOfUnfoldedNorms) {
  SynthOptions options;
  options.sparse = true;  // all weights are zero, as are untrained norms without their 1
  const Inspected zero(WriteTestModel(options, "unfolded.gguf"));
  const auto steps = VerifyModel(zero.file, zero.spec, nullptr);
  ASSERT_TRUE(steps.ok());
  int num_warnings = 0;
  for (const VerifyStep& step : *steps) {
    if (!step.is_warning) continue;
    EXPECT_EQ(step.name, "norm weights");
    ++num_warnings;
  }
  EXPECT_EQ(num_warnings, 1);
}

}  // namespace
}  // namespace switchyard::app
