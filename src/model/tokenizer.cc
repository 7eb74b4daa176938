#include "model/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/detokenizer.h"

namespace switchyard::model {
namespace {

// Ends of a generation that files of this lineage do not always declare: the end of a message and
// the end of a document. The model produces both.
constexpr std::array<std::string_view, 2> kEndTexts = {"<|im_end|>", "<|endoftext|>"};

// The automata that find special tokens take about 100 bytes for each byte of their texts.
constexpr size_t kMaxSpecialBytes = size_t{16} << 20;

bool IsSpecial(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUnknown ||
         type == TokenType::kUserDefined;
}

absl::StatusOr<std::optional<int32_t>> CheckSpecialId(std::optional<int64_t> id, int vocab_size,
                                                      std::string_view name) {
  if (!id.has_value()) return std::optional<int32_t>();
  if (*id < 0 || *id >= vocab_size) {
    return DataLoss("{} is outside the vocabulary, tokens: {}, got: {}", name, vocab_size, *id);
  }
  return std::optional<int32_t>(static_cast<int32_t>(*id));
}

// A stretch of the joined text in which the same special tokens are matched.
struct Zone {
  size_t begin = 0;
  size_t end = 0;
  SpecialMatching special = SpecialMatching::kNone;
};

}  // namespace

absl::StatusOr<Tokenizer> Tokenizer::Create(const TokenizerData& data) {
  Tokenizer tokenizer;
  SWITCHYARD_ASSIGN_OR_RETURN(tokenizer.pre_tokenizer_, ParsePreTokenizerKind(data.pre_tokenizer));
  SWITCHYARD_ASSIGN_OR_RETURN(tokenizer.vocabulary_, Vocabulary::Create(data));
  SWITCHYARD_ASSIGN_OR_RETURN(tokenizer.bpe_, MakeBpeEncoder(data));
  SWITCHYARD_RETURN_IF_ERROR(tokenizer.CollectSpecialTokens());
  SWITCHYARD_RETURN_IF_ERROR(tokenizer.ReadSpecialIds(data));
  tokenizer.chat_template_ = data.chat_template;
  return tokenizer;
}

absl::Status Tokenizer::CollectSpecialTokens() {
  std::vector<SpecialToken> user_defined;
  std::vector<SpecialToken> all;
  size_t num_special_bytes = 0;
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (type(id) == TokenType::kUnused) unused_ids_.push_back(id);
    if (!IsSpecial(type(id)) || token_bytes(id).empty()) continue;
    num_special_bytes += token_bytes(id).size();
    if (num_special_bytes > kMaxSpecialBytes) {
      return DataLoss("special tokens are too long, allowed bytes in all: {}", kMaxSpecialBytes);
    }
    all.push_back({token_bytes(id), id});
    if (type(id) == TokenType::kUserDefined) user_defined.push_back(all.back());
    special_tokens_.try_emplace(std::string(token_bytes(id)), id);
  }
  user_defined_matcher_.emplace(user_defined);
  all_matcher_.emplace(all);
  return absl::OkStatus();
}

absl::Status Tokenizer::ReadSpecialIds(const TokenizerData& data) {
  SWITCHYARD_ASSIGN_OR_RETURN(eos_token_id_,
                              CheckSpecialId(data.eos_token_id, vocab_size(), "eos_token_id"));
  SWITCHYARD_ASSIGN_OR_RETURN(const auto eot_token_id,
                              CheckSpecialId(data.eot_token_id, vocab_size(), "eot_token_id"));
  SWITCHYARD_ASSIGN_OR_RETURN(bos_token_id_,
                              CheckSpecialId(data.bos_token_id, vocab_size(), "bos_token_id"));
  SWITCHYARD_ASSIGN_OR_RETURN(
      padding_token_id_, CheckSpecialId(data.padding_token_id, vocab_size(), "padding_token_id"));
  add_bos_ = data.add_bos;
  if (add_bos_ && !bos_token_id_.has_value()) {
    return DataLoss("add_bos_token is true, but there is no bos_token_id");
  }
  for (const std::optional<int32_t> id : {eos_token_id_, eot_token_id}) {
    if (id.has_value()) end_of_generation_ids_.push_back(*id);
  }
  for (const std::string_view text : kEndTexts) {
    const std::optional<int32_t> id = FindSpecialToken(text);
    if (id.has_value() && type(*id) == TokenType::kControl) end_of_generation_ids_.push_back(*id);
  }
  std::sort(end_of_generation_ids_.begin(), end_of_generation_ids_.end());
  end_of_generation_ids_.erase(
      std::unique(end_of_generation_ids_.begin(), end_of_generation_ids_.end()),
      end_of_generation_ids_.end());
  return absl::OkStatus();
}

std::optional<int32_t> Tokenizer::FindSpecialToken(std::string_view text) const {
  const auto it = special_tokens_.find(ToAbsl(text));
  return it == special_tokens_.end() ? std::nullopt : std::optional<int32_t>(it->second);
}

bool Tokenizer::is_end_of_generation(int32_t token_id) const {
  return std::binary_search(end_of_generation_ids_.begin(), end_of_generation_ids_.end(), token_id);
}

void Tokenizer::EncodePlain(std::string_view text, std::vector<int32_t>& token_ids) const {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = PieceEnd(pre_tokenizer_, text, begin);
    bpe_->Encode(text.substr(begin, end - begin), token_ids);
    begin = end;
  }
}

std::vector<int32_t> Tokenizer::Encode(absl::Span<const TextSpan> spans) const {
  std::string joined;  // only if there is something to join
  std::vector<Zone> zones;
  size_t end = 0;
  for (const TextSpan& span : spans) {
    if (span.text.empty()) continue;
    if (spans.size() > 1) joined += span.text;
    if (zones.empty() || zones.back().special != span.special) {
      zones.push_back({end, end, span.special});
    }
    end += span.text.size();
    zones.back().end = end;
  }
  if (zones.empty()) return {};
  const std::string_view text = spans.size() > 1 ? std::string_view(joined) : spans[0].text;

  std::vector<SpecialTokenMatch> matches;
  for (const Zone& zone : zones) {
    if (zone.special == SpecialMatching::kNone) continue;
    const SpecialTokenMatcher& matcher =
        zone.special == SpecialMatching::kAll ? *all_matcher_ : *user_defined_matcher_;
    matcher.FindAll(text, zone.begin, zone.end, matches);
  }
  std::vector<int32_t> token_ids;
  size_t begin = 0;
  for (const SpecialTokenMatch& match : matches) {
    EncodePlain(text.substr(begin, match.begin - begin), token_ids);
    token_ids.push_back(match.token_id);
    begin = match.end;
  }
  EncodePlain(text.substr(begin), token_ids);
  return token_ids;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, SpecialMatching special) const {
  const TextSpan span{text, special};
  return Encode(absl::MakeConstSpan(&span, 1));
}

std::string Tokenizer::Decode(absl::Span<const int32_t> token_ids, bool include_special) const {
  Detokenizer detokenizer(*this, {.include_special = include_special});
  std::string text;
  for (const int32_t token_id : token_ids) text += detokenizer.Push(token_id);
  return text += detokenizer.Flush();
}

}  // namespace switchyard::model
