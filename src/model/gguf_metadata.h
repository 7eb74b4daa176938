// The key-value part of a GGUF file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace switchyard::model {

// Value types; the enumerators are the ids in files.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Name of a type as in messages: "u32", "array".
std::string_view Name(GgufType type);

// Bytes of one value; 0 for strings and arrays, whose size varies.
int FixedBytes(GgufType type);

// `text` in printable form, shortened: names from a file go into one-line messages.
std::string Printable(std::string_view text);

// Where a value is.
struct MetadataEntry {
  std::string key;
  GgufType type = GgufType::kUint8;
  GgufType element_type = GgufType::kUint8;  // of an array; else equal to `type`
  uint64_t count = 1;                        // elements of an array; else 1
  uint64_t offset = 0;                       // in the file: first byte of the first element
};

// Typed access to the metadata of one file. Owns a copy of the file's header, so that it stays
// valid and readable whatever happens to the file.
//
// Integers of every width and sign are accepted where their value fits; no other conversion is
// made, a value of another type is an error.
// Errors: all Get functions return kNotFound if there is no such key and kInvalidArgument, naming
//         file, key and offset, if the value has another type or does not fit.
// Threads: immutable, any thread.
class GgufMetadata {
 public:
  GgufMetadata() = default;
  // REQUIRES: every entry lies within `header`, with string and array lengths checked.
  GgufMetadata(std::string path, std::vector<std::byte> header, std::vector<MetadataEntry> entries);

  const std::string& path() const { return path_; }
  // In the order of the file.
  const std::vector<MetadataEntry>& entries() const { return entries_; }
  // Null if there is no such key. Valid as long as this object.
  const MetadataEntry* Find(std::string_view key) const;
  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  absl::StatusOr<uint64_t> GetUint(std::string_view key) const;
  absl::StatusOr<double> GetFloat(std::string_view key) const;  // f32 or f64
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  // Views into this object.
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;

  absl::StatusOr<std::vector<uint64_t>> GetUints(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(std::string_view key) const;
  absl::StatusOr<std::vector<float>> GetFloats(std::string_view key) const;  // f32 only
  absl::StatusOr<std::vector<bool>> GetBools(std::string_view key) const;
  absl::StatusOr<std::vector<std::string_view>> GetStrings(std::string_view key) const;

  // The value as text for people; long strings and arrays are shortened.
  std::string Describe(const MetadataEntry& entry) const;

  // "key: K, file: F, offset: O", the end of every message about a value.
  std::string Where(const MetadataEntry& entry) const;

 private:
  absl::StatusOr<const MetadataEntry*> Require(std::string_view key, bool array,
                                               std::string_view wanted) const;
  absl::Status WrongType(const MetadataEntry& entry, std::string_view wanted) const;
  absl::StatusOr<uint64_t> UintAt(const MetadataEntry& entry, uint64_t index) const;
  absl::StatusOr<int64_t> IntAt(const MetadataEntry& entry, uint64_t index) const;
  absl::StatusOr<bool> BoolAt(const MetadataEntry& entry, uint64_t index) const;
  std::string_view StringAt(uint64_t* offset) const;
  template <typename T>
  T Load(uint64_t offset) const;

  std::string path_;
  std::vector<std::byte> header_;
  std::vector<MetadataEntry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace switchyard::model
