#include "model/gguf_header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/types/span.h"

#include "base/check.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::model {
namespace {

constexpr uint64_t kFirstRead = 64 * 1024;
// Real headers, vocabulary included, take about 11 MB. Without a limit, an array that spans a whole
// model file would be read into memory.
constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxKeyBytes = 64 * 1024;
constexpr uint64_t kMaxTensorNameBytes = 63;
constexpr uint64_t kMinAlignment = 8;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
constexpr uint32_t kMaxDims = 4;
// Smallest entries: key length, one byte of key, type, one byte of value; and name length, one byte
// of name, number of dimensions, one dimension, type, offset.
constexpr uint64_t kMinKeyEntryBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorEntryBytes = 8 + 1 + 4 + 8 + 4 + 8;

bool IsUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xc2 ? 0
                          : lead < 0xe0 ? 2
                          : lead < 0xf0 ? 3
                          : lead < 0xf5 ? 4
                                        : 0;
    if (length == 0 || text.size() - i < length) return false;
    uint32_t code = length == 1 ? lead : lead & (0x7fu >> length);
    for (size_t j = 1; j < length; ++j) {
      const auto next = static_cast<unsigned char>(text[i + j]);
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (next & 0x3f);
    }
    // Overlong forms of three and four bytes, surrogates, beyond the last code point.
    if ((length == 3 && code < 0x800) || (length == 4 && code < 0x10000)) return false;
    if ((code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff) return false;
    i += length;
  }
  return true;
}

// Reads a file from front to back; keeps all that it has read.
class Cursor {
 public:
  explicit Cursor(const MappedFile& file) : file_(file) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return file_.bytes() - position_; }
  std::string_view path() const { return file_.path(); }

  // Makes the next `bytes` available. `what` names them in the error.
  absl::Status Need(uint64_t bytes, std::string_view what) {
    if (bytes > left()) {
      return DataLoss("file is truncated: {}, wanted bytes: {}, left: {}, file: {}, offset: {}",
                      what, bytes, left(), path(), position_);
    }
    const uint64_t end = position_ + bytes;
    if (end <= buffer_.size()) return absl::OkStatus();
    if (end > kMaxHeaderBytes) {
      return DataLoss("header is larger than {} bytes: {}, file: {}, offset: {}", kMaxHeaderBytes,
                      what, path(), position_);
    }
    const uint64_t old_size = buffer_.size();
    const uint64_t size = std::min(std::max({end, 2 * old_size, kFirstRead}),
                                   std::min(file_.bytes(), kMaxHeaderBytes));
    buffer_.resize(size);
    return file_.ReadAt(old_size, absl::MakeSpan(buffer_).subspan(old_size));
  }

  template <typename T>
  absl::StatusOr<T> Read(std::string_view what) {
    SWITCHYARD_RETURN_IF_ERROR(Need(sizeof(T), what));
    position_ += sizeof(T);
    return Load<T>(position_ - sizeof(T));
  }

  // The value at `offset`. REQUIRES: it was read before.
  template <typename T>
  T Load(uint64_t offset) const {
    SWITCHYARD_DCHECK(offset + sizeof(T) <= position_);
    T value;
    std::memcpy(&value, buffer_.data() + offset, sizeof(T));
    return value;
  }

  // Passes over `bytes`, which must be there.
  absl::Status Skip(uint64_t bytes, std::string_view what) {
    SWITCHYARD_RETURN_IF_ERROR(Need(bytes, what));
    position_ += bytes;
    return absl::OkStatus();
  }

  // Reads a string of at most `max_bytes`. The view is valid until the next call.
  absl::StatusOr<std::string_view> ReadString(std::string_view what, uint64_t max_bytes) {
    const uint64_t start = position_;
    SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>(what));
    if (length > max_bytes) {
      return DataLoss("string is too long: {}, bytes: {}, allowed: {}, file: {}, offset: {}", what,
                      length, max_bytes, path(), start);
    }
    SWITCHYARD_RETURN_IF_ERROR(Need(length, what));
    const std::string_view text(reinterpret_cast<const char*>(buffer_.data()) + position_, length);
    position_ += length;
    return text;
  }

  // Gives up all that was read so far, up to the position.
  std::vector<std::byte> Take() {
    buffer_.resize(std::min<uint64_t>(position_, buffer_.size()));
    buffer_.shrink_to_fit();
    return std::move(buffer_);
  }

 private:
  const MappedFile& file_;
  std::vector<std::byte> buffer_;
  uint64_t position_ = 0;
};

