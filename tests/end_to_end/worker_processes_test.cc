// Worker processes that are killed, stopped and left alone, at every point: what clients get must
// be what they would have got undisturbed.
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/status.h"
#include "end_to_end/group_harness.h"
#include "testing/process.h"

namespace switchyard::testing {
namespace {

namespace v1 = switchyard::worker::v1;

using coordinator::EngineState;
using coordinator::FinishReason;
using coordinator::GenerationEvent;
using ::testing::HasSubstr;

constexpr int kNumRequests = 8;

#if defined(SWITCHYARD_SANITIZED)
constexpr double kSlowness = 10;  // of a sanitized program: bounds on time are not its business
#else
constexpr double kSlowness = 1;
#endif

double Now() { return MonotonicClock::Get().NowSeconds(); }

const app::LoadedModel& Model() {
  static const auto& model = *OpenTestModel(SWITCHYARD_DEMO_MODEL).release();
  return model;
}

const std::vector<Generated>& Undisturbed() {
  static const auto& texts = *new std::vector<Generated>(UndisturbedTexts(Model(), kNumRequests));
  return texts;
}

// How long a fault lasts is part of the fault: nothing is waited for.
void LetPass(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

class WorkerProcessesTest : public ::testing::Test {
 protected:
  WorkerProcessesTest() { InitLogging({.threshold = LogLevel::kWarning}); }

  void ExpectUndisturbed(const Generated& generated, int request) {
    const Generated& wanted = Undisturbed()[static_cast<size_t>(request)];
    EXPECT_EQ(generated.last.reason, wanted.last.reason) << generated.last.error;
    EXPECT_EQ(generated.token_ids, wanted.token_ids) << "request " << request;
    EXPECT_EQ(generated.text, wanted.text);
    EXPECT_EQ(generated.last.usage.completion_tokens, wanted.last.usage.completion_tokens);
  }

  // One request, as a sign of health.
  void ExpectServes(GroupHarness& harness) {
    ExpectUndisturbed(harness.Wait(harness.Start(TestRequest(Model(), 1))), 1);
  }

  void ExpectBooksBalance(GroupHarness& harness) {
    EXPECT_EQ(harness.engine().CheckInvariants(), absl::OkStatus());
    EXPECT_EQ(harness.group().status().num_faults, 0);
  }

  std::vector<std::string> WorkerArguments(GroupHarness& harness) {
    return {SWITCHYARD_BINARY,         "worker",      "--coordinator",
            harness.group().address(), "--worker-id", "outside-0"};
  }
};

TEST_F(WorkerProcessesTest, TextsAreThoseOfOneProcess) {
  GroupHarness harness(Model(), {});
  std::vector<int> numbers;
  for (int i = 0; i < kNumRequests; ++i) numbers.push_back(harness.Start(TestRequest(Model(), i)));
  for (int i = 0; i < kNumRequests; ++i) {
    ExpectUndisturbed(harness.Wait(numbers[static_cast<size_t>(i)]), i);
  }
  ExpectBooksBalance(harness);
  EXPECT_EQ(harness.engine().stats().num_losses, 0);
}

// ---- kill -9 ------------------------------------------------------------------------------------

TEST_F(WorkerProcessesTest, KilledWhileIdleIsSeenAtOnceAndServesAgain) {
  GroupHarness harness(Model(), {});
  ASSERT_TRUE(harness.WaitForState(EngineState::kServing));
  const pid_t pid = harness.worker_pid();
  const double killed = Now();
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_TRUE(harness.WaitForState(EngineState::kRecovering));
  const double detected = harness.TimeOfState(EngineState::kRecovering);
  ASSERT_TRUE(harness.WaitForState(EngineState::kServing, 2));
  const double serves = harness.TimeOfState(EngineState::kServing, 2);
  RecordProperty("detected_ms", std::to_string((detected - killed) * 1000));
  RecordProperty("serves_again_ms", std::to_string((serves - detected) * 1000));
  EXPECT_LT(detected - killed, 0.2 * kSlowness);
  EXPECT_LT(serves - detected, 3 * kSlowness);
  EXPECT_NE(harness.worker_pid(), pid);
  EXPECT_EQ(harness.group().num_restarts(), 1);
  ExpectServes(harness);
  ExpectBooksBalance(harness);
}

TEST_F(WorkerProcessesTest, KilledWhileLoadingLoadsAgain) {
  GroupHarness harness(Model(), {});
  const int number = harness.Start(TestRequest(Model(), 0));
  // The load is short: should it be over before the signal comes, the next one is tried.
  bool was_loading = false;
  for (int attempt = 0; attempt < 20 && !was_loading; ++attempt) {
    pid_t pid = 0;
    ASSERT_TRUE(harness.WaitUntil([&] {
      const coordinator::MemberStatus member = harness.group().status().members[0];
      pid = static_cast<pid_t>(member.pid);
      return member.state == v1::WORKER_STATE_LOADING || member.state == v1::WORKER_STATE_READY ||
             member.state == v1::WORKER_STATE_BUSY;
    }));
    ASSERT_EQ(kill(pid, SIGSTOP), 0);  // now it cannot get ready any more, if it was not
    was_loading = harness.worker_state() == v1::WORKER_STATE_LOADING;
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT_TRUE(harness.WaitUntil([&] { return harness.worker_pid() != pid; }));
  }
  EXPECT_TRUE(was_loading);
  ExpectUndisturbed(harness.Wait(number), 0);
  ExpectBooksBalance(harness);
}

TEST_F(WorkerProcessesTest, KilledInPrefillComputesThePromptAgain) {
  GroupHarness harness(Model(), {});
  ASSERT_TRUE(harness.WaitForState(EngineState::kServing));
  const pid_t pid = harness.worker_pid();
  std::atomic<bool> is_killed{false};
  const int number = harness.Start(
      TestRequest(Model(), 4), [&](const Generated& so_far, const GenerationEvent& event) {
        if (event.num_prefilled < 64 || !so_far.token_ids.empty() || is_killed.exchange(true)) {
          return;
        }
        EXPECT_LT(event.num_prefilled, event.usage.prompt_tokens);
        kill(pid, SIGKILL);
      });
  const Generated generated = harness.Wait(number);
  EXPECT_TRUE(is_killed);
  ExpectUndisturbed(generated, 4);
  EXPECT_EQ(harness.engine().stats().num_losses, 1);
  ExpectBooksBalance(harness);
}

TEST_F(WorkerProcessesTest, KilledTwiceUnderLoadLosesAndRepeatsNothing) {
  GroupHarness harness(Model(), {});
  ASSERT_TRUE(harness.WaitForState(EngineState::kServing));
  // Eight requests on four slots; the worker dies when the first has five tokens, and its
  // successor when the fourth has ten.
  std::atomic<int> num_kills{0};
  const auto kill_at = [&](size_t num_tokens, int kill_number) {
    return [&, num_tokens, kill_number](const Generated& so_far, const GenerationEvent&) {
      if (so_far.token_ids.size() < num_tokens) return;
      int expected = kill_number;
      if (num_kills.compare_exchange_strong(expected, kill_number + 1)) {
        kill(harness.worker_pid(), SIGKILL);
      }
    };
  };
  std::vector<int> numbers;
  for (int i = 0; i < kNumRequests; ++i) {
    numbers.push_back(i == 0   ? harness.Start(TestRequest(Model(), i), kill_at(5, 0))
                      : i == 3 ? harness.Start(TestRequest(Model(), i), kill_at(10, 1))
                               : harness.Start(TestRequest(Model(), i)));
  }
  int num_replayed = 0;
  for (int i = 0; i < kNumRequests; ++i) {
    const Generated generated = harness.Wait(numbers[static_cast<size_t>(i)]);
    ExpectUndisturbed(generated, i);
    num_replayed += generated.last.replayed;
  }
  EXPECT_EQ(num_kills, 2);
  EXPECT_GE(num_replayed, 2);
  EXPECT_EQ(harness.engine().stats().num_losses, 2);
  ExpectBooksBalance(harness);
}

TEST_F(WorkerProcessesTest, KilledInDecodeFailsTheRequestIfSoConfigured) {
  GroupHarness harness(Model(), {.on_worker_loss = coordinator::OnWorkerLoss::kFail});
  ASSERT_TRUE(harness.WaitForState(EngineState::kServing));
  std::atomic<bool> is_killed{false};
  const int number =
      harness.Start(TestRequest(Model(), 0), [&](const Generated& so_far, const GenerationEvent&) {
        if (so_far.token_ids.size() >= 3 && !is_killed.exchange(true)) {
          kill(harness.worker_pid(), SIGKILL);
        }
      });
  const Generated generated = harness.Wait(number);
  EXPECT_EQ(generated.last.reason, FinishReason::kFailed);
  EXPECT_EQ(generated.last.error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(generated.last.error), kWorkerLost);
  ExpectServes(harness);
}

// ---- stopped processes --------------------------------------------------------------------------

TEST_F(WorkerProcessesTest, StoppedForASecondIsNotLost) {
  GroupHarness harness(Model(), {});
  ASSERT_TRUE(harness.WaitForState(EngineState::kServing));
  const pid_t pid = harness.worker_pid();
  std::atomic<bool> is_stopped{false};
  const int number =
      harness.Start(TestRequest(Model(), 0), [&](const Generated& so_far, const GenerationEvent&) {
        if (so_far.token_ids.size() >= 3 && !is_stopped.exchange(true)) kill(pid, SIGSTOP);
      });
  ASSERT_TRUE(harness.WaitUntil([&] { return is_stopped.load(); }));
  LetPass(1);
  ASSERT_EQ(kill(pid, SIGCONT), 0);
  ExpectUndisturbed(harness.Wait(number), 0);
  EXPECT_EQ(harness.engine().stats().num_losses, 0);
  EXPECT_EQ(harness.worker_pid(), pid);
}

TEST_F(WorkerProcessesTest, StoppedForEverIsKilledAndStartedAgain) {
  GroupHarness harness(Model(), {});
  ASSERT_TRUE(harness.WaitForState(EngineState::kServing));
  const pid_t pid = harness.worker_pid();
  double stopped = 0;
  const int number =
      harness.Start(TestRequest(Model(), 0), [&](const Generated& so_far, const GenerationEvent&) {
        if (so_far.token_ids.size() >= 3 && stopped == 0) {
          stopped = Now();
          kill(pid, SIGSTOP);
        }
      });
  ExpectUndisturbed(harness.Wait(number), 0);
  EXPECT_EQ(harness.engine().stats().num_losses, 1);
  // Silence is noticed after 1.5 s, and death declared 3.5 s later: by then a second of ticks and
  // heartbeats may have passed.
  const double lost = harness.TimeOfState(EngineState::kRecovering) - stopped;
  EXPECT_GT(lost, 3.9);
  EXPECT_LT(lost, 6.5 * kSlowness);
  EXPECT_EQ(kill(pid, 0), -1);  // nothing is left of it
  EXPECT_NE(harness.worker_pid(), pid);
  ExpectBooksBalance(harness);
}

TEST_F(WorkerProcessesTest, FencedWorkerFromOutsideComesBackWithItsWeights) {
  GroupHarness harness(Model(), {.listen_address = "127.0.0.1:0"});
  BackgroundProcess worker(WorkerArguments(harness));
  ASSERT_TRUE(harness.WaitForState(EngineState::kServing));
  const uint64_t epoch = harness.group().status().epoch;
  bool is_stopped = false;
  const int number =
      harness.Start(TestRequest(Model(), 0), [&](const Generated& so_far, const GenerationEvent&) {
        if (so_far.token_ids.size() < 3 || is_stopped) return;
        is_stopped = true;
        worker.Signal(SIGSTOP);
      });
  ASSERT_TRUE(harness.WaitForState(EngineState::kRecovering));
  EXPECT_EQ(harness.worker_state(), v1::WORKER_STATE_DEAD);
  worker.Signal(SIGCONT);
  ExpectUndisturbed(harness.Wait(number), 0);  // the same process goes on where it was lost
  EXPECT_EQ(harness.worker_pid(), worker.pid());
  EXPECT_GT(harness.group().status().epoch, epoch);
  ExpectBooksBalance(harness);
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait().exit_code, 0);
  // Registered twice, loaded once.
  EXPECT_TRUE(worker.WaitForOutput("registered as outside-0", 2));
  EXPECT_TRUE(worker.WaitForOutput("cpu threads:", 1));
  EXPECT_FALSE(worker.WaitForOutput("cpu threads:", 2));
}

// ---- coordinators that end ----------------------------------------------------------------------

TEST_F(WorkerProcessesTest, KilledCoordinatorLeavesAWorkerThatRegistersWithTheNext) {
  auto first = std::make_unique<BackgroundProcess>(std::vector<std::string>{
      SWITCHYARD_COORDINATOR_PROCESS, SWITCHYARD_DEMO_MODEL, "127.0.0.1:0"});
  ASSERT_TRUE(first->WaitForOutput("address "));
  ASSERT_TRUE(first->WaitForOutput("\n"));
  const std::string output = first->output();
  const size_t begin = output.find("address ") + 8;
  const std::string address = output.substr(begin, output.find('\n', begin) - begin);

  BackgroundProcess worker({SWITCHYARD_BINARY, "worker", "--coordinator", address});
  std::string ids = "ids";
  for (const int32_t id : Undisturbed()[0].token_ids) ids += " " + std::to_string(id);
  ASSERT_TRUE(first->WaitForOutput(ids + "\n")) << first->output();
  first->Signal(SIGKILL);
  EXPECT_EQ(first->Wait().signal, SIGKILL);

  BackgroundProcess second({SWITCHYARD_COORDINATOR_PROCESS, SWITCHYARD_DEMO_MODEL, address});
  EXPECT_TRUE(second.WaitForOutput(ids + "\n")) << second.output() << worker.output();
  EXPECT_TRUE(worker.WaitForOutput("ready: ", 2)) << worker.output();
  EXPECT_FALSE(worker.WaitForOutput("cpu threads:", 2, 0)) << worker.output();
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait().exit_code, 0);
}

TEST_F(WorkerProcessesTest, WorkersEndWithTheGroup) {
  pid_t pid = 0;
  {
    GroupHarness harness(Model(), {});
    ASSERT_TRUE(harness.WaitForState(EngineState::kServing));
    pid = harness.worker_pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST_F(WorkerProcessesTest, WorkerWithoutACoordinatorEndsWithOneLine) {
  const ProcessResult result = RunProcess({SWITCHYARD_BINARY, "worker", "--coordinator",
                                           "unix:/nonexistent/socket", "--retry", "0.3", "-q"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("switchyard: no session for "));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST_F(WorkerProcessesTest, WorkerThatWaitsForACoordinatorEndsOnSigterm) {
  BackgroundProcess worker(
      {SWITCHYARD_BINARY, "worker", "--coordinator", "unix:/nonexistent/socket"});
  ASSERT_TRUE(worker.WaitForOutput("registers at unix:/nonexistent/socket"));
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait().exit_code, 0) << worker.output();
}

// ---- leaving and refusals -----------------------------------------------------------------------

TEST_F(WorkerProcessesTest, SigtermUnderLoadLetsRunningTextsEnd) {
  GroupHarness harness(Model(), {.listen_address = "127.0.0.1:0"});
  auto worker = std::make_unique<BackgroundProcess>(WorkerArguments(harness));
  ASSERT_TRUE(harness.WaitForState(EngineState::kServing));
  bool is_told = false;
  const int number =
      harness.Start(TestRequest(Model(), 0), [&](const Generated& so_far, const GenerationEvent&) {
        if (so_far.token_ids.size() < 3 || is_told) return;
        is_told = true;
        worker->Signal(SIGTERM);
      });
  ExpectUndisturbed(harness.Wait(number), 0);
  const ProcessResult result = worker->Wait();
  EXPECT_EQ(result.exit_code, 0) << result.out;
  ASSERT_TRUE(harness.WaitForState(EngineState::kRecovering));
  BackgroundProcess next(WorkerArguments(harness));
  ExpectServes(harness);
  ExpectBooksBalance(harness);
}

TEST_F(WorkerProcessesTest, WorkerWithAnotherModelFileIsRefused) {
  GroupHarness harness(Model(), {.listen_address = "127.0.0.1:0"});
  std::vector<std::string> arguments = WorkerArguments(harness);
  arguments.push_back(SWITCHYARD_TEST_DATA "/qwen4exp/base.gguf");
  arguments.push_back("-q");
  const ProcessResult result = RunProcess(arguments);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("switchyard: worker has another model file: model_digest"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST_F(WorkerProcessesTest, SessionsOfOtherMachinesMustBeAskedFor) {
  const auto expect_refusal = [](const std::vector<std::string>& arguments,
                                 const std::string& message) {
    const ProcessResult result = RunProcess(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_EQ(result.out, "");
  };
  const std::vector<std::string> serve = {SWITCHYARD_BINARY, "serve", SWITCHYARD_DEMO_MODEL};
  std::vector<std::string> arguments = serve;
  arguments.insert(arguments.end(), {"--expect-workers", "1", "--worker-listen", "0.0.0.0:0"});
  expect_refusal(arguments, "--worker-listen 0.0.0.0:0 can be reached from other machines");
  arguments.insert(arguments.end(), {"--api-key-file", "/dev/null"});  // keys are for clients
  expect_refusal(arguments, "--worker-listen 0.0.0.0:0 can be reached from other machines");
  arguments = serve;
  arguments.insert(arguments.end(), {"--worker-listen", "127.0.0.1:0"});
  expect_refusal(arguments, "--expect-workers");
  const std::vector<std::string> worker = {SWITCHYARD_BINARY, "worker", "--coordinator",
                                           "unix:/nonexistent/socket", "--service"};
  arguments = worker;
  arguments.emplace_back("0.0.0.0:0");
  expect_refusal(arguments, "--service 0.0.0.0:0 can be reached from other machines");
  arguments = worker;
  arguments.emplace_back("nowhere");
  expect_refusal(arguments, "--service: wants host:port");
}

TEST_F(WorkerProcessesTest, WorkerMayBringTheSameModelUnderAnotherName) {
  const std::string copy = ::testing::TempDir() + "/copy_of_demo.gguf";
  std::remove(copy.c_str());
  ASSERT_EQ(symlink(SWITCHYARD_DEMO_MODEL, copy.c_str()), 0);
  GroupHarness harness(Model(), {.listen_address = "127.0.0.1:0"});
  std::vector<std::string> arguments = WorkerArguments(harness);
  arguments.push_back(copy);
  BackgroundProcess worker(arguments);
  ExpectServes(harness);
}

TEST_F(WorkerProcessesTest, GroupWhoseModelCannotBeLoadedFailsForGood) {
  const std::string path = ::testing::TempDir() + "/vanishing.gguf";
  std::remove(path.c_str());
  ASSERT_EQ(symlink(SWITCHYARD_DEMO_MODEL, path.c_str()), 0);
  const auto model = OpenTestModel(path);
  ASSERT_EQ(std::remove(path.c_str()), 0);
  GroupHarness harness(*model, {});
  ASSERT_TRUE(harness.WaitForState(EngineState::kFailed));
  EXPECT_EQ(harness.group().num_restarts(), 0);
}

}  // namespace
}  // namespace switchyard::testing
