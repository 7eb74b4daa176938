#include "comm/ucx_worker.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "comm/monotonic_clock.h"

namespace switchyard::comm {
namespace {

absl::Status Check(ucs_status_t status, std::string_view what) {
  return status == UCS_OK ? absl::OkStatus() : UcxStatus(status, what);
}

}  // namespace

absl::Status UcxStatus(ucs_status_t status, std::string_view what) {
  const std::string text = fmt::format("{}: {} (UCX {})", what, Ucx().ucs_status_string(status),
                                       static_cast<int>(status));
  switch (status) {
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED:
    case UCS_ERR_TIMED_OUT:
      return Unavailable("{}", text);
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
      return ResourceExhausted("{}", text);
    default:
      return Internal("{}", text);
  }
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(int nranks) {
  SWITCHYARD_RETURN_IF_ERROR(LoadUcx());
  std::unique_ptr<UcxWorker> worker(new UcxWorker);
  worker->endpoints_.resize(static_cast<size_t>(nranks));

  ucp_config_t* config = nullptr;
  SWITCHYARD_RETURN_IF_ERROR(
      Check(Ucx().ucp_config_read(nullptr, nullptr, &config), "read UCX settings"));
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.estimated_num_eps = static_cast<size_t>(nranks);
  const ucs_status_t status =
      Ucx().ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &worker->context_);
  Ucx().ucp_config_release(config);
  SWITCHYARD_RETURN_IF_ERROR(Check(status, "start UCX"));

  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  SWITCHYARD_RETURN_IF_ERROR(
      Check(Ucx().ucp_worker_create(worker->context_, &worker_params, &worker->worker_),
            "create a UCX worker"));
  SWITCHYARD_RETURN_IF_ERROR(
      Check(Ucx().ucp_worker_get_efd(worker->worker_, &worker->event_fd_), "get UCX's descriptor"));
  ucp_address_t* address = nullptr;
  size_t length = 0;
  SWITCHYARD_RETURN_IF_ERROR(Check(Ucx().ucp_worker_get_address(worker->worker_, &address, &length),
                                   "get the UCX address"));
  worker->address_.assign(reinterpret_cast<const char*>(address), length);
  Ucx().ucp_worker_release_address(worker->worker_, address);
  return worker;
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) {
    CloseEndpoints();
    Ucx().ucp_worker_destroy(worker_);
  }
  if (context_ != nullptr) Ucx().ucp_cleanup(context_);
}

void UcxWorker::OnError(void* argument, ucp_ep_h, ucs_status_t status) {
  Endpoint& endpoint = *static_cast<Endpoint*>(argument);
  if (std::exchange(endpoint.failed, true)) return;
  endpoint.on_error(status);
}

absl::Status UcxWorker::Connect(int peer, const std::string& address,
                                std::function<void(ucs_status_t)> on_error) {
  Endpoint& endpoint = endpoints_[static_cast<size_t>(peer)];
  endpoint.on_error = std::move(on_error);
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxWorker::OnError;
  params.err_handler.arg = &endpoint;
  return Check(Ucx().ucp_ep_create(worker_, &params, &endpoint.handle),
               fmt::format("connect to rank {}", peer));
}

void UcxWorker::CloseEndpoints() {
  // A flush is over when the peer has answered, which may be busy for long with something else.
  // What matters is that everything has gone to the kernel, for which this is ample.
  const int64_t end_ns = NowNs() + 20'000'000;
  const auto await = [&](void* request) {
    if (!UCS_PTR_IS_PTR(request)) return;
    while (Ucx().ucp_request_check_status(request) == UCS_INPROGRESS && NowNs() < end_ns)
      Progress();
    Ucx().ucp_request_free(request);
  };
  ucp_request_param_t param = {};
  std::vector<void*> flushing;
  for (const Endpoint& endpoint : endpoints_) {
    if (endpoint.handle != nullptr && !endpoint.failed) {
      flushing.push_back(Ucx().ucp_ep_flush_nbx(endpoint.handle, &param));
    }
  }
  std::for_each(flushing.begin(), flushing.end(), await);
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  for (Endpoint& endpoint : endpoints_) {
    if (endpoint.handle != nullptr) await(Ucx().ucp_ep_close_nbx(endpoint.handle, &param));
    endpoint.handle = nullptr;
  }
}

}  // namespace switchyard::comm
