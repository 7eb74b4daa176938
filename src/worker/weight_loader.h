// A rank's tensors from the file into its backend.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/backend.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "placement/rank_share.h"
#include "worker/experts/expert_store.h"
#include "worker/model_weights.h"

namespace switchyard::worker {

// Bytes of the tensors that LoadWeights() takes, as stored in the file. The n-gram table stays in
// the file and draft blocks are not used: neither is counted.
int64_t LoadedFileBytes(const model::ModelSpec& spec, const placement::RankShare& share);

// The experts that the rank has of each layer of the model, and the bytes of one of them; no slots.
std::vector<ExpertLayer> DescribeExperts(const model::ModelSpec& spec,
                                         const placement::RankShare& share,
                                         const kernels::Backend& backend);

// Called after each tensor, with bytes done and in total. An error ends the loading and is
// returned: somebody interrupted it.
using LoadProgress = std::function<absl::Status(int64_t done_bytes, int64_t total_bytes)>;

// Loads the rank's share of each tensor of the trunk once: rows and columns of quantised tensors
// are copied as they are stored. The file is read, not mapped, and the backend takes it piece by
// piece: the peak is one copy of the weights and one piece.
//
// Tensors of layers of `experts` with fewer slots than experts have tiers: their slots are empty,
// `progress` does not count them, and the file must stay as long as the weights.
//
// Errors: what `progress` returns, kDataLoss for a file that was cut or changed meanwhile,
// kResourceExhausted,
//         kUnimplemented with the tensor's name (no kernel for its type).
absl::StatusOr<ModelWeights> LoadWeights(const model::GgufFile& file, const model::ModelSpec& spec,
                                         const placement::RankShare& share,
                                         absl::Span<const ExpertLayer> experts,
                                         kernels::Backend& backend, const LoadProgress& progress);

}  // namespace switchyard::worker
