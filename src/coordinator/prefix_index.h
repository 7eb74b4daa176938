// Which saved state a prompt can continue from.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"

#include "coordinator/page_pool.h"

namespace switchyard::coordinator {

// Maps token prefixes to checkpoints of the worker, least recently used first out.
//
// A checkpoint covers a whole number of pages; the index holds a reference on each of them. Saves
// and restores travel in plans that a worker applies in order, so an entry may be used by the very
// next plan and its number may be given to another prefix at once.
//
// Threads: the engine's only.
class PrefixIndex {
 public:
  struct Hit {
    uint32_t checkpoint = 0;
    int64_t position = 0;         // tokens covered, a multiple of the page size
    std::vector<uint32_t> pages;  // with a reference that now belongs to the caller
  };

  // `pages` must outlive the index. `num_checkpoints` may be 0: nothing is ever kept.
  PrefixIndex(int num_checkpoints, PagePool& pages);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // Returns the longest entry that covers a proper prefix of `tokens` under `salt`: at least one
  // token is left to compute.
  std::optional<Hit> Find(std::string_view salt, absl::Span<const int32_t> tokens);

  // True if exactly this prefix has an entry; marks it as recently used.
  bool Touch(std::string_view salt, absl::Span<const int32_t> prefix);

  // Makes an entry for `prefix`, which `pages` hold, and returns the checkpoint number to save it
  // under; evicts the least recently used entry when none is free.
  // REQUIRES: prefix.size() == pages.size() * page size; no entry for this prefix.
  std::optional<uint32_t> Insert(std::string_view salt, absl::Span<const int32_t> prefix,
                                 absl::Span<const uint32_t> pages);

  // Evicts the least recently used entry to give its pages back. False if there is none.
  bool EvictOne();

  int num_entries() const { return static_cast<int>(entries_.size()); }
  int num_free_checkpoints() const { return static_cast<int>(free_checkpoints_.size()); }

  // Adds the references that entries hold to those of each page.
  void CountReferences(std::vector<int>& references) const;

 private:
  struct Entry {
    uint64_t key;
    std::string salt;
    std::vector<int32_t> tokens;
    std::vector<uint32_t> pages;
    uint32_t checkpoint;
  };
  using EntryList = std::list<Entry>;  // most recently used first

  EntryList::iterator Lookup(uint64_t key, std::string_view salt, absl::Span<const int32_t> prefix);
  void Remove(EntryList::iterator entry);

  PagePool& pages_;
  EntryList entries_;
  std::unordered_multimap<uint64_t, EntryList::iterator> by_key_;
  std::vector<uint32_t> free_checkpoints_;
};

}  // namespace switchyard::coordinator
