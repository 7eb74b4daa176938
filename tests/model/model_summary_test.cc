#include "model/model_summary.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

#include "base/status.h"
#include "model/full_size_model.h"
#include "model/gguf_file.h"
#include "testing/gguf_writer.h"

namespace switchyard::model {
namespace {

using switchyard::testing::TestFilePath;

// Expected bytes are hand-computed from the shapes: elements / block length * block bytes.
TEST(ModelSummaryTest, AddsUpTheFullSizeModel) {
  const std::string path = TestFilePath("full_size.gguf");
  FullSizeModel().Write(path);  // 94 GB of holes
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<ModelSpec> spec = LoadModelSpec(*file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const ModelSummary summary = Summarize(*spec);

  EXPECT_EQ(summary.num_tensors, 1224);
  EXPECT_EQ(summary.bytes, 93'671'559'680);
  EXPECT_EQ(summary.part(ModelPart::kRoutedExperts).bytes, 59'519'795'200);
  EXPECT_EQ(summary.typical_bytes_per_expert, 2'329'600);
  EXPECT_EQ(summary.min_bytes_per_expert, 2'329'600);
  EXPECT_EQ(summary.max_bytes_per_expert, 1'740'800 + 1'740'800);
  EXPECT_NEAR(summary.mean_bytes_per_expert, 2'421'867, 0.5);
  EXPECT_EQ(summary.expert_bytes_per_token, 1'162'496'000);
  EXPECT_EQ(summary.dense_bytes_per_token, 4'676'195'840);
  EXPECT_EQ(summary.part(ModelPart::kDeltaNet).bytes, 2'205'941'760 + 41'319'936);
  EXPECT_EQ(summary.part(ModelPart::kAttention).bytes + summary.part(ModelPart::kIndexer).bytes,
            635'043'840 + 39'358'464);
  EXPECT_EQ(summary.part(ModelPart::kMixers).bytes, 675'430'400 + 19'701'760);
  EXPECT_EQ(summary.part(ModelPart::kRouters).bytes, 252'149'760 - 48 * 2560 * 4);
  EXPECT_EQ(summary.part(ModelPart::kSharedExperts).bytes, 250'675'200 + 48 * 2560 * 4);
  EXPECT_EQ(summary.part(ModelPart::kPle).bytes, 35'102'720);
  EXPECT_EQ(summary.part(ModelPart::kOutput).bytes, 521'472'000);
  EXPECT_EQ(summary.part(ModelPart::kTokenEmbedding).bytes, 675'430'400);
  EXPECT_EQ(summary.part(ModelPart::kPleTable).bytes, 28'800'138'240);
  EXPECT_EQ(summary.part(ModelPart::kMtp).bytes, 0);
  EXPECT_EQ(summary.layers[0].dense_bytes, 87'235'456);
  EXPECT_EQ(summary.layers[1].dense_bytes, 87'235'456 + 35'102'720);
  EXPECT_EQ(summary.layers[3].dense_bytes, 81'011'712);
  EXPECT_EQ(summary.layers[47].bytes_per_expert, 1'408'000 + 1'740'800);

  // 640 columns are 20 blocks; 16 key heads; 24 query heads.
  const LayerSpec& linear = spec->layers[0];
  EXPECT_EQ(linear.down_shards.border, (std::array<int64_t, 5>{0, 160, 320, 480, 640}));
  EXPECT_EQ(linear.output_shards.border, (std::array<int64_t, 5>{0, 512, 1024, 1536, 2048}));
  EXPECT_EQ(linear.output_shards.num_strips, 3);
  EXPECT_EQ(spec->layers[3].output_shards.border,
            (std::array<int64_t, 5>{0, 1536, 3072, 4608, 6144}));
}

TEST(ModelSummaryTest, PartsTypesAndTensorsAddUp) {
  for (const char* path :
       {SWITCHYARD_SOURCE_DIR "/deploy/demo/switchyard-demo.gguf",
        SWITCHYARD_TEST_DATA "/qwen4exp/mixed.gguf", SWITCHYARD_TEST_DATA "/qwen4exp/mtp.gguf"}) {
    const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    const absl::StatusOr<ModelSpec> spec = LoadModelSpec(*file);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const ModelSummary summary = Summarize(*spec);
    int64_t bytes = 0;
    for (const TensorInfo& tensor : file->tensors()) bytes += tensor.bytes();
    EXPECT_EQ(summary.bytes, bytes);
    EXPECT_EQ(summary.num_tensors, static_cast<int64_t>(file->tensors().size()));
    int64_t part_bytes = 0;
    for (const PartBytes& part : summary.parts) {
      part_bytes += part.bytes;
      int64_t type_bytes = 0;
      for (const TypeBytes& type : part.types) type_bytes += type.bytes;
      EXPECT_EQ(type_bytes, part.bytes);
    }
    EXPECT_EQ(part_bytes, bytes);
    int64_t type_bytes = 0;
    for (const TypeBytes& type : summary.types) type_bytes += type.bytes;
    EXPECT_EQ(type_bytes, bytes);
    EXPECT_TRUE(
        std::is_sorted(summary.types.begin(), summary.types.end(),
                       [](const TypeBytes& a, const TypeBytes& b) { return a.bytes > b.bytes; }));
  }
}

}  // namespace
}  // namespace switchyard::model
