#include "coordinator/serving_metrics.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>
#include <utility>

#include "switchyard/worker/v1/step.pb.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

// Prefill of a prompt of 128K tokens takes minutes, of a short one milliseconds.
const std::vector<double> kTtftBuckets = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                          0.1,   0.25,   0.5,   0.75, 1,    2.5,  5,    7.5,
                                          10,    20,     40,    80,   160,  320,  640};
// Dense where decode speeds of 25 to 250 tokens/s lie.
const std::vector<double> kTokenBuckets = {
    0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.01, 0.012, 0.014, 0.017, 0.02,
    0.025,  0.03,  0.035, 0.04,  0.05,  0.075, 0.1,   0.15,  0.2,   0.3,  0.5,   0.75,  1,     2.5};
const std::vector<double> kRequestBuckets = {0.005, 0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1,
                                             1.5,   2,    2.5,  5,   10,  15,  20,  30,
                                             40,    50,   60,   120, 240, 480, 960, 1920};

// vLLM knows three.
constexpr std::array<std::string_view, kNumFinishReasons> kVllmFinishNames = {
    "stop", "stop", "length", "length", "abort", "abort", ""};

void Observe(std::vector<Metrics::Histogram>& names, double value) {
  for (Metrics::Histogram& histogram : names) histogram.Observe(value);
}
void RaiseTo(std::vector<Metrics::Counter>& names, int64_t total) {
  for (Metrics::Counter& counter : names) counter.RaiseTo(static_cast<double>(total));
}
void Set(std::vector<Metrics::Gauge>& names, double value) {
  for (Metrics::Gauge& gauge : names) gauge.Set(value);
}

// Layers that share a label value.
constexpr size_t kLayerGroup = 8;

std::string Ours(std::string_view name) { return fmt::format("switchyard_{}", name); }

}  // namespace

ServingMetrics::ServingMetrics(const ServingMetricsOptions& options)
    : options_(options),
      ttft_cold_(Histogram("time_to_first_token_seconds",
                           "From the arrival of a request to its first token.", kTtftBuckets,
                           {{"mode", options.mode}, {"cache", "cold"}})),
      ttft_hit_(Histogram("time_to_first_token_seconds",
                          "From the arrival of a request to its first token.", kTtftBuckets,
                          {{"mode", options.mode}, {"cache", "hit"}})),
      inter_token_(Histogram("inter_token_latency_seconds", "Between two tokens of a request.",
                             kTokenBuckets, {{"mode", options.mode}})),
      tpot_(Histogram("request_time_per_output_token_seconds",
                      "Time after the first token by tokens after the first, per request.",
                      kTokenBuckets, {{"mode", options.mode}})),
      e2e_(Histogram("e2e_request_latency_seconds", "From arrival to the last event.",
                     kRequestBuckets, {})),
      queue_(Histogram("request_queue_time_seconds", "From arrival to the first chunk.",
                       kRequestBuckets, {})),
      prefill_(Histogram("request_prefill_time_seconds", "From the first chunk to the first token.",
                         kRequestBuckets, {})),
      decode_(Histogram("request_decode_time_seconds", "From the first token to the last.",
                        kRequestBuckets, {})),
      prompt_tokens_(Counter("prompt_tokens_total", "Prompt tokens evaluated, without reused ones.",
                             "prompt_tokens_total")),
      generation_tokens_(
          Counter("generation_tokens_total", "Tokens generated.", "tokens_predicted_total")),
      prefix_queries_(Counter("prefix_cache_queries_total",
                              "Prompt tokens looked up among the kept prefixes.")),
      prefix_hits_(Counter("prefix_cache_hits_total", "Of these, reused.")),
      running_(Gauge("num_requests_running", "Requests that have a slot.", "requests_processing")),
      waiting_(
          Gauge("num_requests_waiting", "Requests that wait for a slot.", "requests_deferred")),
      kv_usage_(Gauge("kv_cache_usage_perc", "Share of the cache pages in use, 0 to 1.")),
      load_bytes_(metrics_.AddGauge(Ours("model_load_bytes"), "Bytes of weights loaded.",
                                    {{"model", options.model}})),
      load_total_bytes_(metrics_.AddGauge(Ours("model_load_total_bytes"), "Bytes of all weights.",
                                          {{"model", options.model}})) {
  AddFinishCounters();
  metrics_.AddGauge(Ours("build_info"), "1; the labels say which build.", options.build).Set(1);
}

