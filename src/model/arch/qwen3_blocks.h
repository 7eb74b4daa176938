// Keys and tensors that the architectures of the Qwen3 family share: a mapping reads as the list of
// its parts. What a part leaves open is a field of ModelSpec, set before the part is read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "model/arch/arch_reader.h"
#include "model/model_spec.h"

namespace switchyard::model {

// What is known of each block, trunk and draft blocks, before its tensors are read.
struct Blocks {
  int num_blocks = 0;
  std::vector<LayerKind> kinds;          // [num_blocks]
  std::vector<int> expert_hidden_sizes;  // [num_blocks]
};

// ---- metadata ---------------------------------------------------------------------------------

// Number of blocks, width, context, epsilon. Every block is one of attention until
// ReadLayerKinds() says otherwise. Refuses scaled rotation, which is not implemented.
Blocks ReadTrunkSizes(ArchReader& reader, ModelSpec& spec);

// Heads and rotation; all of a head is rotated where the file states no number.
void ReadAttentionSizes(ArchReader& reader, AttentionSpec& attention);

// Checks that the sections of interleaved rotation cover all pairs.
void CheckRopeSections(ArchReader& reader, const AttentionSpec& attention);

// Sizes; order of value heads and gate function are the caller's.
DeltaNetSpec ReadDeltaNetSizes(ArchReader& reader);

// Which layers are delta nets: the optional list, else all but every n-th.
void ReadLayerKinds(ArchReader& reader, const ModelSpec& spec, Blocks& blocks);

// Routed experts.
void ReadExpertSizes(ArchReader& reader, ModelSpec& spec, Blocks& blocks);
void ReadSharedExpertSize(ArchReader& reader, MoeSpec& moe);

// ---- tensors ----------------------------------------------------------------------------------

// Embedding, output matrix and vocabulary size. Without output matrix, the embedding serves.
void ReadEmbedding(ArchReader& reader, ModelSpec& spec);

AttentionTensors ReadAttentionTensors(ArchReader& reader, const ModelSpec& spec,
                                      const std::string& prefix);

// How a delta net's input projections lie in the file.
enum class DeltaNetInputs {
  kSeparate,         // beta and alpha are two tensors
  kGroupedByKeyHead  // beta and alpha in one tensor, `ssm_ba`; q, k, v and gate either as above or
                     // all in one, `ssm_in`
};
DeltaNetTensors ReadDeltaNetTensors(ArchReader& reader, const ModelSpec& spec,
                                    const std::string& prefix, DeltaNetInputs inputs);

// Shared expert only if spec.moe has one.
MoeTensors ReadMoeTensors(ArchReader& reader, const ModelSpec& spec, const std::string& prefix,
                          int64_t expert_hidden_size);

// Cuts the layer's output and down matrices. REQUIRES: reader.ok() after reading its tensors.
void SetShards(const ModelSpec& spec, LayerSpec& layer);

// ---- whole models -----------------------------------------------------------------------------

// Names of a model with one residual stream and plain norms in front of its sublayers.
struct PreNormNames {
  std::string_view moe_norm;  // "ffn_norm": of the norm in front of the experts
  DeltaNetInputs delta_net_inputs = DeltaNetInputs::kSeparate;
};

// Reads embedding, final norm and all layers of such a model.
// REQUIRES: the sizes have been read; returns at once if the reader holds an error.
void ReadPreNormModel(ArchReader& reader, const Blocks& blocks, const PreNormNames& names,
                      ModelSpec& spec);

// Draft blocks, the file's own names, and the check that no tensor is left over.
absl::Status FinishModel(ArchReader& reader, ModelSpec& spec);

}  // namespace switchyard::model
