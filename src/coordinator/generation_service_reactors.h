// The two kinds of calls that generate, from their first event to their last.
//
// A reactor deletes itself in OnDone(), which may come as soon as Finish() was called. So whoever
// is about to act decides under the lock that it is the one, and touches nothing afterwards.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "switchyard/generation/v1/generation.pb.h"

#include "coordinator/generation_conversion.h"
#include "coordinator/generation_service.h"
#include "coordinator/request_gate.h"

namespace switchyard::coordinator {

// The generation of a call, which may be cancelled before it has begun.
//
// Threads: any; Take() under the reactor's lock.
class CallGeneration {
 public:
  explicit CallGeneration(const ServedModel& model) : model_(model) {}

  // Starts it. Events are there for Take() only once this has returned.
  absl::Status Start(RequestGate& gate, PreparedCall call, std::function<void()> on_available);

  // With an error, the generation fails with it.
  void Cancel(const absl::Status& why);

  // What came since the last call as the client sees it. `end`: set with the last event, the
  // status of the call.
  std::vector<generation::v1::StreamGenerateResponse> Take(std::optional<absl::Status>& end);

 private:
  absl::Status EndOf(const GenerationEvent& event) const;

  const ServedModel& model_;
  bool limit_is_deadline_ = false;
  std::optional<EventConverter> converter_;

  std::mutex mutex_;
  bool is_cancelled_ = false;
  absl::Status why_;
  std::unique_ptr<GenerationStream> stream_;  // last: its end waits for calls that are under way
};

// A call that gets the whole answer.
class GenerateReactor : public grpc::ServerUnaryReactor {
 public:
  GenerateReactor(const ServedModel& model, generation::v1::GenerateResponse* response)
      : response_(response), generation_(model) {}

  // The last thing that its maker does with it.
  void Begin(RequestGate& gate, absl::StatusOr<PreparedCall> call);

  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  void Pump(bool begins);

  generation::v1::GenerateResponse* const response_;
  std::mutex mutex_;
  bool has_begun_ = false;
  bool is_finished_ = false;
  CallGeneration generation_;  // last, as above
};

// A call that gets the answer in pieces. One write is in flight; what comes meanwhile waits in the
// stream and is merged.
class StreamGenerateReactor
    : public grpc::ServerWriteReactor<generation::v1::StreamGenerateResponse> {
 public:
  StreamGenerateReactor(const ServedModel& model, grpc::CallbackServerContext* context,
                        double stall_timeout_seconds);
  ~StreamGenerateReactor() override;

  // The last thing that its maker does with it.
  void Begin(RequestGate& gate, absl::StatusOr<PreparedCall> call);

  void OnCancel() override;
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  // What an alarm needs to find the reactor, or to find that it is gone.
  struct Watch {
    std::mutex mutex;
    StreamGenerateReactor* reactor = nullptr;
    std::unique_ptr<grpc::Alarm> alarm;
  };

  void Pump(bool begins);
  void SetAlarm(double seconds);
  // Cancels the call if a write is in flight for too long; else looks again later.
  void CheckForStall();

  grpc::CallbackServerContext* const context_;
  const double stall_timeout_seconds_;
  const std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();

  std::mutex mutex_;
  bool has_begun_ = false;
  bool is_writing_ = false;
  bool is_broken_ = false;  // a write failed: there is nobody to write to
  bool is_finished_ = false;
  double write_seconds_ = 0;  // when the write in flight began
  generation::v1::StreamGenerateResponse in_flight_;
  std::deque<generation::v1::StreamGenerateResponse> queue_;  // of one merged event
  std::optional<absl::Status> end_;
  CallGeneration generation_;  // last, as above
};

}  // namespace switchyard::coordinator
