#include "model/gguf_metadata.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::model {
namespace {

struct TypeTraits {
  std::string_view name;
  int bytes;
};

constexpr TypeTraits kTypes[] = {
    {"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
    {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8},
};

constexpr std::string_view kAnyInteger = "integer";

bool IsInteger(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kUint16:
    case GgufType::kInt16:
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kUint64:
    case GgufType::kInt64:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string_view Name(GgufType type) {
  const auto id = static_cast<size_t>(type);
  SWITCHYARD_CHECK(id < std::size(kTypes));
  return kTypes[id].name;
}

int FixedBytes(GgufType type) {
  const auto id = static_cast<size_t>(type);
  SWITCHYARD_CHECK(id < std::size(kTypes));
  return kTypes[id].bytes;
}

std::string Printable(std::string_view text) {
  constexpr size_t kMaxShown = 80;
  std::string shown;
  for (const char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += c;
    } else {
      shown += fmt::format("\\x{:02x}", byte);
    }
  }
  if (text.size() > kMaxShown) shown += fmt::format("... ({} bytes)", text.size());
  return shown;
}

GgufMetadata::GgufMetadata(std::string path, std::vector<std::byte> header,
                           std::vector<MetadataEntry> entries)
    : path_(std::move(path)), header_(std::move(header)), entries_(std::move(entries)) {
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].key, i);
}

const MetadataEntry* GgufMetadata::Find(std::string_view key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &entries_[it->second];
}

std::string GgufMetadata::Where(const MetadataEntry& entry) const {
  return fmt::format("key: {}, file: {}, offset: {}", Printable(entry.key), path_, entry.offset);
}

absl::Status GgufMetadata::WrongType(const MetadataEntry& entry, std::string_view wanted) const {
  std::string got(Name(entry.type));
  if (entry.type == GgufType::kArray) got += fmt::format(" of {}", Name(entry.element_type));
  return InvalidArgument("metadata value has the wrong type: wanted: {}, got: {}, {}", wanted, got,
                         Where(entry));
}

absl::StatusOr<const MetadataEntry*> GgufMetadata::Require(std::string_view key, bool array,
                                                           std::string_view wanted) const {
  const MetadataEntry* entry = Find(key);
  if (entry == nullptr) return NotFound("metadata key is missing: {}, file: {}", key, path_);
  if ((entry->type == GgufType::kArray) != array) {
    return WrongType(*entry, array ? fmt::format("array of {}", wanted) : std::string(wanted));
  }
  return entry;
}

template <typename T>
T GgufMetadata::Load(uint64_t offset) const {
  SWITCHYARD_DCHECK(offset + sizeof(T) <= header_.size());
  T value;
  std::memcpy(&value, header_.data() + offset, sizeof(T));
  return value;
}

absl::StatusOr<int64_t> GgufMetadata::IntAt(const MetadataEntry& entry, uint64_t index) const {
  const GgufType type = entry.element_type;
  if (!IsInteger(type)) return WrongType(entry, kAnyInteger);
  const uint64_t offset = entry.offset + index * static_cast<uint64_t>(FixedBytes(type));
  switch (type) {
    case GgufType::kUint8:
      return Load<uint8_t>(offset);
    case GgufType::kInt8:
      return Load<int8_t>(offset);
    case GgufType::kUint16:
      return Load<uint16_t>(offset);
    case GgufType::kInt16:
      return Load<int16_t>(offset);
    case GgufType::kUint32:
      return Load<uint32_t>(offset);
    case GgufType::kInt32:
      return Load<int32_t>(offset);
    case GgufType::kInt64:
      return Load<int64_t>(offset);
    default:
      break;
  }
  const auto value = Load<uint64_t>(offset);
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return InvalidArgument("metadata value is too large: {}, {}", value, Where(entry));
  }
  return static_cast<int64_t>(value);
}

absl::StatusOr<uint64_t> GgufMetadata::UintAt(const MetadataEntry& entry, uint64_t index) const {
  if (entry.element_type == GgufType::kUint64) {
    return Load<uint64_t>(entry.offset + index * sizeof(uint64_t));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t value, IntAt(entry, index));
  if (value < 0) {
    return InvalidArgument("metadata value is negative: {}, {}", value, Where(entry));
  }
  return static_cast<uint64_t>(value);
}

absl::StatusOr<bool> GgufMetadata::BoolAt(const MetadataEntry& entry, uint64_t index) const {
  if (entry.element_type != GgufType::kBool) return WrongType(entry, "bool");
  const auto value = Load<uint8_t>(entry.offset + index);
  if (value > 1) {
    return InvalidArgument("metadata value is not a truth value: {}, {}", value, Where(entry));
  }
  return value == 1;
}

