// What all architecture mappings need to read a GGUF file with short code and good errors.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "base/status.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"

namespace switchyard::model {

// Reads keys and tensors of one file. The first error is kept and everything after it returns
// harmless values (the lower bound, null, empty), so that a mapping reads as a table and asks for
// status() where it would compute with what it has read.
//
// All errors are kInvalidArgument and name file, key or tensor, and offset.
class ArchReader {
 public:
  // Largest width or count that a key may state: products of three stay within 64 bits.
  static constexpr int kMaxSize = 1 << 20;

  // `prefix` is put before all keys: "qwen4exp.". REQUIRES: `file` outlives this object.
  ArchReader(const GgufFile& file, std::string prefix)
      : file_(file), prefix_(std::move(prefix)), is_used_(file.tensors().size()) {}

  const absl::Status& status() const { return status_; }
  const GgufMetadata& metadata() const { return file_.metadata(); }
  bool ok() const { return status_.ok(); }

  // ---- metadata; keys without the prefix ----
  bool Has(std::string_view key) const { return file_.metadata().Has(prefix_ + std::string(key)); }
  // An integer from `min` to `max`.
  int64_t Integer(std::string_view key, int64_t min, int64_t max);
  int Size(std::string_view key, int min = 1, int max = kMaxSize);
  int SizeOr(std::string_view key, int fallback, int min = 1, int max = kMaxSize);
  // A finite number above zero.
  float PositiveFloat(std::string_view key);
  std::string_view Text(std::string_view key);
  // At least `min_count` integers.
  std::vector<uint64_t> Integers(std::string_view key, size_t min_count);
  // One integer from `min` to `max` for each of `num_blocks` blocks.
  std::vector<int> SizePerBlock(std::string_view key, int num_blocks, int min, int max);
  // The same, where the file may also state one value for all blocks.
  std::vector<int> SizeOrSizePerBlock(std::string_view key, int num_blocks, int min, int max);
  // One truth value for each block, or one for all.
  std::vector<bool> BoolOrBoolPerBlock(std::string_view key, int num_blocks);

  // Records an error about the value of `key` unless `condition` holds.
  template <typename... Args>
  void Check(bool condition, std::string_view key, fmt::format_string<Args...> format,
             Args&&... args) {
    if (!condition && ok()) FailKey(key, fmt::format(format, std::forward<Args>(args)...));
  }

  // ---- tensors; dims in the order of the file, trailing ones may be left out ----
  // The tensor, which must exist and have these dimensions.
  TensorRef Tensor(const std::string& name, std::initializer_list<int64_t> dims);
  // Null if it does not exist.
  TensorRef OptionalTensor(const std::string& name, std::initializer_list<int64_t> dims);
  // Number of rows of a tensor, which must be a matrix of at most 2^31 - 1 rows of `row_elements`.
  int64_t MatrixRows(const std::string& name, int64_t row_elements);
  // All tensors whose names begin with `prefix`, of any shape.
  std::vector<TensorRef> TensorsWithPrefix(std::string_view prefix);

  // Records an error if there is a tensor that none of the calls above has asked for: the mapping
  // would compute something else than the file means. Tensors of a vision part (`v.`, `mm.`) are
  // no part of the text model and are passed over.
  void CheckAllTensorsUsed();

 private:
  void Fail(absl::Status status);
  void FailKey(std::string_view key, std::string_view what);
  std::string TensorWhere(const TensorInfo& tensor) const;

  const GgufFile& file_;
  std::string prefix_;
  std::vector<bool> is_used_;  // [tensors of the file]
  absl::Status status_;
};

// Shards of a matrix whose columns are quantisation blocks: a unit is one block.
ColumnShards DownShards(const TensorInfo& down);

// Shards of an attention output matrix: a unit is the smallest group of query heads that fills
// whole blocks.
ColumnShards AttentionOutputShards(const TensorInfo& output, int num_heads, int head_dim);

// Shards of a delta net's output matrix: a unit is the smallest group of key heads whose value
// heads fill whole blocks; all columns if there is none, or if they would be too many strips.
ColumnShards DeltaNetOutputShards(const TensorInfo& output, const DeltaNetSpec& spec);

}  // namespace switchyard::model
