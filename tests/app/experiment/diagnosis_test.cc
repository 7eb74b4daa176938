// Causes that a diagnosis must name from ledgers made by hand, and those that it must not invent.
#include "app/experiment/diagnosis.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/experiment/made_up_result.h"

namespace switchyard::app {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Every link of four ranks, all alike.
std::vector<MadeUpLink> AllLinks(int num_ranks) {
  std::vector<MadeUpLink> links;
  for (int from = 0; from < num_ranks; ++from) {
    for (int to = 0; to < num_ranks; ++to) {
      if (from != to) links.push_back({from, to});
    }
  }
  return links;
}

MadeUpRun FourRanks() {
  return {.compute_seconds = {1e-3, 1e-3, 1e-3, 1e-3}, .links = AllLinks(4)};
}

MadeUpLink& Link(MadeUpRun& run, int from, int to) {
  for (MadeUpLink& link : run.links) {
    if (link.from == from && link.to == to) return link;
  }
  return run.links.front();
}

TEST(DiagnosisTest, FindsNothingInAnUndisturbedRun) {
  EXPECT_THAT(Diagnose(MakeRun({}), nullptr), IsEmpty());
  EXPECT_THAT(Diagnose(MakeRun(FourRanks()), nullptr), IsEmpty());
  const CombinationResult reference = MakeRun({});
  EXPECT_THAT(Diagnose(MakeRun({}), &reference), IsEmpty());
}

TEST(DiagnosisTest, FindsNothingWithoutSamples) {
  CombinationResult run;
  EXPECT_THAT(Diagnose(run, nullptr), IsEmpty());
  EXPECT_EQ(WhereTimeGoes(run), "");
}

TEST(DiagnosisTest, NamesADelayedLink) {
  const CombinationResult reference = MakeRun({});
  MadeUpRun made;
  Link(made, 0, 1).decode_flight = Link(made, 0, 1).prefill_flight = 300e-6;
  const std::vector<Finding> findings = Diagnose(MakeRun(made), &reference);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].cause, Cause::kLinkDelay);
  EXPECT_EQ(findings[0].from, 0);
  EXPECT_EQ(findings[0].to, 1);
  EXPECT_NEAR(findings[0].size, 300e-6, 0.2 * 300e-6);
  EXPECT_THAT(findings[0].text, HasSubstr("from rank 0 to rank 1 is late"));
}

TEST(DiagnosisTest, NamesADelayedLinkAmongOthersWithoutAReference) {
  MadeUpRun made = FourRanks();
  Link(made, 2, 3).decode_flight = Link(made, 2, 3).prefill_flight = 250e-6;
  const std::vector<Finding> findings = Diagnose(MakeRun(made), nullptr);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].cause, Cause::kLinkDelay);
  EXPECT_EQ(findings[0].from, 2);
  EXPECT_EQ(findings[0].to, 3);
  EXPECT_NEAR(findings[0].size, 250e-6, 0.2 * 250e-6);
}

TEST(DiagnosisTest, NamesANarrowLinkByItsRate) {
  const CombinationResult reference = MakeRun({});
  MadeUpRun made;
  constexpr double kRate = 50e6;
  Link(made, 1, 0).decode_flight = kDecodeMessageBytes / kRate;    // 205 us
  Link(made, 1, 0).prefill_flight = kPrefillMessageBytes / kRate;  // 1.3 ms
  const std::vector<Finding> findings = Diagnose(MakeRun(made), &reference);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].cause, Cause::kLinkRate);
  EXPECT_EQ(findings[0].from, 1);
  EXPECT_EQ(findings[0].to, 0);
  EXPECT_NEAR(findings[0].size, kRate, 0.2 * kRate);
}

// Small messages pass it within their usual time: only the large ones tell.
TEST(DiagnosisTest, NamesANarrowLinkThatOnlyLargeMessagesNotice) {
  const CombinationResult reference = MakeRun({});
  MadeUpRun made;
  constexpr double kRate = 400e6;
  Link(made, 0, 1).prefill_flight = kPrefillMessageBytes / kRate;  // 164 us against 30
  const std::vector<Finding> findings = Diagnose(MakeRun(made), &reference);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].cause, Cause::kLinkRate);
  EXPECT_NEAR(findings[0].size, kRate, 0.2 * kRate);
}

// A stage sends its rows and its ledger at once: the second waits for the first on the link.
TEST(DiagnosisTest, QueueingOnAOneWayLinkIsNotTakenForItsRate) {
  const CombinationResult reference = MakeRun({.mode = "layer_split", .links = {{0, 1}}});
  constexpr double kRate = 20e6;
  const MadeUpRun made{.mode = "layer_split",
                       .links = {{0, 1, 2 * kDecodeMessageBytes / kRate,
                                  5 * kPrefillMessageBytes / kRate, /*queueing=*/2}}};
  const std::vector<Finding> findings = Diagnose(MakeRun(made), &reference);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].cause, Cause::kLinkRate);
  EXPECT_NEAR(findings[0].size, kRate, 0.2 * kRate);
}

