#include "coordinator/generation_conversion.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error_info.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/request_limits.h"
#include "model/json_scanner.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::generation::v1;
namespace worker_v1 = switchyard::worker::v1;
using Json = nlohmann::ordered_json;

absl::Status BadField(absl::Status status, std::string_view field) {
  return WithField(std::move(status), field);
}

// ---- conversations ------------------------------------------------------------------------------

absl::StatusOr<Json> ParseTool(const std::string& text, const std::string& field) {
  // The check comes first, since the JSON library recurses and scans all keys for each new one.
  Json tool =
      model::IsBoundedJson(text) ? Json::parse(text, nullptr, /*allow_exceptions=*/false) : Json();
  if (tool.is_object()) return tool;
  return BadField(InvalidArgument("{} is not the text of a JSON object with at most {} levels and "
                                  "{} members",
                                  field, model::kMaxArgumentDepth, model::kMaxArgumentMembers),
                  field);
}

// Converts google.protobuf.Struct, within the limits on JSON in requests.
class StructConverter {
 public:
  absl::StatusOr<Json> Convert(const google::protobuf::Struct& object, int depth = 0) {
    num_members_ += object.fields_size();
    if (num_members_ > model::kMaxArgumentMembers) return TooLarge();
    // A protobuf map has no order; a template must not depend on chance.
    std::map<std::string, const google::protobuf::Value*> sorted;
    for (const auto& [key, value] : object.fields()) sorted[key] = &value;
    Json out = Json::object();
    for (const auto& [key, value] : sorted) {
      SWITCHYARD_ASSIGN_OR_RETURN(out[key], Convert(*value, depth + 1));
    }
    return out;
  }

 private:
  absl::StatusOr<Json> Convert(const google::protobuf::Value& value, int depth) {
    if (depth > model::kMaxArgumentDepth) return TooLarge();
    switch (value.kind_case()) {
      case google::protobuf::Value::kNumberValue:
        return Number(value.number_value());
      case google::protobuf::Value::kStringValue:
        return Json(value.string_value());
      case google::protobuf::Value::kBoolValue:
        return Json(value.bool_value());
      case google::protobuf::Value::kStructValue:
        return Convert(value.struct_value(), depth);
      case google::protobuf::Value::kListValue: {
        Json out = Json::array();
        for (const auto& element : value.list_value().values()) {
          SWITCHYARD_ASSIGN_OR_RETURN(Json converted, Convert(element, depth + 1));
          out.push_back(std::move(converted));
        }
        return out;
      }
      default:
        return Json();
    }
  }

  static absl::Status TooLarge() {
    return InvalidArgument("template_arguments must have at most {} levels and {} members",
                           model::kMaxArgumentDepth, model::kMaxArgumentMembers);
  }

  // Struct knows only doubles, and a template would print 3 as 3.0.
  static Json Number(double value) {
    constexpr int64_t kLargest = int64_t{1} << 53;
    const auto integer = CheckedInteger("", value, -kLargest, kLargest);
    return integer.ok() ? Json(*integer) : Json(value);
  }

  int num_members_ = 0;
};

Json FromProto(const v1::ChatMessage& message) {
  Json out = {{"role", message.role()}, {"content", message.content()}};
  if (message.has_reasoning_content()) out["reasoning_content"] = message.reasoning_content();
  for (const v1::ToolCall& call : message.tool_calls()) {
    const std::string& arguments = call.arguments_json();
    out["tool_calls"].push_back(
        {{"id", call.id()},
         {"type", "function"},
         {"function",
          {{"name", call.name()}, {"arguments", arguments.empty() ? "{}" : arguments}}}});
  }
  if (!message.tool_call_id().empty()) out["tool_call_id"] = message.tool_call_id();
  if (!message.name().empty()) out["name"] = message.name();
  return out;
}

