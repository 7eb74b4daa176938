#include "app/synth/gguf_encoder.h"

#include <bit>
#include <type_traits>

namespace switchyard::app {
namespace {

using model::GgufType;

static_assert(std::endian::native == std::endian::little, "GGUF is little endian");

template <typename T>
void Append(std::string& bytes, T value) {
  static_assert(std::is_arithmetic_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendString(std::string& bytes, std::string_view text) {
  Append(bytes, uint64_t{text.size()});
  bytes.append(text);
}

}  // namespace

void GgufEncoder::AddKey(std::string_view key, GgufType type) {
  ++num_keys_;
  AppendString(keys_, key);
  Append(keys_, static_cast<uint32_t>(type));
}

void GgufEncoder::AddArray(std::string_view key, GgufType element_type, uint64_t count) {
  AddKey(key, GgufType::kArray);
  Append(keys_, static_cast<uint32_t>(element_type));
  Append(keys_, count);
}

void GgufEncoder::AddUint16(std::string_view key, uint16_t value) {
  AddKey(key, GgufType::kUint16);
  Append(keys_, value);
}

void GgufEncoder::AddUint32(std::string_view key, uint32_t value) {
  AddKey(key, GgufType::kUint32);
  Append(keys_, value);
}

void GgufEncoder::AddInt32(std::string_view key, int32_t value) {
  AddKey(key, GgufType::kInt32);
  Append(keys_, value);
}

void GgufEncoder::AddFloat(std::string_view key, float value) {
  AddKey(key, GgufType::kFloat32);
  Append(keys_, value);
}

void GgufEncoder::AddBool(std::string_view key, bool value) {
  AddKey(key, GgufType::kBool);
  Append(keys_, static_cast<uint8_t>(value));
}

void GgufEncoder::AddString(std::string_view key, std::string_view value) {
  AddKey(key, GgufType::kString);
  AppendString(keys_, value);
}

void GgufEncoder::AddUint32s(std::string_view key, const std::vector<uint32_t>& values) {
  AddArray(key, GgufType::kUint32, values.size());
  for (const uint32_t value : values) Append(keys_, value);
}

void GgufEncoder::AddInt32s(std::string_view key, const std::vector<int32_t>& values) {
  AddArray(key, GgufType::kInt32, values.size());
  for (const int32_t value : values) Append(keys_, value);
}

void GgufEncoder::AddUint64s(std::string_view key, const std::vector<uint64_t>& values) {
  AddArray(key, GgufType::kUint64, values.size());
  for (const uint64_t value : values) Append(keys_, value);
}

void GgufEncoder::AddStrings(std::string_view key, const std::vector<std::string>& values) {
  AddArray(key, GgufType::kString, values.size());
  for (const std::string& value : values) AppendString(keys_, value);
}

void GgufEncoder::AddTensor(std::string_view name, const std::vector<int64_t>& dims, DType dtype,
                            int64_t bytes) {
  ++num_tensors_;
  AppendString(tensors_, name);
  Append(tensors_, static_cast<uint32_t>(dims.size()));
  for (const int64_t dim : dims) Append(tensors_, dim);
  Append(tensors_, static_cast<uint32_t>(dtype));
  Append(tensors_, next_offset_);
  next_offset_ += AlignGguf(bytes);
}

std::string GgufEncoder::Header() const {
  constexpr uint32_t kVersion = 3;
  std::string header = "GGUF";
  Append(header, kVersion);
  Append(header, num_tensors_);
  Append(header, num_keys_);
  header += keys_;
  header += tensors_;
  header.resize(static_cast<size_t>(AlignGguf(static_cast<int64_t>(header.size()))));
  return header;
}

}  // namespace switchyard::app
