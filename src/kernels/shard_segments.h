// The four virtual shards of a matrix as one ascending list of column ranges.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/types/span.h"

#include "base/check.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels {

// Strips of columns that a shard may consist of: the value heads of one key head.
inline constexpr int kMaxShardStrips = 16;

// Segment i covers columns [border[i], border[i + 1]) and belongs to shard i % 4. A shard's partial
// product is the sum of its segments' products, in order; empty segments contribute 0.
struct ShardSegments {
  std::array<int64_t, 4 * kMaxShardStrips + 1> border{};
  int num_segments = 0;

  absl::Span<const int64_t> borders() const {
    return {border.data(), static_cast<size_t>(num_segments) + 1};
  }
};

// Lists the segments of a matrix with `cols` columns.
// REQUIRES: the shards cover all columns; at most kMaxShardStrips strips.
inline ShardSegments SegmentsOf(const ShardBorders& shards, int64_t cols) {
  const int64_t strip_columns = shards.num_strips == 1 ? cols : shards.strip_columns;
  // Borders that miss columns would drop them from every sum without a trace.
  SWITCHYARD_CHECK(shards.num_strips >= 1 && shards.num_strips <= kMaxShardStrips);
  SWITCHYARD_CHECK(shards.num_strips * strip_columns == cols);
  SWITCHYARD_CHECK(shards.border.front() == 0 && shards.border.back() == strip_columns);
  SWITCHYARD_CHECK(std::is_sorted(shards.border.begin(), shards.border.end()));
  ShardSegments segments;
  segments.num_segments = 4 * shards.num_strips;
  for (int i = 0; i <= segments.num_segments; ++i) {
    segments.border[static_cast<size_t>(i)] =
        i / 4 * strip_columns + shards.border[static_cast<size_t>(i % 4)];
  }
  return segments;
}

}  // namespace switchyard::kernels
