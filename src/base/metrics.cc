#include "base/metrics.h"

#include <algorithm>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace switchyard {

void Metrics::Counter::Add(double amount) { counter_->Increment(amount); }

void Metrics::Counter::RaiseTo(double total) {
  counter_->Increment(std::max(0.0, total - counter_->Value()));
}

void Metrics::Gauge::Set(double value) { gauge_->Set(value); }

void Metrics::Histogram::Observe(double value) { histogram_->Observe(value); }

Metrics::Metrics() : registry_(std::make_unique<prometheus::Registry>()) {}
Metrics::~Metrics() = default;

Metrics::Counter Metrics::AddCounter(const std::string& name, const std::string& help,
                                     const Labels& labels) {
  return Counter(prometheus::BuildCounter().Name(name).Help(help).Register(*registry_).Add(labels));
}

Metrics::Gauge Metrics::AddGauge(const std::string& name, const std::string& help,
                                 const Labels& labels) {
  return Gauge(prometheus::BuildGauge().Name(name).Help(help).Register(*registry_).Add(labels));
}

Metrics::Histogram Metrics::AddHistogram(const std::string& name, const std::string& help,
                                         const std::vector<double>& buckets, const Labels& labels) {
  return Histogram(
      prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_).Add(labels, buckets));
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

}  // namespace switchyard
