// What the server measures about requests, engine and workers; docs/metrics.md lists all of it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "switchyard/worker/v1/residency.pb.h"

#include "base/metrics.h"
#include "coordinator/engine.h"
#include "coordinator/generator.h"

namespace switchyard::coordinator {

struct ServingMetricsOptions {
  std::string model;                           // name in the label `model`
  std::string mode = "single";                 // label `mode`
  std::string device = "cpu";                  // label of stage times
  bool with_vllm_names = false;                // the same figures once more under the names of vLLM
  bool with_llamacpp_names = false;            // and of llama-server
  std::map<std::string, std::string> build{};  // labels of build_info, such as version
};

// A worker as a scrape finds it.
struct WorkerSample {
  std::string worker;
  bool is_up = false;
  uint64_t epoch = 0;
  int64_t num_restarts = 0;
  double heartbeat_age_seconds = 0;
};

// Observes requests as they go, and takes the rest from its sources at each scrape. Label values
// come from closed sets: never a request id, key or prompt.
//
// Threads: any.
class ServingMetrics {
 public:
  explicit ServingMetrics(const ServingMetricsOptions& options);

  // What is remembered of one request between its events.
  struct RequestProgress {
    int num_tokens = 0;
    double decode_seconds = 0;
  };

  // An event of a request, the way it left the engine: not merged.
  void OnEvent(RequestProgress& progress, const GenerationEvent& event);

  // A request that was refused.
  void OnError(const absl::Status& status);

  // Where scrapes take figures of the engine and of the workers from. Set before the first scrape.
  void SetEngineSource(std::function<EngineStats()> source);
  void SetWorkerSource(std::function<std::vector<WorkerSample>()> source);
  // By rank; see http/api_call.h.
  void SetResidencySource(std::function<std::vector<switchyard::worker::v1::Residency>()> source);

  // Loading, in bytes of weights; `num_total_bytes` is 0 until it is known.
  void SetModelLoad(int64_t num_bytes, int64_t num_total_bytes);

  // Everything, in Prometheus' text format 0.0.4.
  std::string Text();

 private:
  // One figure under all its names.
  template <typename Metric>
  using Names = std::vector<Metric>;
  using Labels = Metrics::Labels;

  Names<Metrics::Histogram> Histogram(const std::string& name, const std::string& help,
                                      const std::vector<double>& buckets, Labels labels);
  Names<Metrics::Counter> Counter(const std::string& name, const std::string& help,
                                  const std::string& llamacpp_name = "");
  Names<Metrics::Gauge> Gauge(const std::string& name, const std::string& help,
                              const std::string& llamacpp_name = "");
  void AddFinishCounters();

  void OnFirstToken(const GenerationEvent& event);
  void OnFinished(const GenerationEvent& event);
  void Collect(const EngineStats& stats);
  void Collect(const WorkerSample& sample);
  void Collect(const std::vector<switchyard::worker::v1::Residency>& ranks);

  const ServingMetricsOptions options_;
  Metrics metrics_;

  Names<Metrics::Histogram> ttft_cold_, ttft_hit_;
  Names<Metrics::Histogram> inter_token_, tpot_;
  Names<Metrics::Histogram> e2e_, queue_, prefill_, decode_;
  std::array<Names<Metrics::Counter>, kNumFinishReasons> success_;
  Names<Metrics::Counter> prompt_tokens_, generation_tokens_, prefix_queries_, prefix_hits_;
  Names<Metrics::Gauge> running_, waiting_, kv_usage_;
  Metrics::Gauge load_bytes_, load_total_bytes_;

  std::mutex mutex_;  // of the sources
  std::function<EngineStats()> engine_source_;
  std::function<std::vector<WorkerSample>()> worker_source_;
  std::function<std::vector<switchyard::worker::v1::Residency>()> residency_source_;
  std::mutex experts_mutex_;  // guards what follows
  // Of a rank's last message, [rank][layer]: a rank that starts again counts from 0.
  std::vector<std::vector<switchyard::worker::v1::ExpertCounters>> last_experts_;
};

}  // namespace switchyard::coordinator