absl::StatusOr<GgufType> ReadType(Cursor& cursor, std::string_view key) {
  const uint64_t start = cursor.position();
  SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t id, cursor.Read<uint32_t>("value type"));
  if (id > static_cast<uint32_t>(GgufType::kFloat64)) {
    return DataLoss("metadata value type is unknown: {}, key: {}, file: {}, offset: {}", id,
                    Printable(key), cursor.path(), start);
  }
  return static_cast<GgufType>(id);
}

// Passes over the elements of `entry`, checking that all are there.
absl::Status SkipElements(Cursor& cursor, const MetadataEntry& entry) {
  if (entry.element_type != GgufType::kString) {
    const auto element_bytes = static_cast<uint64_t>(FixedBytes(entry.element_type));
    if (entry.count > cursor.left() / element_bytes) {
      return DataLoss(
          "metadata value ends beyond the file: elements: {}, key: {}, file: {}, "
          "offset: {}",
          entry.count, Printable(entry.key), cursor.path(), entry.offset);
    }
    return cursor.Skip(entry.count * element_bytes, entry.key);
  }
  if (entry.count > cursor.left() / sizeof(uint64_t)) {
    return DataLoss(
        "metadata value ends beyond the file: strings: {}, key: {}, file: {}, "
        "offset: {}",
        entry.count, Printable(entry.key), cursor.path(), entry.offset);
  }
  for (uint64_t i = 0; i < entry.count; ++i) {
    const uint64_t start = cursor.position();
    SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t length, cursor.Read<uint64_t>(entry.key));
    if (length > cursor.left()) {
      return DataLoss("string ends beyond the file: bytes: {}, key: {}, file: {}, offset: {}",
                      length, Printable(entry.key), cursor.path(), start);
    }
    SWITCHYARD_RETURN_IF_ERROR(cursor.Skip(length, entry.key));
  }
  return absl::OkStatus();
}

absl::StatusOr<MetadataEntry> ReadMetadataEntry(Cursor& cursor) {
  MetadataEntry entry;
  const uint64_t start = cursor.position();
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string_view key,
                              cursor.ReadString("metadata key", kMaxKeyBytes));
  if (key.empty()) {
    return DataLoss("metadata key is empty: file: {}, offset: {}", cursor.path(), start);
  }
  if (!IsUtf8(key)) {
    return DataLoss("metadata key is not UTF-8: {}, file: {}, offset: {}", Printable(key),
                    cursor.path(), start);
  }
  entry.key = std::string(key);
  SWITCHYARD_ASSIGN_OR_RETURN(entry.type, ReadType(cursor, entry.key));
  entry.element_type = entry.type;
  if (entry.type == GgufType::kArray) {
    SWITCHYARD_ASSIGN_OR_RETURN(entry.element_type, ReadType(cursor, entry.key));
    if (entry.element_type == GgufType::kArray) {
      return DataLoss("metadata value is an array of arrays: key: {}, file: {}, offset: {}",
                      Printable(entry.key), cursor.path(), cursor.position() - sizeof(uint32_t));
    }
    SWITCHYARD_ASSIGN_OR_RETURN(entry.count, cursor.Read<uint64_t>(entry.key));
  }
  entry.offset = cursor.position();
  SWITCHYARD_RETURN_IF_ERROR(SkipElements(cursor, entry));
  return entry;
}

