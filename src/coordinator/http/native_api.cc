#include "coordinator/http/native_api.h"

#include <map>
#include <optional>
#include <utility>

#include "base/error_info.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/http/answer_facts.h"
#include "coordinator/http/chat_input.h"
#include "coordinator/http/generation_options.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/http/openapi_json.h"
#include "coordinator/http/residency_json.h"
#include "coordinator/prompt.h"
#include "model/utf8.h"

namespace switchyard::coordinator::http {
namespace {

// Seconds until a client should ask again whether the server is ready.
constexpr double kRetryAfterSeconds = 5;

std::string_view StateText(GateState state) {
  switch (state) {
    case GateState::kLoading:
      return "loading model";
    case GateState::kServing:
      return "ok";
    case GateState::kRecovering:
      return "a worker was lost and is being replaced";
    case GateState::kDraining:
      return "draining";
    case GateState::kFailed:
      return "a worker was lost for good";
  }
  return "unknown";
}

// The piece of a token: a string, or a list of bytes that are no UTF-8 by themselves.
Json PieceJson(std::string_view bytes) {
  if (model::IsValidUtf8(bytes)) return std::string(bytes);
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

absl::StatusOr<Json> TokenizeJson(const ServedModel& model, const std::string& text) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Json body, ParseJson(text));
  JsonFields fields(body);
  CheckModel(fields, model);
  const auto content = fields.String("content");
  if (!content) fields.FailType("content", "a string");
  const bool add_special = fields.Bool("add_special").value_or(false);
  const bool parse_special = fields.Bool("parse_special").value_or(true);
  const bool with_pieces = fields.Bool("with_pieces").value_or(false);
  SWITCHYARD_RETURN_IF_ERROR(fields.status());
  const model::Tokenizer& tokenizer = model.tokenizer;
  std::vector<int32_t> token_ids = tokenizer.Encode(
      *content, parse_special ? model::SpecialMatching::kAll : model::SpecialMatching::kNone);
  if (add_special && tokenizer.add_bos()) {
    token_ids.insert(token_ids.begin(), *tokenizer.bos_token_id());
  }
  Json tokens = Json::array();
  for (const int32_t id : token_ids) {
    if (with_pieces) {
      tokens.push_back({{"id", id}, {"piece", PieceJson(tokenizer.token_bytes(id))}});
    } else {
      tokens.push_back(id);
    }
  }
  return Json{{"tokens", std::move(tokens)}};
}

absl::StatusOr<Json> DetokenizeJson(const ServedModel& model, const std::string& text) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Json body, ParseJson(text));
  JsonFields fields(body);
  CheckModel(fields, model);
  const Json* const tokens = fields.Array("tokens");
  if (tokens == nullptr) fields.FailType("tokens", "a list of token ids");
  SWITCHYARD_RETURN_IF_ERROR(fields.status());
  const std::vector<int32_t> token_ids = ReadTokenIds(fields, "tokens", *tokens, model);
  SWITCHYARD_RETURN_IF_ERROR(fields.status());
  return Json{{"content", model.tokenizer.Decode(token_ids, /*include_special=*/true)}};
}

absl::StatusOr<Json> ApplyTemplateJson(const ServedModel& model, const std::string& text) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Json body, ParseJson(text));
  JsonFields fields(body);
  CheckModel(fields, model);
  Json context = ChatContext(fields, model);
  SWITCHYARD_RETURN_IF_ERROR(fields.status());
  SWITCHYARD_ASSIGN_OR_RETURN(ChatInput input, MakeChatInput(model, std::move(context)));
  return Json{{"prompt", std::move(input.prompt.text)}};
}

void SendResult(const ApiContext& context, const ApiCall& call, const absl::StatusOr<Json>& json) {
  if (json.ok()) {
    call.Send(*json);
  } else {
    call.Refuse(json.status(), context.metrics);
  }
}

Json SpecialToken(const model::Tokenizer& tokenizer, std::optional<int32_t> token_id) {
  return token_id ? Json(std::string(tokenizer.token_bytes(*token_id))) : Json(nullptr);
}

std::string_view SlotState(const SlotInfo& slot) {
  if (slot.generation_id == 0) return "idle";
  switch (slot.state) {
    case SequenceState::kWaiting:
      return "waiting";
    case SequenceState::kPrefill:
      return "prefill";
    case SequenceState::kDecode:
      return "decode";
  }
  return "unknown";
}

}  // namespace

