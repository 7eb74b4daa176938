// Bytes that a rank holds and reads: of weights by format, of caches and states.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "model/model_spec.h"
#include "placement/rank_share.h"

namespace switchyard::placement {

// Bytes of weights by format, as stored in the file.
class WeightBytes {
 public:
  void Add(DType dtype, int64_t bytes);
  void Add(const WeightBytes& other);

  int64_t total() const;
  bool empty() const { return bytes_.empty(); }
  const std::vector<std::pair<DType, int64_t>>& formats() const { return bytes_; }

 private:
  std::vector<std::pair<DType, int64_t>> bytes_;
};

// A layer on a rank. What the rank does not have is empty.
struct LayerReads {
  WeightBytes mixers;       // both
  WeightBytes mixing;       // attention with its indexer, or delta net: what the rank has of it
  WeightBytes router;       // with the shared expert's gate
  WeightBytes ple;          // projections, norms and convolution of the n-gram embedding
  WeightBytes shared;       // shared expert
  WeightBytes expert;       // of one routed expert, or of the rank's slice of it
  int64_t num_experts = 0;  // that the rank has something of
  // Of each sequence: the delta net's recurrent state.
  int64_t state_bytes = 0;
  // Of each cached token of a sequence: keys, values and block keys.
  double kv_bytes_per_token = 0;

  // Of all experts together.
  int64_t expert_bytes() const { return expert.total() * num_experts; }
  // Of everything else.
  int64_t dense_bytes() const;
};

struct RankReads {
  std::vector<LayerReads> layers;  // by layer of the model
  WeightBytes head;                // final mixer and the rank's rows of the output matrix
  int64_t embedding_bytes = 0;     // gathered from, resident; 0 where it is the output matrix

  // Everything resident but routed experts.
  int64_t dense_bytes() const;
  int64_t expert_bytes() const;
  int64_t state_bytes() const;        // of a sequence
  double kv_bytes_per_token() const;  // of a sequence
};

// Bytes of a cached value; the caches hold F16 unless a user wants otherwise.
inline constexpr double kKvValueBytes = 2;

RankReads ReadsOf(const model::ModelSpec& spec, const RankShare& share);

// Bytes of keys, values and block keys of a layer that one row at position `context_tokens` reads.
// Sparse attention reads its budget, the incomplete block, and all block keys.
double KvReadBytes(const model::ModelSpec& spec, const model::LayerSpec& layer,
                   const LayerShare& share, int64_t context_tokens);

}  // namespace switchyard::placement
