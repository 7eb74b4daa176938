// Aho-Corasick over the text read backwards: the longest (reversed) token that ends at a byte is
// then the longest token that begins there, which is what matching from left to right asks for.
//
// Source: Aho and Corasick, "Efficient String Matching", Communications of the ACM 18(6), 1975.
#include "model/special_token_matcher.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace switchyard::model {
namespace {

uint64_t ChildKey(int32_t state, uint8_t byte) { return static_cast<uint64_t>(state) << 8 | byte; }

}  // namespace

SpecialTokenMatcher::SpecialTokenMatcher(absl::Span<const SpecialToken> tokens) {
  struct Edge {
    int32_t parent;
    uint8_t byte;
  };
  std::vector<Edge> edges = {{0, 0}};  // into each state
  std::vector<size_t> depths = {0};
  states_.emplace_back();
  for (const SpecialToken& token : tokens) {
    if (token.text.empty()) continue;
    int32_t state = 0;
    for (size_t i = token.text.size(); i-- > 0;) {
      const auto byte = static_cast<uint8_t>(token.text[i]);
      const auto [it, is_new] =
          children_.try_emplace(ChildKey(state, byte), static_cast<int32_t>(states_.size()));
      if (is_new) {
        states_.emplace_back();
        edges.push_back({state, byte});
        depths.push_back(depths[state] + 1);
      }
      state = it->second;
    }
    if (states_[state].longest_token >= 0) continue;
    states_[state].longest_token = static_cast<int32_t>(tokens_.size());
    tokens_.push_back({token.text.size(), token.token_id});
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto it = children_.find(ChildKey(0, static_cast<uint8_t>(byte)));
    root_children_[byte] = it == children_.end() ? 0 : it->second;
  }
  // The fallback of a state is shallower than the state: those go first.
  std::vector<int32_t> order(states_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&depths](int32_t a, int32_t b) {
    return std::pair(depths[a], a) < std::pair(depths[b], b);
  });
  for (const int32_t state : order) {
    if (depths[state] < 2) continue;  // falls back to the root
    const Edge edge = edges[state];
    int32_t fallback = states_[edge.parent].fallback;
    while (fallback != 0 && Child(fallback, edge.byte) < 0) fallback = states_[fallback].fallback;
    const int32_t child = Child(fallback, edge.byte);
    states_[state].fallback = child < 0 ? 0 : child;
    if (states_[state].longest_token < 0) {
      states_[state].longest_token = states_[states_[state].fallback].longest_token;
    }
  }
}

int32_t SpecialTokenMatcher::Child(int32_t state, uint8_t byte) const {
  if (state == 0) return root_children_[byte] == 0 ? -1 : root_children_[byte];
  const auto it = children_.find(ChildKey(state, byte));
  return it == children_.end() ? -1 : it->second;
}

void SpecialTokenMatcher::FindAll(std::string_view text, size_t begin, size_t end,
                                  std::vector<SpecialTokenMatch>& matches) const {
  SWITCHYARD_DCHECK(begin <= end && end <= text.size());
  if (tokens_.empty()) return;
  std::vector<SpecialTokenMatch> longest;  // at each byte where a token begins, from right to left
  int32_t state = 0;
  for (size_t i = end; i-- > begin;) {
    const auto byte = static_cast<uint8_t>(text[i]);
    int32_t child = Child(state, byte);
    while (child < 0 && state != 0) {
      state = states_[state].fallback;
      child = Child(state, byte);
    }
    state = child < 0 ? 0 : child;
    if (const int32_t index = states_[state].longest_token; index >= 0) {
      longest.push_back({i, i + tokens_[index].num_bytes, tokens_[index].token_id});
    }
  }
  size_t covered_end = begin;
  for (auto match = longest.rbegin(); match != longest.rend(); ++match) {
    if (match->begin < covered_end) continue;
    matches.push_back(*match);
    covered_end = match->end;
  }
}

}  // namespace switchyard::model
