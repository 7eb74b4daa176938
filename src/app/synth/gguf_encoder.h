// Encodes the header of a GGUF file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "model/gguf_metadata.h"

namespace switchyard::app {

// Start of tensor data is a multiple of it, and each tensor's offset.
inline constexpr int64_t kGgufAlignment = 32;

inline int64_t AlignGguf(int64_t bytes) {
  return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
}

// Collects metadata and tensors. Keys and tensors are written in the order of the calls; the caller
// does not repeat them.
class GgufEncoder {
 public:
  void AddUint16(std::string_view key, uint16_t value);
  void AddUint32(std::string_view key, uint32_t value);
  void AddInt32(std::string_view key, int32_t value);
  void AddFloat(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddString(std::string_view key, std::string_view value);
  void AddUint32s(std::string_view key, const std::vector<uint32_t>& values);
  void AddInt32s(std::string_view key, const std::vector<int32_t>& values);
  void AddUint64s(std::string_view key, const std::vector<uint64_t>& values);
  void AddStrings(std::string_view key, const std::vector<std::string>& values);

  // Adds a tensor whose `bytes` of data follow those of the one before, aligned.
  void AddTensor(std::string_view name, const std::vector<int64_t>& dims, DType dtype,
                 int64_t bytes);

  // The header, padded to where the tensor data start.
  std::string Header() const;

 private:
  void AddKey(std::string_view key, model::GgufType type);
  void AddArray(std::string_view key, model::GgufType element_type, uint64_t count);

  uint64_t num_keys_ = 0;
  uint64_t num_tensors_ = 0;
  int64_t next_offset_ = 0;
  std::string keys_;
  std::string tensors_;
};

}  // namespace switchyard::app