void NativeApi::Live(ApiCall call) const { call.Send(Json{{"status", "ok"}}); }

void NativeApi::Ready(ApiCall call) const {
  const GateState state = context_.gate.state();
  if (state == GateState::kServing) {
    call.Send(Json{{"status", "ok"}});
    return;
  }
  ApiError error = HttpError(503, StateText(state));
  error.retry_after_seconds = kRetryAfterSeconds;
  HttpResponse response = ErrorResponse(error, ErrorShape::kOpenAi);
  Json body = {{"status", StateText(state)}};
  body.update(ErrorJson(error, ErrorShape::kOpenAi));
  response.body = JsonText(body);
  call.Send(std::move(response));
}

void NativeApi::Tokenize(ApiCall call) const {
  SendResult(context_, call, TokenizeJson(context_.model, call.request.body));
}

void NativeApi::Detokenize(ApiCall call) const {
  SendResult(context_, call, DetokenizeJson(context_.model, call.request.body));
}

void NativeApi::ApplyTemplate(ApiCall call) const {
  SendResult(context_, call, ApplyTemplateJson(context_.model, call.request.body));
}

void NativeApi::Props(ApiCall call) const {
  const ServedModel& model = context_.model;
  const auto& chat_template = model.chat_template;
  // What a request that names none of them runs with: no rule but the temperature.
  const Json parameters = {{"temperature", 1.0},
                           {"top_k", 0},
                           {"top_p", 1.0},
                           {"min_p", 0.0},
                           {"repeat_penalty", 1.0},
                           {"presence_penalty", 0.0},
                           {"frequency_penalty", 0.0},
                           {"max_tokens", nullptr}};
  call.Send(
      Json{{"default_generation_settings", {{"n_ctx", model.max_context}, {"params", parameters}}},
           {"total_slots", context_.stats().slots.size()},
           {"model_alias", model.name},
           {"model_path", model.path_name},
           {"chat_template", chat_template.source()},
           {"chat_template_source", chat_template.is_builtin() ? "built-in" : "model"},
           {"supports_tools", chat_template.Reads("tools")},
           {"supports_thinking", chat_template.Reads("enable_thinking")},
           {"bos_token", SpecialToken(model.tokenizer, model.tokenizer.bos_token_id())},
           {"eos_token", SpecialToken(model.tokenizer, model.tokenizer.eos_token_id())},
           {"mode", model.plan().mode},
           {"plan_id", model.plan().id},
           {"digest", model.digest},
           {"build_info", context_.version},
           {"status", StateText(context_.gate.state())}});
}

void NativeApi::Slots(ApiCall call) const {
  std::map<uint64_t, RunningRequest> running;
  for (RunningRequest& request : context_.gate.running()) {
    running.emplace(request.generation_id, std::move(request));
  }
  Json slots = Json::array();
  for (const SlotInfo& slot : context_.stats().slots) {
    Json entry = {{"id", slot.slot},
                  {"n_ctx", context_.model.max_context},
                  {"is_processing", slot.generation_id != 0},
                  {"state", SlotState(slot)}};
    if (slot.generation_id != 0) {
      entry["prompt_tokens"] = slot.prompt_tokens;
      entry["prefilled_tokens"] = slot.num_prefilled;
      entry["completion_tokens"] = slot.completion_tokens;
      entry["decode_per_second"] = slot.decode_per_second;
      if (const auto found = running.find(slot.generation_id); found != running.end()) {
        const RunningRequest& request = found->second;
        entry["request_id"] = request.request_id;
        entry["api"] = request.api;
        entry["labels"] = request.labels;
        entry["age_seconds"] = request.age_seconds;
        entry["cached_tokens"] = request.usage.cached_tokens;
      }
    }
    slots.push_back(std::move(entry));
  }
  call.Send(slots);
}

void NativeApi::Metrics(ApiCall call) const {
  call.Send(HttpResponse{.status = 200,
                         .body = context_.metrics.Text(),
                         .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

void NativeApi::Residency(ApiCall call) const {
  std::vector<switchyard::worker::v1::Residency> ranks;
  if (context_.residency) ranks = context_.residency();
  call.Send(ResidencyJson(ranks));
}

void NativeApi::OpenApi(ApiCall call) const {
  call.Send(HttpResponse{.status = 200, .body = std::string(kOpenApiJson)});
}

}  // namespace switchyard::coordinator::http
