// A server: engine, worker or group of workers, and the listeners in front of them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "app/listen_address.h"
#include "app/loaded_model.h"
#include "app/model_options.h"
#include "coordinator/engine.h"
#include "coordinator/request_gate.h"

namespace switchyard::app {

struct ServingOptions {
  ModelOptions model;
  std::string model_name;  // "" = the file's name without its ending
  ListenAddress http{"127.0.0.1", 8080};
  ListenAddress grpc{"127.0.0.1", 50051};
  std::string api_key_file;  // "" = no key is asked for
  bool allows_no_auth = false;
  bool has_slots_route = true;
  bool has_reflection = true;
  int max_waiting = 256;
  int64_t stream_buffer_bytes = int64_t{1} << 20;
  coordinator::OnWorkerLoss on_worker_loss = coordinator::OnWorkerLoss::kReplay;
  std::string plan_goal;     // the planner chooses workers and mode; empty = the model's options
  std::string plan_profile;  // of the machine; empty = what `switchyard probe` has stored
  bool expects_outside_workers = false;  // instead of starting model.num_workers
  // Without a worker, until the others go on without it; 0 = they wait.
  double degrade_seconds = 0;
  ListenAddress worker_listen{"127.0.0.1", 0};
  bool with_vllm_names = false;      // of metrics
  bool with_llamacpp_names = false;  // of metrics
};

// Threads: one at a time.
class Serving {
 public:
  // Binds and answers at once; the model is loaded meanwhile. `on_change` is called from other
  // threads when state() may have changed; it must not block.
  //
  // Errors: kInvalidArgument (an address, or one that others reach without a key; exit code of
  // usage), those of OpenModel() and of the listeners.
  static absl::StatusOr<std::unique_ptr<Serving>> Start(const ServingOptions& options,
                                                        std::function<void()> on_change);
  // Cancels what runs.
  ~Serving();

  // Where clients and workers find it: "http://127.0.0.1:8080", "127.0.0.1:50051"; the last is ""
  // unless workers from outside are expected.
  std::string http_url() const;
  std::string grpc_address() const;
  std::string worker_address() const;

  coordinator::GateState state() const;

  // Why state() is kFailed; OK otherwise.
  absl::Status failure() const;

  // "switchyard-demo (qwen4exp, 3.4 MB)".
  std::string ModelText() const;

  // Reads the key file again; on an error the former keys stay.
  absl::Status ReloadKeys();

  // Refuses what is new, lets running requests end for up to `seconds`, then cancels the rest.
  // Returns whether all came to their own end.
  bool Drain(double seconds);

 private:
  class Impl;
  explicit Serving(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::app
