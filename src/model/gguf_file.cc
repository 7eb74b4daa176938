#include "model/gguf_file.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::model {
namespace {

constexpr std::string_view kSplitNumber = "split.no";
constexpr std::string_view kSplitCount = "split.count";
constexpr std::string_view kSplitTensors = "split.tensors.count";
constexpr uint64_t kMaxParts = 99999;  // five digits in the name

// A part's name: `<stem>-00002-of-00004.gguf`, counted from 1.
struct PartName {
  std::string stem;
  uint64_t number = 0;
  uint64_t count = 0;
};

std::string PartPath(const std::string& stem, uint64_t number, uint64_t count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", stem, number, count);
}

std::optional<uint64_t> FiveDigits(std::string_view text) {
  uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return value;
}

std::optional<PartName> ParsePartName(const std::string& path) {
  constexpr std::string_view kShape = "-00001-of-00001.gguf";
  if (path.size() < kShape.size()) return std::nullopt;
  const std::string_view tail = std::string_view(path).substr(path.size() - kShape.size());
  const auto number = FiveDigits(tail.substr(1, 5));
  const auto count = FiveDigits(tail.substr(10, 5));
  PartName name{path.substr(0, path.size() - kShape.size()), number.value_or(0), count.value_or(0)};
  if (PartPath(name.stem, name.number, name.count) != path) return std::nullopt;
  return name;
}

// The value of an integer key, `fallback` if it is absent.
absl::StatusOr<uint64_t> UintOr(const GgufMetadata& metadata, std::string_view key,
                                uint64_t fallback) {
  if (!metadata.Has(key)) return fallback;
  return metadata.GetUint(key);
}

// Errors if both files have this string and it differs.
absl::Status CheckSameString(const GgufMetadata& first, const GgufMetadata& other,
                             std::string_view key) {
  if (!first.Has(key) || !other.Has(key)) return absl::OkStatus();
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string_view wanted, first.GetString(key));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string_view got, other.GetString(key));
  if (wanted == got) return absl::OkStatus();
  return DataLoss("part belongs to another model: wanted: {}, got: {}, {}", Printable(wanted),
                  Printable(got), other.Where(*other.Find(key)));
}

absl::Status CheckSameCount(const GgufMetadata& part, std::string_view key, uint64_t wanted) {
  SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t got, part.GetUint(key));
  if (got == wanted) return absl::OkStatus();
  return DataLoss("part belongs to another model or has another number: wanted: {}, got: {}, {}",
                  wanted, got, part.Where(*part.Find(key)));
}

}  // namespace

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  GgufFile model;
  SWITCHYARD_RETURN_IF_ERROR(model.AddShard(path));
  SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t count, UintOr(model.metadata(), kSplitCount, 1));
  if (count > 1) {
    const std::string where = model.metadata().Where(*model.metadata().Find(kSplitCount));
    const std::optional<PartName> name = ParsePartName(path);
    if (count > kMaxParts || !name.has_value() || name->count != count || name->number < 1 ||
        name->number > count) {
      return DataLoss(
          "file is part of a model of {} parts, but its name is not "
          "<name>-NNNNN-of-{:05}.gguf: {}",
          count, count, where);
    }
    // The part in hand is opened again at its turn: its header is small.
    model = GgufFile();
    for (uint64_t number = 1; number <= count; ++number) {
      const absl::Status added = model.AddShard(PartPath(name->stem, number, count));
      if (absl::IsNotFound(added)) {
        return NotFound("part of the model is missing: {}", PartPath(name->stem, number, count));
      }
      SWITCHYARD_RETURN_IF_ERROR(added);
    }
    SWITCHYARD_RETURN_IF_ERROR(model.CheckSplit(count));
  }
  for (size_t i = 0; i < model.tensors_.size(); ++i) {
    const TensorInfo& tensor = model.tensors_[i];
    if (!model.index_.emplace(tensor.name, i).second) {
      return DataLoss("tensor is in two parts of the model: {}, file: {}, offset: {}",
                      Printable(tensor.name), model.path(tensor.shard), tensor.info_offset);
    }
  }
  return model;
}

