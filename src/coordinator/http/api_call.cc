#include "coordinator/http/api_call.h"

#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace switchyard::coordinator::http {

void ApiCall::Send(HttpResponse response) const {
  LogDebug("{} {} {}: {}", request_id, request.method, request.path(), response.status);
  for (HttpHeader& header : headers()) response.headers.push_back(std::move(header));
  responder->Send(std::move(response));
}

void ApiCall::Send(const Json& body) const { Send(HttpResponse{.body = JsonText(body)}); }

void ApiCall::Refuse(const absl::Status& status, ServingMetrics& metrics) const {
  metrics.OnError(status);
  Fail(status);
}

void ApiCall::Fail(const absl::Status& status) const {
  LogIfInternal(status);
  Send(ErrorResponse(ToApiError(status), shape));
}

void ApiCall::LogIfInternal(const absl::Status& status) const {
  if (ToApiError(status).status != 500) return;
  LogError("{} {} {} failed: {}", request_id, request.method, request.path(), Message(status));
}

}  // namespace switchyard::coordinator::http
