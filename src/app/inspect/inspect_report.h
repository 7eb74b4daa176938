// What `inspect` says about a model file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/dtype.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "model/model_summary.h"

namespace switchyard::app {

// Tensors of one part in one type.
struct PartTypeRow {
  model::ModelPart part = model::ModelPart::kTokenEmbedding;
  DType dtype = DType::kF32;
  int64_t num_tensors = 0;
  int64_t num_parameters = 0;
  int64_t bytes = 0;
};

struct TokenizerFacts {
  std::string pre_tokenizer;
  int64_t num_tokens = 0;
  int64_t num_merges = 0;
  int64_t num_control = 0;
  int64_t num_user_defined = 0;
  int64_t num_unused = 0;
  std::optional<int64_t> eos_token_id;
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> padding_token_id;
  bool add_bos = false;
  int64_t chat_template_bytes = 0;  // 0 = the file has none
};

// What sequences need besides the weights.
struct CacheBytes {
  int64_t kv_per_token = 0;  // F16
  int64_t block_keys_per_token =
      0;                        // F16, of sparse attention; a block's key divided by its tokens
  int64_t delta_net_state = 0;  // of a sequence, F32: states and convolution tails
  int64_t ple_state = 0;        // of a sequence, F32: convolution tail
};

struct InspectReport {
  std::vector<PartTypeRow> rows;  // by part, then most bytes first
  model::ModelSummary summary;
  std::optional<TokenizerFacts> tokenizer;  // nothing if the file has none
  CacheBytes cache;

  int64_t num_parameters = 0;
  int64_t num_table_parameters = 0;   // of the n-gram table
  int64_t num_active_parameters = 0;  // read for one token; rows gathered from tables left out

  int64_t table_bytes = 0;           // n-gram table: gathered from, stays in the file
  int64_t resident_bytes = 0;        // all but the table and the draft blocks
  int64_t dense_resident_bytes = 0;  // of these, without the routed experts
  int64_t bytes_per_token = 0;       // dense and experts
};

// Puts the report together. Reads no tensor data.
//
// Errors: as ReadTokenizerData(), but a file without tokenizer is fine.
absl::StatusOr<InspectReport> MakeInspectReport(const model::GgufFile& file,
                                                const model::ModelSpec& spec);

}  // namespace switchyard::app