absl::Status GgufFile::AddShard(const std::string& path) {
  SWITCHYARD_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  SWITCHYARD_ASSIGN_OR_RETURN(GgufHeader header, ParseGgufHeader(file, num_shards()));
  files_.push_back(std::move(file));
  // A file without tensors may end before the border that its data would begin at.
  const uint64_t header_bytes = std::min(header.data_offset, files_.back().bytes());
  shards_.push_back({header.version, std::move(header.metadata), header_bytes});
  for (TensorInfo& tensor : header.tensors) tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status GgufFile::CheckSplit(uint64_t count) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t num_tensors, metadata().GetUint(kSplitTensors));
  for (size_t i = 0; i < shards_.size(); ++i) {
    const GgufMetadata& part = shards_[i].metadata;
    SWITCHYARD_RETURN_IF_ERROR(CheckSameCount(part, kSplitNumber, i));
    SWITCHYARD_RETURN_IF_ERROR(CheckSameCount(part, kSplitCount, count));
    SWITCHYARD_RETURN_IF_ERROR(CheckSameCount(part, kSplitTensors, num_tensors));
    SWITCHYARD_RETURN_IF_ERROR(CheckSameString(metadata(), part, "general.architecture"));
    SWITCHYARD_RETURN_IF_ERROR(CheckSameString(metadata(), part, "general.name"));
  }
  if (tensors_.size() != num_tensors) {
    return DataLoss("parts of the model hold another number of tensors: wanted: {}, got: {}, {}",
                    num_tensors, tensors_.size(),
                    metadata().Where(*metadata().Find(kSplitTensors)));
  }
  return absl::OkStatus();
}

const TensorInfo* GgufFile::FindTensor(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

uint64_t GgufFile::total_bytes() const {
  uint64_t bytes = 0;
  for (const MappedFile& file : files_) bytes += file.bytes();
  return bytes;
}

absl::Status GgufFile::ReadHeader(int shard, uint64_t offset, absl::Span<std::byte> out) const {
  SWITCHYARD_CHECK(offset <= header_bytes(shard) && out.size() <= header_bytes(shard) - offset);
  return files_[static_cast<size_t>(shard)].ReadAt(offset, out);
}

TensorView GgufFile::View(const TensorInfo& tensor) const {
  const MappedFile& file = files_[static_cast<size_t>(tensor.shard)];
  return {file.data() + tensor.offset, tensor.dtype, tensor.dims[2] * tensor.dims[3],
          tensor.dims[1], tensor.dims[0]};
}

absl::Status GgufFile::Read(const TensorInfo& tensor, int64_t first_row, int64_t num_rows,
                            absl::Span<std::byte> out) const {
  const int64_t row_bytes = tensor.row_bytes();
  SWITCHYARD_CHECK(first_row >= 0 && num_rows >= 0 && first_row <= tensor.num_rows() - num_rows);
  SWITCHYARD_CHECK(out.size() == static_cast<size_t>(num_rows * row_bytes));
  return WithContext(files_[static_cast<size_t>(tensor.shard)].ReadAt(
                         tensor.offset + static_cast<uint64_t>(first_row * row_bytes), out),
                     tensor.name);
}

void GgufFile::Advise(const TensorInfo& tensor, MapAdvice advice) const {
  files_[static_cast<size_t>(tensor.shard)].Advise(tensor.offset,
                                                   static_cast<uint64_t>(tensor.bytes()), advice);
}

absl::Status GgufFile::CheckUnchanged() const {
  for (const MappedFile& file : files_) SWITCHYARD_RETURN_IF_ERROR(file.CheckUnchanged());
  return absl::OkStatus();
}

}  // namespace switchyard::model