absl::StatusOr<Json> ChatContext(const v1::ChatPrompt& chat, std::string_view field,
                                 const ServedModel& model) {
  Json context = Json::object();
  if (chat.has_template_arguments()) {
    auto arguments = StructConverter().Convert(chat.template_arguments());
    if (!arguments.ok()) {
      return BadField(arguments.status(), fmt::format("{}.template_arguments", field));
    }
    context = std::move(*arguments);
    for (const char* name : {"messages", "tools", "enable_thinking", "add_generation_prompt"}) {
      context.erase(name);
    }
  }
  if (static_cast<size_t>(chat.messages_size()) > kMaxMessages) {
    return BadField(InvalidArgument("too many messages, limit: {}, got: {}", kMaxMessages,
                                    chat.messages_size()),
                    fmt::format("{}.messages", field));
  }
  Json messages = Json::array();
  for (const v1::ChatMessage& message : chat.messages()) messages.push_back(FromProto(message));
  context["messages"] = std::move(messages);
  if (chat.tools_json_size() > 0 && !model.chat_template.Reads("tools")) {
    return BadField(Unimplemented("the model's chat template knows no tools"),
                    fmt::format("{}.tools_json", field));
  }
  if (static_cast<size_t>(chat.tools_json_size()) > kMaxTools) {
    return BadField(
        InvalidArgument("too many tools, limit: {}, got: {}", kMaxTools, chat.tools_json_size()),
        fmt::format("{}.tools_json", field));
  }
  for (int i = 0; i < chat.tools_json_size(); ++i) {
    SWITCHYARD_ASSIGN_OR_RETURN(
        Json tool, ParseTool(chat.tools_json(i), fmt::format("{}.tools_json[{}]", field, i)));
    context["tools"].push_back(std::move(tool));
  }
  if (chat.has_enable_thinking()) context["enable_thinking"] = chat.enable_thinking();
  if (chat.has_add_generation_prompt()) {
    context["add_generation_prompt"] = chat.add_generation_prompt();
  }
  return context;
}

// ---- options of a generation --------------------------------------------------------------------

absl::Status CheckSupported(const v1::SamplingParams& sampling) {
  if (sampling.has_typical_p() && sampling.typical_p() != 1) {
    return BadField(Unimplemented("typical_p is not supported"), "spec.sampling.typical_p");
  }
  int previous = v1::SAMPLER_KIND_UNSPECIFIED;
  for (int kind : sampling.order()) {
    if (kind <= previous || !v1::SamplerKind_IsValid(kind)) {
      return BadField(Unimplemented("samplers run in the order of SamplerKind only"),
                      "spec.sampling.order");
    }
    previous = kind;
  }
  return absl::OkStatus();
}

absl::StatusOr<worker_v1::SamplingParams> FromProto(const v1::SamplingParams& sampling) {
  SWITCHYARD_RETURN_IF_ERROR(CheckSupported(sampling));
  worker_v1::SamplingParams out;
  out.set_temperature(sampling.has_temperature() ? sampling.temperature() : 1.0f);
  if (sampling.has_top_k()) out.set_top_k(sampling.top_k());
  if (sampling.has_top_p()) out.set_top_p(sampling.top_p());
  if (sampling.has_min_p()) out.set_min_p(sampling.min_p());
  if (sampling.has_repetition_penalty()) {
    out.set_repetition_penalty(sampling.repetition_penalty());
  }
  if (sampling.has_presence_penalty()) out.set_presence_penalty(sampling.presence_penalty());
  if (sampling.has_frequency_penalty()) out.set_frequency_penalty(sampling.frequency_penalty());
  if (sampling.has_seed()) out.set_seed(sampling.seed());
  out.mutable_logit_bias()->insert(sampling.logit_bias().begin(), sampling.logit_bias().end());
  return out;
}

absl::StatusOr<int> CountFromProto(std::string_view field, uint32_t value) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t count, CheckedInteger(field, uint64_t{value}, 0,
                                                                  std::numeric_limits<int>::max()));
  return static_cast<int>(count);
}

