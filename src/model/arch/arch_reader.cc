#include "model/arch/arch_reader.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace switchyard::model {
namespace {

// Errors of a reading function as errors of the model: a missing key is not a missing file.
absl::Status AsInvalid(const absl::Status& status) {
  return absl::Status(absl::StatusCode::kInvalidArgument, status.message());
}

std::string WantedDims(std::initializer_list<int64_t> dims) {
  TensorInfo wanted;
  for (const int64_t dim : dims) wanted.dims[static_cast<size_t>(wanted.num_dims++)] = dim;
  return DimsText(wanted);
}

bool HasDims(const TensorInfo& tensor, std::initializer_list<int64_t> dims) {
  std::array<int64_t, 4> wanted = {1, 1, 1, 1};
  size_t i = 0;
  for (const int64_t dim : dims) wanted[i++] = dim;
  return tensor.dims == wanted;
}

}  // namespace

void ArchReader::Fail(absl::Status status) {
  if (ok()) status_ = AsInvalid(status);
}

void ArchReader::FailKey(std::string_view key, std::string_view what) {
  const std::string name = prefix_ + std::string(key);
  const MetadataEntry* entry = file_.metadata().Find(name);
  Fail(InvalidArgument("{}, {}", what,
                       entry != nullptr
                           ? file_.metadata().Where(*entry)
                           : fmt::format("key: {}, file: {}", name, file_.metadata().path())));
}

int64_t ArchReader::Integer(std::string_view key, int64_t min, int64_t max) {
  const absl::StatusOr<uint64_t> value = file_.metadata().GetUint(prefix_ + std::string(key));
  if (!value.ok()) {
    Fail(value.status());
    return min;
  }
  if (*value < static_cast<uint64_t>(min) || *value > static_cast<uint64_t>(max)) {
    FailKey(key,
            fmt::format("metadata value is out of range: {}, allowed: {} to {}", *value, min, max));
    return min;
  }
  return static_cast<int64_t>(*value);
}

int ArchReader::Size(std::string_view key, int min, int max) {
  return static_cast<int>(Integer(key, min, max));
}

int ArchReader::SizeOr(std::string_view key, int fallback, int min, int max) {
  return Has(key) ? Size(key, min, max) : fallback;
}

float ArchReader::PositiveFloat(std::string_view key) {
  const absl::StatusOr<double> value = file_.metadata().GetFloat(prefix_ + std::string(key));
  if (!value.ok()) {
    Fail(value.status());
    return 1;
  }
  const auto number = static_cast<float>(*value);
  if (!std::isfinite(number) || number <= 0) {
    FailKey(key, fmt::format("metadata value is not a positive number: {}", *value));
    return 1;
  }
  return number;
}

std::string_view ArchReader::Text(std::string_view key) {
  const absl::StatusOr<std::string_view> text =
      file_.metadata().GetString(prefix_ + std::string(key));
  if (!text.ok()) Fail(text.status());
  return text.ok() ? *text : std::string_view();
}

std::vector<uint64_t> ArchReader::Integers(std::string_view key, size_t min_count) {
  absl::StatusOr<std::vector<uint64_t>> values =
      file_.metadata().GetUints(prefix_ + std::string(key));
  if (!values.ok()) {
    Fail(values.status());
    return std::vector<uint64_t>(min_count);
  }
  if (values->size() < min_count) {
    FailKey(key, fmt::format("metadata array is too short: {} elements, wanted: {}", values->size(),
                             min_count));
    return std::vector<uint64_t>(min_count);
  }
  return *std::move(values);
}

std::vector<int> ArchReader::SizePerBlock(std::string_view key, int num_blocks, int min, int max) {
  const auto count = static_cast<size_t>(num_blocks);
  std::vector<int> sizes(count, min);
  const std::vector<uint64_t> values = Integers(key, 0);
  if (!ok()) return sizes;
  if (values.size() != count) {
    FailKey(key, fmt::format("metadata array has {} elements, wanted one per block: {}",
                             values.size(), num_blocks));
    return sizes;
  }
  for (size_t i = 0; i < count; ++i) {
    if (values[i] < static_cast<uint64_t>(min) || values[i] > static_cast<uint64_t>(max)) {
      FailKey(key, fmt::format("metadata value is out of range: element {}: {}, allowed: {} to {}",
                               i, values[i], min, max));
      return sizes;
    }
    sizes[i] = static_cast<int>(values[i]);
  }
  return sizes;
}

std::vector<int> ArchReader::SizeOrSizePerBlock(std::string_view key, int num_blocks, int min,
                                                int max) {
  const MetadataEntry* entry = file_.metadata().Find(prefix_ + std::string(key));
  if (entry != nullptr && entry->type == GgufType::kArray) {
    return SizePerBlock(key, num_blocks, min, max);
  }
  return std::vector<int>(static_cast<size_t>(num_blocks), Size(key, min, max));
}

