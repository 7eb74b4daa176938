#include "base/metrics.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

TEST(MetricsTest, CountersRise) {
  Metrics metrics;
  auto counter = metrics.AddCounter("a_total", "Help of a.", {{"kind", "x"}});
  counter.Add();
  counter.Add(2);
  EXPECT_THAT(metrics.Text(), HasSubstr("# HELP a_total Help of a.\n# TYPE a_total counter\n"
                                        "a_total{kind=\"x\"} 3\n"));
  counter.RaiseTo(10);
  counter.RaiseTo(4);
  EXPECT_THAT(metrics.Text(), HasSubstr("a_total{kind=\"x\"} 10\n"));
}

TEST(MetricsTest, SameNameAndLabelsAreOneMetric) {
  Metrics metrics;
  metrics.AddCounter("a_total", "A.").Add();
  metrics.AddCounter("a_total", "A.").Add();
  metrics.AddCounter("a_total", "A.", {{"kind", "y"}}).Add();
  EXPECT_THAT(metrics.Text(), HasSubstr("a_total 2\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("a_total{kind=\"y\"} 1\n"));
}

TEST(MetricsTest, GaugesHoldTheLastValue) {
  Metrics metrics;
  auto gauge = metrics.AddGauge("g", "G.");
  gauge.Set(3);
  gauge.Set(0.5);
  EXPECT_THAT(metrics.Text(), HasSubstr("g 0.5\n"));
}

TEST(MetricsTest, HistogramsCountUpToTheirBounds) {
  Metrics metrics;
  auto histogram = metrics.AddHistogram("h_seconds", "H.", {0.1, 1});
  for (double value : {0.05, 0.1, 0.5, 7.0}) histogram.Observe(value);
  EXPECT_THAT(metrics.Text(), HasSubstr("h_seconds_count 4\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("h_seconds_bucket{le=\"0.1\"} 2\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("h_seconds_bucket{le=\"1\"} 3\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("h_seconds_bucket{le=\"+Inf\"} 4\n"));
}

}  // namespace
}  // namespace switchyard