// Of a few milliseconds, the kernel's choice whom to let go first decides.
TEST(DiagnosisTest, BlamesNoRankForWorkOfMoments) {
  const CombinationResult reference = MakeRun({.compute_seconds = {0.1e-3, 0.1e-3}});
  const CombinationResult run = MakeRun({.compute_seconds = {0.2e-3, 0.1e-3}});
  EXPECT_THAT(Diagnose(run, &reference), IsEmpty());
  EXPECT_THAT(Diagnose(run, nullptr), IsEmpty());
}

// Short work is let through beside a competitor, long work is not.
TEST(DiagnosisTest, OneMeasurementIsEnoughToNameASlowRank) {
  CombinationResult reference = MakeRun({});
  CombinationResult run = MakeRun({});
  reference.measurements.push_back(reference.measurements[0]);
  run.measurements.push_back(MakeRun({.compute_seconds = {1e-3, 1.7e-3}}).measurements[0]);
  reference.measurements[1].prompt = run.measurements[1].prompt = "a long one";
  const std::vector<Finding> findings = Diagnose(run, &reference);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].rank, 1);
  EXPECT_THAT(findings[0].text, HasSubstr("a long one"));
}

TEST(DiagnosisTest, NamesARankWithACompetitorAndNotTheLinksThatItReadsLate) {
  const CombinationResult reference = MakeRun({});
  MadeUpRun made{.compute_seconds = {1e-3, 1.9e-3}};
  Link(made, 0, 1).decode_flight = 900e-6;  // the rank was not there to take it
  const std::vector<Finding> findings = Diagnose(MakeRun(made), &reference);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].cause, Cause::kSlowRank);
  EXPECT_EQ(findings[0].rank, 1);
  EXPECT_NEAR(findings[0].size, 1.9, 0.2 * 1.9);
}

TEST(DiagnosisTest, NamesASlowRankWithoutAReference) {
  MadeUpRun made = FourRanks();
  made.compute_seconds[2] = 2e-3;
  const std::vector<Finding> findings = Diagnose(MakeRun(made), nullptr);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].rank, 2);
  EXPECT_NEAR(findings[0].size, 2, 0.2 * 2);
}

TEST(DiagnosisTest, BlamesNoRankForAMachineThatIsSlowerAsAWhole) {
  const CombinationResult reference = MakeRun({});
  EXPECT_THAT(Diagnose(MakeRun({.compute_seconds = {1.6e-3, 1.6e-3}}), &reference), IsEmpty());
}

TEST(DiagnosisTest, BlamesNobodyWhereSamplesOverlap) {
  const CombinationResult reference = MakeRun({.scatter = 0.5});
  MadeUpRun made{.compute_seconds = {1e-3, 1.4e-3}, .scatter = 0.5};
  Link(made, 0, 1).decode_flight = 35e-6;
  EXPECT_THAT(Diagnose(MakeRun(made), &reference), IsEmpty());
}

TEST(DiagnosisTest, NamesTwoLinksAtOnce) {
  const MadeUpRun undisturbed = FourRanks();
  const CombinationResult reference = MakeRun(undisturbed);
  MadeUpRun made = FourRanks();
  Link(made, 0, 2).decode_flight = Link(made, 0, 2).prefill_flight = 400e-6;
  Link(made, 3, 1).decode_flight = Link(made, 3, 1).prefill_flight = 200e-6;
  const std::vector<Finding> findings = Diagnose(MakeRun(made), &reference);
  ASSERT_THAT(findings, SizeIs(2));
  EXPECT_NEAR(findings[0].size, 400e-6, 80e-6);
  EXPECT_NEAR(findings[1].size, 200e-6, 40e-6);
}

TEST(DiagnosisTest, TakesTheUndisturbedRunOfTheSameArrangement) {
  ExperimentResult result;
  result.runs.push_back(MakeRun({.mode = "expert_parallel"}));
  result.runs.push_back(MakeRun({}));
  result.runs.push_back(MakeRun({.condition = {.name = "x", .link_rules = "0->1 delay=1ms"}}));
  EXPECT_EQ(ReferenceOf(result, 2), &result.runs[1]);
  EXPECT_EQ(ReferenceOf(result, 1), nullptr);
}

TEST(DiagnosisTest, SaysWhereTheTimeGoes) {
  // 1 ms of computing in 1.5 ms, with 0.1 of transfer and 0.35 of waiting: 67, 7 and 23 %.
  EXPECT_EQ(WhereTimeGoes(MakeRun({.scatter = 0})),
            "of 1.50 ms a token, rank 0 spends 67 % computing, 7 % in transfers, 23 % waiting for "
            "other ranks, 3 % in no stage");
}

}  // namespace
}  // namespace switchyard::app
