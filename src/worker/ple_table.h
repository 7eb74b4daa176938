// The n-gram table of the per-layer embedding: hashing token ids to rows, and reading the rows.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "model/gguf_file.h"
#include "model/model_spec.h"

namespace switchyard::worker {

// Computes the table rows of each of `tokens`, exactly, in 64-bit arithmetic: per token first the
// heads of the 2-grams, then those of the 3-grams, and so on. Reaching over the separator, or over
// the start of the sequence, reads as the separator.
//
// Shapes:   rows [tokens, spec.num_heads()].
// REQUIRES: `context` holds the tokens before the first of `tokens`, oldest first: at least
//           ngram_size - 1 of them, or all of the sequence. Ids are in the vocabulary.
void NgramRows(const model::PleSpec& spec, absl::Span<const int32_t> context,
               absl::Span<const int32_t> tokens, absl::Span<int64_t> rows);

// Reads rows from the map of the model's file; the table is far larger than what a run touches, so
// it is never loaded.
//
// Threads: any, after construction.
class PleTable {
 public:
  // `file` and `spec` must outlive the table.
  PleTable(const model::GgufFile& file, const model::PleSpec& spec);

  // Asks the system to read the rows ahead. Does nothing for a table that is small.
  void Prefetch(absl::Span<const int64_t> rows) const;

  // Decodes the rows one behind the other. Shapes: out [rows, row_width].
  void Gather(absl::Span<const int64_t> rows, float* out) const;

 private:
  TensorView view_;
};

}  // namespace switchyard::worker
