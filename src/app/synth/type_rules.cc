#include "app/synth/type_rules.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

// What stays F32 in published files: norms, gates with few rows, the router, small convolutions.
bool IsKeptF32(std::string_view name) {
  for (const std::string_view part : {"norm", "inject", "ffn_gate_inp", "ssm_alpha", "ssm_beta",
                                      "ssm_a", "ssm_dt", "ssm_conv1d", "ple_conv1d"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

bool Contains(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

// Number of the layer in "blk.17.x", or -1.
int LayerOf(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return -1;
  int layer = -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  return layer;
}

// Source: the tensors of the published UD-IQ4_XS file.
DType MixedType(std::string_view name, bool is_vector) {
  if (is_vector || IsKeptF32(name)) return DType::kF32;
  const int layer = LayerOf(name);
  if (Contains(name, "gate_exps") || Contains(name, "up_exps")) {
    return layer == 2 ? DType::kIQ4_XS : DType::kIQ3_S;
  }
  if (Contains(name, "down_exps")) {
    constexpr int kWideLayers[] = {2, 4, 30, 46, 47};
    return std::find(std::begin(kWideLayers), std::end(kWideLayers), layer) != std::end(kWideLayers)
               ? DType::kQ8_0
               : DType::kIQ4_NL;
  }
  if (name == "output.weight") return DType::kQ6_K;
  if (Contains(name, "indexer")) return DType::kBF16;
  if (name == "per_layer_token_embd.weight") return DType::kIQ4_NL;
  return DType::kQ8_0;
}

absl::StatusOr<DType> ParseType(std::string_view text) {
  const std::string upper = absl::AsciiStrToUpper(ToAbsl(text));
  const std::optional<DType> type = DTypeFromName(upper);
  if (!type.has_value()) return InvalidArgument("unknown tensor type: {}", text);
  return *type;
}

bool IsIq(DType type) { return Traits(type).name.starts_with("IQ"); }

bool Fits(DType type, int64_t row_length) { return row_length % Traits(type).block_length == 0; }

}  // namespace

void TypeRules::FreeRegex::operator()(regex_t* regex) const {
  regfree(regex);
  delete regex;
}

absl::StatusOr<TypeRules::Regex> TypeRules::ParseRegex(const std::string& text) {
  auto regex = std::make_unique<regex_t>();
  const int error = regcomp(regex.get(), text.c_str(), REG_EXTENDED | REG_NOSUB);
  if (error != 0) {
    char reason[128];
    regerror(error, regex.get(), reason, sizeof(reason));
    return InvalidArgument("not a regular expression: {} ({})", text, reason);
  }
  return Regex(regex.release());
}

absl::StatusOr<TypeRules> TypeRules::Create(const SynthOptions& options) {
  TypeRules rules;
  std::vector<std::pair<std::string, std::string>> items;
  if (!options.dense_type.empty()) {
    items.emplace_back(
        "^(token_embd|output)[.]|hc_[a-z]+_(down|up)[.]|attn_(qkv|gate|q|k|v|output)[.]|ssm_(ba|"
        "out)[.]|"
        "_shexp[.]|ple_(key|value)[.]|eh_proj[.]",
        options.dense_type);
    // The shared expert's gate is one row and stays with the router.
    items.emplace_back("ffn_gate_inp_shexp[.]", "F32");
  }
  if (!options.gate_up_type.empty()) {
    items.emplace_back("ffn_(gate|up|gate_up)_exps[.]", options.gate_up_type);
  }
  if (!options.down_type.empty()) items.emplace_back("ffn_down_exps[.]", options.down_type);

  for (const absl::string_view part : absl::StrSplit(ToAbsl(options.types), ',')) {
    const std::string item(absl::StripAsciiWhitespace(part));
    const size_t equals = item.rfind('=');
    if (equals != std::string::npos) {
      items.emplace_back(item.substr(0, equals), item.substr(equals + 1));
    } else if (item == "mixed" || item == "f32") {
      rules.is_mixed_ = item == "mixed";
    } else {
      return InvalidArgument("unknown layout of types: {}, wanted: f32, mixed or regex=TYPE", item);
    }
  }
  for (const auto& [pattern, name] : items) {
    SWITCHYARD_ASSIGN_OR_RETURN(Regex regex, ParseRegex(pattern));
    SWITCHYARD_ASSIGN_OR_RETURN(const DType type, ParseType(name));
    rules.rules_.emplace_back(std::move(regex), type);
  }
  return rules;
}

DType TypeRules::Choose(const std::string& name, int64_t row_length, bool is_vector) const {
  DType type = is_mixed_ ? MixedType(name, is_vector) : DType::kF32;
  for (const auto& [regex, wanted] : rules_) {
    const bool is_float = Traits(wanted).block_length == 1;
    if ((!is_vector || is_float) && regexec(regex.get(), name.c_str(), 0, nullptr, 0) == 0) {
      type = wanted;
    }
  }
  return FallbackType(type, row_length);
}

DType FallbackType(DType type, int64_t row_length) {
  if (Fits(type, row_length)) return type;
  DType fallback = DType::kF16;
  if (IsIq(type)) {
    fallback = DType::kIQ4_NL;
  } else if (type == DType::kQ4_K) {
    fallback = DType::kQ5_0;
  } else if (type == DType::kQ5_K) {
    fallback = DType::kQ5_1;
  } else if (type == DType::kQ6_K) {
    fallback = DType::kQ8_0;
  } else if (type == DType::kQ2_K || type == DType::kQ3_K) {
    fallback = DType::kQ4_0;
  }
  return Fits(fallback, row_length) ? fallback : DType::kF16;
}

}  // namespace switchyard::app
