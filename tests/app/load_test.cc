#include <atomic>
#include <nlohmann/json.hpp>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/load/load_report.h"
#include "app/load/load_run.h"
#include "app/load/percentiles.h"
#include "base/status.h"

namespace switchyard::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PercentileTest, IsTheNearestRank) {
  const std::vector<double> samples = {50, 15, 40, 20, 35};
  EXPECT_EQ(Percentile(samples, 5), 15);
  EXPECT_EQ(Percentile(samples, 30), 20);
  EXPECT_EQ(Percentile(samples, 40), 20);
  EXPECT_EQ(Percentile(samples, 50), 35);
  EXPECT_EQ(Percentile(samples, 100), 50);
  EXPECT_EQ(Percentile({7}, 1), 7);
  EXPECT_EQ(Percentile({}, 50), 0);
}

TEST(LoadPromptTest, DependsOnSeedAndNumberOnly) {
  LoadOptions options;
  options.prompt_tokens = 100;
  const auto first = LoadPrompt(options, 0, 1000);
  EXPECT_EQ(first.size(), 100u);
  EXPECT_EQ(LoadPrompt(options, 0, 1000), first);
  EXPECT_NE(LoadPrompt(options, 1, 1000), first);
  options.seed = 2;
  EXPECT_NE(LoadPrompt(options, 0, 1000), first);
  for (int32_t id : first) EXPECT_TRUE(id >= 0 && id < 1000);
}

TEST(LoadPromptTest, PrefixIsShared) {
  LoadOptions options;
  options.prompt_tokens = 100;
  options.shared_prefix_tokens = 64;
  const auto a = LoadPrompt(options, 0, 1000);
  const auto b = LoadPrompt(options, 1, 1000);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 64, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 64, a.end(), b.begin() + 64));
}

TEST(LoadPromptTest, GivenPromptsAreUsedInTurn) {
  LoadOptions options;
  options.prompts = {{1, 2}, {3}};
  EXPECT_THAT(LoadPrompt(options, 0, 10), ElementsAre(1, 2));
  EXPECT_THAT(LoadPrompt(options, 1, 10), ElementsAre(3));
  EXPECT_THAT(LoadPrompt(options, 2, 10), ElementsAre(1, 2));
}

// Counts what runs at the same time.
class CountingClient : public LoadClient {
 public:
  absl::StatusOr<ServerFacts> Describe() override { return ServerFacts{}; }
  LoadSample Run(const LoadRequest& request) override {
    const int now = ++num_running_;
    int most = most_running_.load();
    while (most < now && !most_running_.compare_exchange_weak(most, now)) {
    }
    LoadSample sample;
    sample.start_seconds = 10;
    sample.first_token_seconds = 10.5;
    sample.end_seconds = 11.5;
    sample.completion_tokens = 11;
    sample.prompt_tokens = static_cast<int>(request.prompt.size());
    sample.cached_tokens = num_requests_++ % 2 == 0 ? 0 : 64;
    sample.gap_seconds = std::vector<double>(10, 0.1);
    sample.prompt_per_second = 200;
    --num_running_;
    return sample;
  }
  void Stop() override {}

  std::atomic<int> num_running_{0};
  std::atomic<int> most_running_{0};
  std::atomic<int> num_requests_{0};
};

TEST(RunLoadTest, RunsEveryRequestAndNotMoreAtATimeThanAllowed) {
  CountingClient client;
  LoadOptions options;
  options.num_requests = 50;
  options.concurrency = 4;
  options.num_warmup = 3;
  const LoadResult result = RunLoad(client, options, 100, [] { return false; });
  EXPECT_EQ(result.samples.size(), 50u);
  EXPECT_EQ(client.num_requests_, 53);
  EXPECT_LE(client.most_running_, 4);
}

// Answers the first request, after which the load is interrupted; others run until they are
// stopped.
class EndlessClient : public LoadClient {
 public:
  absl::StatusOr<ServerFacts> Describe() override { return ServerFacts{}; }
  LoadSample Run(const LoadRequest&) override {
    LoadSample sample;
    sample.start_seconds = 1;
    std::unique_lock lock(mutex_);
    if (!std::exchange(has_answered_, true)) return sample;
    changed_.wait(lock, [&] { return is_stopped_; });
    sample.status = Cancelled("stopped");
    return sample;
  }
  void Stop() override {
    std::lock_guard lock(mutex_);
    is_stopped_ = true;
    changed_.notify_all();
  }
  bool has_answered() {
    std::lock_guard lock(mutex_);
    return has_answered_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_answered_ = false;
  bool is_stopped_ = false;
};

TEST(RunLoadTest, InterruptEndsTheWaitForTheNextStart) {
  CountingClient client;
  LoadOptions options;
  options.num_requests = 3;
  options.num_warmup = 0;
  options.requests_per_second = 1e-9;  // decades: the test would never end
  const LoadResult result = RunLoad(client, options, 100, [&] { return client.num_requests_ > 0; });
  EXPECT_EQ(result.samples.size(), 1u);
  EXPECT_EQ(client.num_requests_, 1);
}

TEST(RunLoadTest, InterruptEndsWhatRunsAndLeavesItOut) {
  EndlessClient client;
  LoadOptions options;
  options.num_requests = 10;
  options.concurrency = 4;
  options.num_warmup = 0;
  const LoadResult result = RunLoad(client, options, 100, [&] { return client.has_answered(); });
  ASSERT_EQ(result.samples.size(), 1u);
  EXPECT_TRUE(result.samples[0].status.ok());
}

// Keeps what it was asked.
class RecordingClient : public LoadClient {
 public:
  absl::StatusOr<ServerFacts> Describe() override { return ServerFacts{}; }
  LoadSample Run(const LoadRequest& request) override {
    requests.push_back(request);
    LoadSample sample;
    sample.start_seconds = 1;
    return sample;
  }
  void Stop() override {}

