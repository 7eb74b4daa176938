// Groups of two to four worker processes: the texts of every mode, and members that are killed or
// stopped at every point. What holds for one worker is in worker_processes_test.cc.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "end_to_end/group_harness.h"
#include "testing/process.h"

namespace switchyard::testing {
namespace {

namespace v1 = switchyard::worker::v1;

using coordinator::EngineState;
using coordinator::GenerationEvent;
using coordinator::GroupState;
using ::testing::HasSubstr;

constexpr int kNumRequests = 4;

#if defined(SWITCHYARD_SANITIZED)
constexpr double kSlowness = 10;  // of a sanitized program: bounds on time are not its business
#else
constexpr double kSlowness = 1;
#endif

double Now() { return MonotonicClock::Get().NowSeconds(); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

// How the model is divided.
struct Topology {
  int num_workers = 0;
  std::string mode;
  std::string partition{};
  std::string dense{};
  // Whether all ranks' sums follow the tree of one worker (ADR 3).
  bool has_bits_of_one = true;

  // The demo model has experts too narrow to be sliced.
  bool IsOfDemoModel() const { return mode == "layer_split" || partition == "whole"; }
  std::string Name() const {
    return fmt::format("{}_{}{}{}{}{}", num_workers, mode, partition.empty() ? "" : "_", partition,
                       dense.empty() ? "" : "_", dense);
  }
  GroupHarness::Options Options() const {
    return {.num_workers = num_workers, .mode = mode, .partition = partition, .dense = dense};
  }
};

void PrintTo(const Topology& topology, std::ostream* out) { *out << topology.Name(); }

const app::LoadedModel& DemoModel() {
  static const auto& model = *OpenTestModel(SWITCHYARD_DEMO_MODEL).release();
  return model;
}

const app::LoadedModel& SliceableModel() {
  static const auto& model = *OpenTestModel(SWITCHYARD_TEST_DATA "/qwen4exp/shards.gguf").release();
  return model;
}

const app::LoadedModel& ModelOf(const Topology& topology) {
  return topology.IsOfDemoModel() ? DemoModel() : SliceableModel();
}

// The texts of requests 0 to kNumRequests - 1 from one worker, undisturbed.
const std::vector<Generated>& TextsOfOneWorker(const Topology& topology) {
  static const auto& demo =
      *new std::vector<Generated>(UndisturbedTexts(DemoModel(), kNumRequests));
  static const auto& sliceable =
      *new std::vector<Generated>(UndisturbedTexts(SliceableModel(), kNumRequests));
  return topology.IsOfDemoModel() ? demo : sliceable;
}

void ExpectSame(const Generated& got, const Generated& wanted) {
  EXPECT_EQ(got.last.reason, wanted.last.reason) << got.last.error;
  EXPECT_EQ(got.token_ids, wanted.token_ids);
  EXPECT_EQ(got.text, wanted.text);
  EXPECT_EQ(got.last.usage.completion_tokens, wanted.last.usage.completion_tokens);
}

void ExpectBooksBalance(GroupHarness& harness) {
  EXPECT_EQ(harness.engine().CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(harness.group().status().num_faults, 0);
}

// ---- texts --------------------------------------------------------------------------------------

class TopologyTest : public ::testing::TestWithParam<Topology> {
 protected:
  TopologyTest() { InitLogging({.threshold = LogLevel::kWarning}); }
};

TEST_P(TopologyTest, TextsAreThoseOfOneWorker) {
  const app::LoadedModel& model = ModelOf(GetParam());
  GroupHarness harness(model, GetParam().Options());
  std::vector<int> numbers;
  for (int i = 0; i < kNumRequests; ++i) numbers.push_back(harness.Start(TestRequest(model, i)));
  for (int i = 0; i < kNumRequests; ++i) {
    const Generated got = harness.Wait(numbers[static_cast<size_t>(i)]);
    const Generated& wanted = TextsOfOneWorker(GetParam())[static_cast<size_t>(i)];
    if (GetParam().has_bits_of_one) {
      ExpectSame(got, wanted);
    } else {
      // Another order of sums: a draw may fall on the other side of a border, and a near tie be
      // decided otherwise. The logits are compared in worker/group_test.cc.
      EXPECT_EQ(got.token_ids.size(), wanted.token_ids.size());
      const bool is_greedy = i % 3 == 0;
      EXPECT_TRUE(!is_greedy || got.token_ids.front() == wanted.token_ids.front());
    }
  }
  ExpectBooksBalance(harness);
  EXPECT_EQ(harness.engine().stats().num_losses, 0);
  EXPECT_EQ(harness.group().status().num_link_losses, 0);
}

std::vector<Topology> Topologies() {
  std::vector<Topology> out;
  for (const int n : {2, 3, 4}) {
    const bool has_tree = n != 3;
    out.push_back({n, "layer_split"});
    out.push_back({n, "tensor_expert_parallel", "", "", has_tree});
    for (const char* dense : {"replicated", "owner"}) {
      out.push_back({n, "expert_parallel", "sliced", dense, has_tree});
      out.push_back({n, "expert_parallel", "whole", dense, false});
    }
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, TopologyTest, ::testing::ValuesIn(Topologies()),
                         [](const auto& info) { return info.param.Name(); });

// ---- losses -------------------------------------------------------------------------------------

// A member of a group that comes to harm.
struct Victim {
  Topology topology;
  size_t place = 0;

  std::string Name() const { return fmt::format("{}_rank_{}", topology.Name(), place); }
};

void PrintTo(const Victim& victim, std::ostream* out) { *out << victim.Name(); }

class VictimTest : public ::testing::TestWithParam<Victim> {
 protected:
  VictimTest() { InitLogging({.threshold = LogLevel::kOff}); }

  size_t place() const { return GetParam().place; }
  const app::LoadedModel& Model() const { return ModelOf(GetParam().topology); }
  std::unique_ptr<GroupHarness> Start() const {
    return std::make_unique<GroupHarness>(Model(), GetParam().topology.Options());
  }
  std::vector<pid_t> Pids(GroupHarness& harness) const {
    std::vector<pid_t> pids;
    for (const auto& member : harness.group().status().members) {
      pids.push_back(static_cast<pid_t>(member.pid));
    }
    return pids;
  }
  // Nobody but the victim may have been started again.
  void ExpectSurvivors(GroupHarness& harness, const std::vector<pid_t>& before) const {
    const std::vector<pid_t> after = Pids(harness);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(after[i] == before[i], i != place()) << "place " << i;
    }
  }
  void ExpectText(GroupHarness& harness, int number, int request) const {
    ExpectSame(harness.Wait(number),
               TextsOfOneWorker(GetParam().topology)[static_cast<size_t>(request)]);
  }
  void ExpectServes(GroupHarness& harness) const {
    ExpectText(harness, harness.Start(TestRequest(Model(), 1)), 1);
  }
};

TEST_P(VictimTest, KilledWhileIdle) {
  const auto harness = Start();
  ASSERT_TRUE(harness->WaitForState(EngineState::kServing));
  const std::vector<pid_t> pids = Pids(*harness);
  const double killed = Now();
  ASSERT_EQ(kill(pids[place()], SIGKILL), 0);
  ASSERT_TRUE(harness->WaitForState(EngineState::kRecovering));
  const double detected = harness->TimeOfState(EngineState::kRecovering);
  ASSERT_TRUE(harness->WaitForState(EngineState::kServing, 2));
  const double serves = harness->TimeOfState(EngineState::kServing, 2);
  RecordProperty("detected_ms", std::to_string((detected - killed) * 1000));
  RecordProperty("serves_again_ms", std::to_string((serves - detected) * 1000));
  EXPECT_LT(detected - killed, 0.2 * kSlowness);
  EXPECT_LT(serves - detected, 3 * kSlowness);
  ExpectServes(*harness);
  ExpectSurvivors(*harness, pids);
  ExpectBooksBalance(*harness);
}

// Stops the victim when `is_time` holds, and kills it if it was not too late; tries again with its
// successor otherwise.
template <typename IsTime>
bool KillWhen(GroupHarness& harness, size_t place, IsTime is_time) {
  for (int attempt = 0; attempt < 50; ++attempt) {
    pid_t pid = 0;
    if (!harness.WaitUntil([&] {
          const coordinator::ClusterStatus status = harness.group().status();
          pid = static_cast<pid_t>(status.members[place].pid);
          return status.state == GroupState::kServing || is_time(status);
        })) {
      return false;
    }
    kill(pid, SIGSTOP);  // now nothing goes on without it
    const bool was_in_time = is_time(harness.group().status());
    kill(pid, SIGKILL);
    if (!harness.WaitUntil([&] { return harness.worker_pid(place) != pid; })) return false;
    if (was_in_time) return true;
  }
  return false;
}

TEST_P(VictimTest, KilledWhileLoading) {
  const auto harness = Start();
  const int number = harness->Start(TestRequest(Model(), 0));
  EXPECT_TRUE(KillWhen(*harness, place(), [&](const coordinator::ClusterStatus& status) {
    return status.members[place()].state == v1::WORKER_STATE_LOADING &&
           status.members[place()].device.empty();
  }));
  ExpectText(*harness, number, 0);
  ExpectBooksBalance(*harness);
}

TEST_P(VictimTest, KilledWhileTheGroupForms) {
  const auto harness = Start();
  const int number = harness->Start(TestRequest(Model(), 0));
  EXPECT_TRUE(KillWhen(*harness, place(), [&](const coordinator::ClusterStatus& status) {
    return status.state != GroupState::kServing &&
           std::all_of(status.members.begin(), status.members.end(), [](const auto& member) {
             return member.state == v1::WORKER_STATE_LOADING && !member.device.empty();
           });
  }));
  ExpectText(*harness, number, 0);
  ExpectBooksBalance(*harness);
}

TEST_P(VictimTest, KilledInPrefill) {
  const auto harness = Start();
  ASSERT_TRUE(harness->WaitForState(EngineState::kServing));
  const std::vector<pid_t> pids = Pids(*harness);
  std::atomic<bool> is_killed{false};
  const int number = harness->Start(
      TestRequest(Model(), 3), [&](const Generated& so_far, const GenerationEvent& event) {
        if (event.num_prefilled < 64 || !so_far.token_ids.empty() || is_killed.exchange(true)) {
          return;
        }
        kill(pids[place()], SIGKILL);
      });
  ExpectText(*harness, number, 3);
  EXPECT_TRUE(is_killed);
  EXPECT_EQ(harness->engine().stats().num_losses, 1);
  ExpectSurvivors(*harness, pids);
  ExpectBooksBalance(*harness);
}

TEST_P(VictimTest, KilledInDecodeUnderLoad) {
  const auto harness = Start();
  ASSERT_TRUE(harness->WaitForState(EngineState::kServing));
  const std::vector<pid_t> pids = Pids(*harness);
  std::atomic<bool> is_killed{false};
  std::vector<int> numbers;
  for (int i = 0; i < kNumRequests; ++i) {
    numbers.push_back(harness->Start(TestRequest(Model(), i),
                                     [&](const Generated& so_far, const GenerationEvent&) {
                                       if (so_far.token_ids.size() < 10 || is_killed.exchange(true))
                                         return;
                                       kill(pids[place()], SIGKILL);
                                     }));
  }
  for (int i = 0; i < kNumRequests; ++i) ExpectText(*harness, numbers[static_cast<size_t>(i)], i);
  EXPECT_EQ(harness->engine().stats().num_losses, 1);
  const double recovery = harness->TimeOfState(EngineState::kServing, 2) -
                          harness->TimeOfState(EngineState::kRecovering);
  RecordProperty("serves_again_ms", std::to_string(recovery * 1000));
  EXPECT_LT(recovery, 3 * kSlowness);
  ExpectSurvivors(*harness, pids);
  ExpectBooksBalance(*harness);
}

TEST_P(VictimTest, StoppedForEverInDecode) {
  const auto harness = Start();
  ASSERT_TRUE(harness->WaitForState(EngineState::kServing));
  const std::vector<pid_t> pids = Pids(*harness);
  std::atomic<double> stopped{0};
  const int number =
      harness->Start(TestRequest(Model(), 0), [&](const Generated& so_far, const GenerationEvent&) {
        if (so_far.token_ids.size() < 3 || stopped > 0) return;
        stopped = Now();
        kill(pids[place()], SIGSTOP);
      });
  ExpectText(*harness, number, 0);
  // Silence is noticed after 1.5 s, and death declared 3.5 s later: by then a second of ticks and
  // heartbeats may have passed.
  ASSERT_TRUE(harness->WaitForState(EngineState::kServing, 2));
  EXPECT_LT(harness->TimeOfState(EngineState::kServing, 2) - stopped, (6.5 + 3) * kSlowness);
  EXPECT_EQ(kill(pids[place()], 0), -1);  // nothing is left of it
  ExpectSurvivors(*harness, pids);
  ExpectBooksBalance(*harness);
}

std::vector<Victim> Victims() {
  std::vector<Victim> out;
  for (const Topology& topology :
       {Topology{2, "tensor_expert_parallel"}, Topology{3, "layer_split"}}) {
    for (size_t place = 0; place < static_cast<size_t>(topology.num_workers); ++place) {
      out.push_back({topology, place});
    }
  }
  out.push_back({Topology{4, "expert_parallel", "sliced", "owner"}, 2});
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, VictimTest, ::testing::ValuesIn(Victims()),
                         [](const auto& info) { return info.param.Name(); });

// ---- workers from outside -----------------------------------------------------------------------

class OutsideWorkersTest : public ::testing::Test {
 protected:
  OutsideWorkersTest() { InitLogging({.threshold = LogLevel::kOff}); }

  static std::vector<std::string> Arguments(GroupHarness& harness, const std::string& id) {
    return {SWITCHYARD_BINARY,         "worker",      "--coordinator",
            harness.group().address(), "--worker-id", id};
  }
};

TEST_F(OutsideWorkersTest, StoppedWorkerIsFencedAndComesBackWithItsShare) {
  const Topology topology = {2, "tensor_expert_parallel"};
  GroupHarness harness(ModelOf(topology),
                       {.num_workers = 2, .mode = topology.mode, .listen_address = "127.0.0.1:0"});
  BackgroundProcess first(Arguments(harness, "outside-0"));
  BackgroundProcess second(Arguments(harness, "outside-1"));
  ASSERT_TRUE(harness.WaitForState(EngineState::kServing));
  std::atomic<bool> is_stopped{false};
  const int number = harness.Start(TestRequest(ModelOf(topology), 0),
                                   [&](const Generated& so_far, const GenerationEvent&) {
                                     if (so_far.token_ids.size() < 3 || is_stopped.exchange(true))
                                       return;
                                     second.Signal(SIGSTOP);
                                   });
  const auto num_dead = [&] {
    const auto members = harness.group().status().members;
    return std::count_if(members.begin(), members.end(),
                         [](const auto& member) { return member.state == v1::WORKER_STATE_DEAD; });
  };
  ASSERT_TRUE(harness.WaitUntil([&] { return num_dead() == 1; }));
  second.Signal(SIGCONT);
  ExpectSame(harness.Wait(number), TextsOfOneWorker(topology)[0]);
  ExpectBooksBalance(harness);
  for (BackgroundProcess* worker : {&first, &second}) {
    EXPECT_FALSE(worker->WaitForOutput("cpu threads:", 2, 0)) << worker->output();  // loaded once
  }
}

TEST_F(OutsideWorkersTest, GroupGoesOnWithoutAWorkerThatDoesNotComeBack) {
  GroupHarness harness(DemoModel(), {.num_workers = 2,
                                     .mode = "layer_split",
                                     .listen_address = "127.0.0.1:0",
                                     .replan_seconds = 0.5});
  BackgroundProcess first(Arguments(harness, "outside-0"));
  auto second = std::make_unique<BackgroundProcess>(Arguments(harness, "outside-1"));
  ASSERT_TRUE(harness.WaitForState(EngineState::kServing));
  second->Signal(SIGKILL);
  second->Wait();
  const int number = harness.Start(TestRequest(DemoModel(), 0));
  ExpectSame(harness.Wait(number), TextsOfOneWorker(Topology{2, "layer_split"})[0]);  // alone
  EXPECT_TRUE(harness.group().status().is_degraded);
  EXPECT_EQ(harness.group().status().placement.world_size(), 1u);
  second = std::make_unique<BackgroundProcess>(Arguments(harness, "outside-1"));
  ASSERT_TRUE(harness.WaitUntil([&] {
    const auto status = harness.group().status();
    return !status.is_degraded && status.state == GroupState::kServing;
  }));
  ExpectSame(harness.Wait(harness.Start(TestRequest(DemoModel(), 1))),
             TextsOfOneWorker(Topology{2, "layer_split"})[1]);
  ExpectBooksBalance(harness);
}

TEST_F(OutsideWorkersTest, ThirdWorkerOfTwoIsRefused) {
  GroupHarness harness(DemoModel(),
                       {.num_workers = 2, .mode = "layer_split", .listen_address = "127.0.0.1:0"});
  BackgroundProcess first(Arguments(harness, "outside-0"));
  BackgroundProcess second(Arguments(harness, "outside-1"));
  ASSERT_TRUE(harness.WaitForState(EngineState::kServing));
  std::vector<std::string> arguments = Arguments(harness, "outside-2");
  arguments.insert(arguments.end(), {"--retry", "0.3", "-q"});
  const ProcessResult result = RunProcess(arguments);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("the group is complete: world_size 2"));
}

// ---- commands -----------------------------------------------------------------------------------

class GroupCommandsTest : public ::testing::Test {
 protected:
  static ProcessResult Run(const std::string& model, const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {SWITCHYARD_BINARY, "run", model,  "-p", "the", "-n", "8",
                                          "--greedy",        "-q",  "--raw"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunProcess(arguments);
  }
};

TEST_F(GroupCommandsTest, RunPrintsTheSameWithSeveralWorkers) {
  const std::string model = SWITCHYARD_TEST_DATA "/qwen4exp/shards.gguf";
  const ProcessResult alone = Run(model, {});
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const ProcessResult group = Run(model, {"--workers", "2", "--mode", "tensor_expert_parallel"});
  EXPECT_EQ(group.exit_code, 0) << group.err;
  EXPECT_EQ(group.out, alone.out);
  const ProcessResult one = Run(model, {"--workers", "1", "--mode", "layer_split"});
  EXPECT_EQ(one.out, alone.out);
}

TEST_F(GroupCommandsTest, EvalWritesTheLogitsOfOneWorker) {
  const auto logits_of = [](const std::string& fixture, std::vector<std::string> flags) {
    const std::string path = ::testing::TempDir() + "/group_logits.f32";
    std::remove(path.c_str());
    std::vector<std::string> arguments = {
        SWITCHYARD_BINARY,
        "eval",
        SWITCHYARD_TEST_DATA "/qwen4exp/" + fixture + ".gguf",
        "--tokens",
        SWITCHYARD_TEST_DATA "/qwen4exp/" + fixture + ".tokens.txt",
        "--logits-out",
        path,
        "-q"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProcessResult result = RunProcess(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return ReadFile(path);
  };
  // The attention output of `base` has two units, so that four workers cannot divide its heads.
  const std::vector<std::vector<std::string>> cases = {{"base", "layer_split", "2"},
                                                       {"base", "layer_split", "4"},
                                                       {"base", "expert_parallel", "2"},
                                                       {"base", "expert_parallel", "4"},
                                                       {"base", "tensor_expert_parallel", "2"},
                                                       {"shards", "layer_split", "4"},
                                                       {"shards", "expert_parallel", "4"},
                                                       {"shards", "tensor_expert_parallel", "2"},
                                                       {"shards", "tensor_expert_parallel", "4"}};
  std::map<std::string, std::string> alone;
  for (const auto& c : cases) {
    std::string& wanted = alone[c[0]];
    if (wanted.empty()) wanted = logits_of(c[0], {});
    ASSERT_FALSE(wanted.empty());
    // Not EXPECT_EQ, which would print them.
    EXPECT_TRUE(logits_of(c[0], {"--workers", c[2], "--mode", c[1], "--check-ranks"}) == wanted)
        << c[0] << " " << c[1] << " " << c[2];
  }
}

TEST_F(GroupCommandsTest, RefusesWhatCannotBeDividedWithTheReason) {
  const std::string base = SWITCHYARD_TEST_DATA "/qwen4exp/base.gguf";  // 8 layers, 8 experts
  const auto expect_refusal = [&](const std::vector<std::string>& flags, const std::string& text) {
    const ProcessResult result = Run(base, flags);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  expect_refusal({"--workers", "9", "--mode", "layer_split"}, "at most 8 workers");
  expect_refusal({"--workers", "3", "--mode", "layer_split", "--layer-split", "3"},
                 "wants 2 cut points, got: 1");
  expect_refusal({"--workers", "2", "--mode", "layer_split", "--layer-split", "8"},
                 "wanted here: 1 to 7");
  expect_refusal({"--workers", "9", "--mode", "expert_parallel", "--partition", "whole"},
                 "at most 8 workers");
  expect_refusal({"--workers", "2", "--mode", "single"}, "mode single has one worker");
  expect_refusal({"--workers", "2", "--mode", "layer_split", "--partition", "whole"},
                 "--partition is for expert_parallel");
  expect_refusal({"--workers", "2", "--mode", "tensor_expert_parallel", "--dense", "owner"},
                 "--dense is for expert_parallel");
  expect_refusal({"--layer-split", "3"}, "one worker has all layers");
  expect_refusal({"--workers", "2", "--mode", "tensor_expert_parallel", "--partition", "whole"},
                 "wanted: sliced");
}

}  // namespace
}  // namespace switchyard::testing
