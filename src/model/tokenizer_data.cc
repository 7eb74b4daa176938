#include "model/tokenizer_data.h"

#include <limits>
#include <string_view>

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::model {
namespace {

absl::StatusOr<std::vector<std::string>> ReadStrings(const GgufMetadata& metadata,
                                                     std::string_view key) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<std::string_view> views, metadata.GetStrings(key));
  return std::vector<std::string>(views.begin(), views.end());
}

absl::StatusOr<std::vector<int32_t>> ReadTokenTypes(const GgufMetadata& metadata,
                                                    std::string_view key) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<int64_t> values, metadata.GetInts(key));
  std::vector<int32_t> types;
  types.reserve(values.size());
  for (const int64_t value : values) {
    if (value < std::numeric_limits<int32_t>::min() ||
        value > std::numeric_limits<int32_t>::max()) {
      return DataLoss("token type does not fit 32 bits: {}, {}", value,
                      metadata.Where(*metadata.Find(key)));
    }
    types.push_back(static_cast<int32_t>(value));
  }
  return types;
}

absl::StatusOr<std::optional<int64_t>> ReadId(const GgufMetadata& metadata, std::string_view key) {
  if (!metadata.Has(key)) return std::optional<int64_t>();
  SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t id, metadata.GetUint(key));
  // Above int64 there is no vocabulary either: the largest value stands for all of them.
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return std::optional<int64_t>(static_cast<int64_t>(id < kMax ? id : kMax));
}

}  // namespace

absl::StatusOr<TokenizerData> ReadTokenizerData(const GgufMetadata& metadata) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string_view model,
                              metadata.GetString("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return Unimplemented("unknown tokenizer model: '{}', known: gpt2 (byte-level BPE), {}",
                         Printable(model), metadata.Where(*metadata.Find("tokenizer.ggml.model")));
  }
  TokenizerData data;
  SWITCHYARD_ASSIGN_OR_RETURN(data.pre_tokenizer, metadata.GetString("tokenizer.ggml.pre"));
  SWITCHYARD_ASSIGN_OR_RETURN(data.tokens, ReadStrings(metadata, "tokenizer.ggml.tokens"));
  if (metadata.Has("tokenizer.ggml.token_type")) {
    SWITCHYARD_ASSIGN_OR_RETURN(data.token_types,
                                ReadTokenTypes(metadata, "tokenizer.ggml.token_type"));
    if (data.token_types.size() !=
        data.tokens.size()) {  // here too: an empty array is no absent one
      return DataLoss("token types do not match the tokens, wanted: {}, got: {}, {}",
                      data.tokens.size(), data.token_types.size(),
                      metadata.Where(*metadata.Find("tokenizer.ggml.token_type")));
    }
  }
  SWITCHYARD_ASSIGN_OR_RETURN(data.merges, ReadStrings(metadata, "tokenizer.ggml.merges"));
  SWITCHYARD_ASSIGN_OR_RETURN(data.eos_token_id, ReadId(metadata, "tokenizer.ggml.eos_token_id"));
  SWITCHYARD_ASSIGN_OR_RETURN(data.eot_token_id, ReadId(metadata, "tokenizer.ggml.eot_token_id"));
  SWITCHYARD_ASSIGN_OR_RETURN(data.bos_token_id, ReadId(metadata, "tokenizer.ggml.bos_token_id"));
  SWITCHYARD_ASSIGN_OR_RETURN(data.padding_token_id,
                              ReadId(metadata, "tokenizer.ggml.padding_token_id"));
  if (metadata.Has("tokenizer.ggml.add_bos_token")) {
    SWITCHYARD_ASSIGN_OR_RETURN(data.add_bos, metadata.GetBool("tokenizer.ggml.add_bos_token"));
  }
  if (metadata.Has("tokenizer.chat_template")) {
    SWITCHYARD_ASSIGN_OR_RETURN(data.chat_template, metadata.GetString("tokenizer.chat_template"));
  }
  return data;
}

}  // namespace switchyard::model
