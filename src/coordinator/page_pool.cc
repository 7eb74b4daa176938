#include "coordinator/page_pool.h"

#include "base/check.h"

namespace switchyard::coordinator {

PagePool::PagePool(int num_pages) : references_(num_pages, 0) {
  free_.reserve(num_pages);
  // Low numbers first: lazily touched cache memory then stays compact.
  for (int page = num_pages - 1; page >= 0; --page) free_.push_back(static_cast<uint32_t>(page));
}

std::optional<std::vector<uint32_t>> PagePool::Allocate(int count) {
  if (count > num_free()) return std::nullopt;
  std::vector<uint32_t> pages(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - count);
  for (uint32_t page : pages) references_[page] = 1;
  return pages;
}

void PagePool::AddReference(absl::Span<const uint32_t> pages) {
  for (uint32_t page : pages) {
    SWITCHYARD_CHECK(references_[page] > 0);
    ++references_[page];
  }
}

void PagePool::Release(absl::Span<const uint32_t> pages) {
  for (uint32_t page : pages) {
    SWITCHYARD_CHECK(references_[page] > 0);  // a second release would hand the page out twice
    if (--references_[page] == 0) free_.push_back(page);
  }
}

}  // namespace switchyard::coordinator
