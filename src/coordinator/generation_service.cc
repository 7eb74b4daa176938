#include "coordinator/generation_service.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/error_info.h"
#include "base/grpc_status.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/generation_service_reactors.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::generation::v1;

// When a client whose request found no room should try again: others are converted in a moment.
constexpr double kRetryAfterNoRoomSeconds = 1;

}  // namespace

// ---- how calls run ------------------------------------------------------------------------------

grpc::Status GenerationService::EndOf(const absl::Status& status) {
  if (!status.ok()) gate_.CountRefusal(status);
  return ToGrpcStatus(ForClients(status));
}

grpc::ServerUnaryReactor* GenerationService::Answer(grpc::CallbackServerContext* context,
                                                    const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(EndOf(status));
  return reactor;
}

void GenerationService::RunLong(const google::protobuf::Message& request,
                                std::function<void(const absl::Status&)> run) {
  auto share = requests_.Take(request.ByteSizeLong());
  if (share == nullptr) {
    return run(WithRetryAfter(
        WithReason(ResourceExhausted("the server holds too many requests at the moment"),
                   kQueueFull),
        kRetryAfterNoRoomSeconds));
  }
  if (!options_.run_in_background) return run(absl::OkStatus());
  options_.run_in_background(
      [share = std::move(share), run = std::move(run)] { run(absl::OkStatus()); });
}

template <typename Reactor, typename Request>
void GenerationService::BeginLong(const grpc::CallbackServerContext& context,
                                  const Request& request, Reactor& reactor) {
  const double arrival_seconds = MonotonicClock::Get().NowSeconds();
  if (const absl::Status status = CheckKey(context); !status.ok()) {
    return reactor.Begin(gate_, status);
  }
  // The request, its context and the reactor live until the reactor has finished.
  RunLong(request, [this, &context, &request, &reactor, arrival_seconds](const absl::Status& room) {
    reactor.Begin(gate_, room.ok() ? Prepare(context, request.spec(), arrival_seconds) : room);
  });
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* GenerationService::FillLong(grpc::CallbackServerContext* context,
                                                      const Request* request, Response* response) {
  if (const absl::Status status = CheckCall(*context, request->model()); !status.ok()) {
    return Answer(context, status);
  }
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  RunLong(*request, [this, reactor, request, response](const absl::Status& room) {
    reactor->Finish(EndOf(room.ok() ? Fill(*request, *response) : room));
  });
  return reactor;
}

absl::Status GenerationService::CheckKey(const grpc::CallbackServerContext& context) const {
  if (options_.api_keys == nullptr) return absl::OkStatus();
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find("authorization");
  const std::string_view value =
      it == metadata.end() ? "" : std::string_view(it->second.data(), it->second.size());
  return options_.api_keys->CheckAuthorization(value);
}

absl::Status GenerationService::CheckCall(const grpc::CallbackServerContext& context,
                                          const std::string& name) const {
  SWITCHYARD_RETURN_IF_ERROR(CheckKey(context));
  return CheckModelName(name, model_);
}

absl::StatusOr<PreparedCall> GenerationService::Prepare(const grpc::CallbackServerContext& context,
                                                        const v1::GenerationSpec& spec,
                                                        double arrival_seconds) const {
  if (context.IsCancelled()) return Cancelled("the client has left");
  PreparedCall call;
  SWITCHYARD_ASSIGN_OR_RETURN(call.request, FromProto(spec, model_));
  call.request.info.arrival_seconds = arrival_seconds;
  call.request.info.max_buffered_bytes = options_.max_buffered_bytes;
  call.output = spec.output();

  double seconds = options_.max_call_seconds;
  if (context.deadline() != std::chrono::system_clock::time_point::max()) {
    const std::chrono::duration<double> left =
        context.deadline() - std::chrono::system_clock::now();
    seconds = std::min(seconds, left.count());
  }
  if (seconds <= 0) return DeadlineExceeded("the deadline of the call has passed");
  std::optional<double>& limit = call.request.generation.time_limit_seconds;
  call.limit_is_deadline = !limit || *limit > seconds;
  if (call.limit_is_deadline) limit = seconds;
  return call;
}

grpc::ServerUnaryReactor* GenerationService::Generate(grpc::CallbackServerContext* context,
                                                      const v1::GenerateRequest* request,
                                                      v1::GenerateResponse* response) {
  auto* reactor = new GenerateReactor(model_, response);
  BeginLong(*context, *request, *reactor);
  return reactor;
}

grpc::ServerWriteReactor<v1::StreamGenerateResponse>* GenerationService::StreamGenerate(
    grpc::CallbackServerContext* context, const v1::StreamGenerateRequest* request) {
  auto* reactor = new StreamGenerateReactor(model_, context, options_.client_stall_timeout_seconds);
  BeginLong(*context, *request, *reactor);
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* context,
                                                      const v1::TokenizeRequest* request,
                                                      v1::TokenizeResponse* response) {
  return FillLong(context, request, response);
}

absl::Status GenerationService::Fill(const v1::TokenizeRequest& request,
                                     v1::TokenizeResponse& response) const {
  const model::Tokenizer& tokenizer = model_.tokenizer;
  std::vector<int32_t> ids = tokenizer.Encode(
      request.text(), request.parse_special() ? model::SpecialMatching::kAll
                                              : model::SpecialMatching::kUserDefined);
  if (request.add_special() && tokenizer.bos_token_id()) {
    ids.insert(ids.begin(), *tokenizer.bos_token_id());
  }
  response.mutable_token_ids()->Add(ids.begin(), ids.end());
  if (!request.include_pieces()) return absl::OkStatus();
  for (int32_t id : ids) response.add_pieces(std::string(tokenizer.token_bytes(id)));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* context,
                                                        const v1::DetokenizeRequest* request,
                                                        v1::DetokenizeResponse* response) {
  return FillLong(context, request, response);
}

absl::Status GenerationService::Fill(const v1::DetokenizeRequest& request,
                                     v1::DetokenizeResponse& response) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                              TokenIdsFromProto(request.token_ids(), "token_ids", model_));
  response.set_text(model_.tokenizer.Decode(ids, request.include_special()));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* GenerationService::RenderChat(grpc::CallbackServerContext* context,
                                                        const v1::RenderChatRequest* request,
                                                        v1::RenderChatResponse* response) {
  return FillLong(context, request, response);
}