std::vector<Metrics::Histogram> ServingMetrics::Histogram(const std::string& name,
                                                          const std::string& help,
                                                          const std::vector<double>& buckets,
                                                          Labels labels) {
  labels["model"] = options_.model;
  Names<Metrics::Histogram> names = {metrics_.AddHistogram(Ours(name), help, buckets, labels)};
  if (options_.with_vllm_names) {
    names.push_back(
        metrics_.AddHistogram("vllm:" + name, help, buckets, {{"model_name", options_.model}}));
  }
  return names;
}

std::vector<Metrics::Counter> ServingMetrics::Counter(const std::string& name,
                                                      const std::string& help,
                                                      const std::string& llamacpp_name) {
  Names<Metrics::Counter> names = {
      metrics_.AddCounter(Ours(name), help, {{"model", options_.model}})};
  if (options_.with_vllm_names) {
    names.push_back(metrics_.AddCounter("vllm:" + name, help, {{"model_name", options_.model}}));
  }
  if (options_.with_llamacpp_names && !llamacpp_name.empty()) {
    names.push_back(metrics_.AddCounter("llamacpp:" + llamacpp_name, help));
  }
  return names;
}

std::vector<Metrics::Gauge> ServingMetrics::Gauge(const std::string& name, const std::string& help,
                                                  const std::string& llamacpp_name) {
  Names<Metrics::Gauge> names = {metrics_.AddGauge(Ours(name), help, {{"model", options_.model}})};
  if (options_.with_vllm_names) {
    names.push_back(metrics_.AddGauge("vllm:" + name, help, {{"model_name", options_.model}}));
  }
  if (options_.with_llamacpp_names && !llamacpp_name.empty()) {
    names.push_back(metrics_.AddGauge("llamacpp:" + llamacpp_name, help));
  }
  return names;
}

void ServingMetrics::AddFinishCounters() {
  constexpr auto kHelp = "Requests that ended without an error, by reason.";
  for (size_t i = 0; i < success_.size(); ++i) {
    const auto reason = static_cast<FinishReason>(i);
    if (reason == FinishReason::kFailed) continue;  // counts as an error
    success_[i].push_back(metrics_.AddCounter(Ours("request_success_total"), kHelp,
                                              {{"finished_reason", std::string(Name(reason))}}));
    if (options_.with_vllm_names) {
      success_[i].push_back(metrics_.AddCounter(
          "vllm:request_success_total", kHelp,
          {{"model_name", options_.model}, {"finished_reason", std::string(kVllmFinishNames[i])}}));
    }
  }
}

void ServingMetrics::OnEvent(RequestProgress& progress, const GenerationEvent& event) {
  if (event.started) Observe(queue_, event.timings.queue_seconds);
  const int num_tokens = event.usage.completion_tokens;
  if (num_tokens > progress.num_tokens) {
    if (progress.num_tokens == 0) {
      OnFirstToken(event);
    } else {
      // Tokens of one step came together: the gap before them is shared.
      const int num_new = num_tokens - progress.num_tokens;
      const double gap = (event.timings.decode_seconds - progress.decode_seconds) / num_new;
      for (int i = 0; i < num_new; ++i) Observe(inter_token_, gap);
    }
    progress.num_tokens = num_tokens;
    progress.decode_seconds = event.timings.decode_seconds;
  }
  if (event.finished) OnFinished(event);
}

void ServingMetrics::OnFirstToken(const GenerationEvent& event) {
  Observe(event.usage.cached_tokens > 0 ? ttft_hit_ : ttft_cold_, event.timings.ttft_seconds);
  Observe(prefill_, event.timings.prefill_seconds);
}

