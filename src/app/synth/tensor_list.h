// The tensors of a synthetic model: names, shapes, types, and how their values are drawn.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/synth/synth_options.h"
#include "app/synth/type_rules.h"
#include "base/dtype.h"

namespace switchyard::app {

// Where values come from.
enum class Distribution {
  kNormal,  // mean, deviation
  kDecay,   // -exp(x), x uniform from `mean` to `deviation`: decay rates of delta nets
};

struct SynthTensor {
  std::string name;
  std::vector<int64_t> dims;  // as in the file: dims[0] is contiguous
  DType dtype = DType::kF32;
  Distribution distribution = Distribution::kNormal;
  double mean = 0;  // 0 for block formats
  double deviation = 1;
  int64_t num_zero_rows = 0;  // at the end
  // The first columns of each row are the same in all rows; whole blocks.
  int64_t num_fixed_columns = 0;
  // By row: how far products with an input that has the fixed columns of `biased_by` are raised, on
  // top of the random values. Of float types only.
  std::vector<float> row_biases;
  std::shared_ptr<const SynthTensor> biased_by;

  int64_t num_rows() const;
  int64_t bytes() const { return RowBytes(dtype, dims[0]) * num_rows(); }
};

// Lists the tensors in the order of the file. Deviations are such that activations stay near 1,
// routers spread over the experts, and logits have a deviation of a few units; sublayers add little
// to the residual, so that rounding of activations is not amplified from layer to layer.
//
// REQUIRES: CheckSynthOptions(options) is OK.
std::vector<SynthTensor> ListTensors(const SynthOptions& options, const TypeRules& types);

}  // namespace switchyard::app
