// Ownership of UCX objects, and their errors as statuses.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <ucp/api/ucp.h>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "comm/ucx_api.h"

namespace switchyard::comm {

// The code that a UCX error means to a communicator, with UCX's text.
absl::Status UcxStatus(ucs_status_t status, std::string_view what);

// One UCX context with one worker: a rank's end of the network, with an endpoint for each peer.
//
// Threads: one at a time; Signal() from any.
class UcxWorker {
 public:
  // Errors: INTERNAL with UCX's text.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(int nranks);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  const std::string& address() const { return address_; }  // for peers; any bytes
  int event_fd() const { return event_fd_; }

  // Connects to the peer with this address. `on_error` is called once, from Progress(), when the
  // peer or the link to it is lost.
  absl::Status Connect(int peer, const std::string& address,
                       std::function<void(ucs_status_t)> on_error);
  ucp_ep_h endpoint(int peer) const { return endpoints_[static_cast<size_t>(peer)].handle; }

  // Moves what can be moved; true if something was.
  bool Progress() { return Ucx().ucp_worker_progress(worker_) != 0; }
  // Makes event_fd() readable.
  void Signal() { Ucx().ucp_worker_signal(worker_); }
  // Closes all endpoints, once what was sent has left, after 20 ms at most.
  void CloseEndpoints();

 private:
  struct Endpoint {
    ucp_ep_h handle = nullptr;
    std::function<void(ucs_status_t)> on_error;
    bool failed = false;
  };
  UcxWorker() = default;
  static void OnError(void* argument, ucp_ep_h endpoint, ucs_status_t status);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  int event_fd_ = -1;
  std::vector<Endpoint> endpoints_;
};

}  // namespace switchyard::comm
