#include "model/vocabulary.h"

#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "base/status.h"
#include "base/status_macros.h"
#include "model/byte_alphabet.h"
#include "model/gguf_metadata.h"

namespace switchyard::model {
namespace {

constexpr size_t kMaxTokenBytes = size_t{1} << 20;

using TokenIds = absl::flat_hash_map<absl::string_view, uint32_t>;  // by text in the file

absl::StatusOr<TokenType> ParseTokenType(int32_t type, size_t token_id) {
  if (type < static_cast<int32_t>(TokenType::kNormal) ||
      type > static_cast<int32_t>(TokenType::kByte)) {
    return DataLoss("unknown token type, token id: {}, known types: 1 to 6, got: {}", token_id,
                    type);
  }
  return static_cast<TokenType>(type);
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The byte that a byte token such as <0x0A> writes.
absl::StatusOr<std::string> ParseByteToken(std::string_view text, size_t token_id) {
  if (text.size() == 6 && text.substr(0, 3) == "<0x" && text[5] == '>') {
    const int high = HexDigit(text[3]);
    const int low = HexDigit(text[4]);
    if (high >= 0 && low >= 0) return std::string(1, static_cast<char>(high << 4 | low));
  }
  return DataLoss("byte token is not <0x00> to <0xFF>, token id: {}, got: '{}'", token_id,
                  Printable(text));
}

absl::StatusOr<std::string> TokenBytes(const std::string& text, TokenType type, size_t token_id) {
  switch (type) {
    case TokenType::kNormal:
    case TokenType::kUnused:
      return DecodeByteAlphabet(text).value_or(text);
    case TokenType::kByte:
      return ParseByteToken(text, token_id);
    case TokenType::kUnknown:
    case TokenType::kControl:
    case TokenType::kUserDefined:
      break;
  }
  return text;
}

TokenType TypeOf(const TokenizerData& data, size_t token_id) {
  if (data.token_types.empty()) return TokenType::kNormal;
  return static_cast<TokenType>(data.token_types[token_id]);
}

// Whether merging bytes may end in this token. Never in a control token: what a user writes could
// end the user's message. In a user-defined one only if its literal text reads the same in the
// alphabet; tokens of other types do not stand for the bytes that their text spells.
bool MayComeFromBytes(const TokenizerData& data, size_t token_id) {
  switch (TypeOf(data, token_id)) {
    case TokenType::kNormal:
    case TokenType::kUnused:
      return true;
    case TokenType::kUserDefined:
      return DecodeByteAlphabet(data.tokens[token_id]) == data.tokens[token_id];
    case TokenType::kUnknown:
    case TokenType::kControl:
    case TokenType::kByte:
      break;
  }
  return false;
}

// Of tokens with the same text the lowest id counts, unused ones only if there is no other: padding
// rows may repeat a text that has a meaning.
TokenIds MakeTokenIds(const TokenizerData& data) {
  TokenIds ids;
  ids.reserve(data.tokens.size());
  for (const bool unused : {false, true}) {
    for (size_t id = 0; id < data.tokens.size(); ++id) {
      if ((TypeOf(data, id) == TokenType::kUnused) != unused || !MayComeFromBytes(data, id))
        continue;
      ids.try_emplace(data.tokens[id], static_cast<uint32_t>(id));
    }
  }
  return ids;
}

absl::StatusOr<std::array<uint32_t, 256>> FindByteTokens(const TokenIds& ids) {
  std::array<uint32_t, 256> byte_tokens{};
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::string text = ByteToAlphabet(static_cast<uint8_t>(byte));
    const auto it = ids.find(text);
    if (it == ids.end()) return DataLoss("vocabulary has no token for byte: {:#04x}", byte);
    byte_tokens[byte] = it->second;
  }
  return byte_tokens;
}

absl::StatusOr<uint32_t> FindMergeToken(const TokenIds& ids, std::string_view text, size_t rank) {
  const auto it = ids.find(ToAbsl(text));
  if (it != ids.end()) return it->second;
  return DataLoss("merge needs a token that is missing or not for text, rank: {}, token: '{}'",
                  rank, Printable(text));
}

absl::StatusOr<BpeMerge> ParseMerge(const TokenizerData& data, const TokenIds& ids, size_t rank) {
  const std::string_view text = data.merges[rank];
  // The alphabet has no space, so the one between the tokens is the only one.
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == text.size() ||
      text.find(' ', space + 1) != std::string_view::npos) {
    return DataLoss("merge is not two tokens with a space between, rank: {}, got: '{}'", rank,
                    Printable(text));
  }
  const std::string_view left = text.substr(0, space);
  const std::string_view right = text.substr(space + 1);
  BpeMerge merge;
  SWITCHYARD_ASSIGN_OR_RETURN(merge.left, FindMergeToken(ids, left, rank));
  SWITCHYARD_ASSIGN_OR_RETURN(merge.right, FindMergeToken(ids, right, rank));
  const std::string result = std::string(left).append(right);
  SWITCHYARD_ASSIGN_OR_RETURN(merge.result, FindMergeToken(ids, result, rank));
  return merge;
}

}  // namespace

