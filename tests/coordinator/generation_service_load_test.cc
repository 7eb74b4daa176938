// Many streams at once, and how fast one is.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "coordinator/engine_harness.h"
#include "coordinator/service_fixture.h"
#include "testing/fake_generator.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::generation::v1;

struct Answer {
  std::string text;
  int num_started = 0;
  int num_finished = 0;
  bool is_ok = false;
};

Answer Ask(v1::GenerationService::Stub& stub, int seed) {
  v1::StreamGenerateRequest request;
  for (int32_t id : EngineHarness::Prompt(40 + seed, seed)) {
    request.mutable_spec()->mutable_token_ids()->add_ids(static_cast<uint32_t>(id));
  }
  request.mutable_spec()->mutable_stop()->set_max_tokens(128);
  request.mutable_spec()->mutable_stop()->set_ignore_eos(true);
  grpc::ClientContext context;
  const auto reader = stub.StreamGenerate(&context, request);
  Answer answer;
  v1::StreamGenerateResponse event;
  while (reader->Read(&event)) {
    answer.num_started += event.has_started();
    answer.num_finished += event.has_finished();
    answer.text += event.delta().text();
  }
  answer.is_ok = reader->Finish().ok();
  return answer;
}

TEST(GenerationServiceLoadTest, ConcurrentStreamsGiveTheTextOfSoloStreams) {
  constexpr int kNumStreams = 64;
  EngineHarness harness(EngineHarness::WorkerOptions(/*num_slots=*/16, /*num_pages=*/256,
                                                     /*num_checkpoints=*/8),
                        {});
  ServiceFixture fixture(harness.engine());
  std::vector<Answer> solo(kNumStreams), together(kNumStreams);
  for (int i = 0; i < kNumStreams; ++i) solo[i] = Ask(fixture.stub(), i);
  std::vector<std::thread> clients;
  for (int i = 0; i < kNumStreams; ++i) {
    clients.emplace_back([&, i] { together[i] = Ask(fixture.stub(), i); });
  }
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < kNumStreams; ++i) {
    EXPECT_TRUE(together[i].is_ok) << i;
    EXPECT_EQ(together[i].num_started, 1) << i;
    EXPECT_EQ(together[i].num_finished, 1) << i;
    EXPECT_EQ(solo[i].text.size(), 128u) << i;
    EXPECT_EQ(together[i].text, solo[i].text) << i;
  }
  EXPECT_TRUE(fixture.gate().WaitUntilIdle(60));
  EXPECT_EQ(harness.engine().stats().num_running, 0);
}

// Clients that leave at any point leave nothing behind.
TEST(GenerationServiceLoadTest, ClientsThatLeaveLeaveNothingBehind) {
  EngineHarness harness(EngineHarness::WorkerOptions(4, 64, 4), {});
  ServiceFixture fixture(harness.engine());
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        v1::StreamGenerateRequest request;
        request.mutable_spec()->set_text(std::string(100, static_cast<char>('a' + i)));
        request.mutable_spec()->mutable_stop()->set_ignore_eos(true);
        grpc::ClientContext context;
        const auto reader = fixture.stub().StreamGenerate(&context, request);
        v1::StreamGenerateResponse event;
        // Before reading, after the start, between tokens.
        for (int reads = 0; reads < (round % 5) * i && reader->Read(&event); ++reads) {
        }
        context.TryCancel();
        reader->Finish();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ASSERT_TRUE(fixture.gate().WaitUntilIdle(60));
  const EngineStats stats = harness.engine().stats();
  EXPECT_EQ(stats.num_running + stats.num_waiting, 0);
  EXPECT_TRUE(harness.engine().CheckInvariants().ok());
  EXPECT_TRUE(fixture.gate().running().empty());
}

TEST(GenerationServiceLoadTest, UnaryCallsAreFast) {
  testing::FakeGenerator generator;
  ServiceFixture fixture(generator);
  std::vector<double> milliseconds;
  for (int i = 0; i < 1000; ++i) {
    grpc::ClientContext context;
    v1::GetModelResponse response;
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(fixture.stub().GetModel(&context, {}, &response).ok());
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - begin;
    milliseconds.push_back(elapsed.count());
  }
  std::ranges::sort(milliseconds);
  const double median = milliseconds[milliseconds.size() / 2];
  std::cout << "median of unary calls in milliseconds: " << median << "\n";
#if !defined(SWITCHYARD_SANITIZED)
  // Some 0.1 on an idle machine; a call that waits for a timer takes longer than this.
  EXPECT_LT(median, 5);
#endif
}

// A floor against regressions, not a claim: an idle machine gives tens of thousands a second.
TEST(GenerationServiceLoadTest, StreamIsFast) {
  constexpr int kNumMessages = 20000;
  testing::FakeGenerator generator;
  ServiceFixture fixture(generator);
  grpc::ClientContext context;
  v1::StreamGenerateRequest request;
  request.mutable_spec()->set_text("hello");
  const auto reader = fixture.stub().StreamGenerate(&context, request);
  generator.WaitForStarts(1);
  std::atomic<int64_t> num_read = 0;
  std::atomic<bool> stop = false;
  int64_t num_emitted = 0;
  std::thread engine([&] {
    while (!stop) {
      // So that the reader never falls behind by the buffer's size.
      if (num_emitted - num_read > 1000) {
        std::this_thread::yield();
        continue;
      }
      generator.EmitText(1, "x");
      ++num_emitted;
    }
    generator.Finish(1, FinishReason::kMaxTokens);
  });
  v1::StreamGenerateResponse event;
  int num_messages = 0;
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::duration<double> elapsed{};
  while (reader->Read(&event)) {
    num_read += static_cast<int64_t>(event.delta().text().size());
    if (++num_messages != kNumMessages) continue;
    elapsed = std::chrono::steady_clock::now() - begin;
    stop = true;
  }
  engine.join();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(num_read, num_emitted);
  ASSERT_GT(elapsed.count(), 0);
  const double per_second = kNumMessages / elapsed.count();
  std::cout << "messages per second: " << per_second << "\n";
#if !defined(SWITCHYARD_SANITIZED)
  // One that waits for a timer or sleeps between messages stays far below.
  EXPECT_GT(per_second, 2000);
#endif
}

}  // namespace
}  // namespace switchyard::coordinator
