#include "coordinator/worker_registration.h"

#include <algorithm>

#include "base/status.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

constexpr size_t kMaxWorkerIdBytes = 128;
constexpr size_t kMaxTextBytes = 1024;  // of other texts that a worker tells

bool IsPrintable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

}  // namespace

std::string OneLine(const std::string& text) {
  std::string out = text.substr(0, kMaxTextBytes);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return out;
}

std::string NameOf(const v1::RegisterWorkerRequest& info) {
  return fmt::format("worker {} (pid {})", info.worker_id(), info.pid());
}

absl::Status StatusFromWorker(int code, const std::string& message) {
  const bool is_code = code > 0 && code <= 16;  // google.rpc.Code
  return absl::Status(is_code ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kInternal,
                      OneLine(message));
}

absl::Status CheckRegistration(const v1::RegisterWorkerRequest& request,
                               const v1::Configure& configure) {
  if (request.protocol_version() != kWorkerProtocolVersion) {
    return FailedPrecondition(
        "worker speaks another protocol, use the same version of Switchyard: protocol_version, "
        "got: {}, wanted: {}",
        request.protocol_version(), kWorkerProtocolVersion);
  }
  const std::string& id = request.worker_id();
  if (id.empty() || id.size() > kMaxWorkerIdBytes || !IsPrintable(id)) {
    return InvalidArgument("worker has no valid name: worker_id, wanted: 1 to {} printable bytes",
                           kMaxWorkerIdBytes);
  }
  if (request.incarnation() == 0) return InvalidArgument("field is missing: incarnation");
  for (const std::string* text :
       {&request.host(), &request.boot_id(), &request.service_address()}) {
    if (text->size() > kMaxTextBytes) return InvalidArgument("text is too long: RegisterWorker");
  }
  const std::string& digest = configure.model_digest();
  if (!request.model_digest().empty() && request.model_digest() != digest) {
    return FailedPrecondition("worker has another model file: model_digest, got: {}, wanted: {}",
                              OneLine(request.model_digest()), digest);
  }
  if (request.model_digest().empty() && configure.model_path().empty()) {
    return FailedPrecondition("worker has no model file, and this group names none");
  }
  return absl::OkStatus();
}

}  // namespace switchyard::coordinator