// Reads the dimensions and the type, and checks that the size in bytes can be computed.
absl::Status ReadShape(Cursor& cursor, TensorInfo& tensor) {
  const auto where = [&] {
    return fmt::format("tensor: {}, file: {}, offset: {}", Printable(tensor.name), cursor.path(),
                       tensor.info_offset);
  };
  SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t num_dims, cursor.Read<uint32_t>(tensor.name));
  if (num_dims < 1 || num_dims > kMaxDims) {
    return DataLoss("tensor has an invalid number of dimensions: {}, {}", num_dims, where());
  }
  tensor.num_dims = static_cast<int>(num_dims);
  int64_t num_elements = 1;
  for (uint32_t i = 0; i < num_dims; ++i) {
    SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t dim, cursor.Read<uint64_t>(tensor.name));
    if (dim == 0 || dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return DataLoss("tensor has an invalid dimension: {}, {}", static_cast<int64_t>(dim),
                      where());
    }
    tensor.dims[i] = static_cast<int64_t>(dim);
    if (__builtin_mul_overflow(num_elements, tensor.dims[i], &num_elements)) {
      return DataLoss("tensor has too many elements: {}, {}", DimsText(tensor), where());
    }
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t type_id, cursor.Read<uint32_t>(tensor.name));
  const std::optional<DType> dtype = DTypeFromGgufId(type_id);
  if (!dtype.has_value()) {
    return InvalidArgument("tensor type is unknown or not supported: {}, {}", type_id, where());
  }
  tensor.dtype = *dtype;
  const DTypeTraits& traits = Traits(*dtype);
  if (tensor.dims[0] % traits.block_length != 0) {
    return DataLoss("tensor row is not a whole number of blocks: elements: {}, block: {} ({}), {}",
                    tensor.dims[0], traits.block_length, traits.name, where());
  }
  int64_t bytes;
  if (__builtin_mul_overflow(num_elements / traits.block_length, int64_t{traits.block_bytes},
                             &bytes)) {
    return DataLoss("tensor has too many bytes: {} of {}, {}", DimsText(tensor), traits.name,
                    where());
  }
  return absl::OkStatus();
}

// Reads one entry of the tensor table; `offset` is relative to the data section until later.
absl::StatusOr<TensorInfo> ReadTensorEntry(Cursor& cursor, uint64_t alignment) {
  TensorInfo tensor;
  tensor.info_offset = cursor.position();
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string_view name,
                              cursor.ReadString("tensor name", kMaxTensorNameBytes));
  if (name.empty() || name.find('\0') != std::string_view::npos || !IsUtf8(name)) {
    return DataLoss("tensor name is empty or not text: \"{}\", file: {}, offset: {}",
                    Printable(name), cursor.path(), tensor.info_offset);
  }
  tensor.name = std::string(name);
  SWITCHYARD_RETURN_IF_ERROR(ReadShape(cursor, tensor));
  SWITCHYARD_ASSIGN_OR_RETURN(tensor.offset, cursor.Read<uint64_t>(tensor.name));
  if (tensor.offset % alignment != 0) {
    return DataLoss(
        "tensor data is not aligned: {}, alignment: {}, tensor: {}, file: {}, "
        "offset: {}",
        tensor.offset, alignment, Printable(tensor.name), cursor.path(), tensor.info_offset);
  }
  return tensor;
}

absl::StatusOr<uint64_t> ReadAlignment(const Cursor& cursor, const MetadataEntry& entry) {
  // The type comes first: another type may hold fewer bytes than are read.
  if (entry.type != GgufType::kUint32) {
    return DataLoss(
        "metadata value has the wrong type: wanted: u32, got: {}, key: {}, file: {}, "
        "offset: {}",
        Name(entry.type), entry.key, cursor.path(), entry.offset);
  }
  const auto value = cursor.Load<uint32_t>(entry.offset);
  if (value < kMinAlignment || value > kMaxAlignment || (value & (value - 1)) != 0) {
    return DataLoss(
        "alignment is not a power of two from {} to {}: {}, key: {}, file: {}, "
        "offset: {}",
        kMinAlignment, kMaxAlignment, value, entry.key, cursor.path(), entry.offset);
  }
  return value;
}

