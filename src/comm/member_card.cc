#include "comm/member_card.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <unistd.h>
#include <utility>

#include "base/cpu_quota.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "comm/tree_reduction.h"

namespace switchyard::comm {
namespace {

// Changes with anything that ranks of different builds would understand differently.
constexpr std::string_view kHead = "switchyard-comm 1";

std::string ReadSmallFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string PidNamespace() {
  char link[64];  // "pid:[4026531836]"
  const ssize_t length = readlink("/proc/self/ns/pid", link, sizeof(link));
  return length > 0 ? std::string(link, static_cast<size_t>(length)) : "";
}

// Fields are "name length:bytes", so that they may hold anything.
void Append(std::string* text, std::string_view name, std::string_view value) {
  *text += fmt::format("{} {}:", name, value.size());
  *text += value;
}

template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::map<std::string, std::string, std::less<>>> ParseFields(std::string_view text) {
  std::map<std::string, std::string, std::less<>> fields;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const size_t colon = text.find(':');
    if (space == std::string_view::npos || colon == std::string_view::npos || colon < space) {
      return std::nullopt;
    }
    const auto length = ParseNumber<size_t>(text.substr(space + 1, colon - space - 1));
    if (!length.has_value() || *length > text.size() - colon - 1) return std::nullopt;
    fields.emplace(text.substr(0, space), text.substr(colon + 1, *length));
    text.remove_prefix(colon + 1 + *length);
  }
  return fields;
}

}  // namespace

std::string Serialize(const MemberCard& card) {
  std::string text(kHead);
  Append(&text, "backend", card.backend);
  Append(&text, "group", card.group_id);
  Append(&text, "channel", card.channel);
  Append(&text, "epoch", std::to_string(card.epoch));
  Append(&text, "rank", std::to_string(card.rank));
  Append(&text, "nranks", std::to_string(card.nranks));
  Append(&text, "slot_bytes", std::to_string(card.slot_bytes));
  Append(&text, "num_slots", std::to_string(card.num_slots));
  Append(&text, "host", card.host);
  Append(&text, "pid_namespace", card.pid_namespace);
  Append(&text, "pid", std::to_string(card.pid));
  Append(&text, "start_time", std::to_string(card.start_time));
  Append(&text, "threads", std::to_string(card.threads.num_compute_threads));
  std::string cpus;
  for (int cpu : card.threads.allowed_cpus) cpus += fmt::format("{},", cpu);
  Append(&text, "cpus", cpus);
  Append(&text, "address", card.address);
  Append(&text, "code", std::to_string(static_cast<int>(card.status.code())));
  Append(&text, "message", Message(card.status));
  return text;
}

absl::StatusOr<MemberCard> ParseMemberCard(std::string_view text) {
  const auto fields =
      text.starts_with(kHead) ? ParseFields(text.substr(kHead.size())) : std::nullopt;
  if (!fields.has_value()) {
    return FailedPrecondition("rank sent something else than '{}'; run one version on all ranks",
                              kHead);
  }
  bool complete = true;
  const auto find = [&](std::string_view name) -> std::string_view {
    const auto at = fields->find(name);
    if (at == fields->end()) complete = false;
    return at == fields->end() ? std::string_view() : std::string_view(at->second);
  };
  const auto number = [&]<typename T>(std::string_view name, T* value) {
    const std::optional<T> parsed = ParseNumber<T>(find(name));
    if (!parsed.has_value()) complete = false;
    *value = parsed.value_or(T{});
  };
  MemberCard card;
  card.backend = find("backend");
  card.group_id = find("group");
  card.channel = find("channel");
  number("epoch", &card.epoch);
  number("rank", &card.rank);
  number("nranks", &card.nranks);
  number("slot_bytes", &card.slot_bytes);
  number("num_slots", &card.num_slots);
  card.host = find("host");
  card.pid_namespace = find("pid_namespace");
  number("pid", &card.pid);
  number("start_time", &card.start_time);
  number("threads", &card.threads.num_compute_threads);
  for (std::string_view cpus = find("cpus"); !cpus.empty();) {
    const size_t comma = std::min(cpus.find(','), cpus.size());
    const auto cpu = ParseNumber<int>(cpus.substr(0, comma));
    if (cpu.has_value()) card.threads.allowed_cpus.push_back(*cpu);
    cpus.remove_prefix(std::min(comma + 1, cpus.size()));
  }
  card.address = find("address");
  int code = 0;
  number("code", &code);
  card.status = absl::Status(static_cast<absl::StatusCode>(code), ToAbsl(find("message")));
  if (!complete) return FailedPrecondition("rank sent an incomplete introduction");
  return card;
}

