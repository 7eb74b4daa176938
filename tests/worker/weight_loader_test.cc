// Rows that lie in the file in another order than the stages take them.
#include "worker/weight_loader.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "testing/gguf_writer.h"
#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

using switchyard::testing::GgufContents;
using switchyard::testing::TestFilePath;

constexpr int64_t kKeyHeads = 2, kValueHeads = 6, kHeadDim = 16, kHidden = 64;
constexpr int64_t kRatio = kValueHeads / kKeyHeads;
constexpr size_t kRowBytes = kHidden * sizeof(float);

// The file with all its data.
GgufContents ReadWhole(const std::string& path) {
  GgufContents contents = GgufContents::FromFile(path);
  const absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  for (GgufContents::Tensor& tensor : contents.tensors) {
    const model::TensorInfo& info = *file->FindTensor(tensor.name);
    tensor.data.assign(reinterpret_cast<const char*>(file->View(info).data),
                       static_cast<size_t>(info.bytes()));
  }
  return contents;
}

std::string Rows(const GgufContents::Tensor& tensor, int64_t first, int64_t count) {
  return tensor.data.substr(static_cast<size_t>(first) * kRowBytes,
                            static_cast<size_t>(count) * kRowBytes);
}

// Replaces q, k, v and gate of a delta net by the one tensor that early files of this architecture
// have: for each key head its rows of all four.
void FuseInputs(GgufContents& contents, const std::string& prefix) {
  constexpr int64_t kKeys = kKeyHeads * kHeadDim, kValues = kRatio * kHeadDim;
  const GgufContents::Tensor qkv = contents.tensor(prefix + "attn_qkv.weight");
  const GgufContents::Tensor gate = contents.tensor(prefix + "attn_gate.weight");
  std::string data;
  for (int64_t head = 0; head < kKeyHeads; ++head) {
    data += Rows(qkv, head * kHeadDim, kHeadDim);
    data += Rows(qkv, kKeys + head * kHeadDim, kHeadDim);
    data += Rows(qkv, 2 * kKeys + head * kValues, kValues);
    data += Rows(gate, head * kValues, kValues);
  }
  contents.RemoveTensor(gate.name);
  GgufContents::Tensor& fused = contents.tensor(qkv.name);
  fused.name = prefix + "ssm_in.weight";
  fused.dims[1] = 2 * kKeys + 2 * kKeyHeads * kValues;
  fused.bytes = data.size();
  fused.data = data;
}

class WeightLoaderTest : public ::testing::TestWithParam<bool> {};

TEST_P(WeightLoaderTest, FusedInputProjectionsGiveTheSameBits) {
  GgufContents contents = ReadWhole(FixtureModel("qwen3next"));
  for (const int layer : {0, 1, 2, 4, 5, 6})
    FuseInputs(contents, "blk." + std::to_string(layer) + ".");
  const std::string path = TestFilePath("fused.gguf");
  contents.Write(path);

  const Device device{.reference = GetParam()};
  const std::vector<int32_t> tokens = ReadTokens(FixturePath("qwen3next.tokens.txt"));
  const auto size = static_cast<int64_t>(tokens.size());
  EngineHarness plain(FixtureModel("qwen3next"), device, TestOptions(size));
  EngineHarness fused(path, device, TestOptions(size));
  EXPECT_NE(fused.spec().layers[0].delta_net.qkv_gate, nullptr);
  EXPECT_EQ(fused.PrefillLogits(0, tokens), plain.PrefillLogits(0, tokens));
  const auto bytes = [](const model::ModelSpec& spec) {
    const auto single = placement::MakePlacement(spec, {});
    return LoadedFileBytes(spec, placement::ShareOf(spec, *single, 0));
  };
  EXPECT_EQ(bytes(fused.spec()), bytes(plain.spec()));
}

INSTANTIATE_TEST_SUITE_P(Backends, WeightLoaderTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Reference" : "Cpu"; });

}  // namespace
}  // namespace switchyard::worker
