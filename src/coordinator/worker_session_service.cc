#include "coordinator/worker_session_service.h"

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include <grpcpp/alarm.h>

#include "base/grpc_status.h"
#include "base/log.h"
#include "base/status.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

// One session. The reactor's part ends with Finish(); the cluster's stream may live longer, and
// then finds nobody.
class Session : public std::enable_shared_from_this<Session> {
 public:
  // A reactor deletes itself when gRPC is done with it.
  class Reactor final
      : public grpc::ServerBidiReactor<v1::WorkerSessionRequest, v1::WorkerSessionResponse> {
   public:
    explicit Reactor(std::shared_ptr<Session> session) : session_(std::move(session)) {}
    void OnReadDone(bool ok) override { session_->OnRead(ok); }
    void OnWriteDone(bool ok) override { session_->OnWritten(ok); }
    void OnDone() override { delete this; }

   private:
    std::shared_ptr<Session> session_;  // outlives the last reaction
  };

  // The cluster's end.
  class Stream final : public WorkerStream {
   public:
    explicit Stream(std::shared_ptr<Session> session) : session_(std::move(session)) {}
    void Send(v1::WorkerSessionResponse message) override { session_->Send(std::move(message)); }
    void Close(const absl::Status& status) override { session_->Close(status); }

   private:
    std::shared_ptr<Session> session_;
  };

  explicit Session(ClusterThread& cluster) : cluster_(cluster) {}

  Reactor* Start(double hello_seconds) {
    reactor_ = new Reactor(shared_from_this());
    Reactor* const reactor = reactor_;
    const auto due = std::chrono::system_clock::now() +
                     std::chrono::milliseconds(static_cast<int64_t>(hello_seconds * 1000));
    hello_alarm_.Set(due, [weak = weak_from_this(), hello_seconds](bool rang) {
      const auto self = rang ? weak.lock() : nullptr;
      if (self == nullptr) return;
      self->cluster_.Post([self, hello_seconds](Cluster&) { self->EndUnnamed(hello_seconds); });
    });
    reactor->StartRead(&incoming_);
    return reactor;
  }

 private:
  void OnRead(bool ok) {
    if (!ok) {
      cluster_.Post([lease_id = lease_id_](Cluster& cluster) {
        cluster.OnSessionClosed(lease_id, Unavailable("its connection has ended"));
      });
      return Close(Unavailable("session was ended by the worker"));
    }
    cluster_.Post([self = shared_from_this()](Cluster& cluster) { self->Handle(cluster); });
  }

  // From within a message to the cluster.
  void EndUnnamed(double hello_seconds) {
    if (lease_id_ != 0) return;
    {
      std::lock_guard lock(mutex_);
      if (reactor_ == nullptr || is_closing_) return;
    }
    const absl::Status status =
        DeadlineExceeded("session has named no lease within {} s", hello_seconds);
    LogWarning("worker {}", Message(status));
    Close(status);
  }

  // From within a message to the cluster.
  void Handle(Cluster& cluster) {
    if (lease_id_ == 0) {
      lease_id_ = incoming_.lease_id();
      const absl::Status status =
          cluster.OpenSession(lease_id_, std::make_unique<Stream>(shared_from_this()));
      if (!status.ok()) {
        lease_id_ = 0;
        return Close(status);
      }
    }
    cluster.OnMessage(lease_id_, incoming_);
    incoming_.Clear();
    std::lock_guard lock(mutex_);
    if (reactor_ != nullptr) reactor_->StartRead(&incoming_);
  }

  void Send(v1::WorkerSessionResponse message) {
    std::lock_guard lock(mutex_);
    if (reactor_ == nullptr || is_closing_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) reactor_->StartWrite(&outgoing_.front());
  }

  void OnWritten(bool ok) {
    std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (reactor_ == nullptr) return;
    if (is_closing_) return FinishLocked();
    if (!ok) return;  // the read fails too, and tells
    if (!outgoing_.empty()) reactor_->StartWrite(&outgoing_.front());
  }

  void Close(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    if (reactor_ == nullptr || is_closing_) return;
    is_closing_ = true;
    end_ = status;
    // A write under way ends by itself, at the latest with the connection: what follows it does not
    // matter any more.
    const bool is_writing = !outgoing_.empty();
    while (outgoing_.size() > 1) outgoing_.pop_back();
    if (!is_writing) FinishLocked();
  }

  void FinishLocked() {
    Reactor* const reactor = std::exchange(reactor_, nullptr);
    reactor->Finish(ToGrpcStatus(end_));
  }

  ClusterThread& cluster_;
  v1::WorkerSessionRequest incoming_;  // of the read under way, or of Handle()
  uint64_t lease_id_ = 0;              // as incoming_; 0 = none yet
  grpc::Alarm hello_alarm_;            // for a first message that does not come

  std::mutex mutex_;                                // guards what follows
  Reactor* reactor_ = nullptr;                      // null once it has finished
  std::deque<v1::WorkerSessionResponse> outgoing_;  // the first one is being written
  bool is_closing_ = false;
  absl::Status end_;
};

}  // namespace

void WorkerSessionService::ConfigureServer(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxWorkerMessageBytes);
  builder.SetMaxSendMessageSize(kMaxWorkerMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a taken port is an error
  // Faster pings than clients get, as on the worker's side, which may ping without data, too.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 2000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
}

grpc::ServerUnaryReactor* WorkerSessionService::RegisterWorker(
    grpc::CallbackServerContext* context, const v1::RegisterWorkerRequest* request,
    v1::RegisterWorkerResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  cluster_.Post([reactor, request, response](Cluster& cluster) {
    auto lease = cluster.Register(*request);
    if (lease.ok()) *response = *std::move(lease);
    reactor->Finish(ToGrpcStatus(lease.status()));
  });
  return reactor;
}

grpc::ServerBidiReactor<v1::WorkerSessionRequest, v1::WorkerSessionResponse>*
WorkerSessionService::WorkerSession(grpc::CallbackServerContext*) {
  return std::make_shared<Session>(cluster_)->Start(hello_seconds_);
}

}  // namespace switchyard::coordinator
