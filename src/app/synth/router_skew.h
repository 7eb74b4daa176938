// Popularity of experts in random models: some are chosen more often than others, by Zipf's law.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "app/synth/synth_options.h"
#include "app/synth/tensor_list.h"

namespace switchyard::app {

// How often a token chooses the expert of each rank: proportional to (rank + 1)^-exponent, but
// never above kMostPopular, so the first ranks of a steep law are alike. The sum is top_k.
inline constexpr double kMostPopular = 0.9;
std::vector<double> ZipfPopularity(double exponent, int num_experts, int top_k);

// What makes a router choose so: logits are normal with deviation 1 around these values, by expert,
// and the top_k largest win. Which expert has which rank is drawn from seed and `name`. Multiples
// of 2^-10, so that no library function decides about the last bit.
std::vector<float> RouterBiases(double exponent, int num_experts, int top_k, uint64_t seed,
                                std::string_view name);

// The first columns of every row of an embedding that are the same in all rows: a bias needs an
// input that does not change. Whole blocks of its format.
int64_t FixedColumns(DType embedding_type);

// Errors: kInvalidArgument where the tensors' types leave no room for it, with what does.
absl::Status CheckRouterSkew(const SynthOptions& options, absl::Span<const SynthTensor> tensors);

}  // namespace switchyard::app