absl::Status GenerationService::Fill(const v1::RenderChatRequest& request,
                                     v1::RenderChatResponse& response) const {
  SWITCHYARD_ASSIGN_OR_RETURN(Prompt prompt, RenderChatPrompt(request.chat(), "chat", model_));
  response.set_text(std::move(prompt.text));
  response.mutable_token_ids()->Add(prompt.token_ids.begin(), prompt.token_ids.end());
  for (Prompt::Span& span : prompt.spans) {
    v1::RenderedSpan& out = *response.add_spans();
    out.set_text(std::move(span.text));
    out.set_is_template(span.is_template);
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* GenerationService::GetModel(grpc::CallbackServerContext* context,
                                                      const v1::GetModelRequest* request,
                                                      v1::GetModelResponse* response) {
  const absl::Status status = CheckCall(*context, request->name());
  if (status.ok()) *response->mutable_model() = ToProto(model_);
  return Answer(context, status);
}

grpc::ServerUnaryReactor* GenerationService::ListModels(grpc::CallbackServerContext* context,
                                                        const v1::ListModelsRequest* request,
                                                        v1::ListModelsResponse* response) {
  absl::Status status = CheckKey(*context);
  if (status.ok() && !request->page_token().empty()) {  // one model is one page
    status =
        WithField(InvalidArgument("page_token is not from an answer of this server"), "page_token");
  }
  if (status.ok()) *response->add_models() = ToProto(model_);
  return Answer(context, status);
}

}  // namespace switchyard::coordinator
