#include "coordinator/request_gate.h"

#include <atomic>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/error_info.h"
#include "base/status.h"
#include "testing/fake_generator.h"
#include "testing/manual_clock.h"

namespace switchyard::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RequestGateTest : public ::testing::Test {
 protected:
  RequestGateTest() { gate_.SetEngineState(EngineState::kServing); }

  absl::StatusOr<std::unique_ptr<GenerationStream>> Start(std::string id,
                                                          size_t max_buffered_bytes = 1000) {
    RequestInfo info;
    info.request_id = std::move(id);
    info.api = "native";
    info.max_buffered_bytes = max_buffered_bytes;
    GenerationRequest request;
    request.prompt = {1, 2, 3};
    return gate_.Start(std::move(info), std::move(request), [this] { ++num_available_; });
  }

  testing::FakeGenerator generator_;
  testing::ManualClock clock_;
  ServingMetrics metrics_{{.model = "m"}};
  RequestGate gate_{generator_, metrics_, {.clock = &clock_}};
  std::atomic<int> num_available_ = 0;
};

TEST_F(RequestGateTest, DeliversEventsInOrderAndTellsOfEach) {
  const auto stream = Start("a");
  ASSERT_TRUE(stream.ok());
  EXPECT_FALSE((*stream)->Take().has_value());
  generator_.EmitText(1, "Hel");
  EXPECT_EQ((*stream)->Take()->text, "Hel");
  generator_.EmitText(1, "l", 2);
  generator_.EmitText(1, "o", 3);
  EXPECT_EQ((*stream)->Take()->text, "lo");
  generator_.Finish(1, FinishReason::kMaxTokens);
  const auto last = (*stream)->Take();
  EXPECT_TRUE(last->finished);
  EXPECT_EQ(last->reason, FinishReason::kMaxTokens);
  EXPECT_EQ(num_available_, 4);
}

TEST_F(RequestGateTest, MakesIdsThatDiffer) {
  const auto a = Start(""), b = Start("");
  EXPECT_THAT((*a)->request_id(), ::testing::MatchesRegex("req-[0-9a-f]{16}"));
  EXPECT_NE((*a)->request_id(), (*b)->request_id());
}

TEST_F(RequestGateTest, RefusesAnIdThatIsRunning) {
  auto first = Start("same");
  const auto second = Start("same");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(FieldOf(second.status()), "request_id");
  generator_.Finish(1, FinishReason::kStopToken);
  EXPECT_TRUE(Start("same").ok()) << "free again, although the stream is still there";
}

TEST_F(RequestGateTest, RefusedStartFreesItsId) {
  generator_.RefuseStarts(WithReason(ResourceExhausted("full"), kQueueFull));
  EXPECT_EQ(ReasonOf(Start("a").status()), kQueueFull);
  generator_.RefuseStarts(absl::OkStatus());
  EXPECT_TRUE(Start("a").ok());
}

TEST_F(RequestGateTest, EachStateHasItsRefusal) {
  const struct {
    EngineState state;
    GateState gate;
    std::string_view reason;
  } kCases[] = {{EngineState::kLoading, GateState::kLoading, kModelLoading},
                {EngineState::kFailed, GateState::kFailed, kWorkerLost}};
  for (const auto& [state, gate_state, reason] : kCases) {
    gate_.SetEngineState(state);
    EXPECT_EQ(gate_.state(), gate_state);
    EXPECT_FALSE(gate_.is_ready());
    const absl::Status status = Start("a").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(status), reason);
    EXPECT_TRUE(RetryAfterOf(status).has_value());
  }
  gate_.SetEngineState(EngineState::kServing);
  EXPECT_TRUE(gate_.is_ready());
  EXPECT_TRUE(Start("a").ok());
}

TEST_F(RequestGateTest, RequestsWaitForALostWorker) {
  gate_.SetEngineState(EngineState::kRecovering);
  EXPECT_EQ(gate_.state(), GateState::kRecovering);
  EXPECT_FALSE(gate_.is_ready()) << "a balancer should choose another server meanwhile";
  EXPECT_TRUE(Start("a").ok());
}

TEST_F(RequestGateTest, DrainRefusesNewRequestsAndLetsOthersEnd) {
  const auto stream = Start("a");
  gate_.BeginDrain();
  const absl::Status status = Start("b").status();
  EXPECT_EQ(ReasonOf(status), kDraining);
  EXPECT_TRUE(RetryAfterOf(status).has_value());
  gate_.SetEngineState(EngineState::kRecovering);
  EXPECT_EQ(gate_.state(), GateState::kDraining) << "is never left";
  EXPECT_FALSE(gate_.WaitUntilIdle(0));
  generator_.EmitText(1, "x");
  generator_.Finish(1, FinishReason::kMaxTokens);
  EXPECT_TRUE(gate_.WaitUntilIdle(0));
  EXPECT_EQ((*stream)->Take()->text, "x");
}

