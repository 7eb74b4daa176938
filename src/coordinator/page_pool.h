// Numbers and reference counts of the workers' cache pages.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace switchyard::coordinator {

// Hands out page numbers. A page that several sequences or checkpoints share is free again when the
// last of them lets go.
//
// Threads: the engine's only.
class PagePool {
 public:
  explicit PagePool(int num_pages);

  int num_pages() const { return static_cast<int>(references_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }

  // Takes `count` pages with one reference each, or nothing if fewer are free.
  std::optional<std::vector<uint32_t>> Allocate(int count);

  // Adds one reference to each page. REQUIRES: the pages are in use.
  void AddReference(absl::Span<const uint32_t> pages);

  // Drops one reference of each page. REQUIRES: the pages are in use.
  void Release(absl::Span<const uint32_t> pages);

  int references(uint32_t page) const { return references_[page]; }

 private:
  std::vector<int> references_;
  std::vector<uint32_t> free_;
};

}  // namespace switchyard::coordinator
