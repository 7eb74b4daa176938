// Between the messages of generation.proto and the coordinator's own types.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "switchyard/generation/v1/generation.pb.h"

#include "coordinator/generator.h"
#include "coordinator/prompt.h"
#include "coordinator/request_gate.h"
#include "coordinator/served_model.h"

namespace switchyard::coordinator {

// A request as the gate takes it.
struct ConvertedRequest {
  RequestInfo info;
  GenerationRequest generation;
};

// Converts what a client sent; the prompt is rendered and encoded.
// Errors: kInvalidArgument with the field's path from the request on ("spec.stop.max_tokens"),
//         kUnimplemented (what this server does not support), kNotFound (another model).
absl::StatusOr<ConvertedRequest> FromProto(const generation::v1::GenerationSpec& spec,
                                           const ServedModel& model);

// Checks the model's name in a request; empty is the only one.
// Errors: kNotFound.
absl::Status CheckModelName(std::string_view name, const ServedModel& model);

// Renders a conversation as FromProto() does. `field` is its path, for errors.
absl::StatusOr<Prompt> RenderChatPrompt(const generation::v1::ChatPrompt& chat,
                                        std::string_view field, const ServedModel& model);

// Token ids of a request, checked against the vocabulary.
absl::StatusOr<std::vector<int32_t>> TokenIdsFromProto(
    const google::protobuf::RepeatedField<uint32_t>& ids, std::string_view field,
    const ServedModel& model);

// Makes the events that a client sees out of those of the engine, for one request.
class EventConverter {
 public:
  // `model` must outlive it.
  EventConverter(const ServedModel& model, std::string request_id,
                 const generation::v1::OutputOptions& options)
      : model_(model), request_id_(std::move(request_id)), options_(options) {}

  // What `event`, merged or not, is for the client: nothing, or up to four events. An event that
  // failed gives no `finished`: its status is the answer.
  std::vector<generation::v1::StreamGenerateResponse> Convert(const GenerationEvent& event);

 private:
  bool WantsProgress(const GenerationEvent& event) const;
  bool WantsDelta(const GenerationEvent& event) const;
  void FillDelta(const GenerationEvent& event, generation::v1::Delta& delta) const;

  const ServedModel& model_;
  const std::string request_id_;
  const generation::v1::OutputOptions options_;
  int64_t num_reported_ = -1;  // prefilled tokens in the last progress event
};

// Appends an event to a whole answer.
void AppendTo(generation::v1::GenerateResponse& answer,
              generation::v1::StreamGenerateResponse event);

generation::v1::Model ToProto(const ServedModel& model);

// A status as clients may see it: fields by their path in the request; for a bug of the server no
// details, which may hold paths or addresses, but a line in the log.
absl::Status ForClients(const absl::Status& status);

}  // namespace switchyard::coordinator
