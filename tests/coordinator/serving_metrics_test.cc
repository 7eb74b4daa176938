#include "coordinator/serving_metrics.h"

#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "switchyard/worker/v1/step.pb.h"

#include "base/status.h"

namespace switchyard::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ServingMetricsOptions Options() {
  ServingMetricsOptions options;
  options.model = "m";
  options.build = {{"version", "1.2"}};
  return options;
}

// A request with `num_tokens` tokens, 0.01 s apart, the first one after a second.
void RunRequest(ServingMetrics& metrics, int num_tokens, FinishReason reason,
                int cached_tokens = 0) {
  ServingMetrics::RequestProgress progress;
  GenerationEvent event;
  event.usage = {.prompt_tokens = 8, .cached_tokens = cached_tokens};
  event.started = true;
  event.timings.queue_seconds = 0.25;
  metrics.OnEvent(progress, event);
  event.started = false;
  event.timings.prefill_seconds = 0.75;
  event.timings.ttft_seconds = 1;
  for (int i = 0; i < num_tokens; ++i) {
    event.usage.completion_tokens = i + 1;
    event.timings.decode_seconds = 0.01 * i;
    event.timings.total_seconds = 1 + 0.01 * i;
    metrics.OnEvent(progress, event);
  }
  event.finished = true;
  event.reason = reason;
  if (reason == FinishReason::kFailed) event.error = Unavailable("lost");
  metrics.OnEvent(progress, event);
}

TEST(ServingMetricsTest, TimesOfARequestAreObserved) {
  ServingMetrics metrics(Options());
  RunRequest(metrics, 5, FinishReason::kMaxTokens);
  const std::string text = metrics.Text();
  for (const char* line : {
           "time_to_first_token_seconds_sum{cache=\"cold\",mode=\"single\",model=\"m\"} 1\n",
           "time_to_first_token_seconds_count{cache=\"hit\",mode=\"single\",model=\"m\"} 0\n",
           "inter_token_latency_seconds_count{mode=\"single\",model=\"m\"} 4\n",
           "request_time_per_output_token_seconds_count{mode=\"single\",model=\"m\"} 1\n",
           "e2e_request_latency_seconds_sum{model=\"m\"} 1.04\n",
           "request_queue_time_seconds_sum{model=\"m\"} 0.25\n",
           "request_prefill_time_seconds_sum{model=\"m\"} 0.75\n",
           "request_decode_time_seconds_sum{model=\"m\"} 0.04\n",
           "request_success_total{finished_reason=\"max_tokens\"} 1\n",
           "build_info{version=\"1.2\"} 1\n",
       }) {
    EXPECT_THAT(text, HasSubstr(std::string("switchyard_") + line));
  }
}

TEST(ServingMetricsTest, GapsOfTokensThatCameTogetherAreShared) {
  ServingMetrics metrics(Options());
  ServingMetrics::RequestProgress progress;
  GenerationEvent event;
  event.usage.completion_tokens = 1;
  metrics.OnEvent(progress, event);
  event.usage.completion_tokens = 4;
  event.timings.decode_seconds = 0.3;
  metrics.OnEvent(progress, event);
  const std::string name = "switchyard_inter_token_latency_seconds_";
  EXPECT_THAT(metrics.Text(), HasSubstr(name + "count{mode=\"single\",model=\"m\"} 3\n"));
  EXPECT_THAT(metrics.Text(),
              HasSubstr(name + "bucket{mode=\"single\",model=\"m\",le=\"0.15\"} 3\n"));
}

TEST(ServingMetricsTest, PrefixHitsAreKeptApart) {
  ServingMetrics metrics(Options());
  RunRequest(metrics, 1, FinishReason::kStopToken, /*cached_tokens=*/4);
  EXPECT_THAT(metrics.Text(), HasSubstr("time_to_first_token_seconds_count{cache=\"hit\","
                                        "mode=\"single\",model=\"m\"} 1\n"));
}

