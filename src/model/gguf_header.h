// Parser of the header of one GGUF file: metadata and tensor table, every length checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/dtype.h"
#include "model/gguf_metadata.h"
#include "model/mapped_file.h"

namespace switchyard::model {

// A tensor of a file: what it is and where its bytes are.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  int num_dims = 0;
  std::array<int64_t, 4> dims = {1, 1, 1, 1};  // as in the file: dims[0] is contiguous; the rest 1
  int shard = 0;                               // index of the file of a split model
  uint64_t offset = 0;                         // in that file: first byte of the data
  uint64_t info_offset = 0;                    // in that file: its entry of the tensor table

  int64_t row_elements() const { return dims[0]; }
  int64_t num_rows() const { return dims[1] * dims[2] * dims[3]; }  // over all slabs
  int64_t num_elements() const { return dims[0] * num_rows(); }
  int64_t row_bytes() const { return RowBytes(dtype, dims[0]); }
  int64_t bytes() const { return row_bytes() * num_rows(); }
};

// Text such as "{2560, 640, 512}", in the order of the file.
std::string DimsText(const TensorInfo& tensor);

struct GgufHeader {
  uint32_t version = 0;
  uint64_t alignment = 32;
  uint64_t data_offset = 0;  // first byte of the data section
  GgufMetadata metadata;
  std::vector<TensorInfo> tensors;  // in the order of the file
};

// Parses and checks the header of `file`. Reads the header only, in pieces, through ReadAt(); the
// copy that the metadata keeps is the only memory that grows with the file, and never beyond what
// the file holds. `shard` goes into the tensors.
//
// Versions: 2 and 3, which have the same layout; little endian.
// Errors: kDataLoss, naming file, key or tensor, and offset, for what cannot be a valid file;
//         kInvalidArgument for what may be valid but is not supported (version, tensor type).
absl::StatusOr<GgufHeader> ParseGgufHeader(const MappedFile& file, int shard);

}  // namespace switchyard::model
