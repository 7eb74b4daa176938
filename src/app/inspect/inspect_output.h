// Forms of the report: text for people, JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/inspect/inspect_report.h"
#include "app/inspect/verify.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"

namespace switchyard::app {

// What is printed, and which of it.
struct InspectOutput {
  const model::GgufFile& file;
  const model::ModelSpec& spec;
  const InspectReport& report;
  const std::vector<VerifyStep>* steps = nullptr;  // null: not verified
  bool with_tensors = false;
  bool with_metadata = false;
};

std::string InspectText(const InspectOutput& output);

// Keys are stable: new ones may come, none changes its meaning. Bytes and counts are integers.
nlohmann::ordered_json InspectJson(const InspectOutput& output);

}  // namespace switchyard::app
