// Expands the generated ranges, at compile time, into a table of pages of 256 code points.
#include "model/unicode_categories.h"

#include <array>
#include <cstddef>
#include <iterator>

#include "model/unicode_category_ranges.h"

namespace switchyard::model {
namespace {

constexpr uint32_t kPageSize = 256;
constexpr uint32_t kNumPages = 0x110000 / kPageSize;
// Pages of one class only are shared: page k of the table holds class k everywhere.
constexpr size_t kNumUniformPages = 5;

// Number of pages with more than one class: those in which a range begins behind the first cell.
constexpr size_t CountMixedPages() {
  size_t count = 0;
  uint32_t last_page = kNumPages;
  for (const CodePointRange& range : kCodePointRanges) {
    const uint32_t page = range.first / kPageSize;
    if (range.first % kPageSize == 0 || page == last_page) continue;
    last_page = page;
    ++count;
  }
  return count;
}

constexpr size_t kNumStoredPages = kNumUniformPages + CountMixedPages();
static_assert(kNumStoredPages <= 256, "a page number no longer fits a byte");

struct ClassTable {
  std::array<uint8_t, kNumPages> page_index{};
  std::array<std::array<CodePointClass, kPageSize>, kNumStoredPages> pages{};
};

constexpr ClassTable MakeClassTable() {
  ClassTable table;
  for (size_t k = 0; k < kNumUniformPages; ++k) {
    table.pages[k].fill(static_cast<CodePointClass>(k));
  }
  size_t num_pages = kNumUniformPages;
  size_t range = 0;  // the one that holds the first code point of the page
  const auto end_of_range = [](size_t i) {
    return i + 1 < std::size(kCodePointRanges) ? kCodePointRanges[i + 1].first : 0x110000u;
  };
  for (uint32_t page = 0; page < kNumPages; ++page) {
    const uint32_t page_end = (page + 1) * kPageSize;
    while (end_of_range(range) <= page * kPageSize) ++range;
    if (end_of_range(range) >= page_end) {
      table.page_index[page] = static_cast<uint8_t>(kCodePointRanges[range].code_point_class);
      continue;
    }
    table.page_index[page] = static_cast<uint8_t>(num_pages);
    for (uint32_t i = page * kPageSize; i < page_end; ++i) {
      if (i == end_of_range(range)) ++range;
      table.pages[num_pages][i % kPageSize] = kCodePointRanges[range].code_point_class;
    }
    ++num_pages;
  }
  return table;
}

constexpr ClassTable kClassTable = MakeClassTable();

}  // namespace

CodePointClass ClassOf(uint32_t code_point) {
  if (code_point >= 0x110000) return CodePointClass::kOther;
  return kClassTable.pages[kClassTable.page_index[code_point / kPageSize]][code_point % kPageSize];
}

}  // namespace switchyard::model
