// An engine over a group of worker processes, in the test's own process: the test sees its events
// and can harm the processes.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "app/loaded_model.h"
#include "app/worker_group.h"
#include "coordinator/engine.h"

namespace switchyard::testing {

// What a generation came to.
struct Generated {
  std::string text;
  std::vector<int32_t> token_ids;
  coordinator::GenerationEvent last;

  bool is_finished() const { return last.finished; }
};

// Every failure aborts the test program, here and below.
std::unique_ptr<app::LoadedModel> OpenTestModel(const std::string& path);

// Requests that differ in length, sampling and text; the same for the same number.
coordinator::GenerationRequest TestRequest(const app::LoadedModel& model, int number);

// The texts of requests 0 to count - 1 in one process, undisturbed.
std::vector<Generated> UndisturbedTexts(const app::LoadedModel& model, int count);

class GroupHarness {
 public:
  struct Options {
    int num_workers = 1;
    std::string mode{};  // and how it divides the model, as the flags do
    std::string partition{};
    std::string dense{};
    std::string listen_address{};  // empty: starts the workers, else they come from outside
    double replan_seconds = 0;     // 0 = never
    coordinator::OnWorkerLoss on_worker_loss = coordinator::OnWorkerLoss::kReplay;
  };
  GroupHarness(const app::LoadedModel& model, const Options& options);
  ~GroupHarness();

  app::WorkerGroup& group() { return *group_; }
  coordinator::Engine& engine() { return *engine_; }
  // Of the worker in this place, or of the last one; 0 = there was none yet.
  pid_t worker_pid(size_t place = 0);
  switchyard::worker::v1::WorkerState worker_state(size_t place = 0);

  // Waits until the engine is in this state for the `count`-th time; false after 60 s.
  bool WaitForState(coordinator::EngineState state, int count = 1);
  // When the engine came into the state for the `count`-th time, monotonic seconds.
  double TimeOfState(coordinator::EngineState state, int count = 1);
  // Asks the group a few times per millisecond until `condition` holds; false after 60 s.
  bool WaitUntil(const std::function<bool()>& condition);

  // Starts a request; `on_event` is called on the engine's thread before the event counts.
  int Start(
      coordinator::GenerationRequest request,
      std::function<void(const Generated&, const coordinator::GenerationEvent&)> on_event =
          [](const auto&, const auto&) {});
  Generated Wait(int number);

 private:
  std::unique_ptr<app::WorkerGroup> group_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::pair<coordinator::EngineState, double>> states_;
  std::vector<std::unique_ptr<Generated>> generated_;
  std::unique_ptr<coordinator::Engine> engine_;  // first to go
};

}  // namespace switchyard::testing
