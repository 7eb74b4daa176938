#include "worker/forward/rank_head.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/status_macros.h"

namespace switchyard::worker {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

RankHead::RankHead(int64_t vocab_size, const placement::RankShare& share,
                   absl::Span<const int32_t> masked)
    : vocab_size_(vocab_size),
      share_(share),
      is_masked_(static_cast<size_t>(share.output_rows.size())) {
  for (const int32_t id : masked) {
    if (id < share.output_rows.begin || id >= share.output_rows.end) continue;
    is_masked_[static_cast<size_t>(id - share.output_rows.begin)] = true;
  }
  entries_.reserve(is_masked_.size());
}

void RankHead::Choose(const float* row, int num_candidates, Candidate* out) {
  // As a sampler ranks them; what is no finite number comes first.
  const auto before = [](const Candidate& a, const Candidate& b) {
    const bool a_is_wrong = !(a.logit < kInfinity), b_is_wrong = !(b.logit < kInfinity);
    if (a_is_wrong != b_is_wrong) return a_is_wrong;
    if (a_is_wrong) return a.token_id < b.token_id;
    return a.logit > b.logit || (a.logit == b.logit && a.token_id < b.token_id);
  };
  entries_.clear();
  for (size_t i = 0; i < is_masked_.size(); ++i) {
    // A masked row counts only as long as it tells that something is wrong.
    if (is_masked_[i] && row[i] < kInfinity) continue;
    entries_.push_back(
        {row[i], static_cast<int32_t>(share_.output_rows.begin) + static_cast<int32_t>(i)});
  }
  const auto count = std::min(static_cast<int64_t>(entries_.size()), int64_t{num_candidates});
  if (count == 1) {
    out[0] = *std::min_element(entries_.begin(), entries_.end(), before);
  } else {
    std::partial_sort(entries_.begin(), entries_.begin() + count, entries_.end(), before);
    std::copy_n(entries_.begin(), count, out);
  }
  for (int64_t i = count; i < num_candidates; ++i) {
    out[i] = {-kInfinity, static_cast<int32_t>(share_.output_rows.begin)};
  }
}

absl::Status RankHead::Send(MatrixView<const float> own, int num_candidates, RankExchange& ranks) {
  if (num_candidates == 0) return ranks.Send(own, share_.lead_rank);
  candidates_.resize(static_cast<size_t>(own.rows * num_candidates));
  for (int64_t i = 0; i < own.rows; ++i) {
    Choose(own.row(i), num_candidates, candidates_.data() + i * num_candidates);
  }
  return ranks.SendBytes(candidates_.data(),
                         static_cast<int64_t>(candidates_.size() * sizeof(Candidate)),
                         share_.lead_rank);
}

absl::Status RankHead::Collect(MatrixView<const float> own, int num_candidates,
                               MatrixView<float> peer, RankExchange& ranks,
                               MatrixView<float> logits) {
  if (num_candidates != 0) {
    for (int64_t i = 0; i < logits.rows; ++i) std::fill_n(logits.row(i), vocab_size_, -kInfinity);
    candidates_.resize(static_cast<size_t>(own.rows * num_candidates));
  }
  for (int rank = 0; rank < share_.world_size; ++rank) {
    const placement::Range rows = placement::OutputRowsOf(vocab_size_, rank, share_.world_size);
    if (rank == share_.rank) {
      for (int64_t i = 0; i < own.rows; ++i) {
        std::copy_n(own.row(i), rows.size(), logits.row(i) + rows.begin);
      }
    } else if (num_candidates == 0) {
      const MatrixView<float> part(peer.data, own.rows, rows.size());
      SWITCHYARD_RETURN_IF_ERROR(ranks.Receive(part, rank));
      for (int64_t i = 0; i < own.rows; ++i) {
        std::copy_n(part.row(i), rows.size(), logits.row(i) + rows.begin);
      }
    } else {
      SWITCHYARD_RETURN_IF_ERROR(ranks.ReceiveBytes(
          candidates_.data(), static_cast<int64_t>(candidates_.size() * sizeof(Candidate)), rank));
      for (size_t c = 0; c < candidates_.size(); ++c) {
        const Candidate& candidate = candidates_[c];
        SWITCHYARD_CHECK(candidate.token_id >= rows.begin && candidate.token_id < rows.end);
        logits.row(static_cast<int64_t>(c) / num_candidates)[candidate.token_id] = candidate.logit;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::worker