std::string_view GgufMetadata::StringAt(uint64_t* offset) const {
  const auto length = Load<uint64_t>(*offset);
  const auto* text = reinterpret_cast<const char*>(header_.data()) + *offset + sizeof(uint64_t);
  *offset += sizeof(uint64_t) + length;
  return {text, length};
}

absl::StatusOr<uint64_t> GgufMetadata::GetUint(std::string_view key) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key, false, kAnyInteger));
  return UintAt(*entry, 0);
}

absl::StatusOr<double> GgufMetadata::GetFloat(std::string_view key) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key, false, "f32"));
  if (entry->type == GgufType::kFloat32) return Load<float>(entry->offset);
  if (entry->type == GgufType::kFloat64) return Load<double>(entry->offset);
  return WrongType(*entry, "f32");
}

absl::StatusOr<bool> GgufMetadata::GetBool(std::string_view key) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key, false, "bool"));
  return BoolAt(*entry, 0);
}

absl::StatusOr<std::string_view> GgufMetadata::GetString(std::string_view key) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key, false, "string"));
  if (entry->type != GgufType::kString) return WrongType(*entry, "string");
  uint64_t offset = entry->offset;
  return StringAt(&offset);
}

absl::StatusOr<std::vector<uint64_t>> GgufMetadata::GetUints(std::string_view key) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key, true, kAnyInteger));
  if (!IsInteger(entry->element_type)) return WrongType(*entry, "array of integer");
  std::vector<uint64_t> values(entry->count);
  for (uint64_t i = 0; i < entry->count; ++i) {
    SWITCHYARD_ASSIGN_OR_RETURN(values[i], UintAt(*entry, i));
  }
  return values;
}

absl::StatusOr<std::vector<int64_t>> GgufMetadata::GetInts(std::string_view key) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key, true, kAnyInteger));
  if (!IsInteger(entry->element_type)) return WrongType(*entry, "array of integer");
  std::vector<int64_t> values(entry->count);
  for (uint64_t i = 0; i < entry->count; ++i) {
    SWITCHYARD_ASSIGN_OR_RETURN(values[i], IntAt(*entry, i));
  }
  return values;
}

absl::StatusOr<std::vector<float>> GgufMetadata::GetFloats(std::string_view key) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key, true, "f32"));
  if (entry->element_type != GgufType::kFloat32) return WrongType(*entry, "array of f32");
  std::vector<float> values(entry->count);
  if (!values.empty()) {
    std::memcpy(values.data(), header_.data() + entry->offset, values.size() * sizeof(float));
  }
  return values;
}

absl::StatusOr<std::vector<bool>> GgufMetadata::GetBools(std::string_view key) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key, true, "bool"));
  if (entry->element_type != GgufType::kBool) return WrongType(*entry, "array of bool");
  std::vector<bool> values(entry->count);
  for (uint64_t i = 0; i < entry->count; ++i) {
    SWITCHYARD_ASSIGN_OR_RETURN(values[i], BoolAt(*entry, i));
  }
  return values;
}

absl::StatusOr<std::vector<std::string_view>> GgufMetadata::GetStrings(std::string_view key) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key, true, "string"));
  if (entry->element_type != GgufType::kString) return WrongType(*entry, "array of string");
  std::vector<std::string_view> values(entry->count);
  uint64_t offset = entry->offset;
  for (std::string_view& value : values) value = StringAt(&offset);
  return values;
}

std::string GgufMetadata::Describe(const MetadataEntry& entry) const {
  constexpr uint64_t kMaxShown = 8;
  std::string text;
  uint64_t offset = entry.offset;
  for (uint64_t i = 0; i < std::min(entry.count, kMaxShown); ++i) {
    if (i > 0) text += ", ";
    switch (entry.element_type) {
      case GgufType::kString:
        text += Printable(StringAt(&offset));
        break;
      case GgufType::kFloat32:
        text += fmt::format("{}", Load<float>(entry.offset + i * sizeof(float)));
        break;
      case GgufType::kFloat64:
        text += fmt::format("{}", Load<double>(entry.offset + i * sizeof(double)));
        break;
      case GgufType::kBool:
        text += Load<uint8_t>(entry.offset + i) != 0 ? "true" : "false";
        break;
      case GgufType::kUint64:
        text += fmt::format("{}", Load<uint64_t>(entry.offset + i * sizeof(uint64_t)));
        break;
      default:
        if (const absl::StatusOr<int64_t> value = IntAt(entry, i); value.ok()) {
          text += fmt::format("{}", *value);
        }
    }
  }
  if (entry.type != GgufType::kArray) return text;
  if (entry.count > kMaxShown) text += fmt::format(", ... ({} elements)", entry.count);
  return "[" + text + "]";
}

}  // namespace switchyard::model
