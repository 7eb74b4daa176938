#include "coordinator/prefix_index.h"

#include <algorithm>

#include "base/check.h"
#include "coordinator/scheduler.h"

namespace switchyard::coordinator {
namespace {

// Mixes one value into a running key. Only spreads entries over buckets: equality is decided on the
// tokens themselves. Source: the finaliser of splitmix64 (Steele et al., 2014).
uint64_t Mix(uint64_t key, uint64_t value) {
  uint64_t z = key + 0x9E3779B97F4A7C15u + value;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t SaltKey(std::string_view salt) {
  uint64_t key = 0;
  for (char c : salt) key = Mix(key, static_cast<unsigned char>(c));
  return key;
}

// Key after each whole page of `tokens`: element i belongs to the first (i + 1) pages.
std::vector<uint64_t> PageKeys(std::string_view salt, absl::Span<const int32_t> tokens) {
  std::vector<uint64_t> keys(tokens.size() / kPageTokens);
  uint64_t key = SaltKey(salt);
  for (size_t i = 0; i < keys.size() * kPageTokens; ++i) {
    key = Mix(key, static_cast<uint32_t>(tokens[i]));
    if ((i + 1) % kPageTokens == 0) keys[i / kPageTokens] = key;
  }
  return keys;
}

}  // namespace

PrefixIndex::PrefixIndex(int num_checkpoints, PagePool& pages) : pages_(pages) {
  for (int i = num_checkpoints - 1; i >= 0; --i) {
    free_checkpoints_.push_back(static_cast<uint32_t>(i));
  }
}

PrefixIndex::~PrefixIndex() {
  while (EvictOne()) {
  }
}

PrefixIndex::EntryList::iterator PrefixIndex::Lookup(uint64_t key, std::string_view salt,
                                                     absl::Span<const int32_t> prefix) {
  const auto [first, last] = by_key_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    const Entry& entry = *it->second;
    if (entry.salt == salt &&
        std::equal(entry.tokens.begin(), entry.tokens.end(), prefix.begin(), prefix.end())) {
      return it->second;
    }
  }
  return entries_.end();
}

std::optional<PrefixIndex::Hit> PrefixIndex::Find(std::string_view salt,
                                                  absl::Span<const int32_t> tokens) {
  if (entries_.empty() || tokens.size() <= kPageTokens) return std::nullopt;
  const std::vector<uint64_t> keys = PageKeys(salt, tokens.first(tokens.size() - 1));
  for (size_t num_pages = keys.size(); num_pages > 0; --num_pages) {
    const auto entry = Lookup(keys[num_pages - 1], salt, tokens.first(num_pages * kPageTokens));
    if (entry == entries_.end()) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    pages_.AddReference(entry->pages);
    return Hit{entry->checkpoint, static_cast<int64_t>(entry->tokens.size()), entry->pages};
  }
  return std::nullopt;
}

bool PrefixIndex::Touch(std::string_view salt, absl::Span<const int32_t> prefix) {
  if (prefix.empty()) return false;
  const auto entry = Lookup(PageKeys(salt, prefix).back(), salt, prefix);
  if (entry == entries_.end()) return false;
  entries_.splice(entries_.begin(), entries_, entry);
  return true;
}

std::optional<uint32_t> PrefixIndex::Insert(std::string_view salt, absl::Span<const int32_t> prefix,
                                            absl::Span<const uint32_t> pages) {
  SWITCHYARD_CHECK(!prefix.empty() && prefix.size() == pages.size() * kPageTokens);
  if (free_checkpoints_.empty() && !EvictOne()) return std::nullopt;
  const uint32_t checkpoint = free_checkpoints_.back();
  free_checkpoints_.pop_back();
  pages_.AddReference(pages);
  const uint64_t key = PageKeys(salt, prefix).back();
  entries_.push_front(Entry{key,
                            std::string(salt),
                            {prefix.begin(), prefix.end()},
                            {pages.begin(), pages.end()},
                            checkpoint});
  by_key_.emplace(key, entries_.begin());
  return checkpoint;
}

void PrefixIndex::Remove(EntryList::iterator entry) {
  const auto [first, last] = by_key_.equal_range(entry->key);
  by_key_.erase(std::find_if(first, last, [&](const auto& pair) { return pair.second == entry; }));
  pages_.Release(entry->pages);
  free_checkpoints_.push_back(entry->checkpoint);
  entries_.erase(entry);
}

void PrefixIndex::CountReferences(std::vector<int>& references) const {
  for (const Entry& entry : entries_) {
    for (uint32_t page : entry.pages) ++references[page];
  }
}

bool PrefixIndex::EvictOne() {
  if (entries_.empty()) return false;
  Remove(std::prev(entries_.end()));
  return true;
}

}  // namespace switchyard::coordinator
