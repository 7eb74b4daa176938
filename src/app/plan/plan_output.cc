#include "app/plan/plan_output.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>

#include "base/units.h"
#include "model/model_summary.h"

namespace switchyard::app {
namespace {

using placement::CostTerm;
using placement::Plan;

std::string ProfileLine(const placement::v1::HardwareProfile& profile) {
  std::string devices = profile.host().cpu_model();
  if (!profile.gpus().empty()) {
    devices = fmt::format("{} x {}, {}", profile.gpus_size(), profile.gpus(0).name(), devices);
  }
  return profile.is_estimate()
             ? fmt::format("{}; an estimate from published figures, nothing here was measured",
                           devices)
             : fmt::format("{}; measured {}", devices, profile.created_at());
}

std::string Place(const Plan& plan) {
  if (plan.device == placement::DeviceKind::kGpu) {
    return fmt::format("{} GPU{}", plan.num_workers, plan.num_workers == 1 ? "" : "s");
  }
  return fmt::format("{} x {} threads", plan.num_workers, plan.threads_per_worker);
}

std::string TableRow(const Plan& plan) {
  std::string row =
      fmt::format("| {} | {} | {:.1f} | {:.2f} |", Place(plan), placement::PlanName(plan),
                  plan.tokens_per_second, 1e3 * plan.decode.seconds.total());
  for (const double seconds : plan.decode.seconds.values) {
    row += seconds == 0 ? " |" : fmt::format(" {:.2f} |", 1e3 * seconds);
  }
  row += plan.prefill_tokens_per_second > 0
             ? fmt::format(" {:.0f} |", plan.prefill_tokens_per_second)
             : " |";
  return row + fmt::format(" {:.0f} % | {} | {} |\n", 100 * plan.resident_share,
                           plan.most_context_tokens, placement::TermName(plan.limiting));
}

std::string TableHead() {
  std::string head = "| devices | mode | tok/s | ms a step |";
  std::string rule = "| --- | --- | --- | --- |";
  for (int term = 0; term < placement::kNumCostTerms; ++term) {
    head += fmt::format(" {} |", placement::TermName(static_cast<CostTerm>(term)));
    rule += " --- |";
  }
  return head + " prefill tok/s | experts resident | room for context | limit |\n" + rule +
         " --- | --- | --- | --- |\n";
}

std::string NamedLine(std::string_view name, const std::optional<Plan>& plan) {
  if (!plan.has_value()) return fmt::format("{}: none can run\n", name);
  return fmt::format("{}: {}, {}: {:.1f} tok/s, {:.0f} % of the experts resident\n", name,
                     Place(*plan), placement::PlanName(*plan), plan->tokens_per_second,
                     100 * plan->resident_share);
}

nlohmann::ordered_json TermsJson(const placement::TermValues& values) {
  nlohmann::ordered_json json;
  for (int term = 0; term < placement::kNumCostTerms; ++term) {
    json[std::string(placement::TermName(static_cast<CostTerm>(term)))] =
        values[static_cast<CostTerm>(term)];
  }
  return json;
}

nlohmann::ordered_json ToJson(const Plan& plan) {
  nlohmann::ordered_json json = {
      {"workers", plan.num_workers},
      {"device", plan.device == placement::DeviceKind::kGpu ? "gpu" : "cpu"},
      {"threads_per_worker", plan.threads_per_worker},
      {"mode", placement::ModeName(plan.placement.mode())}};
  if (plan.placement.partition() != placement::v1::PARTITION_UNSPECIFIED) {
    json["partition"] = placement::PartitionName(plan.placement.partition());
  }
  if (plan.placement.mode() == placement::v1::MODE_EXPERT_PARALLEL) {
    const bool is_owner = plan.placement.dense() == placement::v1::DENSE_PART_OWNER;
    json["dense"] = is_owner ? "owner" : "replicated";
  }
  json["layer_cuts"] = plan.placement.layer_cuts();
  json["can_run"] = plan.can_run;
  json["reason"] = plan.reason;
  if (!plan.can_run) return json;
  json["tokens_per_second"] = plan.tokens_per_second;
  json["prefill_tokens_per_second"] = plan.prefill_tokens_per_second > 0
                                          ? nlohmann::ordered_json(plan.prefill_tokens_per_second)
                                          : nlohmann::ordered_json(nullptr);
  json["step_seconds"] = plan.decode.seconds.total();
  json["seconds"] = TermsJson(plan.decode.seconds);
  json["limiting"] = placement::TermName(plan.limiting);
  json["collectives"] = plan.decode.num_collectives;
  json["collective_bytes"] = plan.decode.collective_bytes;
  json["backend"] = plan.backend;
  json["resident_share"] = plan.resident_share;
  json["most_context_tokens"] = plan.most_context_tokens;
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (size_t r = 0; r < plan.memory.size(); ++r) {
    const placement::RankMemory& memory = plan.memory[r];
    ranks.push_back({{"seconds", TermsJson(plan.decode.ranks[r])},
                     {"bytes", TermsJson(plan.decode.bytes[r])},
                     {"dense_bytes", memory.dense_bytes},
                     {"expert_bytes", memory.expert_bytes},
                     {"resident_expert_bytes", memory.resident_expert_bytes},
                     {"cache_bytes", memory.cache_bytes},
                     {"device_bytes", memory.device_bytes}});
  }
  json["ranks"] = std::move(ranks);
  return json;
}

}  // namespace

std::string PlanText(const PlanOutput& output) {
  const model::ModelSummary summary = model::Summarize(output.spec);
  std::string text = fmt::format(
      "model: {} layers, {} experts, {} a token; a token reads {} of the dense side and {} of "
      "experts\nmachine: {}\ngoal: {}, context {} tokens\n\n",
      output.spec.num_layers, output.spec.moe.num_experts, output.spec.moe.top_k,
      FormatBytes(static_cast<double>(summary.dense_bytes_per_token)),
      FormatBytes(static_cast<double>(summary.expert_bytes_per_token)), ProfileLine(output.profile),
      placement::GoalName(output.request.goal), output.request.context_tokens);
  text += TableHead();
  std::string reasons;
  for (const Plan& plan : output.plans) {
    if (plan.can_run) text += TableRow(plan);
    reasons += fmt::format("- {}, {}: {}{}\n", Place(plan), placement::PlanName(plan),
                           plan.can_run ? "" : "cannot run: ", plan.reason);
  }
  return text + "\n" + reasons + "\n" + NamedLine("FAST", output.named.fast) +
         NamedLine("LONG", output.named.large_context);
}

nlohmann::ordered_json PlanJson(const PlanOutput& output) {
  nlohmann::ordered_json plans = nlohmann::ordered_json::array();
  for (const Plan& plan : output.plans) plans.push_back(ToJson(plan));
  const auto named = [](const std::optional<Plan>& plan) {
    return plan.has_value() ? ToJson(*plan) : nlohmann::ordered_json(nullptr);
  };
  return {{"goal", placement::GoalName(output.request.goal)},
          {"context_tokens", output.request.context_tokens},
          {"is_estimate", output.profile.is_estimate()},
          {"sources", output.profile.sources()},
          {"plans", std::move(plans)},
          {"fast", named(output.named.fast)},
          {"long", named(output.named.large_context)}};
}

}  // namespace switchyard::app
