#include "model/bpe.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>

#include "absl/container/node_hash_map.h"

#include "base/check.h"

namespace switchyard::model {
namespace {

// Up to this length a search through all pairs for each merge is faster than keeping an order.
constexpr size_t kMaxShortBytes = 32;

constexpr size_t kMaxPartBytes = size_t{1} << 30;

uint64_t PairKey(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

// Positions whose pairs wait for the merge of one rank; given out in ascending order. Most come in
// before the first is taken and are sorted once. Those that come later, when the merge of another
// rank created them meanwhile, go into a heap, so that no order of events costs more than n log n.
class Bucket {
 public:
  bool empty() const { return next_ == positions_.size() && late_.empty(); }

  void Push(uint32_t position) {
    if (taking_) {
      late_.push(position);
    } else {
      positions_.push_back(position);
    }
  }

  // REQUIRES: !empty().
  uint32_t PopLeftmost() {
    if (!taking_) {
      taking_ = true;
      if (!std::is_sorted(positions_.begin(), positions_.end())) {
        std::sort(positions_.begin(), positions_.end());
      }
    }
    const bool take_late =
        next_ == positions_.size() || (!late_.empty() && late_.top() < positions_[next_]);
    if (!take_late) return positions_[next_++];
    const uint32_t position = late_.top();
    late_.pop();
    return position;
  }

 private:
  std::vector<uint32_t> positions_;
  size_t next_ = 0;      // in positions_
  bool taking_ = false;  // positions_ is sorted and takes no more
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> late_;
};

}  // namespace

// Merges a piece of any length in place.
//
// The piece is an array with one cell for each byte. The first and the last cell of a token hold
// its id, the first with kStart set; what is between has no meaning. Lengths follow from ids, so
// both neighbours of a token are found without links.
class LongPieceEncoder {
 public:
  LongPieceEncoder(const BpeEncoder& bpe, std::string_view piece) : bpe_(bpe) {
    cells_.reserve(piece.size());
    for (const char c : piece) {
      cells_.push_back(bpe.byte_tokens_[static_cast<uint8_t>(c)] | kStart);
    }
  }

  void Encode(std::vector<int32_t>& token_ids) {
    for (size_t i = 0; i + 1 < cells_.size(); ++i) {
      AddPair(i, cells_[i] & ~kStart, cells_[i + 1] & ~kStart);
    }
    while (!ranks_.empty()) MergeLowestRank();
    for (size_t i = 0; i < cells_.size(); i += NumBytes(cells_[i])) {
      token_ids.push_back(static_cast<int32_t>(cells_[i] & ~kStart));
    }
  }

 private:
  static constexpr uint32_t kStart = uint32_t{1} << 31;

  size_t NumBytes(uint32_t cell) const { return bpe_.num_bytes_[cell & ~kStart]; }

  void AddPair(size_t position, uint32_t left, uint32_t right) {
    const uint32_t rank = bpe_.Rank(left, right);
    if (rank == BpeEncoder::kNoMerge) return;
    const auto [it, is_new] = buckets_.try_emplace(rank);
    if (is_new) ranks_.push(rank);
    it->second.Push(static_cast<uint32_t>(position));
  }

  // Takes positions of the lowest rank until none is left or a merge has created a pair of a lower
  // rank, which then goes first.
  void MergeLowestRank() {
    const uint32_t rank = ranks_.top();
    const auto it = buckets_.find(rank);
    SWITCHYARD_DCHECK(it != buckets_.end());  // a rank is queued as long as it has a bucket
    Bucket& bucket = it->second;              // node_hash_map: stays where it is
    const BpeMerge& merge = bpe_.merges_[rank];
    while (!bucket.empty()) {
      MergeAt(bucket.PopLeftmost(), merge);
      if (ranks_.top() != rank) return;
    }
    ranks_.pop();
    buckets_.erase(rank);
  }

  // Does nothing if the pair at `position` is gone: an earlier merge took one of its tokens.
  void MergeAt(size_t position, const BpeMerge& merge) {
    if (cells_[position] != (merge.left | kStart)) return;
    const size_t middle = position + NumBytes(merge.left);
    if (middle >= cells_.size() || cells_[middle] != (merge.right | kStart)) return;
    const size_t end = middle + NumBytes(merge.right);
    cells_[middle] &= ~kStart;
    cells_[position] = merge.result | kStart;
    cells_[end - 1] = merge.result;
    if (position > 0) {
      const uint32_t before = cells_[position - 1] & ~kStart;
      AddPair(position - NumBytes(before), before, merge.result);
    }
    if (end < cells_.size()) AddPair(position, merge.result, cells_[end] & ~kStart);
  }

  const BpeEncoder& bpe_;
  std::vector<uint32_t> cells_;
  absl::node_hash_map<uint32_t, Bucket> buckets_;  // by rank
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>>
      ranks_;  // those with a bucket
};

BpeEncoder::BpeEncoder(const std::array<uint32_t, 256>& byte_tokens, std::vector<BpeMerge> merges,
                       std::vector<uint32_t> num_bytes)
    : byte_tokens_(byte_tokens), merges_(std::move(merges)), num_bytes_(std::move(num_bytes)) {
  rank_of_pair_.reserve(merges_.size());
  for (size_t rank = 0; rank < merges_.size(); ++rank) {
    const BpeMerge& merge = merges_[rank];
    SWITCHYARD_DCHECK(num_bytes_[merge.result] == num_bytes_[merge.left] + num_bytes_[merge.right]);
    rank_of_pair_.try_emplace(PairKey(merge.left, merge.right), static_cast<uint32_t>(rank));
  }
}

uint32_t BpeEncoder::Rank(uint32_t left, uint32_t right) const {
  const auto it = rank_of_pair_.find(PairKey(left, right));
  return it == rank_of_pair_.end() ? kNoMerge : it->second;
}

void BpeEncoder::EncodeShort(std::string_view piece, std::vector<int32_t>& token_ids) const {
  std::array<uint32_t, kMaxShortBytes> tokens;
  std::array<uint32_t, kMaxShortBytes> ranks;  // of the pair (i, i + 1)
  size_t num_tokens = piece.size();
  for (size_t i = 0; i < num_tokens; ++i) tokens[i] = byte_tokens_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < num_tokens; ++i) ranks[i] = Rank(tokens[i], tokens[i + 1]);
  while (num_tokens > 1) {
    const size_t num_pairs = num_tokens - 1;
    const size_t best = std::min_element(ranks.begin(), ranks.begin() + num_pairs) - ranks.begin();
    if (ranks[best] == kNoMerge) break;
    tokens[best] = merges_[ranks[best]].result;
    std::copy(tokens.begin() + best + 2, tokens.begin() + num_tokens, tokens.begin() + best + 1);
    std::copy(ranks.begin() + best + 1, ranks.begin() + num_pairs, ranks.begin() + best);
    --num_tokens;
    if (best > 0) ranks[best - 1] = Rank(tokens[best - 1], tokens[best]);
    if (best + 1 < num_tokens) ranks[best] = Rank(tokens[best], tokens[best + 1]);
  }
  token_ids.insert(token_ids.end(), tokens.begin(), tokens.begin() + num_tokens);
}

void BpeEncoder::Encode(std::string_view piece, std::vector<int32_t>& token_ids) const {
  if (piece.size() <= kMaxShortBytes) return EncodeShort(piece, token_ids);
  for (; !piece.empty(); piece.remove_prefix(std::min(piece.size(), kMaxPartBytes))) {
    LongPieceEncoder(*this, piece.substr(0, kMaxPartBytes)).Encode(token_ids);
  }
}

}  // namespace switchyard::model
