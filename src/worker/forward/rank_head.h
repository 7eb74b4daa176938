// The head where its rows are divided over ranks: brings logits, or the best of them, to the lead.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "base/tensor_view.h"
#include "placement/rank_share.h"
#include "worker/forward/rank_exchange.h"

namespace switchyard::worker {

// Most candidates that a rank may be asked for.
inline constexpr int kMaxCandidates = 64;

// A choice that looks at no more than the `num_candidates` best logits, such as a greedy one or one
// among the top k, is the same with all other logits at -infinity: then ranks send their best
// instead of whole rows. Where a logit is not a finite number it is sent as one of the best, so
// that nobody overlooks it.
//
// Threads: the step thread.
class RankHead {
 public:
  // `masked`: ids that are never sampled; they are no candidates.
  RankHead(int64_t vocab_size, const placement::RankShare& share, absl::Span<const int32_t> masked);

  // Of a rank that does not lead: sends its part of some rows, all of it if `num_candidates` is 0.
  // Shapes: own [rows, rows of the output matrix that are here].
  // Errors: those of the communicator.
  absl::Status Send(MatrixView<const float> own, int num_candidates, RankExchange& ranks);

  // Of the lead rank: puts the logits together.
  // Shapes: own as above, peer [rows, most rows of any rank], logits [rows, vocab_size].
  // Errors: those of the communicator.
  absl::Status Collect(MatrixView<const float> own, int num_candidates, MatrixView<float> peer,
                       RankExchange& ranks, MatrixView<float> logits);

 private:
  struct Candidate {
    float logit;
    int32_t token_id;
  };
  // Writes the best of a row of this rank, best first; fewer than asked for are filled up with
  // -infinity.
  void Choose(const float* row, int num_candidates, Candidate* out);

  const int64_t vocab_size_;
  const placement::RankShare& share_;
  std::vector<bool> is_masked_;        // by row of this rank
  std::vector<Candidate> entries_;     // all rows of this rank
  std::vector<Candidate> candidates_;  // that travel
};

}  // namespace switchyard::worker