uint64_t ProcessStartTime(int pid) {
  const std::string stat = ReadSmallFile(fmt::format("/proc/{}/stat", pid));
  // The name, in parentheses, may hold anything; start time is field 22, the 20th after it.
  size_t at = stat.rfind(')');
  for (int field = 0; field < 20 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  const size_t end = stat.find(' ', at + 1);
  return ParseNumber<uint64_t>(std::string_view(stat).substr(at + 1, end - at - 1)).value_or(0);
}

MemberCard MakeMemberCard(BackendKind kind, const CommOptions& options) {
  return {.backend = std::string(Name(kind)),
          .group_id = options.group_id,
          .channel = options.channel,
          .epoch = options.epoch,
          .rank = options.rank,
          .nranks = options.nranks,
          .slot_bytes = options.slot_bytes,
          .num_slots = options.num_slots,
          .host = ReadSmallFile("/proc/sys/kernel/random/boot_id"),
          .pid_namespace = PidNamespace(),
          .pid = static_cast<int>(getpid()),
          .start_time = ProcessStartTime(static_cast<int>(getpid())),
          .threads = {.num_compute_threads = options.num_compute_threads,
                      .allowed_cpus = ProcessCpus()}};
}

absl::Status CheckOptions(const CommOptions& options) {
  if (options.nranks < 1 || options.nranks > kMaxRanks) {
    return InvalidArgument("a group has 1 to {} ranks, not {}", kMaxRanks, options.nranks);
  }
  if (options.rank < 0 || options.rank >= options.nranks) {
    return InvalidArgument("no rank {} in a group of {}; the last is {}", options.rank,
                           options.nranks, options.nranks - 1);
  }
  if (options.slot_bytes < 1024 || options.slot_bytes % 128 != 0 ||
      options.slot_bytes > int64_t{1} << 30) {
    return InvalidArgument("slots have 1 KiB to 1 GiB in multiples of 128 bytes, not {} bytes",
                           options.slot_bytes);
  }
  if (options.num_slots < 1 || options.num_slots > 4096) {
    return InvalidArgument("a ring has 1 to 4096 slots, not {}", options.num_slots);
  }
  if (options.op_timeout <= absl::ZeroDuration() || options.init_timeout <= absl::ZeroDuration()) {
    return InvalidArgument("timeouts of communicators must be above zero");
  }
  if (options.num_compute_threads < 1) {
    return InvalidArgument("a rank has at least one compute thread, not {}",
                           options.num_compute_threads);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<MemberCard>> ExchangeCards(const MemberCard& mine,
                                                      std::string_view phase,
                                                      Rendezvous& rendezvous, absl::Time deadline) {
  const std::string key =
      fmt::format("{}/{}/{}/{}", mine.group_id, mine.channel, mine.epoch, phase);
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                              rendezvous.Exchange(key, Serialize(mine), deadline));
  if (texts.size() != static_cast<size_t>(mine.nranks)) {
    return FailedPrecondition("{} ranks came to a group of {}", texts.size(), mine.nranks);
  }
  std::vector<MemberCard> cards;
  for (const std::string& text : texts) {
    SWITCHYARD_ASSIGN_OR_RETURN(MemberCard card, ParseMemberCard(text));
    cards.push_back(std::move(card));
  }
  for (const MemberCard& card : cards) {
    if (card.epoch == mine.epoch) continue;
    return absl::AbortedError(
        fmt::format("epochs differ: rank {} has {}, rank {} has {}; {} is stale", mine.rank,
                    mine.epoch, card.rank, card.epoch, std::min(mine.epoch, card.epoch)));
  }
  for (int rank = 0; rank < mine.nranks; ++rank) {
    const MemberCard& card = cards[static_cast<size_t>(rank)];
    if (!card.status.ok()) {
      if (rank == mine.rank) return card.status;
      return WithContext(card.status, fmt::format("rank {}", rank));
    }
    if (card.rank != rank) {
      return FailedPrecondition("rank {} says that it is rank {}", rank, card.rank);
    }
    const auto differs = [&](std::string_view what, const auto& a, const auto& b) {
      return FailedPrecondition("ranks of group {} differ in {}: rank {} {}, rank {} {}",
                                mine.group_id, what, mine.rank, a, card.rank, b);
    };
    if (card.backend != mine.backend) return differs("backend", mine.backend, card.backend);
    if (card.group_id != mine.group_id) return differs("group", mine.group_id, card.group_id);
    if (card.channel != mine.channel) return differs("channel", mine.channel, card.channel);
    if (card.nranks != mine.nranks) return differs("ranks", mine.nranks, card.nranks);
    if (card.slot_bytes != mine.slot_bytes) {
      return differs("slot bytes", mine.slot_bytes, card.slot_bytes);
    }
    if (card.num_slots != mine.num_slots) return differs("slots", mine.num_slots, card.num_slots);
  }
  return cards;
}

int64_t SpinBudgetNs(WaitPolicy policy, const std::vector<MemberCard>& cards, int rank) {
  std::vector<RankThreads> local;
  for (const MemberCard& card : cards) {
    if (card.host == cards[static_cast<size_t>(rank)].host) local.push_back(card.threads);
  }
  return SpinBudgetNs(policy, local, ReadCpuQuota("/").value_or(0));
}

}  // namespace switchyard::comm
