// What the tests of all architectures share: models of the test data, whole and changed.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/status.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "testing/gguf_writer.h"

namespace switchyard::model {

// A file and its description, which points into it.
struct Model {
  GgufFile file;
  ModelSpec spec;
};

inline Model LoadModel(const std::string& path) {
  absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  absl::StatusOr<ModelSpec> spec = LoadModelSpec(*file);
  EXPECT_TRUE(spec.ok()) << path << ": " << spec.status();
  return {*std::move(file), *std::move(spec)};
}

// The description of a file with these contents. Its tensors are gone with the file: tests look at
// sizes, and whether a reference is null.
inline absl::StatusOr<ModelSpec> LoadContents(const testing::GgufContents& contents) {
  const std::string path = testing::TestFilePath("model.gguf");
  contents.Write(path);
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<ModelSpec> spec = LoadModelSpec(*file);
  return spec;
}

// Checks that the contents are refused with one line that names the file and holds all `words`.
inline void ExpectRefused(const testing::GgufContents& contents,
                          const std::vector<std::string>& words) {
  const absl::Status status = LoadContents(contents).status();
  ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  const std::string message(Message(status));
  EXPECT_THAT(message, ::testing::HasSubstr("model.gguf"));
  for (const std::string& word : words) EXPECT_THAT(message, ::testing::HasSubstr(word));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

// Checks that contents without one of these keys or tensors are refused by its name.
inline void ExpectAllNeeded(const testing::GgufContents& contents,
                            const std::vector<std::string>& keys,
                            const std::vector<std::string>& tensors) {
  for (const std::string& key : keys) {
    testing::GgufContents changed = contents;
    changed.Remove(key);
    ASSERT_EQ(changed.keys.size() + 1, contents.keys.size()) << key;
    ExpectRefused(changed, {"missing", key});
  }
  for (const std::string& name : tensors) {
    testing::GgufContents changed = contents;
    changed.RemoveTensor(name);
    ExpectRefused(changed, {"tensor is missing: " + name});
  }
}

}  // namespace switchyard::model
