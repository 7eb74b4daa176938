#include "comm/fault_injector.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "absl/time/time.h"

#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace switchyard::comm {
namespace {

constexpr std::string_view kSpace = " \t\r";

// Takes the next word off the front of `text`; empty at the end.
std::string_view TakeWord(std::string_view* text) {
  text->remove_prefix(std::min(text->find_first_not_of(kSpace), text->size()));
  const std::string_view word = text->substr(0, text->find_first_of(kSpace));
  text->remove_prefix(word.size());
  return word;
}

template <typename T>
std::optional<T> ParseWhole(std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// A rank, or -1 for "*".
absl::StatusOr<int> ParseRank(std::string_view text, int nranks, std::string_view rule) {
  if (text == "*") return -1;
  const std::optional<int> rank = ParseWhole<int>(text);
  if (!rank.has_value()) {
    return InvalidArgument("fault rule '{}': '{}' is no rank; write 0->2 or *->2", rule, text);
  }
  if (*rank >= nranks) {
    return InvalidArgument("fault rule '{}': there is no rank {}; the last of {} is {}", rule,
                           *rank, nranks, nranks - 1);
  }
  return *rank;
}

using Kinds = std::array<bool, kNumOpKinds>;

absl::StatusOr<Kinds> ParseKinds(std::string_view list, std::string_view rule) {
  Kinds kinds = {};
  while (true) {
    const std::string_view name = list.substr(0, list.find(','));
    bool known = false;
    for (int kind = 0; kind < kNumOpKinds; ++kind) {
      if (Name(static_cast<OpKind>(kind)) != name) continue;
      kinds[static_cast<size_t>(kind)] = known = true;
    }
    if (!known) {
      std::string all;
      for (int kind = 0; kind < kNumOpKinds; ++kind) {
        all += fmt::format("{}{}", kind == 0 ? "" : ", ", Name(static_cast<OpKind>(kind)));
      }
      return InvalidArgument("fault rule '{}': no operation '{}'; there are {}", rule, name, all);
    }
    if (name.size() == list.size()) break;
    list.remove_prefix(name.size() + 1);
  }
  // A piece of a pair is read by Recv(), whatever side the rule names.
  const bool pair =
      kinds[static_cast<size_t>(OpKind::kSend)] || kinds[static_cast<size_t>(OpKind::kRecv)];
  kinds[static_cast<size_t>(OpKind::kSend)] = kinds[static_cast<size_t>(OpKind::kRecv)] = pair;
  return kinds;
}

absl::StatusOr<double> ParseRate(std::string_view text, std::string_view rule) {
  if (text.ends_with("/s")) {
    const absl::StatusOr<int64_t> bytes = ParseBytes(text.substr(0, text.size() - 2));
    if (bytes.ok() && *bytes > 0) return static_cast<double>(*bytes) * 1e-9;
  }
  return InvalidArgument("fault rule '{}': '{}' is no rate; write rate=2GB/s", rule, text);
}

}  // namespace

absl::StatusOr<FaultInjector> FaultInjector::Parse(std::string_view rules, int rank, int nranks) {
  FaultInjector injector;
  while (!rules.empty()) {
    const size_t end = rules.find_first_of(";\n");
    std::string_view rule = rules.substr(0, end);
    rules.remove_prefix(end == std::string_view::npos ? rules.size() : end + 1);
    rule.remove_prefix(std::min(rule.find_first_not_of(kSpace), rule.size()));
    rule = rule.substr(0, rule.find_last_not_of(kSpace) + 1);
    if (rule.empty()) continue;

    std::string_view rest = rule;
    const std::string_view pair = TakeWord(&rest);
    const size_t arrow = pair.find("->");
    if (arrow == std::string_view::npos) {
      return InvalidArgument("fault rule '{}' does not begin with a pair of ranks, as in 0->2",
                             rule);
    }
    SWITCHYARD_ASSIGN_OR_RETURN(const int from, ParseRank(pair.substr(0, arrow), nranks, rule));
    SWITCHYARD_ASSIGN_OR_RETURN(const int to, ParseRank(pair.substr(arrow + 2), nranks, rule));
    if (from == to && from >= 0) {
      return InvalidArgument("fault rule '{}': a rank has no link to itself", rule);
    }

    Fault fault;
    Kinds kinds;
    kinds.fill(true);
    bool has_fault = false;
    for (std::string_view word = TakeWord(&rest); !word.empty(); word = TakeWord(&rest)) {
      const size_t equals = word.find('=');
      const std::string_view key = word.substr(0, equals);
      const std::string_view value =
          equals == std::string_view::npos ? "" : word.substr(equals + 1);
      if (word == "drop" || word == "freeze") {
        (word == "drop" ? fault.drop : fault.freeze) = has_fault = true;
      } else if (key == "delay") {
        absl::Duration delay;
        if (!absl::ParseDuration(ToAbsl(value), &delay) || delay < absl::ZeroDuration() ||
            delay > absl::Hours(1)) {
          return InvalidArgument("fault rule '{}': '{}' is no delay; write delay=200us", rule,
                                 value);
        }
        fault.delay_ns = absl::ToInt64Nanoseconds(delay);
        has_fault = true;
      } else if (key == "rate") {
        SWITCHYARD_ASSIGN_OR_RETURN(fault.bytes_per_ns, ParseRate(value, rule));
        has_fault = true;
      } else if (key == "op") {
        SWITCHYARD_ASSIGN_OR_RETURN(kinds, ParseKinds(value, rule));
      } else if (key == "after") {
        const std::optional<int64_t> after = ParseWhole<int64_t>(value);
        if (!after.has_value()) {
          return InvalidArgument("fault rule '{}': '{}' is no number of pieces; write after=100",
                                 rule, value);
        }
        fault.after = *after;
      } else {
        return InvalidArgument(
            "fault rule '{}': unknown '{}'; there are delay=, rate=, drop, freeze, op=, after=",
            rule, word);
      }
    }
    if (!has_fault) {
      return InvalidArgument("fault rule '{}' has no fault; give delay=, rate=, drop or freeze",
                             rule);
    }

    if (to != -1 && to != rank) continue;
    injector.links_.resize(static_cast<size_t>(nranks));
    for (int peer = 0; peer < nranks; ++peer) {
      if (peer == rank || (from != -1 && from != peer)) continue;
      for (size_t kind = 0; kind < kinds.size(); ++kind) {
        if (kinds[kind]) injector.links_[static_cast<size_t>(peer)].faults[kind] = fault;
      }
    }
  }
  return injector;
}

FaultInjector::Delivery FaultInjector::OnRead(int from, OpKind kind, int64_t publish_ns,
                                              int64_t num_bytes) {
  if (links_.empty()) return {Delivery::kRead, publish_ns};
  Link& link = links_[static_cast<size_t>(from)];
  const Fault& fault = link.faults[static_cast<size_t>(kind)];
  if (link.num_pieces++ < fault.after) return {Delivery::kRead, publish_ns};
  if (fault.drop) return {Delivery::kDropped, 0};
  if (fault.freeze) return {Delivery::kFrozen, 0};
  int64_t sent_ns = publish_ns;
  if (fault.bytes_per_ns > 0) {
    const int64_t begin_ns = std::max(publish_ns, link.busy_until_ns);
    sent_ns = begin_ns + static_cast<int64_t>(static_cast<double>(num_bytes) / fault.bytes_per_ns);
    link.busy_until_ns = sent_ns;
  }
  return {Delivery::kRead, sent_ns + fault.delay_ns};
}

}  // namespace switchyard::comm
