#include "app/experiment/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <optional>
#include <set>

#include "app/load/percentiles.h"
#include "base/units.h"

namespace switchyard::app {
namespace {

// A rank is slow from this factor on. Two like cores of one machine differ by less over some
// hundred steps; a competitor of equal weight on a rank's core doubles its time.
constexpr double kSlowFactor = 1.25;
// Of computing in a sample. The kernel divides a CPU in slices of about 3 ms and lets go first who
// has slept: of less than ten slices, chance decides more than the competitor.
constexpr double kLeastComputeSeconds = 0.03;
// A link is late if its messages take twice as long as they should, and 20 us more: a wake-up of a
// sleeping thread takes 5 to 15 us and may fall to either side.
constexpr double kLateFactor = 2;
constexpr double kLateSeconds = 20e-6;

double Median(std::vector<double> values) { return Percentile(std::move(values), 50); }
double Least(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::min_element(values.begin(), values.end());
}
double Largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

using Pick = StepLedger AnswerSample::*;

template <typename F>
std::vector<double> OverSamples(const CombinationResult& run, const F& value) {
  std::vector<double> out;
  for (const Measurement& measurement : run.measurements) {
    for (const AnswerSample& sample : measurement.samples) {
      if (const std::optional<double> v = value(sample)) out.push_back(*v);
    }
  }
  return out;
}

StepLedger Sum(const CombinationResult& run, Pick part) {
  StepLedger sum;
  for (const Measurement& measurement : run.measurements) {
    for (const AnswerSample& sample : measurement.samples) Add(sample.*part, sum);
  }
  return sum;
}

// ---- ranks --------------------------------------------------------------------------------------

// Seconds of computing in a part of a sample, per step; nothing if the rank has none.
std::optional<double> ComputePerStep(const StepLedger& ledger, int rank) {
  const RankEntry* const entry = ledger.FindRank(rank);
  if (entry == nullptr || entry->num_steps <= 0) return std::nullopt;
  return entry->compute_seconds() / static_cast<double>(entry->num_steps);
}

std::vector<double> ComputePerStep(const Measurement& measurement, Pick part, int rank) {
  std::vector<double> out;
  for (const AnswerSample& sample : measurement.samples) {
    if (const auto seconds = ComputePerStep(sample.*part, rank)) out.push_back(*seconds);
  }
  return out;
}

std::vector<double> ComputeSeconds(const Measurement& measurement, Pick part, int rank) {
  std::vector<double> out;
  for (const AnswerSample& sample : measurement.samples) {
    const RankEntry* const entry = (sample.*part).FindRank(rank);
    if (entry != nullptr) out.push_back(entry->compute_seconds());
  }
  return out;
}

// Which of a run's measurements is of the same prompt, cold or hit; null = none.
const Measurement* FindLike(const CombinationResult& run, const Measurement& like) {
  for (const Measurement& measurement : run.measurements) {
    if (measurement.prompt == like.prompt && measurement.is_hit == like.is_hit) {
      return &measurement;
    }
  }
  return nullptr;
}

// Time per byte of weights of `rank` against the other ranks, stage by stage, weighted by time.
// Stages that only it has say nothing. 0 = cannot be told.
double AgainstOthers(const StepLedger& ledger, int rank) {
  const RankEntry& own = *ledger.FindRank(rank);
  double own_seconds = 0;
  double expected_seconds = 0;
  for (const StageEntry& stage : own.stages) {
    if (!IsComputeStage(stage.stage) || stage.weight_bytes <= 0) continue;
    std::vector<double> rates;  // seconds a byte
    for (const RankEntry& other : ledger.ranks) {
      if (other.rank == rank) continue;
      for (const StageEntry& line : other.stages) {
        if (line.stage == stage.stage && line.weight_bytes > 0) {
          rates.push_back(line.seconds / static_cast<double>(line.weight_bytes));
        }
      }
    }
    if (rates.empty()) continue;
    own_seconds += stage.seconds;
    expected_seconds += Median(rates) * static_cast<double>(stage.weight_bytes);
  }
  return expected_seconds > 0 ? own_seconds / expected_seconds : 0;
}

// How much longer the rank computes than in `usual`, after what slows all ranks alike (a colder
// clock, a fuller machine), which is no fault of one; 0 = not clearly. `others` becomes the factor
// of the least slowed other rank.
double SlowFactor(const Measurement& now, const Measurement& usual, Pick part, int rank,
                  const std::vector<int>& ranks, double* others) {
  const std::vector<double> own = ComputePerStep(now, part, rank);
  const std::vector<double> before = ComputePerStep(usual, part, rank);
  if (own.empty() || Median(before) <= 0) return 0;
  if (Median(ComputeSeconds(usual, part, rank)) < kLeastComputeSeconds) return 0;
  *others = 0;
  for (const int other : ranks) {
    const double seconds = Median(ComputePerStep(usual, part, other));
    if (other == rank || seconds <= 0) continue;
    const double ratio = Median(ComputePerStep(now, part, other)) / seconds;
    *others = *others == 0 ? ratio : std::min(*others, ratio);
  }
  // Quartiles, since on a shared machine some samples of both are spoilt.
  if (Percentile(own, 25) <= Percentile(before, 75)) return 0;
  const double factor = Median(own) / Median(before) / std::max(1.0, *others);
  return factor >= kSlowFactor ? factor : 0;
}

// Prompts keep a rank busy for long, and answers wake it for moments, in which the kernel may let
// it go first: each measurement is looked at by itself, and the clearest one tells.
std::vector<Finding> SlowRanksAgainstReference(const CombinationResult& run,
                                               const CombinationResult& reference,
                                               const std::vector<int>& ranks) {
  std::vector<Finding> findings;
  for (const int rank : ranks) {
    Finding finding{.cause = Cause::kSlowRank, .rank = rank};
    for (const Measurement& now : run.measurements) {
      const Measurement* const usual = FindLike(reference, now);
      if (usual == nullptr) continue;
      for (const auto& [part, what] : {std::pair{&AnswerSample::prefill, "the prompt"},
                                       {&AnswerSample::decode, "the answer"}}) {
        double others = 0;
        const double factor = SlowFactor(now, *usual, part, rank, ranks, &others);
        if (factor <= finding.size) continue;
        finding.size = factor;
        finding.text = fmt::format(
            "rank {} computes {:.2f} times as long for the same work (steps of {}, {}){}", rank,
            factor, what, now.prompt,
            others > 0 ? fmt::format("; the other ranks {:.2f} times", others) : "");
      }
    }
    if (finding.size > 0) findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<Finding> SlowRanksAmongThemselves(const StepLedger& decode, int num_samples,
                                              const std::vector<int>& ranks) {
  std::vector<Finding> findings;
  for (const int rank : ranks) {
    const double factor = AgainstOthers(decode, rank);
    const double seconds = decode.FindRank(rank)->compute_seconds();
    if (factor < kSlowFactor || seconds < kLeastComputeSeconds * num_samples) continue;
    findings.push_back({.cause = Cause::kSlowRank,
                        .rank = rank,
                        .size = factor,
                        .text = fmt::format("rank {} computes {:.2f} times as long per byte of "
                                            "weights as the other ranks in the same stages",
                                            rank, factor)});
  }
  return findings;
}

// ---- links --------------------------------------------------------------------------------------

// Of one link in one part of the answers.
struct LinkTimes {
  std::vector<double> flights;  // seconds a message, one a sample
  double bytes_per_message = 0;
  double flight = 0;    // seconds a message, the median of samples
  double transfer = 0;  // of the receiver, seconds a message
};

LinkTimes TimesOf(const CombinationResult& run, Pick part, int from, int to) {
  LinkTimes times;
  const auto per_message = [&](double LinkEntry::*seconds) {
    return OverSamples(run, [&](const AnswerSample& sample) -> std::optional<double> {
      const LinkEntry* const link = (sample.*part).FindLink(from, to);
      if (link == nullptr || link->num_messages <= 0) return std::nullopt;
      return link->*seconds / static_cast<double>(link->num_messages);
    });
  };
  times.flights = per_message(&LinkEntry::flight_seconds);
  times.flight = Median(times.flights);
  times.transfer = Median(per_message(&LinkEntry::transfer_seconds));
  const StepLedger sum = Sum(run, part);
  const LinkEntry* const link = sum.FindLink(from, to);
  if (link != nullptr && link->num_messages > 0) {
    times.bytes_per_message =
        static_cast<double>(link->bytes) / static_cast<double>(link->num_messages);
  }
  return times;
}

// What messages of this link should take, at most; nothing if there is nothing to compare with.
std::optional<double> ExpectedFlight(const CombinationResult& run,
                                     const CombinationResult* reference, const StepLedger& ledger,
                                     Pick part, int from, int to) {
  if (reference != nullptr) {
    const LinkTimes times = TimesOf(*reference, part, from, to);
    if (times.flights.empty()) return std::nullopt;
    return Largest(times.flights);
  }
  std::vector<double> others;
  for (const LinkEntry& link : ledger.links) {
    if (link.from == from && link.to == to) continue;
    const LinkTimes times = TimesOf(run, part, link.from, link.to);
    if (!times.flights.empty()) others.push_back(times.flight);
  }
  if (others.empty()) return std::nullopt;
  return Median(others);
}

bool IsLate(const LinkTimes& times, const std::optional<double>& expected) {
  return expected.has_value() && !times.flights.empty() && Least(times.flights) > *expected &&
         times.flight > kLateFactor * *expected && times.flight > *expected + kLateSeconds;
}

// Two sizes of message tell a late link from a narrow one: the first takes as long for both, the
// second longer in proportion. Pieces that follow each other closely queue on a narrow link, so
// that the larger one's flight may even be longer than that; never shorter. In between, the border
// is the geometric mean of the two predictions. Without two sizes a link is called late.
Finding Explain(const LinkTimes& prefill, const LinkTimes& decode, bool prefill_is_late,
                bool decode_is_late, bool is_one_way, const std::optional<double>& expected,
                int from, int to) {
  Finding finding{.from = from, .to = to};
  const bool has_both = !prefill.flights.empty() && !decode.flights.empty() &&
                        prefill.bytes_per_message > 0 && decode.bytes_per_message > 0;
  const bool prefill_is_larger = has_both && prefill.bytes_per_message > decode.bytes_per_message;
  const LinkTimes& large = prefill_is_larger || !has_both ? prefill : decode;
  const LinkTimes& small = prefill_is_larger || !has_both ? decode : prefill;
  const bool small_is_late = prefill_is_larger || !has_both ? decode_is_late : prefill_is_late;
  const double ratio = has_both ? large.bytes_per_message / small.bytes_per_message : 1;
  const bool is_narrow = has_both && ratio >= 2 && large.flight / small.flight > std::sqrt(ratio);
  const std::string usual = fmt::format("; usual: {}", FormatSeconds(expected.value_or(0)));
  if (!is_narrow) {
    // A message is here when both its link and its receiver have seen to it: the later counts, so
    // that the flight itself is the delay, not what it is above the usual.
    const LinkTimes& seen = decode_is_late ? decode : prefill;
    finding.cause = Cause::kLinkDelay;
    finding.size = seen.flight;
    finding.text = fmt::format(
        "the link from rank {} to rank {} is late: every message takes {}, whatever its size{}",
        from, to, FormatSeconds(finding.size), usual);
    return finding;
  }
  // Small messages say it best. Where ranks exchange them, each waits for the other's before it
  // sends another, so that none queues and the flight is that of the message. On a one-way link
  // several may follow each other: there, what the receiver waited tells, since it has nothing else
  // to do. So it does where small ones are not held up.
  finding.cause = Cause::kLinkRate;
  const LinkTimes& seen = small_is_late ? small : large;
  const bool flies_alone = small_is_late && !is_one_way;
  finding.size =
      seen.bytes_per_message / (flies_alone || seen.transfer <= 0 ? seen.flight : seen.transfer);
  finding.text = fmt::format(
      "the link from rank {} to rank {} is narrow: it moves {}; messages of {} take {}, of {} {}{}",
      from, to, FormatBytesPerSecond(finding.size), FormatBytes(small.bytes_per_message),
      FormatSeconds(small.flight), FormatBytes(large.bytes_per_message),
      FormatSeconds(large.flight), usual);
  return finding;
}

std::vector<Finding> BadLinks(const CombinationResult& run, const CombinationResult* reference,
                              const std::set<int>& slow_ranks) {
  const StepLedger prefill = Sum(run, &AnswerSample::prefill);
  const StepLedger decode = Sum(run, &AnswerSample::decode);
  StepLedger all = decode;
  Add(prefill, all);
  std::vector<Finding> findings;
  for (const LinkEntry& link : all.links) {
    const auto p = TimesOf(run, &AnswerSample::prefill, link.from, link.to);
    const auto d = TimesOf(run, &AnswerSample::decode, link.from, link.to);
    const auto p_expected =
        ExpectedFlight(run, reference, prefill, &AnswerSample::prefill, link.from, link.to);
    const auto d_expected =
        ExpectedFlight(run, reference, decode, &AnswerSample::decode, link.from, link.to);
    const bool p_is_late = IsLate(p, p_expected);
    const bool d_is_late = IsLate(d, d_expected);
    if (!p_is_late && !d_is_late) continue;
    // A rank without its core takes up what has come later too.
    if (slow_ranks.contains(link.to)) continue;
    const LinkEntry* const back = decode.FindLink(link.to, link.from);
    const bool is_one_way = back == nullptr || 2 * back->num_messages < link.num_messages;
    findings.push_back(Explain(p, d, p_is_late, d_is_late, is_one_way,
                               d_is_late ? d_expected : p_expected, link.from, link.to));
  }
  return findings;
}

}  // namespace

std::vector<Finding> Diagnose(const CombinationResult& run, const CombinationResult* reference) {
  if (!run.has_samples()) return {};
  if (reference != nullptr && !reference->has_samples()) reference = nullptr;
  const StepLedger decode = Sum(run, &AnswerSample::decode);
  std::vector<int> ranks;
  for (const RankEntry& rank : decode.ranks) ranks.push_back(rank.rank);
  int num_samples = 0;
  for (const Measurement& m : run.measurements) num_samples += static_cast<int>(m.samples.size());
  std::vector<Finding> findings = reference != nullptr
                                      ? SlowRanksAgainstReference(run, *reference, ranks)
                                      : SlowRanksAmongThemselves(decode, num_samples, ranks);
  std::set<int> slow_ranks;
  for (const Finding& finding : findings) slow_ranks.insert(finding.rank);
  std::vector<Finding> links = BadLinks(run, reference, slow_ranks);
  findings.insert(findings.end(), links.begin(), links.end());
  return findings;
}

const CombinationResult* ReferenceOf(const ExperimentResult& result, size_t index) {
  const Combination& own = result.runs[index].combination;
  if (!own.condition.is_disturbed()) return nullptr;
  for (const CombinationResult& run : result.runs) {
    if (!run.combination.condition.is_disturbed() && run.combination.topology == own.topology) {
      return &run;
    }
  }
  return nullptr;
}

std::string WhereTimeGoes(const CombinationResult& run) {
  const StepLedger decode = Sum(run, &AnswerSample::decode);
  const auto busiest = std::max_element(decode.ranks.begin(), decode.ranks.end(),
                                        [](const RankEntry& a, const RankEntry& b) {
                                          return a.compute_seconds() < b.compute_seconds();
                                        });
  if (busiest == decode.ranks.end() || busiest->num_steps <= 0) return "";
  const RankEntry& rank = *busiest;
  const double all = rank.seconds + rank.idle_seconds;
  if (all <= 0) return "";
  double covered = 0;
  for (const StageEntry& stage : rank.stages) covered += stage.seconds;
  std::string text = fmt::format("of {} a token, rank {} spends {:.0f} % computing",
                                 FormatSeconds(all / static_cast<double>(rank.num_steps)),
                                 rank.rank, 100 * rank.compute_seconds() / all);
  const auto add = [&](const char* what, double seconds) {
    if (seconds / all >= 0.005) text += fmt::format(", {:.0f} % {}", 100 * seconds / all, what);
  };
  add("in transfers", rank.StageSeconds("collective"));
  add("waiting for other ranks", rank.StageSeconds("collective_wait"));
  add("on the host between stages", rank.StageSeconds("host"));
  add("waiting for work", rank.idle_seconds);
  add("in no stage", std::max(0.0, rank.seconds - covered) + rank.StageSeconds("unattributed"));
  return text;
}

}  // namespace switchyard::app
