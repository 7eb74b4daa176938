// How many bytes a model's parts have, and how many of them one token reads.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "model/model_spec.h"

namespace switchyard::model {

// What a tensor is for, as far as memory is concerned.
enum class ModelPart {
  kTokenEmbedding,  // rows are gathered
  kPleTable,        // rows are gathered; stays in the file
  kMixers,          // hyper-connection mixers, or norms before sublayers and head
  kDeltaNet,
  kAttention,
  kIndexer,  // of sparse attention
  kRouters,
  kRoutedExperts,
  kSharedExperts,
  kPle,  // projections and convolution of the n-gram embedding
  kOutput,
  kMtp,  // draft blocks
};
inline constexpr int kNumModelParts = 12;

// For tables: "routed experts".
std::string_view Name(ModelPart part);

struct TypeBytes {
  DType dtype = DType::kF32;
  int64_t num_tensors = 0;
  int64_t bytes = 0;
};

struct PartBytes {
  int64_t bytes = 0;
  std::vector<TypeBytes> types;  // most bytes first
};

struct LayerBytes {
  LayerKind kind = LayerKind::kAttention;
  int64_t dense_bytes = 0;       // all but the routed experts
  int64_t expert_bytes = 0;      // of all routed experts
  int64_t bytes_per_expert = 0;  // formats differ between layers
};

struct ModelSummary {
  int64_t num_tensors = 0;
  int64_t bytes = 0;               // of all tensors
  std::vector<PartBytes> parts;    // [kNumModelParts]
  std::vector<TypeBytes> types;    // of all tensors, most bytes first
  std::vector<LayerBytes> layers;  // [num_layers]

  // Bytes of one expert in the layers: least, most, most frequent (the least of several), mean.
  int64_t min_bytes_per_expert = 0;
  int64_t max_bytes_per_expert = 0;
  int64_t typical_bytes_per_expert = 0;
  double mean_bytes_per_expert = 0;

  // What one decoded token reads: every dense weight once, and top_k experts in each layer. Rows
  // gathered from tables are left out, a tied embedding counts as output.
  int64_t dense_bytes_per_token = 0;
  int64_t expert_bytes_per_token = 0;

  const PartBytes& part(ModelPart part) const { return parts[static_cast<size_t>(part)]; }
};

// Adds up the tensors of `spec`. Reads no tensor data.
ModelSummary Summarize(const ModelSpec& spec);

}  // namespace switchyard::model
