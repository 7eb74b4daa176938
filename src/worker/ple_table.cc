#include "worker/ple_table.h"

#include <algorithm>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "kernels/quant/dequantize.h"

namespace switchyard::worker {
namespace {

// A table below this size is in the page cache after a short while, and asking costs more than it
// saves: a system call per row against one read of a disk page (about 100 us) per miss.
constexpr int64_t kMinPrefetchTableBytes = int64_t{256} << 20;

// Longest n-gram that a file may ask for; the model room accepts less.
constexpr int kMaxNgramSize = 16;

}  // namespace

void NgramRows(const model::PleSpec& spec, absl::Span<const int32_t> context,
               absl::Span<const int32_t> tokens, absl::Span<int64_t> rows) {
  SWITCHYARD_CHECK(spec.ngram_size <= kMaxNgramSize);
  SWITCHYARD_CHECK(rows.size() == tokens.size() * static_cast<size_t>(spec.num_heads()));
  const auto eos = static_cast<uint64_t>(spec.eos_token_id);
  const auto context_size = static_cast<int64_t>(context.size());
  size_t next = 0;
  for (int64_t t = 0; t < static_cast<int64_t>(tokens.size()); ++t) {
    uint64_t gram[kMaxNgramSize];
    gram[0] = static_cast<uint64_t>(tokens[static_cast<size_t>(t)]);
    bool cut = false;
    for (int64_t s = 1; s < spec.ngram_size; ++s) {
      const int64_t before = t - s;  // negative: in the context
      uint64_t id = eos;
      if (before >= 0) {
        id = static_cast<uint64_t>(tokens[static_cast<size_t>(before)]);
      } else if (context_size + before >= 0) {
        id = static_cast<uint64_t>(context[static_cast<size_t>(context_size + before)]);
      }
      cut = cut || id == eos;
      gram[s] = cut ? eos : id;
    }
    uint64_t mixed = gram[0] * spec.multipliers[0];
    size_t head = 0;
    for (int n = 2; n <= spec.ngram_size; ++n) {
      mixed ^= gram[n - 1] * spec.multipliers[static_cast<size_t>(n - 1)];
      for (int g = 0; g < spec.heads_per_ngram; ++g, ++head) {
        rows[next++] =
            static_cast<int64_t>(mixed % spec.head_vocab_sizes[head] + spec.head_offsets[head]);
      }
    }
  }
}

PleTable::PleTable(const model::GgufFile& file, const model::PleSpec& spec)
    : view_(file.View(*spec.table)) {
  file.Advise(*spec.table, model::MapAdvice::kRandom);
}

void PleTable::Prefetch(absl::Span<const int64_t> rows) const {
  if (view_.bytes() < kMinPrefetchTableBytes) return;
  const auto page_mask = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE) - 1);
  for (const int64_t row : rows) {
    const auto begin = reinterpret_cast<uintptr_t>(view_.row(0, row));
    const uintptr_t end = begin + static_cast<uintptr_t>(view_.row_bytes());
    // A hint: if it is refused, the row is read when it is needed.
    (void)madvise(reinterpret_cast<void*>(begin & ~page_mask), end - (begin & ~page_mask),
                  MADV_WILLNEED);
  }
}

void PleTable::Gather(absl::Span<const int64_t> rows, float* out) const {
  for (const int64_t row : rows) {
    SWITCHYARD_DCHECK(row >= 0 && row < view_.rows);
    kernels::DequantizeRow(view_.dtype, view_.row(0, row), view_.cols, out);
    out += view_.cols;
  }
}

}  // namespace switchyard::worker
