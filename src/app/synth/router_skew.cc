#include "app/synth/router_skew.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "app/synth/random_source.h"
#include "base/status.h"
#include "kernels/quant/dequantize.h"

namespace switchyard::app {
namespace {

// Probability that a normal number is above x.
double AboveNormal(double x) { return std::erfc(x / std::sqrt(2.0)) / 2; }

// Its inverse, for p from 1e-9 to 1 - 1e-9.
double InverseAboveNormal(double p) {
  double low = -6, high = 6;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (AboveNormal(middle) > p ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

std::vector<double> ZipfPopularity(double exponent, int num_experts, int top_k) {
  std::vector<double> law;
  for (int rank = 0; rank < num_experts; ++rank) law.push_back(std::pow(rank + 1, -exponent));
  const auto sum = [&](double factor) {
    double total = 0;
    for (const double weight : law) total += std::min(factor * weight, kMostPopular);
    return total;
  };
  // More than kMostPopular of all experts cannot be chosen; then all are alike.
  const double wanted = std::min<double>(top_k, kMostPopular * num_experts);
  double low = 0, high = 1;
  while (sum(high) < wanted * (1 - 1e-12)) high *= 2;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (sum(middle) < wanted ? low : high) = middle;
  }
  for (double& weight : law) weight = std::min(high * weight, kMostPopular);
  return law;
}

std::vector<float> RouterBiases(double exponent, int num_experts, int top_k, uint64_t seed,
                                std::string_view name) {
  const std::vector<double> popularity = ZipfPopularity(exponent, num_experts, top_k);
  std::vector<size_t> order(popularity.size());
  std::iota(order.begin(), order.end(), size_t{0});
  RandomSource random(seed ^ 0x5a69, name);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Next() % i]);
  std::vector<float> biases(popularity.size());
  for (size_t rank = 0; rank < order.size(); ++rank) {
    // The threshold that top_k of all logits exceed is 0: they exceed it so often in the mean.
    const double bias = -InverseAboveNormal(std::max(popularity[rank], 1e-6));
    biases[order[rank]] = static_cast<float>(std::round(bias * 1024) / 1024);
  }
  return biases;
}

int64_t FixedColumns(DType embedding_type) {
  constexpr int kLeast = 32;  // so that what happens to a single one of them does not matter
  return std::max(Traits(embedding_type).block_length, kLeast);
}

absl::Status CheckRouterSkew(const SynthOptions& options, absl::Span<const SynthTensor> tensors) {
  if (options.router_skew == 0) return absl::OkStatus();
  for (const SynthTensor& tensor : tensors) {
    if (tensor.num_fixed_columns > options.hidden_size / 2) {
      return InvalidArgument(
          "router-skew takes {} columns of the embedding of type {}, at most half of hidden: {}; "
          "hidden of {} or --dense Q8_0 works",
          tensor.num_fixed_columns, Traits(tensor.dtype).name, options.hidden_size,
          2 * tensor.num_fixed_columns);
    }
    if (!tensor.row_biases.empty() && kernels::IsBlockFormat(tensor.dtype)) {
      return InvalidArgument("router-skew needs routers of F32, F16 or BF16: {}, type: {}",
                             tensor.name, Traits(tensor.dtype).name);
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::app
