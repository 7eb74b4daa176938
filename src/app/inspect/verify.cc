#include "app/inspect/verify.h"

#include <algorithm>
#include <cstddef>
#include <fmt/format.h>
#include <optional>
#include <utility>

#include "absl/types/span.h"

#include "app/inspect/block_check.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "kernels/quant/dequantize.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"
#include "model/tokenizer_data.h"

namespace switchyard::app {
namespace {

using model::GgufFile;
using model::ModelSpec;
using model::TensorInfo;

constexpr int64_t kPieceBytes = int64_t{4} << 20;

absl::Status CheckTensor(const GgufFile& file, const TensorInfo& tensor,
                         std::vector<std::byte>& buffer,
                         const std::function<absl::Status(int64_t)>& report) {
  const int64_t rows_per_piece = std::max<int64_t>(1, kPieceBytes / tensor.row_bytes());
  for (int64_t row = 0; row < tensor.num_rows(); row += rows_per_piece) {
    const int64_t num_rows = std::min(rows_per_piece, tensor.num_rows() - row);
    const int64_t bytes = num_rows * tensor.row_bytes();
    buffer.resize(static_cast<size_t>(bytes));
    SWITCHYARD_RETURN_IF_ERROR(file.Read(tensor, row, num_rows, absl::MakeSpan(buffer)));
    const std::optional<int64_t> bad = FindNonFiniteBlock(tensor.dtype, buffer);
    if (bad.has_value()) {
      const int64_t within = row * tensor.row_bytes() + *bad * Traits(tensor.dtype).block_bytes;
      return DataLoss("tensor holds infinity or NaN: {}, {} block: {}, file: {}, offset: {}",
                      tensor.name, Traits(tensor.dtype).name,
                      within / Traits(tensor.dtype).block_bytes, file.path(tensor.shard),
                      tensor.offset + static_cast<uint64_t>(within));
    }
    SWITCHYARD_RETURN_IF_ERROR(report(bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<VerifyStep> CheckData(const GgufFile& file, const VerifyProgress& progress) {
  int64_t total = 0;
  for (const TensorInfo& tensor : file.tensors()) total += tensor.bytes();
  int64_t done = 0;
  const auto report = [&](int64_t more) {
    done += more;
    return progress == nullptr ? absl::OkStatus() : progress(done, total);
  };
  std::vector<std::byte> buffer;
  SWITCHYARD_RETURN_IF_ERROR(report(0));
  for (const TensorInfo& tensor : file.tensors()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckTensor(file, tensor, buffer, report));
  }
  return VerifyStep{"tensor data",
                    fmt::format("all {} bytes of {} tensors read: block scales and float values "
                                "are finite",
                                done, file.tensors().size())};
}

absl::Status CheckTokenizer(const GgufFile& file, std::vector<VerifyStep>& steps) {
  SWITCHYARD_ASSIGN_OR_RETURN(const model::TokenizerData data,
                              model::ReadTokenizerData(file.metadata()));
  SWITCHYARD_ASSIGN_OR_RETURN(const model::Tokenizer tokenizer, model::Tokenizer::Create(data));
  // A text with letters, marks, digits, spaces, line ends and a character outside the first plane.
  constexpr std::string_view kProbe =
      "Hello, world 42!\n\n  na\u0131\u0308ve \u0e01\u0e33 \U0001f682";
  const std::vector<int32_t> ids = tokenizer.Encode(kProbe, model::SpecialMatching::kNone);
  if (tokenizer.Decode(ids, /*include_special=*/true) != kProbe) {
    return DataLoss("tokenizer does not give a text back, file: {}", file.path(0));
  }
  steps.push_back({"tokenizer", fmt::format("{} tokens, {} merges are consistent; a text survives "
                                            "encoding and decoding",
                                            data.tokens.size(), data.merges.size())});
  if (data.chat_template.empty()) {
    steps.push_back({"chat template", "the file has none: built-in ChatML is used", true});
    return absl::OkStatus();
  }
  const absl::StatusOr<model::ChatTemplate> chat_template =
      model::ChatTemplate::Parse(data.chat_template);
  if (chat_template.ok()) {
    steps.push_back({"chat template", fmt::format("{} bytes parsed", data.chat_template.size())});
  } else {
    steps.push_back({"chat template",
                     fmt::format("cannot be read, built-in ChatML is used: {}",
                                 Message(chat_template.status())),
                     true});
  }
  return absl::OkStatus();
}

// Norm weights in files have 1 added to what training left. Where that was forgotten, all
// activations vanish though every single value looks right.
absl::StatusOr<std::optional<VerifyStep>> CheckNormFold(const GgufFile& file,
                                                        const ModelSpec& spec) {
  const TensorInfo* norm = spec.layers.front().mixer.norm;
  if (norm == nullptr) return std::optional<VerifyStep>();
  std::vector<std::byte> bytes(static_cast<size_t>(norm->bytes()));
  SWITCHYARD_RETURN_IF_ERROR(file.Read(*norm, 0, norm->num_rows(), absl::MakeSpan(bytes)));
  std::vector<float> values(static_cast<size_t>(norm->num_elements()));
  kernels::DequantizeRow(norm->dtype, bytes.data(), norm->num_elements(), values.data());
  double sum = 0;
  for (const float value : values) sum += value;
  const double mean = sum / static_cast<double>(values.size());
  const bool is_suspicious = mean < 0.1 && mean > -0.1;
  return std::optional<VerifyStep>(VerifyStep{
      "norm weights",
      fmt::format("{} has the mean {:.3f}{}", norm->name, mean,
                  is_suspicious ? ": 1 may not have been added when the file was made" : ""),
      is_suspicious});
}

}  // namespace

absl::StatusOr<std::vector<VerifyStep>> VerifyModel(const GgufFile& file, const ModelSpec& spec,
                                                    const VerifyProgress& progress) {
  std::vector<VerifyStep> steps;
  steps.push_back(
      {"container", fmt::format("{} {}: lengths, types, alignment, bounds and overlaps of {} "
                                "metadata keys and {} tensors",
                                file.num_shards(), file.num_shards() == 1 ? "file" : "files",
                                file.metadata().entries().size(), file.tensors().size())});
  steps.push_back({"model", fmt::format("sizes of {} agree with each other and with the shapes of "
                                        "all tensors",
                                        spec.architecture)});
  SWITCHYARD_RETURN_IF_ERROR(CheckTokenizer(file, steps));
  SWITCHYARD_ASSIGN_OR_RETURN(std::optional<VerifyStep> norms, CheckNormFold(file, spec));
  if (norms.has_value()) steps.push_back(*std::move(norms));
  SWITCHYARD_ASSIGN_OR_RETURN(VerifyStep data, CheckData(file, progress));
  steps.push_back(std::move(data));
  SWITCHYARD_RETURN_IF_ERROR(file.CheckUnchanged());
  steps.push_back({"unchanged", "size and time of the files are as they were at the start"});
  return steps;
}

}  // namespace switchyard::app