TEST_F(RequestGateTest, IdleOnlyAfterTheLastEventIsThere) {
  const auto stream = Start("a");
  std::thread engine([&] { generator_.Finish(1, FinishReason::kMaxTokens); });
  EXPECT_TRUE(gate_.WaitUntilIdle(60));
  EXPECT_EQ(num_available_, 1);
  EXPECT_TRUE((*stream)->Take()->finished);
  engine.join();
}

TEST_F(RequestGateTest, ListenersHearEveryStateInOrder) {
  std::vector<GateState> states;
  gate_.OnStateChange([&](GateState state) { states.push_back(state); });
  gate_.SetEngineState(EngineState::kServing);  // no change
  gate_.SetEngineState(EngineState::kRecovering);
  gate_.SetEngineState(EngineState::kServing);
  gate_.BeginDrain();
  gate_.BeginDrain();
  gate_.SetEngineState(EngineState::kFailed);
  EXPECT_THAT(states, ElementsAre(GateState::kServing, GateState::kRecovering, GateState::kServing,
                                  GateState::kDraining));
}

TEST_F(RequestGateTest, CancelReachesTheGeneratorOnce) {
  generator_.EndWhenCancelled(false);
  const auto stream = Start("a");
  (*stream)->Cancel();
  (*stream)->Cancel();
  EXPECT_THAT(generator_.cancelled(), ElementsAre(1));
  generator_.Finish(1, FinishReason::kCancelled);
  EXPECT_EQ((*stream)->Take()->reason, FinishReason::kCancelled);
  (*stream)->Cancel();
  EXPECT_EQ(generator_.cancelled().size(), 1u);
}

TEST_F(RequestGateTest, DestroyedStreamCancelsAndHearsNoMore) {
  auto stream = Start("a");
  stream->reset();
  EXPECT_THAT(generator_.cancelled(), ElementsAre(1));
  EXPECT_EQ(num_available_, 0);
  EXPECT_TRUE(gate_.WaitUntilIdle(0));
  EXPECT_TRUE(Start("a").ok());
}

TEST_F(RequestGateTest, EndedStreamIsNotCancelled) {
  auto stream = Start("a");
  generator_.Finish(1, FinishReason::kStopToken);
  stream->reset();
  EXPECT_THAT(generator_.cancelled(), IsEmpty());
}

TEST_F(RequestGateTest, EventsMayComeBeforeStartReturns) {
  GenerationEvent last;
  last.text = "all";
  last.finished = true;
  last.reason = FinishReason::kStopToken;
  generator_.EmitAtStart(last);
  const auto stream = Start("a");
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ((*stream)->Take()->text, "all");
  EXPECT_EQ(num_available_, 1);
  EXPECT_TRUE(gate_.WaitUntilIdle(0));
}

TEST_F(RequestGateTest, SlowReaderIsCancelledAndToldSo) {
  const auto stream = Start("a", /*max_buffered_bytes=*/20);
  generator_.EmitText(1, "0123456789");
  generator_.EmitText(1, "0123456789", 2);  // 20 bytes of text, 8 of tokens
  EXPECT_THAT(generator_.cancelled(), ElementsAre(1));
  const auto event = (*stream)->Take();
  EXPECT_EQ(event->text, "0123456789");
  EXPECT_TRUE(event->finished);
  EXPECT_EQ(event->reason, FinishReason::kFailed);
  EXPECT_EQ(event->error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(event->error), kSlowReader);
  EXPECT_FALSE((*stream)->Take().has_value());
}

TEST_F(RequestGateTest, OverflowBeforeStartReturnsCancelsToo) {
  GenerationEvent big;
  big.text.assign(100, 'x');
  generator_.EmitAtStart(big);
  const auto stream = Start("a", /*max_buffered_bytes=*/20);
  ASSERT_TRUE(stream.ok());
  EXPECT_THAT(generator_.cancelled(), ElementsAre(1));
  EXPECT_EQ(ReasonOf((*stream)->Take()->error), kSlowReader);
}

TEST_F(RequestGateTest, StreamMayBeDestroyedByItsCallback) {
  std::unique_ptr<GenerationStream> stream;
  int num_calls = 0;
  GenerationRequest request;
  request.prompt = {1};
  auto started = gate_.Start({}, request, [&] {
    ++num_calls;
    stream.reset();
  });
  stream = std::move(*started);
  generator_.EmitText(1, "x");
  EXPECT_EQ(num_calls, 1);
  EXPECT_EQ(stream, nullptr);
  EXPECT_THAT(generator_.cancelled(), ElementsAre(1));
  EXPECT_TRUE(gate_.WaitUntilIdle(0));
}

TEST_F(RequestGateTest, TimesCountFromTheArrival) {
  clock_.Set(12);
  RequestInfo info;
  info.arrival_seconds = 10;
  GenerationRequest request;
  request.prompt = {1};
  const auto stream = gate_.Start(info, request, [] {});
  GenerationEvent event;
  event.usage.completion_tokens = 1;
  event.timings = {.queue_seconds = 1, .ttft_seconds = 3, .total_seconds = 3};
  generator_.Emit(1, event);
  const Timings timings = (*stream)->Take()->timings;
  EXPECT_EQ(timings.queue_seconds, 3);
  EXPECT_EQ(timings.ttft_seconds, 5);
  EXPECT_EQ(timings.total_seconds, 5);
}