absl::Status ConvertStop(const v1::StopCriteria& stop, const ServedModel& model,
                         GenerationRequest& out) {
  if (stop.has_max_tokens()) {
    SWITCHYARD_ASSIGN_OR_RETURN(out.max_tokens,
                                CountFromProto("spec.stop.max_tokens", stop.max_tokens()));
  }
  if (stop.has_min_tokens()) {
    SWITCHYARD_ASSIGN_OR_RETURN(out.min_tokens,
                                CountFromProto("spec.stop.min_tokens", stop.min_tokens()));
  }
  out.stop.assign(stop.stop().begin(), stop.stop().end());
  SWITCHYARD_ASSIGN_OR_RETURN(
      out.stop_token_ids,
      TokenIdsFromProto(stop.stop_token_ids(), "spec.stop.stop_token_ids", model));
  out.ignore_eos = stop.ignore_eos();
  if (stop.has_time_limit()) {
    out.time_limit_seconds =
        static_cast<double>(stop.time_limit().seconds()) + stop.time_limit().nanos() * 1e-9;
  }
  return absl::OkStatus();
}

absl::Status ConvertPrompt(const v1::GenerationSpec& spec, const ServedModel& model,
                           GenerationRequest& out) {
  switch (spec.prompt_case()) {
    case v1::GenerationSpec::kText:
      out.prompt = RawPrompt(model.tokenizer, spec.text()).token_ids;
      return absl::OkStatus();
    case v1::GenerationSpec::kTokenIds: {
      SWITCHYARD_ASSIGN_OR_RETURN(
          out.prompt, TokenIdsFromProto(spec.token_ids().ids(), "spec.token_ids.ids", model));
      return absl::OkStatus();
    }
    case v1::GenerationSpec::kChat: {
      SWITCHYARD_ASSIGN_OR_RETURN(Prompt prompt, RenderChatPrompt(spec.chat(), "spec.chat", model));
      out.prompt = std::move(prompt.token_ids);
      out.message_borders = std::move(prompt.message_borders);
      return absl::OkStatus();
    }
    case v1::GenerationSpec::PROMPT_NOT_SET:
      break;
  }
  return BadField(InvalidArgument("prompt is missing: set text, token_ids or chat"), "spec.prompt");
}

// ---- events -----------------------------------------------------------------------------------

