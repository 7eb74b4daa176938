#include "coordinator/http/anthropic_api.h"

#include <limits>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/http/anthropic_answer.h"
#include "coordinator/http/anthropic_input.h"
#include "coordinator/http/chat_input.h"
#include "coordinator/http/generation_call.h"
#include "coordinator/http/generation_options.h"

namespace switchyard::coordinator::http {
namespace {

struct Converted {
  GenerationRequest request;
  std::unique_ptr<AnswerWriter> writer;
  bool is_streamed = false;
};

absl::StatusOr<Converted> Convert(const ServedModel& model, const ApiCall& call) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Json body, ParseJson(call.request.body));
  JsonFields fields(body);
  Converted converted;
  CheckModel(fields, model);
  ReadSampling(fields, converted.request);
  ReadStop(fields, "stop_sequences", /*allows_one=*/false, converted.request);
  const auto max_tokens =
      fields.Integer("max_tokens", 1, int64_t{std::numeric_limits<int32_t>::max()});
  if (!max_tokens) fields.FailType("max_tokens", "given: a number of tokens");
  converted.is_streamed = fields.Bool("stream").value_or(false);
  Json context = AnthropicContext(fields, model);
  SWITCHYARD_RETURN_IF_ERROR(fields.status());

  SWITCHYARD_ASSIGN_OR_RETURN(ChatInput input, MakeChatInput(model, std::move(context)));
  input.answer.call_id_prefix = "toolu_" + call.request_id + "_";
  converted.request.max_tokens = static_cast<int>(*max_tokens);
  converted.request.prompt = std::move(input.prompt.token_ids);
  converted.request.message_borders = std::move(input.prompt.message_borders);
  converted.writer = MakeMessageAnswer(model, "msg_" + call.request_id, converted.is_streamed,
                                       std::move(input.answer));
  return converted;
}

absl::StatusOr<size_t> Count(const ServedModel& model, const ApiCall& call) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Json body, ParseJson(call.request.body));
  JsonFields fields(body);
  CheckModel(fields, model);
  Json context = AnthropicContext(fields, model);
  SWITCHYARD_RETURN_IF_ERROR(fields.status());
  SWITCHYARD_ASSIGN_OR_RETURN(const ChatInput input, MakeChatInput(model, std::move(context)));
  return input.prompt.token_ids.size();
}

}  // namespace

void AnthropicApi::Messages(ApiCall call) const {
  auto converted = Convert(context_.model, call);
  if (!converted.ok()) {
    call.Refuse(converted.status(), context_.metrics);
    return;
  }
  StartGeneration(context_, std::move(call), "anthropic", std::move(converted->request), {},
                  std::move(converted->writer), converted->is_streamed);
}

void AnthropicApi::CountTokens(ApiCall call) const {
  const auto count = Count(context_.model, call);
  if (count.ok()) {
    call.Send(Json{{"input_tokens", *count}});
  } else {
    call.Refuse(count.status(), context_.metrics);
  }
}

}  // namespace switchyard::coordinator::http
