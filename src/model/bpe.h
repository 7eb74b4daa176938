// Byte-pair encoding of one piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace switchyard::model {

// Two adjacent tokens that become one.
struct BpeMerge {
  uint32_t left = 0;
  uint32_t right = 0;
  uint32_t result = 0;
};

// Replaces pairs of adjacent tokens, beginning with single bytes, until no pair has a merge. Each
// time the pair whose merge has the lowest rank is replaced, of equal ones the leftmost.
//
// Threads: const, so any number of threads may encode at the same time.
class BpeEncoder {
 public:
  // byte_tokens[b] is the token of byte b; num_bytes[id] is the number of bytes that token `id`
  // stands for. The rank of a merge is its index in `merges`; when a pair has several, the first
  // counts.
  //
  // REQUIRES: ids are below num_bytes.size() <= 2^31; the 256 byte tokens differ and stand for 1
  // byte each; the result of every merge stands for as many bytes as its left and right together.
  BpeEncoder(const std::array<uint32_t, 256>& byte_tokens, std::vector<BpeMerge> merges,
             std::vector<uint32_t> num_bytes);

  // Appends the tokens of `piece` to `token_ids`. Time n log n for n bytes, constant stack; about 4
  // bytes of working memory for each byte and each pair that has a merge. A piece above 1 GiB is
  // encoded in parts of 1 GiB.
  void Encode(std::string_view piece, std::vector<int32_t>& token_ids) const;

 private:
  friend class LongPieceEncoder;

  static constexpr uint32_t kNoMerge = 0xFFFFFFFF;

  // Rank of the merge of this pair; kNoMerge if there is none.
  uint32_t Rank(uint32_t left, uint32_t right) const;

  void EncodeShort(std::string_view piece, std::vector<int32_t>& token_ids) const;

  std::array<uint32_t, 256> byte_tokens_;
  std::vector<BpeMerge> merges_;
  absl::flat_hash_map<uint64_t, uint32_t> rank_of_pair_;
  std::vector<uint32_t> num_bytes_;
};

}  // namespace switchyard::model