double PerSecond(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

uint64_t Nanoseconds(double seconds) { return static_cast<uint64_t>(std::max(0.0, seconds * 1e9)); }

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopToken:
      return v1::FINISH_REASON_STOP_TOKEN;
    case FinishReason::kStopSequence:
      return v1::FINISH_REASON_STOP_SEQUENCE;
    case FinishReason::kMaxTokens:
      return v1::FINISH_REASON_MAX_TOKENS;
    case FinishReason::kContextFull:
      return v1::FINISH_REASON_CONTEXT_FULL;
    case FinishReason::kTimeLimit:
      return v1::FINISH_REASON_TIME_LIMIT;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kFailed:
      break;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

// Those that took part, and what none of them covers.
void Fill(const StageTotals& totals, double unattributed_seconds,
          google::protobuf::RepeatedPtrField<v1::StageTrace>& out) {
  for (size_t i = 0; i < totals.size(); ++i) {
    if (totals[i].seconds <= 0 && totals[i].weight_bytes == 0) continue;
    v1::StageTrace& stage = *out.Add();
    stage.set_stage(StageName(static_cast<int>(i)));
    stage.set_duration_ns(Nanoseconds(totals[i].seconds));
    stage.set_bytes(static_cast<uint64_t>(totals[i].weight_bytes));
  }
  v1::StageTrace& rest = *out.Add();
  rest.set_stage("unattributed");
  rest.set_duration_ns(Nanoseconds(unattributed_seconds));
}

void Fill(const StepCosts& costs, v1::StepTrace& trace) {
  trace.set_num_steps(static_cast<uint32_t>(costs.num_steps));
  trace.set_duration_ns(Nanoseconds(costs.seconds));
  if (costs.num_steps == 0) return;
  trace.set_idle_ns(Nanoseconds(costs.idle_seconds));
  Fill(costs.stages, costs.unattributed_seconds(), *trace.mutable_stages());
  for (const RankTotal& total : costs.ranks) {
    v1::RankTrace& rank = *trace.add_ranks();
    rank.set_rank(static_cast<uint32_t>(total.rank));
    rank.set_num_steps(static_cast<uint32_t>(total.num_steps));
    rank.set_duration_ns(Nanoseconds(total.seconds));
    rank.set_idle_ns(Nanoseconds(total.idle_seconds));
    Fill(total.stages, total.unattributed_seconds(), *rank.mutable_stages());
  }
  for (const LinkTotal& total : costs.links) {
    v1::LinkTrace& link = *trace.add_links();
    link.set_from_rank(static_cast<uint32_t>(total.from));
    link.set_to_rank(static_cast<uint32_t>(total.to));
    link.set_bytes(static_cast<uint64_t>(total.bytes));
    link.set_num_messages(static_cast<uint64_t>(total.num_messages));
    link.set_transfer_ns(Nanoseconds(total.transfer_seconds));
    link.set_flight_ns(Nanoseconds(total.flight_seconds));
  }
}

void Fill(const GenerationEvent& event, v1::Timings& out) {
  const Timings& t = event.timings;
  const int num_evaluated = event.usage.prompt_tokens - event.usage.cached_tokens;
  out.set_queue_ms(t.queue_seconds * 1e3);
  out.set_prompt_ms(t.prefill_seconds * 1e3);
  out.set_decode_ms(t.decode_seconds * 1e3);
  out.set_ttft_ms(t.ttft_seconds * 1e3);
  out.set_prompt_per_second(PerSecond(num_evaluated, t.prefill_seconds));
  out.set_decode_per_second(PerSecond(event.usage.completion_tokens - 1, t.decode_seconds));
  int64_t weight_bytes = 0;
  for (const StageTotal& total : event.costs.stages) weight_bytes += total.weight_bytes;
  out.mutable_data_path()->set_weight_bytes(static_cast<uint64_t>(weight_bytes));
  for (const LinkTotal& link : event.costs.links) {
    out.mutable_data_path()->set_collective_bytes(out.data_path().collective_bytes() +
                                                  static_cast<uint64_t>(link.bytes));
  }
  Fill(event.costs, *out.mutable_steps());
}

void Fill(const GenerationEvent& event, v1::Finished& out) {
  out.set_reason(ToProto(event.reason));
  out.set_stop_sequence(event.stop_sequence);
  out.mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(event.usage.prompt_tokens));
  out.mutable_usage()->set_cached_tokens(static_cast<uint32_t>(event.usage.cached_tokens));
  out.mutable_usage()->set_completion_tokens(static_cast<uint32_t>(event.usage.completion_tokens));
  Fill(event, *out.mutable_timings());
  out.set_replayed(event.replayed);
}

// Where the engine's names of fields stand in the request.
std::string PathOf(const std::string& field) {
  static const std::map<std::string, std::string> kPaths = {
      {"max_tokens", "spec.stop.max_tokens"},
      {"min_tokens", "spec.stop.min_tokens"},
      {"stop", "spec.stop.stop"},
      {"stop_token_ids", "spec.stop.stop_token_ids"},
      {"time_limit_seconds", "spec.stop.time_limit"},
      {"logprobs", "spec.output.logprobs_top_n"},
      {"cache_salt", "spec.cache.cache_salt"},
      {"request_id", "spec.request_id"},
      {"labels", "spec.labels"},
      {"prompt", "spec.prompt"},
  };
  const auto it = kPaths.find(field);
  if (it != kPaths.end()) return it->second;
  return field.starts_with("sampling.") ? "spec." + field : field;
}

}  // namespace

