// Counters, gauges and histograms, and their text form for Prometheus.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
class Registry;
}  // namespace prometheus

namespace switchyard {

// A set of metrics. Metrics live as long as the set; the names are given whole. Asking for a name
// and labels a second time gives the same metric.
//
// Threads: any.
class Metrics {
 public:
  using Labels = std::map<std::string, std::string>;

  // Only rises.
  class Counter {
   public:
    // REQUIRES: amount >= 0.
    void Add(double amount = 1);
    // Takes over a total that is counted elsewhere; a lower one than before is ignored.
    void RaiseTo(double total);

   private:
    friend class Metrics;
    explicit Counter(prometheus::Counter& counter) : counter_(&counter) {}
    prometheus::Counter* counter_;
  };

  class Gauge {
   public:
    void Set(double value);

   private:
    friend class Metrics;
    explicit Gauge(prometheus::Gauge& gauge) : gauge_(&gauge) {}
    prometheus::Gauge* gauge_;
  };

  class Histogram {
   public:
    void Observe(double value);

   private:
    friend class Metrics;
    explicit Histogram(prometheus::Histogram& histogram) : histogram_(&histogram) {}
    prometheus::Histogram* histogram_;
  };

  Metrics();
  ~Metrics();

  // Handles are cheap to copy.
  Counter AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  // `buckets`: upper bounds, ascending, without infinity.
  Histogram AddHistogram(const std::string& name, const std::string& help,
                         const std::vector<double>& buckets, const Labels& labels = {});

  // Text exposition format 0.0.4 of Prometheus.
  std::string Text() const;

 private:
  std::unique_ptr<prometheus::Registry> registry_;
};

}  // namespace switchyard