void ServingMetrics::OnFinished(const GenerationEvent& event) {
  if (event.reason == FinishReason::kFailed) {
    OnError(event.error);
    return;
  }
  for (Metrics::Counter& counter : success_[static_cast<size_t>(event.reason)]) counter.Add();
  if (event.reason == FinishReason::kCancelled) return;  // its times say nothing about the server
  Observe(e2e_, event.timings.total_seconds);
  if (event.usage.completion_tokens < 2) return;
  Observe(decode_, event.timings.decode_seconds);
  Observe(tpot_, (event.timings.total_seconds - event.timings.ttft_seconds) /
                     (event.usage.completion_tokens - 1));
}

void ServingMetrics::OnError(const absl::Status& status) {
  metrics_
      .AddCounter(Ours("request_errors_total"), "Requests refused or failed, by status code.",
                  {{"code", absl::StatusCodeToString(status.code())}})
      .Add();
}

void ServingMetrics::SetEngineSource(std::function<EngineStats()> source) {
  std::lock_guard lock(mutex_);
  engine_source_ = std::move(source);
}

void ServingMetrics::SetWorkerSource(std::function<std::vector<WorkerSample>()> source) {
  std::lock_guard lock(mutex_);
  worker_source_ = std::move(source);
}

void ServingMetrics::SetResidencySource(std::function<std::vector<v1::Residency>()> source) {
  std::lock_guard lock(mutex_);
  residency_source_ = std::move(source);
}

void ServingMetrics::SetModelLoad(int64_t num_bytes, int64_t num_total_bytes) {
  load_bytes_.Set(static_cast<double>(num_bytes));
  load_total_bytes_.Set(static_cast<double>(num_total_bytes));
}

void ServingMetrics::Collect(const EngineStats& stats) {
  RaiseTo(prompt_tokens_, stats.prompt_tokens);
  RaiseTo(generation_tokens_, stats.completion_tokens);
  RaiseTo(prefix_queries_, stats.prefix_query_tokens);
  RaiseTo(prefix_hits_, stats.cached_tokens);
  Set(running_, stats.num_running);
  Set(waiting_, stats.num_waiting);
  const double num_used = stats.num_pages - stats.num_free_pages;
  Set(kv_usage_, stats.num_pages > 0 ? num_used / stats.num_pages : 0);
  const auto add_stage = [&](const std::string& stage, double seconds) {
    metrics_
        .AddCounter(Ours("stage_seconds_total"), "Time of steps by stage.",
                    {{"stage", stage}, {"device", options_.device}})
        .RaiseTo(seconds);
  };
  for (int i = v1::STAGE_UNSPECIFIED + 1; i < v1::Stage_ARRAYSIZE; ++i) {
    const double seconds = stats.costs.stages[static_cast<size_t>(i)].seconds;
    if (v1::Stage_IsValid(i) && i != v1::STAGE_IDLE) add_stage(StageName(i), seconds);
  }
  add_stage("idle", stats.costs.idle_seconds);
  add_stage("unattributed", stats.costs.unattributed_seconds());
  // A group has 64 ranks at most, and results that name others are refused.
  for (const LinkTotal& link : stats.costs.links) {
    const Labels labels = {{"src", fmt::format("{}", link.from)},
                           {"dst", fmt::format("{}", link.to)},
                           {"kind", "collective"}};
    metrics_.AddCounter(Ours("link_bytes_total"), "Bytes from one rank to another.", labels)
        .RaiseTo(static_cast<double>(link.bytes));
    metrics_
        .AddCounter(Ours("link_seconds_total"), "Time that receivers spent on transfers.", labels)
        .RaiseTo(link.transfer_seconds);
  }
}

