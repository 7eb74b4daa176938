#include "coordinator/http/openai_api.h"

#include <chrono>
#include <optional>
#include <utility>

#include "base/error_info.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/http/chat_input.h"
#include "coordinator/http/generation_call.h"
#include "coordinator/http/generation_options.h"
#include "coordinator/http/openai_answer.h"
#include "coordinator/prompt.h"
#include "coordinator/request_limits.h"

namespace switchyard::coordinator::http {
namespace {

// OpenAI's rule for completions; a chat may go on until the context is full.
constexpr int kDefaultCompletionTokens = 16;

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A request, converted.
struct Converted {
  GenerationRequest request;
  std::map<std::string, std::string> labels;
  std::unique_ptr<AnswerWriter> writer;
  bool is_streamed = false;
};

OpenAiAnswerOptions AnswerOptions(const std::string& prefix, const ApiCall& call) {
  return {.id = prefix + call.request_id, .created_unix_seconds = UnixSeconds()};
}

void ReadStreamOptions(JsonFields& fields, Converted& converted, OpenAiAnswerOptions& answer) {
  converted.is_streamed = fields.Bool("stream").value_or(false);
  answer.is_streamed = converted.is_streamed;
  if (const Json* const options = fields.Object("stream_options")) {
    JsonFields inner(*options, "stream_options");
    answer.includes_usage = inner.Bool("include_usage").value_or(false);
    fields.Fail(inner.status());
  }
}

// `logprobs` is a yes or no here, and `top_logprobs` the number of alternatives.
void ReadChatLogprobs(JsonFields& fields, GenerationRequest& request) {
  const bool wants_logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", 0, kMaxLogprobs);
  if (top && !wants_logprobs) {
    fields.Fail(
        WithField(InvalidArgument("top_logprobs needs logprobs to be true"), "top_logprobs"));
  }
  if (wants_logprobs) request.num_logprobs = static_cast<int>(top.value_or(0));
}

absl::StatusOr<Converted> ConvertChat(const ServedModel& model, const ApiCall& call) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Json body, ParseJson(call.request.body));
  JsonFields fields(body);
  Converted converted;
  OpenAiAnswerOptions answer = AnswerOptions("chatcmpl-", call);
  RefuseUnsupported(fields);
  ReadOpenAiOptions(fields, model, converted.request);
  ReadChatLogprobs(fields, converted.request);
  ReadStreamOptions(fields, converted, answer);
  converted.labels = ReadLabels(fields);
  const auto reasoning_format = fields.String("reasoning_format");
  Json context = ChatContext(fields, model);
  SWITCHYARD_RETURN_IF_ERROR(fields.status());

  SWITCHYARD_ASSIGN_OR_RETURN(ChatInput input, MakeChatInput(model, std::move(context)));
  input.answer.parse_reasoning = reasoning_format != "none";
  input.answer.call_id_prefix = "call_" + call.request_id + "_";
  converted.request.prompt = std::move(input.prompt.token_ids);
  converted.request.message_borders = std::move(input.prompt.message_borders);
  answer.has_logprobs = converted.request.num_logprobs.has_value();
  converted.writer = MakeChatAnswer(model, std::move(answer), std::move(input.answer));
  return converted;
}

// A string, a list with one string, a list of token ids, or a list with one such list.
std::vector<int32_t> ReadPrompt(JsonFields& fields, const ServedModel& model) {
  const Json* prompt = fields.Find("prompt");
  if (prompt == nullptr) {
    fields.FailType("prompt", "a string or a list of token ids");
    return {};
  }
  if (prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number()) {
    prompt = &prompt->front();
  }
  if (prompt->is_string()) {
    return RawPrompt(model.tokenizer, prompt->get_ref<const std::string&>()).token_ids;
  }
  if (!prompt->is_array()) {
    fields.FailType("prompt", "a string or a list of token ids");
    return {};
  }
  if (prompt->size() > 1 && !prompt->front().is_number()) {
    fields.Fail(
        WithField(Unimplemented("prompt is not supported: several in one request"), "prompt"));
    return {};
  }
  return ReadTokenIds(fields, "prompt", *prompt, model);
}

absl::StatusOr<Converted> ConvertCompletion(const ServedModel& model, const ApiCall& call) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Json body, ParseJson(call.request.body));
  JsonFields fields(body);
  Converted converted;
  OpenAiAnswerOptions answer = AnswerOptions("cmpl-", call);
  RefuseUnsupported(fields);
  ReadOpenAiOptions(fields, model, converted.request);
  if (!converted.request.max_tokens) converted.request.max_tokens = kDefaultCompletionTokens;
  if (const auto logprobs = fields.Integer("logprobs", 0, kMaxLogprobs)) {
    converted.request.num_logprobs = static_cast<int>(*logprobs);
    answer.has_logprobs = true;
  }
  answer.has_token_ids = fields.Bool("return_token_ids").value_or(false);
  ReadStreamOptions(fields, converted, answer);
  converted.labels = ReadLabels(fields);
  SWITCHYARD_RETURN_IF_ERROR(fields.status());  // before what takes long
  converted.request.prompt = ReadPrompt(fields, model);
  SWITCHYARD_RETURN_IF_ERROR(fields.status());
  converted.writer = MakeCompletionAnswer(model, std::move(answer));
  return converted;
}

void Run(const ApiContext& context, ApiCall call, absl::StatusOr<Converted> converted) {
  if (!converted.ok()) {
    call.Refuse(converted.status(), context.metrics);
    return;
  }
  StartGeneration(context, std::move(call), "openai", std::move(converted->request),
                  std::move(converted->labels), std::move(converted->writer),
                  converted->is_streamed);
}

}  // namespace

Json OpenAiApi::ModelJson() const {
  const ServedModel& model = context_.model;
  const auto& spec = model.spec;
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created_unix_seconds},
          {"owned_by", "switchyard"},
          {"meta",
           {{"architecture", spec.architecture},
            {"vocab_size", spec.vocab_size},
            {"num_layers", spec.num_layers},
            {"num_experts", spec.moe.num_experts},
            {"top_k", spec.moe.top_k},
            {"hidden_size", spec.hidden_size},
            {"context_tokens", model.max_context},
            {"trained_context_tokens", spec.context_length},
            {"file_bytes", model.file_bytes},
            {"digest", model.digest},
            {"mode", model.plan().mode},
            {"plan_id", model.plan().id},
            // As clients of llama-server look for them.
            {"n_ctx", model.max_context},
            {"n_vocab", model.tokenizer.vocab_size()}}}};
}

void OpenAiApi::ListModels(ApiCall call) const {
  call.Send(Json{{"object", "list"}, {"data", Json::array({ModelJson()})}});
}

void OpenAiApi::GetModel(ApiCall call, std::string_view name) const {
  if (name == context_.model.name) {
    call.Send(ModelJson());
    return;
  }
  call.Refuse(
      WithField(NotFound("model does not exist: {}, there is: {}", name, context_.model.name),
                "model"),
      context_.metrics);
}

void OpenAiApi::ChatCompletions(ApiCall call) const {
  auto converted = ConvertChat(context_.model, call);
  Run(context_, std::move(call), std::move(converted));
}

void OpenAiApi::Completions(ApiCall call) const {
  auto converted = ConvertCompletion(context_.model, call);
  Run(context_, std::move(call), std::move(converted));
}

}  // namespace switchyard::coordinator::http
