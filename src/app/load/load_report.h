// The report about a load: definitions are those of docs/metrics.md.
#pragma once

#include <string>

#include "app/load/load_client.h"
#include "app/load/load_run.h"

namespace switchyard::app {

// What was measured, beside the samples.
struct LoadContext {
  ServerFacts server;
  LoadOptions options;
  std::string target;  // URL or address
};

// A block for people. Requests whose prompt was computed in full and those that continued from a
// stored prefix are never averaged together.
std::string LoadReportText(const LoadContext& context, const LoadResult& result);

// The same with every sample.
std::string LoadReportJson(const LoadContext& context, const LoadResult& result);

}  // namespace switchyard::app