absl::StatusOr<ConvertedRequest> FromProto(const v1::GenerationSpec& spec,
                                           const ServedModel& model) {
  SWITCHYARD_RETURN_IF_ERROR(CheckModelName(spec.model(), model));
  ConvertedRequest out;
  out.info.request_id = spec.request_id();
  out.info.api = "grpc";
  out.info.labels.insert(spec.labels().begin(), spec.labels().end());
  GenerationRequest& generation = out.generation;
  SWITCHYARD_ASSIGN_OR_RETURN(generation.sampling, FromProto(spec.sampling()));
  SWITCHYARD_RETURN_IF_ERROR(ConvertStop(spec.stop(), model, generation));
  if (spec.output().has_logprobs_top_n()) {
    SWITCHYARD_ASSIGN_OR_RETURN(
        generation.num_logprobs,
        CountFromProto("spec.output.logprobs_top_n", spec.output().logprobs_top_n()));
  }
  generation.return_step_costs = spec.output().include_step_trace();
  generation.reuse_prefix = !spec.cache().has_reuse_prefix() || spec.cache().reuse_prefix();
  generation.cache_salt = spec.cache().cache_salt();
  SWITCHYARD_RETURN_IF_ERROR(ConvertPrompt(spec, model, generation));
  return out;
}

absl::Status CheckModelName(std::string_view name, const ServedModel& model) {
  if (name.empty() || name == model.name) return absl::OkStatus();
  return NotFound("there is no such model here, only {}: {}", model.name,
                  name.substr(0, kMaxRequestIdBytes));
}

absl::StatusOr<Prompt> RenderChatPrompt(const v1::ChatPrompt& chat, std::string_view field,
                                        const ServedModel& model) {
  SWITCHYARD_ASSIGN_OR_RETURN(Json context, ChatContext(chat, field, model));
  auto prompt = ChatPrompt(model.tokenizer, model.chat_template, std::move(context));
  if (!prompt.ok()) return BadField(prompt.status(), fmt::format("{}.messages", field));
  return prompt;
}

absl::StatusOr<std::vector<int32_t>> TokenIdsFromProto(
    const google::protobuf::RepeatedField<uint32_t>& ids, std::string_view field,
    const ServedModel& model) {
  std::vector<int32_t> out;
  out.reserve(static_cast<size_t>(ids.size()));
  for (uint32_t id : ids) {
    SWITCHYARD_ASSIGN_OR_RETURN(
        const int64_t checked,
        CheckedInteger(field, uint64_t{id}, 0, model.tokenizer.vocab_size() - 1));
    out.push_back(static_cast<int32_t>(checked));
  }
  return out;
}

std::vector<v1::StreamGenerateResponse> EventConverter::Convert(const GenerationEvent& event) {
  std::vector<v1::StreamGenerateResponse> out;
  if (event.started) {
    v1::Started& started = *out.emplace_back().mutable_started();
    started.set_request_id(request_id_);
    started.set_model(model_.name);
    started.set_plan_id(model_.plan().id);
    started.set_prompt_tokens(static_cast<uint32_t>(event.usage.prompt_tokens));
    started.set_cached_tokens(static_cast<uint32_t>(event.usage.cached_tokens));
    started.set_queue_ms(event.timings.queue_seconds * 1e3);
  }
  if (WantsProgress(event)) {
    num_reported_ = event.num_prefilled;
    v1::PromptProgress& progress = *out.emplace_back().mutable_prompt_progress();
    progress.set_total_tokens(static_cast<uint32_t>(event.usage.prompt_tokens));
    progress.set_cached_tokens(static_cast<uint32_t>(event.usage.cached_tokens));
    progress.set_processed_tokens(static_cast<uint32_t>(event.num_prefilled));
    progress.set_elapsed_ms(event.timings.total_seconds * 1e3);
  }
  if (WantsDelta(event)) FillDelta(event, *out.emplace_back().mutable_delta());
  if (event.finished && event.reason != FinishReason::kFailed) {
    Fill(event, *out.emplace_back().mutable_finished());
  }
  return out;
}

