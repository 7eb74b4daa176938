// Writes small GGUF files for tests, valid ones and ones that are wrong in a chosen way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace switchyard::testing {

// Appends the little-endian bytes of `value`.
template <typename T>
void AppendBytes(std::string& bytes, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Plain contents of a file, in the order in which they are written. Everything may be changed, and
// nothing is checked: ids are those of the format (u32 4, i32 5, f32 6, bool 7, string 8, array 9,
// u64 10), dims[0] is contiguous.
struct GgufContents {
  struct Key {
    std::string name;
    uint32_t type = 4;
    std::string value;  // bytes after the type
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type = 0;
    std::optional<uint64_t> offset;  // else: after the tensor before, aligned
    uint64_t bytes = 0;              // length of the data
    std::string data;                // `bytes` of it, or empty: a hole in the file, zeros
  };

  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> num_tensors;  // else the true count, also below
  std::optional<uint64_t> num_keys;
  uint64_t alignment = 32;  // where data are put; written only if a key says so
  std::vector<Key> keys;
  std::vector<Tensor> tensors;

  // Reads the header of a valid file; tensor data become holes.
  static GgufContents FromFile(const std::string& path);

  // Adds a key or replaces its value; the type follows from that of `value`.
  template <typename T>
  void Set(std::string_view key, const T& value) {
    std::string bytes;
    AppendBytes(bytes, value);
    SetRaw(key, TypeId<T>(), bytes);
  }
  template <typename T>
  void SetArray(std::string_view key, const std::vector<T>& values) {
    std::string bytes;
    AppendBytes(bytes, TypeId<T>());
    AppendBytes(bytes, uint64_t{values.size()});
    for (const T& value : values) AppendBytes(bytes, value);
    SetRaw(key, 9, bytes);
  }
  void SetString(std::string_view key, std::string_view value);
  void SetStrings(std::string_view key, const std::vector<std::string>& values);
  void SetRaw(std::string_view key, uint32_t type, std::string value);
  void Remove(std::string_view key);

  // REQUIRES: there is such a tensor.
  Tensor& tensor(std::string_view name);
  void RemoveTensor(std::string_view name);

  // Everything before the tensor data, padded to the alignment.
  std::string Header() const;
  // Header and data.
  std::string Bytes() const;
  // Writes header and data; what has no data takes no room on disk.
  void Write(const std::string& path) const;

 private:
  template <typename T>
  static constexpr uint32_t TypeId() {
    if constexpr (std::is_same_v<T, uint8_t>) return 0;
    if constexpr (std::is_same_v<T, int8_t>) return 1;
    if constexpr (std::is_same_v<T, uint16_t>) return 2;
    if constexpr (std::is_same_v<T, int16_t>) return 3;
    if constexpr (std::is_same_v<T, uint32_t>) return 4;
    if constexpr (std::is_same_v<T, int32_t>) return 5;
    if constexpr (std::is_same_v<T, float>) return 6;
    if constexpr (std::is_same_v<T, bool>) return 7;
    if constexpr (std::is_same_v<T, uint64_t>) return 10;
    if constexpr (std::is_same_v<T, int64_t>) return 11;
    if constexpr (std::is_same_v<T, double>) return 12;
  }
  std::vector<uint64_t> Offsets() const;
};

// Bytes of a string in GGUF: length, then text.
std::string GgufString(std::string_view text);

// Path of a file in a directory that this process removes at exit.
std::string TestFilePath(const std::string& name);
// Writes `bytes` to that file and returns its path.
std::string WriteTestFile(const std::string& name, std::string_view bytes);

}  // namespace switchyard::testing