void ServingMetrics::Collect(const WorkerSample& sample) {
  const Labels labels = {{"worker", sample.worker}};
  metrics_.AddGauge(Ours("worker_up"), "1 while the worker is ready.", labels).Set(sample.is_up);
  metrics_.AddGauge(Ours("worker_epoch"), "Epoch that the worker runs in.", labels)
      .Set(static_cast<double>(sample.epoch));
  metrics_
      .AddGauge(Ours("worker_heartbeat_age_seconds"), "Since the worker was last heard of.", labels)
      .Set(sample.heartbeat_age_seconds);
  metrics_.AddCounter(Ours("worker_restarts_total"), "How often the worker was replaced.", labels)
      .RaiseTo(static_cast<double>(sample.num_restarts));
}

void ServingMetrics::Collect(const std::vector<v1::Residency>& ranks) {
  std::lock_guard lock(experts_mutex_);  // one scrape after the other
  int64_t num_resident = 0, num_experts = 0;
  uint64_t resident_bytes = 0;
  last_experts_.resize(std::max(last_experts_.size(), ranks.size()));
  for (size_t r = 0; r < ranks.size(); ++r) {
    const v1::Residency& rank = ranks[r];
    resident_bytes += rank.host_bytes() + rank.device_bytes();
    const bool has_device = rank.device_bytes() > 0;
    for (const char state : rank.states()) {
      num_experts += state != v1::RESIDENCY_STATE_UNSPECIFIED;
      num_resident +=
          has_device ? state == v1::RESIDENCY_STATE_RESIDENT || state == v1::RESIDENCY_STATE_PINNED
                     : state == v1::RESIDENCY_STATE_HOST;
    }
    auto& last = last_experts_[r];
    last.resize(static_cast<size_t>(rank.layers_size()));
    for (size_t l = 0; l < last.size(); ++l) {
      const v1::ExpertCounters& now = rank.layers(static_cast<int>(l));
      const Labels labels = {
          {"device", options_.device},
          {"layers", fmt::format("{}-{}", l / kLayerGroup * kLayerGroup,
                                 l / kLayerGroup * kLayerGroup + kLayerGroup - 1)}};
      const auto add = [&](const char* name, const char* help, uint64_t count, uint64_t before) {
        metrics_.AddCounter(Ours(name), help, labels)
            .Add(static_cast<double>(count >= before ? count - before : count));
      };
      add("expert_residency_hits_total", "Uses of experts in the fast tier.", now.hits(),
          last[l].hits());
      add("expert_residency_misses_total", "Uses of experts in the slow tier.", now.misses(),
          last[l].misses());
      add("expert_promotions_total", "Experts moved into the fast tier.", now.promotions(),
          last[l].promotions());
      add("expert_evictions_total", "Experts moved out of the fast tier.", now.evictions(),
          last[l].evictions());
      add("expert_fetch_bytes_total", "Bytes of experts moved into the fast tier.",
          now.bytes_moved(), last[l].bytes_moved());
      last[l] = now;
    }
  }
  const Labels device = {{"device", options_.device}};
  metrics_.AddGauge(Ours("resident_experts"), "Experts in the fast tier.", device)
      .Set(static_cast<double>(num_resident));
  metrics_.AddGauge(Ours("experts"), "Experts of all layers and ranks.", device)
      .Set(static_cast<double>(num_experts));
  metrics_.AddGauge(Ours("resident_bytes"), "Bytes of experts in the fast tier.", device)
      .Set(static_cast<double>(resident_bytes));
}

std::string ServingMetrics::Text() {
  std::function<EngineStats()> engine_source;
  std::function<std::vector<WorkerSample>()> worker_source;
  std::function<std::vector<v1::Residency>()> residency_source;
  {
    std::lock_guard lock(mutex_);
    engine_source = engine_source_;
    worker_source = worker_source_;
    residency_source = residency_source_;
  }
  if (residency_source) Collect(residency_source());
  if (engine_source) Collect(engine_source());
  if (worker_source) {
    for (const WorkerSample& sample : worker_source()) Collect(sample);
  }
  return metrics_.Text();
}

}  // namespace switchyard::coordinator
