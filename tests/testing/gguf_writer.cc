#include "testing/gguf_writer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "gtest/gtest.h"

#include "base/check.h"
#include "base/dtype.h"

namespace switchyard::testing {
namespace {

uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return alignment == 0 ? value : (value + alignment - 1) / alignment * alignment;
}

// A reader that trusts its input: it is for the valid files of the repository only.
class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}

  template <typename T>
  T Read() {
    SWITCHYARD_CHECK(position_ + sizeof(T) <= bytes_.size());
    T value;
    std::copy_n(bytes_.data() + position_, sizeof(T), reinterpret_cast<char*>(&value));
    position_ += sizeof(T);
    return value;
  }
  std::string ReadString() { return Take(Read<uint64_t>()); }
  std::string Take(uint64_t count) {
    SWITCHYARD_CHECK(count <= bytes_.size() - position_);
    position_ += count;
    return bytes_.substr(position_ - count, count);
  }
  // The bytes of a value of this type, array header included.
  std::string ReadValue(uint32_t type) {
    constexpr uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    const uint64_t start = position_;
    if (type == 8) {
      ReadString();
    } else if (type != 9) {
      Take(kBytes[type]);
    } else {
      const auto element = Read<uint32_t>();
      const auto count = Read<uint64_t>();
      for (uint64_t i = 0; element == 8 && i < count; ++i) ReadString();
      if (element != 8) Take(count * kBytes[element]);
    }
    return bytes_.substr(start, position_ - start);
  }

 private:
  std::string bytes_;
  uint64_t position_ = 0;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  SWITCHYARD_CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A directory of this process, removed with all that is in it at exit.
class TestDirectory {
 public:
  TestDirectory()
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("switchyard_test_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

GgufContents GgufContents::FromFile(const std::string& path) {
  Reader reader(ReadFile(path));
  GgufContents contents;
  contents.magic = reader.Take(4);
  contents.version = reader.Read<uint32_t>();
  const auto num_tensors = reader.Read<uint64_t>();
  const auto num_keys = reader.Read<uint64_t>();
  for (uint64_t i = 0; i < num_keys; ++i) {
    Key key;
    key.name = reader.ReadString();
    key.type = reader.Read<uint32_t>();
    key.value = reader.ReadValue(key.type);
    contents.keys.push_back(std::move(key));
  }
  for (uint64_t i = 0; i < num_tensors; ++i) {
    Tensor tensor;
    tensor.name = reader.ReadString();
    tensor.dims.resize(reader.Read<uint32_t>());
    uint64_t num_elements = 1;
    for (uint64_t& dim : tensor.dims) num_elements *= dim = reader.Read<uint64_t>();
    tensor.type = reader.Read<uint32_t>();
    reader.Read<uint64_t>();
    const DTypeTraits& traits = Traits(*DTypeFromGgufId(tensor.type));
    tensor.bytes = num_elements / static_cast<uint64_t>(traits.block_length) *
                   static_cast<uint64_t>(traits.block_bytes);
    contents.tensors.push_back(std::move(tensor));
  }
  return contents;
}

void GgufContents::SetString(std::string_view key, std::string_view value) {
  SetRaw(key, 8, GgufString(value));
}

void GgufContents::SetStrings(std::string_view key, const std::vector<std::string>& values) {
  std::string bytes;
  AppendBytes(bytes, uint32_t{8});
  AppendBytes(bytes, uint64_t{values.size()});
  for (const std::string& value : values) bytes += GgufString(value);
  SetRaw(key, 9, bytes);
}

void GgufContents::SetRaw(std::string_view key, uint32_t type, std::string value) {
  for (Key& existing : keys) {
    if (existing.name != key) continue;
    existing.type = type;
    existing.value = std::move(value);
    return;
  }
  keys.push_back({std::string(key), type, std::move(value)});
}

void GgufContents::Remove(std::string_view key) {
  std::erase_if(keys, [&](const Key& existing) { return existing.name == key; });
}

GgufContents::Tensor& GgufContents::tensor(std::string_view name) {
  for (Tensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  SWITCHYARD_CHECK(false);  // the test names a tensor that the file does not have
  return tensors.front();
}

void GgufContents::RemoveTensor(std::string_view name) {
  std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
}

std::vector<uint64_t> GgufContents::Offsets() const {
  std::vector<uint64_t> offsets;
  uint64_t next = 0;
  for (const Tensor& tensor : tensors) {
    offsets.push_back(tensor.offset.value_or(next));
    next = AlignUp(next + tensor.bytes, alignment);
  }
  return offsets;
}

std::string GgufContents::Header() const {
  std::string bytes = magic;
  AppendBytes(bytes, version);
  AppendBytes(bytes, num_tensors.value_or(tensors.size()));
  AppendBytes(bytes, num_keys.value_or(keys.size()));
  for (const Key& key : keys) {
    bytes += GgufString(key.name);
    AppendBytes(bytes, key.type);
    bytes += key.value;
  }
  const std::vector<uint64_t> offsets = Offsets();
  for (size_t i = 0; i < tensors.size(); ++i) {
    bytes += GgufString(tensors[i].name);
    AppendBytes(bytes, static_cast<uint32_t>(tensors[i].dims.size()));
    for (const uint64_t dim : tensors[i].dims) AppendBytes(bytes, dim);
    AppendBytes(bytes, tensors[i].type);
    AppendBytes(bytes, offsets[i]);
  }
  if (!tensors.empty()) bytes.resize(AlignUp(bytes.size(), alignment));
  return bytes;
}

std::string GgufContents::Bytes() const {
  std::string bytes = Header();
  const uint64_t start = bytes.size();
  uint64_t next = 0;
  for (const Tensor& tensor : tensors) {
    bytes.resize(start + next);
    bytes += tensor.data;
    bytes.resize(start + next + tensor.bytes);
    next = AlignUp(next + tensor.bytes, alignment);
  }
  return bytes;
}

void GgufContents::Write(const std::string& path) const {
  const std::string header = Header();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  uint64_t next = 0;
  uint64_t end = 0;
  for (const Tensor& tensor : tensors) {
    if (!tensor.data.empty()) {
      file.seekp(static_cast<std::streamoff>(header.size() + next));
      file.write(tensor.data.data(), static_cast<std::streamsize>(tensor.data.size()));
    }
    end = next + tensor.bytes;
    next = AlignUp(end, alignment);
  }
  file.close();
  SWITCHYARD_CHECK(file.good());
  std::filesystem::resize_file(path, header.size() + end);
}

std::string GgufString(std::string_view text) {
  std::string bytes;
  AppendBytes(bytes, uint64_t{text.size()});
  return bytes.append(text);
}

std::string TestFilePath(const std::string& name) {
  static const TestDirectory directory;
  return directory.path() / name;
}

std::string WriteTestFile(const std::string& name, std::string_view bytes) {
  std::string path = TestFilePath(name);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  SWITCHYARD_CHECK(file.good());
  return path;
}

}  // namespace switchyard::testing