TEST(ServingMetricsTest, FailuresAndCancellationsAreNoLatencies) {
  ServingMetrics metrics(Options());
  RunRequest(metrics, 3, FinishReason::kFailed);
  RunRequest(metrics, 3, FinishReason::kCancelled);
  metrics.OnError(InvalidArgument("no"));
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("request_errors_total{code=\"UNAVAILABLE\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("request_errors_total{code=\"INVALID_ARGUMENT\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("request_success_total{finished_reason=\"cancelled\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("e2e_request_latency_seconds_count{model=\"m\"} 0\n"));
}

EngineStats Stats() {
  EngineStats stats;
  stats.prompt_tokens = 11;
  stats.prefix_query_tokens = 20;
  stats.cached_tokens = 9;
  stats.completion_tokens = 30;
  stats.num_running = 2;
  stats.num_waiting = 3;
  stats.num_pages = 8;
  stats.num_free_pages = 6;
  stats.costs.stages[switchyard::worker::v1::STAGE_ATTENTION].seconds = 0.5;
  stats.costs.seconds = 0.75;
  stats.costs.idle_seconds = 2;
  stats.costs.links = {
      {.from = 1, .to = 0, .bytes = 640, .num_messages = 2, .transfer_seconds = 0.25}};
  return stats;
}

TEST(ServingMetricsTest, FiguresOfTheEngineAreTakenAtEachScrape) {
  ServingMetrics metrics(Options());
  EngineStats stats = Stats();
  metrics.SetEngineSource([&] { return stats; });
  const std::string text = metrics.Text();
  for (const char* line : {
           "prompt_tokens_total{model=\"m\"} 11\n",
           "generation_tokens_total{model=\"m\"} 30\n",
           "prefix_cache_queries_total{model=\"m\"} 20\n",
           "prefix_cache_hits_total{model=\"m\"} 9\n",
           "num_requests_running{model=\"m\"} 2\n",
           "num_requests_waiting{model=\"m\"} 3\n",
           "kv_cache_usage_perc{model=\"m\"} 0.25\n",
           "stage_seconds_total{device=\"cpu\",stage=\"attention\"} 0.5\n",
           "stage_seconds_total{device=\"cpu\",stage=\"idle\"} 2\n",
           "stage_seconds_total{device=\"cpu\",stage=\"unattributed\"} 0.25\n",
           "link_bytes_total{dst=\"0\",kind=\"collective\",src=\"1\"} 640\n",
           "link_seconds_total{dst=\"0\",kind=\"collective\",src=\"1\"} 0.25\n",
       }) {
    EXPECT_THAT(text, HasSubstr(std::string("switchyard_") + line));
  }
  stats.completion_tokens = 31;
  stats.num_running = 0;
  EXPECT_THAT(metrics.Text(), HasSubstr("generation_tokens_total{model=\"m\"} 31\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("num_requests_running{model=\"m\"} 0\n"));
}

TEST(ServingMetricsTest, WorkersAndLoadingAreShown) {
  ServingMetrics metrics(Options());
  metrics.SetModelLoad(50, 200);
  metrics.SetWorkerSource([] {
    return std::vector<WorkerSample>{{.worker = "0",
                                      .is_up = true,
                                      .epoch = 4,
                                      .num_restarts = 3,
                                      .heartbeat_age_seconds = 0.5}};
  });
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("switchyard_worker_up{worker=\"0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("switchyard_worker_epoch{worker=\"0\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("switchyard_worker_restarts_total{worker=\"0\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("switchyard_worker_heartbeat_age_seconds{worker=\"0\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("switchyard_model_load_bytes{model=\"m\"} 50\n"));
  EXPECT_THAT(text, HasSubstr("switchyard_model_load_total_bytes{model=\"m\"} 200\n"));
}

worker::v1::Residency OneRank(uint64_t hits) {
  worker::v1::Residency rank;
  rank.set_version(1);
  rank.set_num_layers(9);
  rank.set_num_experts(1);
  rank.set_host_bytes(500);
  for (int l = 0; l < 9; ++l) {
    rank.mutable_states()->push_back(static_cast<char>(l == 0 ? worker::v1::RESIDENCY_STATE_FILE
                                                              : worker::v1::RESIDENCY_STATE_HOST));
    rank.add_uses(hits);
    worker::v1::ExpertCounters& layer = *rank.add_layers();
    layer.set_hits(hits);
    layer.set_misses(1);
    layer.set_bytes_moved(10);
  }
  return rank;
}

TEST(ServingMetricsTest, ResidencyIsSummedOverRanksAndByGroupsOfLayers) {
  ServingMetrics metrics(Options());
  uint64_t hits = 5;
  metrics.SetResidencySource([&] { return std::vector{OneRank(hits), OneRank(hits)}; });
  metrics.Text();
  hits = 8;
  const std::string text = metrics.Text();
  EXPECT_THAT(text,
              HasSubstr("switchyard_expert_residency_hits_total{device=\"cpu\",layers=\"0-7\"} "
                        "128\n"));
  EXPECT_THAT(text,
              HasSubstr("switchyard_expert_residency_hits_total{device=\"cpu\",layers=\"8-15\"} "
                        "16\n"));
  EXPECT_THAT(text, HasSubstr("switchyard_expert_fetch_bytes_total{device=\"cpu\",layers=\"0-7\"} "
                              "160\n"));
  EXPECT_THAT(text, HasSubstr("switchyard_resident_experts{device=\"cpu\"} 16\n"));
  EXPECT_THAT(text, HasSubstr("switchyard_experts{device=\"cpu\"} 18\n"));
  EXPECT_THAT(text, HasSubstr("switchyard_resident_bytes{device=\"cpu\"} 1000\n"));
  // A worker that was replaced counts from 0: what was counted stays.
  hits = 2;
  EXPECT_THAT(metrics.Text(),
              HasSubstr("switchyard_expert_residency_hits_total{device=\"cpu\",layers=\"8-15\"} "
                        "20\n"));
}

TEST(ServingMetricsTest, NamesOfOtherServersOnRequest) {
  ServingMetrics plain(Options());
  EXPECT_THAT(plain.Text(), Not(HasSubstr("vllm:")));
  EXPECT_THAT(plain.Text(), Not(HasSubstr("llamacpp:")));
  ServingMetricsOptions options = Options();
  options.with_vllm_names = true;
  options.with_llamacpp_names = true;
  ServingMetrics metrics(options);
  metrics.SetEngineSource(Stats);
  RunRequest(metrics, 3, FinishReason::kContextFull);
  const std::string text = metrics.Text();
  for (const char* line : {
           "vllm:time_to_first_token_seconds_count{model_name=\"m\"} 1\n",
           "vllm:inter_token_latency_seconds_count{model_name=\"m\"} 2\n",
           "vllm:generation_tokens_total{model_name=\"m\"} 30\n",
           "vllm:num_requests_running{model_name=\"m\"} 2\n",
           "vllm:request_success_total{finished_reason=\"length\",model_name=\"m\"} 1\n",
           "llamacpp:prompt_tokens_total 11\n",
           "llamacpp:tokens_predicted_total 30\n",
           "llamacpp:requests_processing 2\n",
           "llamacpp:requests_deferred 3\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

// Everything that a scrape shows is in docs/metrics.md, and what is there exists.
TEST(ServingMetricsTest, DocumentListsEveryMetric) {
  ServingMetrics metrics(Options());
  metrics.SetEngineSource(Stats);
  metrics.SetWorkerSource([] { return std::vector<WorkerSample>{{.worker = "0"}}; });
  metrics.SetResidencySource([] { return std::vector{OneRank(1)}; });
  metrics.OnError(InvalidArgument("no"));
  std::set<std::string> shown, documented;
  std::istringstream lines(metrics.Text());
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, type, name;
    if (words >> hash >> type >> name && hash == "#" && type == "TYPE") shown.insert(name);
  }
  std::ifstream file(std::string(SWITCHYARD_SOURCE_DIR) + "/docs/metrics.md");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kRow = "| `switchyard_";
    if (!line.starts_with(kRow)) continue;
    documented.insert(line.substr(3, line.find('`', 3) - 3));
  }
  EXPECT_EQ(shown, documented);
}

}  // namespace
}  // namespace switchyard::coordinator