// Makes offsets absolute and checks that all tensors are in the file and none overlaps another.
absl::Status PlaceTensors(const MappedFile& file, GgufHeader& header) {
  for (TensorInfo& tensor : header.tensors) {
    const uint64_t left = file.bytes() > header.data_offset ? file.bytes() - header.data_offset : 0;
    const auto bytes = static_cast<uint64_t>(tensor.bytes());
    if (tensor.offset > left || bytes > left - tensor.offset) {
      return DataLoss(
          "tensor is truncated, its data end beyond the file: {}, wanted bytes: {} at "
          "{}, file: {}, bytes in file: {}, offset: {}",
          Printable(tensor.name), bytes, tensor.offset, file.path(), file.bytes(),
          tensor.info_offset);
    }
    tensor.offset += header.data_offset;
  }
  std::vector<const TensorInfo*> order;
  order.reserve(header.tensors.size());
  for (const TensorInfo& tensor : header.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& before = *order[i - 1];
    if (before.offset + static_cast<uint64_t>(before.bytes()) > order[i]->offset) {
      return DataLoss("tensors overlap: {} and {}, file: {}, offset: {}", Printable(before.name),
                      Printable(order[i]->name), file.path(), order[i]->info_offset);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCount(const Cursor& cursor, std::string_view what, uint64_t count,
                        uint64_t min_bytes, uint64_t offset) {
  if (count <= cursor.left() / min_bytes) return absl::OkStatus();
  return DataLoss("{} count is larger than the file can hold: {}, file: {}, offset: {}", what,
                  count, cursor.path(), offset);
}

}  // namespace

std::string DimsText(const TensorInfo& tensor) {
  std::string text = "{";
  for (int i = 0; i < tensor.num_dims; ++i) {
    text += fmt::format("{}{}", i > 0 ? ", " : "", tensor.dims[static_cast<size_t>(i)]);
  }
  return text + "}";
}

absl::StatusOr<GgufHeader> ParseGgufHeader(const MappedFile& file, int shard) {
  Cursor cursor(file);
  GgufHeader header;
  SWITCHYARD_ASSIGN_OR_RETURN(const auto magic, cursor.Read<uint32_t>("magic"));
  if (magic != 0x46554747u) {  // "GGUF"
    return DataLoss("file is not a GGUF file, its first bytes are wrong: file: {}, offset: 0",
                    file.path());
  }
  SWITCHYARD_ASSIGN_OR_RETURN(header.version, cursor.Read<uint32_t>("version"));
  if (header.version != 2 && header.version != 3) {
    const bool swapped = (header.version & 0xffffu) == 0;
    return InvalidArgument(
        "GGUF version is not supported{}: {}, supported: 2, 3, file: {}, "
        "offset: 4",
        swapped ? " (big-endian file)" : "", header.version, file.path());
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const auto num_tensors, cursor.Read<uint64_t>("tensor count"));
  SWITCHYARD_ASSIGN_OR_RETURN(const auto num_entries, cursor.Read<uint64_t>("metadata count"));
  SWITCHYARD_RETURN_IF_ERROR(CheckCount(cursor, "metadata", num_entries, kMinKeyEntryBytes, 16));
  SWITCHYARD_RETURN_IF_ERROR(CheckCount(cursor, "tensor", num_tensors, kMinTensorEntryBytes, 8));

  std::vector<MetadataEntry> entries;
  std::set<std::string> keys;
  for (uint64_t i = 0; i < num_entries; ++i) {
    const uint64_t start = cursor.position();
    SWITCHYARD_ASSIGN_OR_RETURN(MetadataEntry entry, ReadMetadataEntry(cursor));
    if (!keys.insert(entry.key).second) {
      return DataLoss("metadata key appears twice: {}, file: {}, offset: {}", Printable(entry.key),
                      file.path(), start);
    }
    if (entry.key == "general.alignment") {
      SWITCHYARD_ASSIGN_OR_RETURN(header.alignment, ReadAlignment(cursor, entry));
    }
    entries.push_back(std::move(entry));
  }

  SWITCHYARD_RETURN_IF_ERROR(CheckCount(cursor, "tensor", num_tensors, kMinTensorEntryBytes, 8));
  std::set<std::string> names;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    SWITCHYARD_ASSIGN_OR_RETURN(TensorInfo tensor, ReadTensorEntry(cursor, header.alignment));
    tensor.shard = shard;
    if (!names.insert(tensor.name).second) {
      return DataLoss("tensor name appears twice: {}, file: {}, offset: {}", Printable(tensor.name),
                      file.path(), tensor.info_offset);
    }
    header.tensors.push_back(std::move(tensor));
  }
  header.data_offset =
      (cursor.position() + header.alignment - 1) / header.alignment * header.alignment;
  SWITCHYARD_RETURN_IF_ERROR(PlaceTensors(file, header));
  header.metadata = GgufMetadata(file.path(), cursor.Take(), std::move(entries));
  return header;
}

}  // namespace switchyard::model