std::vector<bool> ArchReader::BoolOrBoolPerBlock(std::string_view key, int num_blocks) {
  const auto count = static_cast<size_t>(num_blocks);
  const std::string name = prefix_ + std::string(key);
  const MetadataEntry* entry = file_.metadata().Find(name);
  if (entry != nullptr && entry->type != GgufType::kArray) {
    const absl::StatusOr<bool> value = file_.metadata().GetBool(name);
    if (!value.ok()) Fail(value.status());
    return std::vector<bool>(count, value.ok() && *value);
  }
  absl::StatusOr<std::vector<bool>> values = file_.metadata().GetBools(name);
  if (!values.ok()) {
    Fail(values.status());
    return std::vector<bool>(count);
  }
  if (values->size() != count) {
    FailKey(key, fmt::format("metadata array has {} elements, wanted one per block: {}",
                             values->size(), num_blocks));
    return std::vector<bool>(count);
  }
  return *std::move(values);
}

std::string ArchReader::TensorWhere(const TensorInfo& tensor) const {
  return fmt::format("file: {}, offset: {}", file_.path(tensor.shard), tensor.info_offset);
}

TensorRef ArchReader::OptionalTensor(const std::string& name, std::initializer_list<int64_t> dims) {
  const TensorInfo* tensor = file_.FindTensor(name);
  if (tensor == nullptr) return nullptr;
  if (!HasDims(*tensor, dims)) {
    Fail(InvalidArgument("tensor shape disagrees with the metadata: {}, wanted: {}, got: {}, {}",
                         name, WantedDims(dims), DimsText(*tensor), TensorWhere(*tensor)));
    return nullptr;
  }
  is_used_[static_cast<size_t>(tensor - file_.tensors().data())] = true;
  return tensor;
}

TensorRef ArchReader::Tensor(const std::string& name, std::initializer_list<int64_t> dims) {
  if (file_.FindTensor(name) == nullptr) {
    Fail(InvalidArgument("tensor is missing: {}, file: {}", name, file_.metadata().path()));
    return nullptr;
  }
  return OptionalTensor(name, dims);
}

int64_t ArchReader::MatrixRows(const std::string& name, int64_t row_elements) {
  const TensorInfo* tensor = file_.FindTensor(name);
  const int64_t rows = tensor == nullptr ? 1 : tensor->dims[1];
  Tensor(name, {row_elements, rows});
  if (rows <= std::numeric_limits<int32_t>::max()) return rows;
  Fail(InvalidArgument("tensor has too many rows: {}, rows: {}, {}", name, rows,
                       TensorWhere(*tensor)));
  return 1;
}

std::vector<TensorRef> ArchReader::TensorsWithPrefix(std::string_view prefix) {
  std::vector<TensorRef> found;
  for (size_t i = 0; i < file_.tensors().size(); ++i) {
    if (file_.tensors()[i].name.compare(0, prefix.size(), prefix) != 0) continue;
    is_used_[i] = true;
    found.push_back(&file_.tensors()[i]);
  }
  return found;
}

void ArchReader::CheckAllTensorsUsed() {
  for (size_t i = 0; i < file_.tensors().size(); ++i) {
    const TensorInfo& tensor = file_.tensors()[i];
    const bool is_vision = tensor.name.rfind("v.", 0) == 0 || tensor.name.rfind("mm.", 0) == 0;
    if (is_used_[i] || is_vision) continue;
    Fail(InvalidArgument("tensor is not part of this architecture: {}, {}", Printable(tensor.name),
                         TensorWhere(tensor)));
    return;
  }
}

ColumnShards DownShards(const TensorInfo& down) {
  const int64_t block = Traits(down.dtype).block_length;
  return CutIntoShards(down.row_elements() / block, block);
}

ColumnShards AttentionOutputShards(const TensorInfo& output, int num_heads, int head_dim) {
  const int64_t block = Traits(output.dtype).block_length;
  // Rows are whole blocks, so this group divides the number of heads.
  const int64_t group = block / std::gcd(block, int64_t{head_dim});
  SWITCHYARD_CHECK(num_heads % group == 0);
  return CutIntoShards(num_heads / group, group * head_dim);
}

ColumnShards DeltaNetOutputShards(const TensorInfo& output, const DeltaNetSpec& spec) {
  const int64_t block = Traits(output.dtype).block_length;
  const int ratio = spec.num_value_heads / spec.num_key_heads;
  // Grouped: the value heads of a key head are adjacent. Tiled: each of `ratio` strips holds one
  // value head of every key head, and the cut goes through all strips alike.
  const bool tiled = spec.value_head_order == ValueHeadOrder::kTiled;
  const int num_strips = tiled ? ratio : 1;
  const int64_t head_columns = tiled ? spec.head_dim : int64_t{spec.head_dim} * ratio;
  const int64_t group = block / std::gcd(block, head_columns);
  // Strips that are no whole blocks, or too many, cannot be summed one by one: a single unit.
  if (spec.num_key_heads % group != 0 || num_strips > kMaxShardStrips) {
    return CutIntoShards(1, output.row_elements());
  }
  return CutIntoShards(spec.num_key_heads / group, group * head_columns, num_strips);
}

}  // namespace switchyard::model
