// Where the rows of one attention layer lie in its paged cache.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels {

inline DType KvDType(KvType type) {
  switch (type) {
    case KvType::kF32:
      return DType::kF32;
    case KvType::kF16:
      return DType::kF16;
    case KvType::kQ8_0:
      return DType::kQ8_0;
  }
  return DType::kF32;
}

// Block keys are never quantised: with 8-bit keys the wrong blocks are chosen at long contexts.
inline DType BlockKeyDType(KvType type) { return type == KvType::kF32 ? DType::kF32 : DType::kF16; }

// Byte offsets into the buffers of a KvLayer, and their sizes per page.
struct KvLayout {
  KvLayout(const AttentionShape& shape, KvType type)
      : num_kv_heads(shape.num_kv_heads),
        row_bytes(RowBytes(KvDType(type), shape.head_dim)),
        block_key_bytes(RowBytes(BlockKeyDType(type), shape.index_head_dim)),
        ratio(shape.qsa_ratio) {}

  // Of `keys`, and of `values`.
  int64_t page_bytes() const { return num_kv_heads * kPageTokens * row_bytes; }
  // Of `block_keys`; 0 in a dense layer.
  int64_t block_key_page_bytes() const {
    return ratio == 0 ? 0 : kPageTokens / ratio * block_key_bytes;
  }
  // Offset of the key (value) of kv head `head` at `position`.
  int64_t Row(const AttentionSequence& sequence, int head, int64_t position) const {
    const int64_t page = sequence.pages[static_cast<size_t>(position / kPageTokens)];
    return ((page * num_kv_heads + head) * kPageTokens + position % kPageTokens) * row_bytes;
  }
  // Offset of the key of block `block` (tokens from block * ratio on). REQUIRES: not dense.
  int64_t BlockKey(const AttentionSequence& sequence, int64_t block) const {
    const int64_t blocks_per_page = kPageTokens / ratio;
    const int64_t page = sequence.pages[static_cast<size_t>(block / blocks_per_page)];
    return (page * blocks_per_page + block % blocks_per_page) * block_key_bytes;
  }

  int64_t num_kv_heads;
  int64_t row_bytes;
  int64_t block_key_bytes;
  int ratio;
};

// Says whether a layer of this shape can be cached as `type`. Stages cannot fail, so whoever
// allocates a cache asks first.
//
// Errors: kInvalidArgument.
inline absl::Status CheckKvLayout(const AttentionShape& shape, KvType type) {
  const int block_length = Traits(KvDType(type)).block_length;
  if (shape.head_dim <= 0 || shape.head_dim % block_length != 0) {
    return InvalidArgument("head size is no multiple of the cache type's block: {}, block: {}",
                           shape.head_dim, block_length);
  }
  const bool divides = shape.kv_group_size != 0 ||
                       (shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0);
  if (shape.num_kv_heads <= 0 || !divides) {
    return InvalidArgument("query heads do not divide over kv heads: {}, kv heads: {}",
                           shape.num_heads, shape.num_kv_heads);
  }
  const bool sparse = shape.qsa_ratio != 0;
  const int smallest_head =
      sparse && shape.index_head_dim < shape.head_dim ? shape.index_head_dim : shape.head_dim;
  if (shape.num_rotary_dims % 2 != 0 || shape.num_rotary_dims > smallest_head) {
    return InvalidArgument("rotated dimensions do not fit the head: {}, head size: {}",
                           shape.num_rotary_dims, smallest_head);
  }
  if (!sparse) return absl::OkStatus();
  if (shape.qsa_ratio < 0 || kPageTokens % shape.qsa_ratio != 0) {
    return InvalidArgument("block of the sparse attention does not divide a page: {}, page: {}",
                           shape.qsa_ratio, kPageTokens);
  }
  if (shape.qsa_budget <= 0 || shape.qsa_budget % shape.qsa_ratio != 0) {
    return InvalidArgument("sparse attention budget is no multiple of its block: {}, block: {}",
                           shape.qsa_budget, shape.qsa_ratio);
  }
  return absl::OkStatus();
}

}  // namespace switchyard::kernels