absl::StatusOr<Vocabulary> Vocabulary::Create(const TokenizerData& data) {
  const size_t num_tokens = data.tokens.size();
  if (num_tokens == 0) return DataLoss("vocabulary has no tokens");
  if (num_tokens > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return DataLoss("vocabulary has more than 2^31 - 1 tokens: {}", num_tokens);
  }
  if (!data.token_types.empty() && data.token_types.size() != num_tokens) {
    return DataLoss("token types do not match the tokens, wanted: {}, got: {}", num_tokens,
                    data.token_types.size());
  }
  Vocabulary vocabulary;
  vocabulary.types_.reserve(num_tokens);
  vocabulary.offsets_.reserve(num_tokens + 1);
  for (size_t id = 0; id < num_tokens; ++id) {
    const std::string& text = data.tokens[id];
    if (text.size() > kMaxTokenBytes) {
      return DataLoss("token is too long, token id: {}, allowed bytes: {}, got: {}", id,
                      kMaxTokenBytes, text.size());
    }
    TokenType type = TokenType::kNormal;
    if (!data.token_types.empty()) {
      SWITCHYARD_ASSIGN_OR_RETURN(type, ParseTokenType(data.token_types[id], id));
    }
    SWITCHYARD_ASSIGN_OR_RETURN(const std::string bytes, TokenBytes(text, type, id));
    vocabulary.types_.push_back(type);
    vocabulary.bytes_ += bytes;
    vocabulary.offsets_.push_back(vocabulary.bytes_.size());
  }
  return vocabulary;
}

absl::StatusOr<BpeEncoder> MakeBpeEncoder(const TokenizerData& data) {
  if (data.merges.size() >= std::numeric_limits<uint32_t>::max()) {
    return DataLoss("too many merges: {}", data.merges.size());
  }
  const TokenIds ids = MakeTokenIds(data);
  SWITCHYARD_ASSIGN_OR_RETURN(const auto byte_tokens, FindByteTokens(ids));
  // Bytes of each token when its text is read in the alphabet, as merging does, whatever its type.
  std::vector<uint32_t> num_bytes(data.tokens.size(), 0);
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const std::optional<std::string> bytes = DecodeByteAlphabet(data.tokens[id]);
    if (bytes.has_value()) num_bytes[id] = static_cast<uint32_t>(bytes->size());
  }
  std::vector<BpeMerge> merges;
  merges.reserve(data.merges.size());
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    SWITCHYARD_ASSIGN_OR_RETURN(const BpeMerge merge, ParseMerge(data, ids, rank));
    // A token with characters outside the alphabet never comes out of bytes: nor does this merge.
    if (num_bytes[merge.left] != 0 && num_bytes[merge.right] != 0) merges.push_back(merge);
  }
  return BpeEncoder(byte_tokens, std::move(merges), std::move(num_bytes));
}

}  // namespace switchyard::model
