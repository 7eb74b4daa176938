// What one rank holds and computes of each layer, derived from placement and model.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/placement.h"

namespace switchyard::placement {

// [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  bool operator==(const Range&) const = default;
};

// Columns of a matrix whose products are summed in four virtual shards (model::ColumnShards), as
// far as a rank has them.
struct ColumnShare {
  Range columns;               // of every strip, in columns of the whole matrix
  model::ColumnShards shards;  // of the whole matrix; strip_columns is its strip's width
  // The shards cut down to the rank's columns: shards that it has nothing of are empty.
  model::ColumnShards local() const;
  bool is_whole() const { return columns == Range{0, shards.strip_columns}; }
};

struct LayerShare {
  bool is_here = false;    // layer split: the layer belongs to this rank; else always
  bool has_dense = false;  // mixers, attention or delta net, router
  // Of an attention layer, with has_dense.
  Range query_heads, kv_heads;
  // Of a delta net layer, with has_dense: key heads, with all value heads that belong to them.
  Range key_heads;
  // Of attention_output or delta_net.output, with has_dense.
  ColumnShare output;
  // Of the experts.
  bool has_experts = false;      // at least a slice of at least one
  bool has_all_experts = true;   // of the layer; else `experts` lists them
  std::vector<int32_t> experts;  // ascending ids
  ColumnShare inner;             // of each expert's down matrix
  bool has_shared_expert = false;
  ColumnShare shared_inner;
};

// Where the ranks must meet in a layer.
enum class Meeting {
  kNone,       // everything is on this rank
  kAllReduce,  // each rank has a part of the sum, and all need it
  kOwner,      // rank 0 sends the input and gets the sum
};

struct RankShare {
  int rank = 0;
  int world_size = 1;
  v1::Mode mode = v1::MODE_SINGLE;
  std::vector<LayerShare> layers;  // by layer of the model
  int first_layer = 0, end_layer = 0;
  Meeting after_mixing = Meeting::kNone;  // attention or delta net: kNone or kAllReduce
  Meeting after_experts = Meeting::kNone;
  bool has_embedding = false;
  Range output_rows;  // of the output matrix; empty = none
  int lead_rank = 0;
  bool is_lead = false;

  bool has_whole_output(const model::ModelSpec& spec) const {
    return output_rows == Range{0, spec.vocab_size};
  }
};

// Rows of the output matrix that a rank has when every rank has some.
Range OutputRowsOf(int64_t vocab_size, int rank, int world_size);

// REQUIRES: CheckPlacement(spec, placement) is OK, 0 <= rank < world_size.
RankShare ShareOf(const model::ModelSpec& spec, const v1::Placement& placement, int rank);

}  // namespace switchyard::placement