bool EventConverter::WantsProgress(const GenerationEvent& event) const {
  return options_.include_prompt_progress() && !event.finished &&
         event.num_prefilled > num_reported_;
}

bool EventConverter::WantsDelta(const GenerationEvent& event) const {
  const bool wants_tokens = options_.include_token_ids() || options_.has_logprobs_top_n() ||
                            options_.include_step_trace();
  return !event.text.empty() || (wants_tokens && !event.token_ids.empty());
}

void EventConverter::FillDelta(const GenerationEvent& event, v1::Delta& delta) const {
  delta.set_text(event.text);
  if (options_.include_token_ids()) {
    delta.mutable_token_ids()->Add(event.token_ids.begin(), event.token_ids.end());
  }
  const auto fill_token = [&](int32_t token_id, float logprob, v1::TokenLogprob& out) {
    out.set_token_id(static_cast<uint32_t>(token_id));
    out.set_logprob(logprob);
    if (token_id >= 0 && token_id < model_.tokenizer.vocab_size()) {
      out.set_token(std::string(model_.tokenizer.token_bytes(token_id)));
    }
  };
  for (const TokenInfo& info : event.logprobs) {
    v1::PositionLogprobs& position = *delta.add_logprobs();
    fill_token(info.token_id, info.logprob, *position.mutable_sampled());
    for (const auto& [token_id, logprob] : info.top) {
      fill_token(token_id, logprob, *position.add_top());
    }
  }
  // The costs of the last event are totals: they are part of `finished`.
  if (options_.include_step_trace() && !event.finished) Fill(event.costs, *delta.mutable_trace());
}

void AppendTo(v1::GenerateResponse& answer, v1::StreamGenerateResponse event) {
  switch (event.event_case()) {
    case v1::StreamGenerateResponse::kStarted:
      answer.set_request_id(event.started().request_id());
      answer.set_model(event.started().model());
      break;
    case v1::StreamGenerateResponse::kDelta:
      answer.mutable_text()->append(event.delta().text());
      answer.mutable_token_ids()->MergeFrom(event.delta().token_ids());
      answer.mutable_logprobs()->MergeFrom(event.delta().logprobs());
      break;
    case v1::StreamGenerateResponse::kFinished:
      answer.mutable_finished()->Swap(event.mutable_finished());
      break;
    default:
      break;
  }
}

v1::Model ToProto(const ServedModel& model) {
  v1::Model out;
  out.set_name(model.name);
  out.set_architecture(model.spec.architecture);
  out.mutable_create_time()->set_seconds(model.created_unix_seconds);
  out.set_num_layers(static_cast<uint32_t>(model.spec.num_layers));
  out.set_num_experts(static_cast<uint32_t>(model.spec.moe.num_experts));
  out.set_top_k(static_cast<uint32_t>(model.spec.moe.top_k));
  out.set_vocab_size(static_cast<uint32_t>(model.tokenizer.vocab_size()));
  out.set_context_tokens(static_cast<uint64_t>(model.max_context));
  out.set_trained_context_tokens(static_cast<uint64_t>(model.spec.context_length));
  out.set_file_bytes(static_cast<uint64_t>(model.file_bytes));
  out.set_digest(model.digest);
  out.set_mode(model.plan().mode);
  out.set_plan_id(model.plan().id);
  out.set_has_own_chat_template(!model.chat_template.is_builtin());
  out.set_supports_tools(model.chat_template.Reads("tools"));
  out.set_supports_thinking(model.chat_template.Reads("enable_thinking"));
  return out;
}

absl::Status ForClients(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      LogError("a request failed: {}", Message(status));
      return Internal("the server failed; its log says how");
    default:
      break;
  }
  const std::string field = FieldOf(status);
  return field.empty() ? status : WithField(status, PathOf(field));
}

}  // namespace switchyard::coordinator