  std::vector<LoadRequest> requests;
};

TEST(RunLoadTest, StoresTheSharedPrefixBeforeTheMeasurement) {
  RecordingClient client;
  LoadOptions options;
  options.num_requests = 2;
  options.num_warmup = 0;
  options.prompt_tokens = 100;
  options.shared_prefix_tokens = 64;
  const LoadResult result = RunLoad(client, options, 1000, [] { return false; });
  EXPECT_EQ(result.samples.size(), 2u);
  ASSERT_EQ(client.requests.size(), 3u);
  const std::vector<int32_t>& stored = client.requests[0].prompt;
  ASSERT_EQ(stored.size(), 65u);  // the last token of a prompt is never taken from a prefix
  for (size_t i = 1; i < 3; ++i) {
    const std::vector<int32_t>& measured = client.requests[i].prompt;
    EXPECT_EQ(measured.size(), 100u);
    EXPECT_TRUE(std::equal(stored.begin(), stored.begin() + 64, measured.begin()));
  }
}

TEST(RunLoadTest, EveryRequestHasTheSaltOfTheRun) {
  RecordingClient client;
  LoadOptions options;
  options.num_requests = 3;
  options.cache_salt = "run";
  RunLoad(client, options, 1000, [] { return false; });
  ASSERT_EQ(client.requests.size(), 4u);  // one warms up
  for (const LoadRequest& request : client.requests) EXPECT_EQ(request.cache_salt, "run");
}

TEST(MakeHttpLoadClientTest, TakesUrlsOfHostAndPortOnly) {
  for (const char* url : {"http://127.0.0.1:80", "http://localhost:80/", "http://[::1]:80"}) {
    EXPECT_TRUE(MakeHttpLoadClient(url, "").ok()) << url;
  }
  for (const char* url : {"", "127.0.0.1:80", "https://a:80", "http://a", "http://:80",
                          "http://a:", "http://a:x", "http://a:80/v1", "http://a:70000"}) {
    EXPECT_FALSE(MakeHttpLoadClient(url, "").ok()) << url;
  }
}

TEST(RunLoadTest, InterruptStartsNothingMore) {
  CountingClient client;
  LoadOptions options;
  options.num_requests = 50;
  options.num_warmup = 0;
  const LoadResult result =
      RunLoad(client, options, 100, [&] { return client.num_requests_ >= 7; });
  EXPECT_EQ(result.samples.size(), 7u);
}

LoadResult TwoKinds() {
  LoadResult result;
  CountingClient client;
  for (int i = 0; i < 4; ++i) result.samples.push_back(client.Run({{1, 2, 3}, 11, ""}));
  result.samples.push_back({});
  result.samples.back().status = Unavailable("gone");
  result.seconds = 2;
  return result;
}

TEST(LoadReportTest, KeepsColdAndHitApart) {
  const std::string text = LoadReportText({}, TwoKinds());
  EXPECT_THAT(text, HasSubstr("cold (2 requests)"));
  EXPECT_THAT(text, HasSubstr("prefix hit (2 requests)"));
  EXPECT_THAT(text, HasSubstr("4 ok, 1 failed"));
  EXPECT_THAT(text, HasSubstr("1 x gone"));
  EXPECT_THAT(text, HasSubstr("22.0 output tok/s"));
}

TEST(LoadReportTest, GroupsWithoutRequestsAreLeftOut) {
  LoadResult result = TwoKinds();
  for (LoadSample& sample : result.samples) sample.cached_tokens = 0;
  EXPECT_THAT(LoadReportText({}, result), Not(HasSubstr("prefix hit")));
}

TEST(LoadReportTest, JsonHasEverySampleAndTheDefinitionsHold) {
  const auto json = nlohmann::json::parse(LoadReportJson({}, TwoKinds()));
  EXPECT_EQ(json["samples"].size(), 5u);
  EXPECT_EQ(json["num_failed"], 1);
  const auto& cold = json["groups"][0];
  EXPECT_EQ(cold["TTFT"]["p50"], 500.0);
  EXPECT_EQ(cold["TPOT"]["p99"], 100.0);  // (1.5 s - 0.5 s) / (11 - 1)
  EXPECT_EQ(cold["decode"]["p50"], 10.0);
  EXPECT_EQ(cold["ITL"]["n"], 20);
  EXPECT_EQ(cold["E2E"]["p90"], 1500.0);
}

TEST(LoadClientTest, UrlMustNameHostAndPort) {
  for (const char* url :
       {"127.0.0.1:80", "https://x:1", "http://", "http://x", "http://:80", "http://x:"}) {
    EXPECT_FALSE(MakeHttpLoadClient(url, "").ok()) << url;
  }
  EXPECT_TRUE(MakeHttpLoadClient("http://127.0.0.1:80/", "").ok());
}

TEST(LoadClientTest, NobodyThereIsUnavailable) {
  auto client = MakeHttpLoadClient("http://127.0.0.1:1", "");
  ASSERT_TRUE(client.ok());
  EXPECT_EQ((*client)->Describe().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*client)->Run({{1}, 1, ""}).status.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace switchyard::app
