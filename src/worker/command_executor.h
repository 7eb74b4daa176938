// Carries out what a coordinator commands: load, forget, compute. The worker's side of a session
// without its connection.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "switchyard/worker/v1/session.pb.h"
#include "switchyard/worker/v1/step.pb.h"
#include "switchyard/worker/v1/worker.pb.h"

#include "base/clock.h"
#include "kernels/backend.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "worker/group_links.h"
#include "worker/session_rendezvous.h"
#include "worker/worker.h"

namespace switchyard::worker {

struct CommandExecutorOptions {
  // Makes the backend that a configuration names. Must be set.
  std::function<absl::StatusOr<std::unique_ptr<kernels::Backend>>(const v1::Configure&)>
      make_backend;
  // Threads that the backend of a configuration computes with; others decide by it how they wait.
  std::function<int(const v1::Configure&)> num_threads = [](const v1::Configure& configure) {
    return std::max(1, static_cast<int>(configure.num_threads()));
  };
  std::string link_faults;        // for tests and experiments: comm/fault_injector.h
  double progress_seconds = 0.1;  // between two messages about a load
  // An abort may wait for a step for this long, and at least 20 times as long as the slowest step
  // took; before any has ended, for first_step_seconds.
  double abort_seconds = 10;
  double first_step_seconds = 600;
};

// What the executor is and does at a moment.
struct ExecutorStatus {
  v1::WorkerState state = v1::WORKER_STATE_REGISTERING;  // LOADING, READY or BUSY later
  uint64_t epoch = 0;  // 0 = in none: no session, or it has not been configured yet
  std::string device;  // in words; empty = nothing is loaded
  uint64_t weight_bytes = 0;
  uint32_t num_waiting_plans = 0;  // the running one included
  bool has_plans = false;          // of those, or of commands that wait
  uint64_t last_plan = 0;          // of the last finished step
  uint32_t last_step = 0;
  uint64_t num_dropped_plans = 0;  // since the start
};

// Commands are carried out one after the other on a thread of its own. Sessions come and go; the
// weights stay, so that the next session begins where a load would end.
//
// Call order: Create() -> { BeginSession() -> Execute() ... -> EndSession() } again and again.
// Threads:    those methods from one thread at a time; the rest from any. `send` is called from the
//             executor's threads, one call at a time, and must not block.
class CommandExecutor {
 public:
  // Takes a message; lease_id is left to whoever sends it.
  using Send = std::function<void(v1::WorkerSessionRequest)>;

  // `model_path`: the worker's own file, empty = it takes the one that the coordinator names.
  // Errors: those of the readers of the file.
  static absl::StatusOr<std::unique_ptr<CommandExecutor>> Create(const std::string& model_path,
                                                                 CommandExecutorOptions options);
  // Ends a load, and the running step's plan.
  ~CommandExecutor();

  // Digest of the worker's own file; empty = it has none.
  const std::string& own_digest() const { return own_digest_; }

  void BeginSession(Send send);

  // Queues a command. What fails is answered with a Fault; every later command is ignored then.
  void Execute(v1::WorkerSessionResponse command);

  // Forgets the commands that wait; what runs ends at its step border. Nothing is sent once it has
  // returned. A load goes on: the next session can use it.
  void EndSession();

  ExecutorStatus status() const;

  // Why the process cannot serve any session any more: its model cannot be loaded, or a step has
  // failed. OK = it can.
  absl::Status failure() const;

  // True if plans are to be aborted and the step that runs does not end.
  bool IsStuck(const Clock& clock) const;

  // Errors: kFailedPrecondition (nothing is loaded).
  absl::StatusOr<v1::Residency> Residency() const;

  // Sums since the start, without the time.
  v1::StreamTelemetryResponse Telemetry() const;

 private:
  // An open model file with what is known of it.
  struct Model {
    model::GgufFile file;
    model::ModelSpec spec;
    std::string digest;
  };
  // One entry of the queue. Without a command: the session has ended.
  struct Task {
    uint64_t session = 0;
    std::optional<v1::WorkerSessionResponse> command;
  };

  explicit CommandExecutor(CommandExecutorOptions options) : options_(std::move(options)) {}

  static absl::StatusOr<std::unique_ptr<Model>> OpenModel(const std::string& path);

  void RunTasks();
  absl::Status RunCommand(const Task& task);
  absl::Status Configure(uint64_t session, uint64_t epoch, const v1::Configure& configure);
  absl::Status ChooseModel(const v1::Configure& configure);
  absl::Status Load(uint64_t session, const v1::Configure& configure, const WorkerOptions& options);
  absl::Status OnLoadProgress(uint64_t session, int64_t done_bytes, int64_t total_bytes);
  absl::Status BeginEpoch(uint64_t session, uint64_t epoch, const v1::BeginEpoch& begin);
  // Links up with the other ranks; answers of theirs come past the queue.
  absl::Status FormGroup(uint64_t session, uint64_t epoch, const v1::FormGroup& form);
  // REQUIRES: mutex_ is held.
  void CancelFormingLocked(const absl::Status& reason);
  absl::Status SubmitPlan(const Task& task);
  // Ends all work and enters `epoch` (0: none, nothing is taken).
  absl::Status Reset(uint64_t epoch, const WorkerOptions& options);
  void OnResult(const v1::StepResult& result);
  void OnGroupLost(const absl::Status& status);
  // Sends if the session is still the present one. REQUIRES: mutex_ is held.
  void SendLocked(uint64_t session, v1::WorkerSessionRequest message);
  void Answer(uint64_t session, v1::WorkerSessionRequest message);
  void ReportFault(uint64_t session, const absl::Status& status);

  CommandExecutorOptions options_;
  std::string own_digest_;

  // Of the command thread.
  std::unique_ptr<Model> model_;
  v1::Configure configured_;  // what the weights were loaded for
  WorkerOptions worker_options_;
  std::unique_ptr<Worker> worker_;  // before model_ it goes
  double last_progress_ = 0;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool is_stopping_ = false;
  bool hands_plan_on_ = false;  // a plan is neither in tasks_ nor with the worker yet
  uint64_t session_ = 0;        // of those so far; the present one if has_session_
  bool has_session_ = false;
  bool has_fault_ = false;  // in this session
  bool is_loading_ = false;
  std::string loading_digest_;
  Send send_;
  uint64_t epoch_ = 0;
  std::shared_ptr<SessionRendezvous> rendezvous_;  // while a group is formed; the thread has it too
  uint64_t forming_epoch_ = 0;                     // of the last one
  bool is_alone_ = true;                           // the only rank
  bool leads_ = true;
  bool is_linked_ = false;       // with the others
  uint64_t result_session_ = 0;  // that the present epoch belongs to
  uint64_t acknowledged_ = 0;
  ExecutorStatus status_;
  std::set<uint64_t> plans_;  // numbers of those that are with the worker
  absl::Status failure_;
  std::optional<double> abort_since_;
  double slowest_step_seconds_ = 0;
  const Worker* residency_source_ = nullptr;  // worker_, while it is there
  v1::StreamTelemetryResponse telemetry_;

  std::thread thread_;
};

}  // namespace switchyard::worker