TEST_F(RequestGateTest, RunningRequestsAreDescribed) {
  const auto a = Start("a"), b = Start("b");
  clock_.Set(4);
  GenerationEvent event;
  event.started = true;
  event.usage = {.prompt_tokens = 3, .completion_tokens = 2};
  generator_.Emit(2, event);
  const auto running = gate_.running();
  ASSERT_EQ(running.size(), 2u);
  EXPECT_EQ(running[0].request_id, "a");
  EXPECT_FALSE(running[0].has_started);
  EXPECT_EQ(running[1].generation_id, 2u);
  EXPECT_EQ(running[1].api, "native");
  EXPECT_TRUE(running[1].has_started);
  EXPECT_EQ(running[1].usage.completion_tokens, 2);
  EXPECT_EQ(running[1].age_seconds, 4);
}

TEST_F(RequestGateTest, CancelAllEndsEverything) {
  const auto a = Start("a"), b = Start("b");
  gate_.CancelAll();
  EXPECT_TRUE(gate_.WaitUntilIdle(0));
  EXPECT_EQ((*a)->Take()->reason, FinishReason::kCancelled);
  EXPECT_EQ((*b)->Take()->reason, FinishReason::kCancelled);
  EXPECT_THAT(gate_.running(), IsEmpty());
}

TEST_F(RequestGateTest, EndOfADrainSaysSo) {
  const auto stream = Start("a");
  gate_.BeginDrain();
  gate_.CancelAll();
  const auto event = (*stream)->Take();
  EXPECT_EQ(event->reason, FinishReason::kFailed);
  EXPECT_EQ(event->error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(event->error), kDraining);
  EXPECT_TRUE(RetryAfterOf(event->error).has_value());
}

TEST_F(RequestGateTest, FailedStreamEndsWithItsStatusUnlessItEndsByItself) {
  const auto a = Start("a");
  (*a)->Fail(ResourceExhausted("enough"));
  EXPECT_EQ((*a)->Take()->error, ResourceExhausted("enough"));
  generator_.EndWhenCancelled(false);
  const auto b = Start("b");
  (*b)->Fail(ResourceExhausted("enough"));
  generator_.Finish(2, FinishReason::kStopToken);
  EXPECT_EQ((*b)->Take()->reason, FinishReason::kStopToken);
}

TEST_F(RequestGateTest, RefusalsAreCounted) {
  RequestInfo info;
  info.request_id.assign(200, 'x');
  EXPECT_FALSE(gate_.Start(info, {}, [] {}).ok());
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("switchyard_request_errors_total{code=\"INVALID_ARGUMENT\"} 1"));
}

// Engines, clients and a drain at the same time: every stream ends once, and nothing hangs.
TEST_F(RequestGateTest, ManyThreadsEndInPeace) {
  constexpr int kNumClients = 4;
  constexpr int kNumRequests = 200;
  generator_.EndWhenCancelled(false);  // the engine below ends them, on its own thread
  std::atomic<int> num_finished = 0;
  std::atomic<int> num_dropped = 0;
  std::vector<std::thread> threads;
  for (int client = 0; client < kNumClients; ++client) {
    threads.emplace_back([&, client] {
      for (int i = 0; i < kNumRequests; ++i) {
        auto stream = Start("");
        if (!stream.ok()) continue;
        if (i % 4 == client) {
          ++num_dropped;
          continue;  // destroyed while events come
        }
        if (i % 4 == (client + 1) % 4) (*stream)->Cancel();
        for (bool finished = false; !finished;) {
          const auto event = (*stream)->Take();
          if (!event) std::this_thread::yield();
          finished = event && event->finished;
        }
        ++num_finished;
      }
    });
  }
  std::atomic<bool> stop = false;
  std::thread engine([&] {
    for (uint64_t id = 1; !stop; id = id % (kNumClients * kNumRequests) + 1) {
      generator_.EmitText(id, "x");
      generator_.Finish(id, FinishReason::kStopToken);
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_finished + num_dropped, kNumClients * kNumRequests);
  EXPECT_TRUE(gate_.WaitUntilIdle(60)) << "also of the streams that were dropped";
  stop = true;
  engine.join();
}

TEST(RequestGateEndTest, EndOfTheGateEndsWhatRuns) {
  testing::FakeGenerator generator;
  generator.EndWhenCancelled(false);
  ServingMetrics metrics({.model = "m"});
  auto gate = std::make_unique<RequestGate>(generator, metrics);
  gate->SetEngineState(EngineState::kServing);
  GenerationRequest request;
  request.prompt = {1};
  auto stream = *gate->Start({}, request, [] {});
  std::thread engine([&] {
    generator.WaitForCancels(1);
    generator.Finish(1, FinishReason::kCancelled);
  });
  gate.reset();
  engine.join();
  EXPECT_TRUE(stream->Take()->finished);
}

}  // namespace
}  // namespace switchyard::coordinator
