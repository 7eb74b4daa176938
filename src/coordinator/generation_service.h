// gRPC face of generating: translates, decides nothing.
#pragma once

#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "switchyard/generation/v1/generation.grpc.pb.h"

#include "coordinator/api_keys.h"
#include "coordinator/byte_budget.h"
#include "coordinator/generation_conversion.h"
#include "coordinator/request_gate.h"
#include "coordinator/served_model.h"

namespace switchyard::coordinator {

struct GenerationServiceOptions {
  // A client that does not read for this long is cancelled.
  double client_stall_timeout_seconds = 30;
  // Longest time that a call may take; shorter deadlines of calls hold as they are.
  double max_call_seconds = 6 * 3600;
  // Of one stream, of events that wait for the client.
  size_t max_buffered_bytes = size_t{1} << 20;
  // Of all requests that are not converted yet; what would go over it is refused.
  size_t max_total_request_bytes = size_t{256} << 20;
  // Runs work that computes for long, such as rendering and tokenising a prompt, on another thread.
  // Must run all that it gets, and until the service's server has stopped. Empty = on gRPC's.
  std::function<void(std::function<void()>)> run_in_background{};
  const ApiKeys* api_keys = nullptr;  // null = no key is wanted; must outlive the service
};

// A request and how its call limits it.
struct PreparedCall {
  ConvertedRequest request;
  generation::v1::OutputOptions output;
  bool limit_is_deadline =
      false;  // the time limit comes from the call, not from the client's field
};

// Threads: gRPC's own, and those of GenerationServiceOptions::run_in_background; events come on the
//          engine's.
class GenerationService final : public generation::v1::GenerationService::CallbackService {
 public:
  // `gate` and what `model` refers to must outlive the service, and the service the server.
  GenerationService(RequestGate& gate, const ServedModel& model,
                    const GenerationServiceOptions& options)
      : gate_(gate), model_(model), options_(options), requests_(options.max_total_request_bytes) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const generation::v1::GenerateRequest* request,
                                     generation::v1::GenerateResponse* response) override;
  grpc::ServerWriteReactor<generation::v1::StreamGenerateResponse>* StreamGenerate(
      grpc::CallbackServerContext* context,
      const generation::v1::StreamGenerateRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const generation::v1::TokenizeRequest* request,
                                     generation::v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const generation::v1::DetokenizeRequest* request,
                                       generation::v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* RenderChat(grpc::CallbackServerContext* context,
                                       const generation::v1::RenderChatRequest* request,
                                       generation::v1::RenderChatResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const generation::v1::GetModelRequest* request,
                                     generation::v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const generation::v1::ListModelsRequest* request,
                                       generation::v1::ListModelsResponse* response) override;

 private:
  absl::Status CheckKey(const grpc::CallbackServerContext& context) const;
  // What every call about the model checks first.
  absl::Status CheckCall(const grpc::CallbackServerContext& context, const std::string& name) const;
  // Converts a request, which may take long.
  absl::StatusOr<PreparedCall> Prepare(const grpc::CallbackServerContext& context,
                                       const generation::v1::GenerationSpec& spec,
                                       double arrival_seconds) const;
  // Has `run` called with OK where it may take long, or with an error at once if there is no room
  // for the request.
  void RunLong(const google::protobuf::Message& request,
               std::function<void(const absl::Status&)> run);
  // Prepares a call and has its reactor begin with it.
  template <typename Reactor, typename Request>
  void BeginLong(const grpc::CallbackServerContext& context, const Request& request,
                 Reactor& reactor);
  // Answers a call by Fill().
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* FillLong(grpc::CallbackServerContext* context, const Request* request,
                                     Response* response);
  grpc::Status EndOf(const absl::Status& status);
  // Ends a call that needs no more than its answer.
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                   const absl::Status& status);

  absl::Status Fill(const generation::v1::TokenizeRequest& request,
                    generation::v1::TokenizeResponse& response) const;
  absl::Status Fill(const generation::v1::DetokenizeRequest& request,
                    generation::v1::DetokenizeResponse& response) const;
  absl::Status Fill(const generation::v1::RenderChatRequest& request,
                    generation::v1::RenderChatResponse& response) const;

  RequestGate& gate_;
  const ServedModel& model_;
  const GenerationServiceOptions options_;
  ByteBudget requests_;
};

}  // namespace switchyard::coordinator
