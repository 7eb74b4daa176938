// Which type each tensor of a synthetic model gets.
#pragma once

#include <cstdint>
#include <memory>
#include <regex.h>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "app/synth/synth_options.h"
#include "base/dtype.h"

namespace switchyard::app {

// The layout of types that `SynthOptions` asks for:
//
//   f32    everything F32
//   mixed  that of the released model's 4-bit file (UD-IQ4_XS): gate and up IQ3_S, in layer 2
//          IQ4_XS; down IQ4_NL, in layers 2, 4, 30, 46, 47 Q8_0; dense matrices Q8_0; output Q6_K;
//          indexer BF16; n-gram table IQ4_NL; norms, routers and small tensors F32
//
// On top of it gate_up_type, down_type and dense_type, then the items `regex=TYPE` in their order:
// the last that matches wins. `types` is a comma-separated list of one layout (f32 if none is
// given) and of items, whose expressions are POSIX extended ones. Vectors change to F16 and BF16
// only.
class TypeRules {
 public:
  // Errors: kInvalidArgument for an unknown layout or type, or a broken regular expression.
  static absl::StatusOr<TypeRules> Create(const SynthOptions& options);

  // The type of a tensor with rows of `row_length` elements. `is_vector`: it has one dimension.
  DType Choose(const std::string& name, int64_t row_length, bool is_vector) const;

  bool is_mixed() const { return is_mixed_; }
  // True if all tensors get what the layout says.
  bool is_plain() const { return rules_.empty(); }

 private:
  bool is_mixed_ = false;
  struct FreeRegex {
    void operator()(regex_t* regex) const;
  };
  using Regex = std::unique_ptr<regex_t, FreeRegex>;
  static absl::StatusOr<Regex> ParseRegex(const std::string& text);

  std::vector<std::pair<Regex, DType>> rules_;
};

// `type`, or what takes its place where rows of `row_length` are no whole number of its blocks, as
// llama-quantize chooses: Q4_K gives way to Q5_0, Q5_K to Q5_1, Q6_K to Q8_0, Q2_K and Q3_K to
// Q4_0, IQ types to IQ4_NL, and everything to F16 if that does not fit either.
DType FallbackType(DType type, int64_t row_length);

}  // namespace switchyard::app
