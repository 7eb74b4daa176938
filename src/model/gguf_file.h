// A GGUF model on disk: one file, or all parts of a split one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/tensor_view.h"
#include "model/gguf_header.h"
#include "model/gguf_metadata.h"
#include "model/mapped_file.h"

namespace switchyard::model {

// Maps a model's files and lists their metadata and tensors. Opening reads headers only: it takes
// milliseconds whatever the size of the model.
//
// Moving keeps pointers to tensors and views valid.
// Threads: immutable after Open(); all methods from any thread.
class GgufFile {
 public:
  // Opens the model at `path`. If it is one part of a split model (named
  // `<stem>-00002-of-00004.gguf` and counting parts in its metadata), opens all parts, which must
  // lie beside it. Metadata are those of the first part, tensors those of all.
  //
  // Errors: kNotFound if a file does not exist; kDataLoss or kInvalidArgument, naming file, key or
  //         tensor, and offset, if one is damaged, not supported, or belongs to another model.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  const GgufMetadata& metadata() const { return shards_.front().metadata; }
  // File format version of the first part: 2 or 3.
  uint32_t version() const { return shards_.front().version; }

  // All tensors, in the order of the files. Pointers into it stay valid as long as this object.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // Null if there is no such tensor.
  const TensorInfo* FindTensor(std::string_view name) const;

  int num_shards() const { return static_cast<int>(files_.size()); }
  const std::string& path(int shard) const { return files_[static_cast<size_t>(shard)].path(); }
  uint64_t total_bytes() const;  // of all files
  uint64_t file_bytes(int shard) const { return files_[static_cast<size_t>(shard)].bytes(); }

  // Bytes in front of the data section of a file: all that says what is in it.
  uint64_t header_bytes(int shard) const {
    return shards_[static_cast<size_t>(shard)].header_bytes;
  }
  // Reads header bytes from `offset` on.
  // Errors: kDataLoss if the file has been truncated or cannot be read.
  // REQUIRES: offset + out.size() <= header_bytes(shard).
  absl::Status ReadHeader(int shard, uint64_t offset, absl::Span<std::byte> out) const;

  // The tensor in the map: rows are dims[0], slabs are dims[2] * dims[3]. Reading it touches the
  // disk, and faults if the file has been truncated since; see Read().
  // REQUIRES: `tensor` is one of tensors(), here and below.
  TensorView View(const TensorInfo& tensor) const;

  // Reads `num_rows` rows from `first_row` on (counted over all slabs) into `out`, without
  // touching the map.
  // Errors: kDataLoss if the file has been truncated or cannot be read.
  // REQUIRES: out.size() == num_rows * tensor.row_bytes(), rows within the tensor.
  absl::Status Read(const TensorInfo& tensor, int64_t first_row, int64_t num_rows,
                    absl::Span<std::byte> out) const;

  // Tells the system how the mapped bytes of a tensor will be used.
  void Advise(const TensorInfo& tensor, MapAdvice advice) const;

  // Errors: kDataLoss if a file has changed since Open(). To be called after loading: what was read
  // before may come from a mixture of old and new.
  absl::Status CheckUnchanged() const;

 private:
  struct Shard {
    uint32_t version = 0;
    GgufMetadata metadata;
    uint64_t header_bytes = 0;
  };

  GgufFile() = default;
  // Opens and parses one file and appends it.
  absl::Status AddShard(const std::string& path);
  absl::Status CheckSplit(uint64_t count) const;

  std::vector<MappedFile> files_;
  std::vector<Shard> shards_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace switchyard::model
