#include "coordinator/http/answer_facts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>

#include "switchyard/worker/v1/step.pb.h"

#include "model/utf8.h"

namespace switchyard::coordinator::http {
namespace {

namespace v1 = switchyard::worker::v1;

// JSON has no infinity; OpenAI's APIs say -9999 for a probability of zero.
double Finite(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

double PerUnit(double total, double count) { return count > 0 ? total / count : 0; }

Json StagesJson(const StageTotals& totals, double unattributed_seconds) {
  Json stages = Json::object();
  for (int stage = 0; stage < v1::Stage_ARRAYSIZE; ++stage) {
    const StageTotal& total = totals[static_cast<size_t>(stage)];
    if (total.seconds <= 0 && total.weight_bytes == 0) continue;
    stages[StageName(stage)] = {{"ms", 1000 * total.seconds}, {"weight_bytes", total.weight_bytes}};
  }
  stages["unattributed"] = {{"ms", 1000 * unattributed_seconds}, {"weight_bytes", 0}};
  return stages;
}

Json DataPathJson(const StepCosts& costs) {
  int64_t weight_bytes = 0;
  for (const StageTotal& total : costs.stages) weight_bytes += total.weight_bytes;
  Json json = {{"weight_bytes", weight_bytes}};
  if (costs.ranks.empty()) return json;
  int64_t collective_bytes = 0;
  for (const LinkTotal& link : costs.links) collective_bytes += link.bytes;
  json["collective_bytes"] = collective_bytes;
  return json;
}

// What each rank and link did, where there are several.
void AddRanks(const StepCosts& costs, Json& timings) {
  if (costs.ranks.empty()) return;
  Json ranks = Json::array();
  for (const RankTotal& rank : costs.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"steps", rank.num_steps},
                     {"ms", 1000 * rank.seconds},
                     {"idle_ms", 1000 * rank.idle_seconds},
                     {"stages", StagesJson(rank.stages, rank.unattributed_seconds())}});
  }
  Json links = Json::array();
  for (const LinkTotal& link : costs.links) {
    links.push_back({{"from", link.from},
                     {"to", link.to},
                     {"bytes", link.bytes},
                     {"messages", link.num_messages},
                     {"transfer_ms", 1000 * link.transfer_seconds},
                     {"flight_ms", 1000 * link.flight_seconds}});
  }
  timings["ranks"] = std::move(ranks);
  timings["links"] = std::move(links);
}

std::string LegacyTokenText(std::string_view bytes) {
  if (model::IsValidUtf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

Json ChatToken(const model::Tokenizer& tokenizer, int32_t token_id, float logprob) {
  Json bytes = Json::array();
  for (const char c : tokenizer.token_bytes(token_id)) {
    bytes.push_back(static_cast<unsigned char>(c));
  }
  return {{"token", TokenText(tokenizer, token_id)},
          {"logprob", Finite(logprob)},
          {"bytes", std::move(bytes)}};
}

}  // namespace

Json TimingsJson(const ServedModel& model, const GenerationEvent& last) {
  const Timings& timings = last.timings;
  const int evaluated = last.usage.prompt_tokens - last.usage.cached_tokens;
  const int predicted = last.usage.completion_tokens;
  const double prompt_ms = 1000 * timings.prefill_seconds;
  const double decode_ms = 1000 * timings.decode_seconds;
  const int decoded = std::max(predicted - 1, 0);  // the first token comes with the prompt
  const ServedPlan plan = model.plan();
  Json json = {{"cache_n", last.usage.cached_tokens},
               {"prompt_n", evaluated},
               {"prompt_ms", prompt_ms},
               {"prompt_per_token_ms", PerUnit(prompt_ms, evaluated)},
               {"prompt_per_second", PerUnit(1000.0 * evaluated, prompt_ms)},
               {"predicted_n", predicted},
               {"predicted_ms", decode_ms},
               {"predicted_per_token_ms", PerUnit(decode_ms, decoded)},
               {"predicted_per_second", PerUnit(1000.0 * decoded, decode_ms)},
               {"queue_ms", 1000 * timings.queue_seconds},
               {"ttft_ms", 1000 * timings.ttft_seconds},
               {"mode", plan.mode},
               {"plan_id", plan.id},
               {"replayed", last.replayed},
               {"steps", last.costs.num_steps},
               {"stages", StagesJson(last.costs.stages, last.costs.unattributed_seconds())},
               {"data_path", DataPathJson(last.costs)}};
  AddRanks(last.costs, json);
  return json;
}

Json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

std::string TokenText(const model::Tokenizer& tokenizer, int32_t token_id) {
  return tokenizer.Decode({&token_id, 1}, /*include_special=*/true);
}

Json ChatLogprobs(const model::Tokenizer& tokenizer, const std::vector<TokenInfo>& tokens) {
  Json content = Json::array();
  for (const TokenInfo& token : tokens) {
    Json entry = ChatToken(tokenizer, token.token_id, token.logprob);
    Json top = Json::array();
    for (const auto& [token_id, logprob] : token.top) {
      top.push_back(ChatToken(tokenizer, token_id, logprob));
    }
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return content;
}

Json CompletionLogprobs(const model::Tokenizer& tokenizer, const std::vector<TokenInfo>& tokens,
                        int64_t& text_offset) {
  Json texts = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const TokenInfo& token : tokens) {
    const std::string_view bytes = tokenizer.token_bytes(token.token_id);
    texts.push_back(LegacyTokenText(bytes));
    logprobs.push_back(Finite(token.logprob));
    Json top = Json::object();
    for (const auto& [token_id, logprob] : token.top) {
      top[LegacyTokenText(tokenizer.token_bytes(token_id))] = Finite(logprob);
    }
    tops.push_back(std::move(top));
    offsets.push_back(text_offset);
    text_offset += static_cast<int64_t>(bytes.size());
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace switchyard::coordinator::http
