// A worker without a model: keeps the books of slots, pages and checkpoints as a real one must, and
// "samples" a token that is a function of all tokens of the sequence.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/worker_handle.h"

namespace switchyard::testing {

// Checks what the engine sends: every page of a sequence must hold exactly its tokens whenever it
// is read, a restored checkpoint must be of the same tokens, chunks must follow each other. What is
// wrong is collected in violations().
class FakeWorker : public coordinator::WorkerHandle {
 public:
  struct Options {
    coordinator::WorkerCapacity capacity;
    // The sampled token is `first_token + hash % num_tokens`; one in `eos_period` is `eos` instead
    // (0 = never).
    int32_t first_token = 0;
    int32_t num_tokens = 26;
    int32_t eos = -1;
    int eos_period = 0;
    int fail_at_step = -1;  // be lost for good in this step
    int hold_at_step = -1;  // wait for Release() before this step
    // Sequences with this token give none: their slot fails. -1 = never.
    int32_t failing_token = -1;
    // Steps, counted from the start of the worker, in which the state is lost; true: their result
    // still arrives, false: it is lost with them.
    std::map<int64_t, bool> losses{};
    bool ready_at_start = true;     // else Return() makes it ready
    bool returns_by_itself = true;  // after a loss; else Return() does
  };

  explicit FakeWorker(const Options& options);
  ~FakeWorker() override;

  coordinator::WorkerCapacity capacity() const override { return options_.capacity; }
  void Start(coordinator::WorkerEvents& events) override;
  absl::Status Submit(switchyard::worker::v1::StepPlan plan) override;
  void Stop() override;

  // What every step says it cost; powers of two, so that sums are exact.
  static constexpr double kStepSeconds = 0.5;
  static constexpr double kIdleSeconds = 0.125;   // before the first step of a plan
  static constexpr uint64_t kExpertBytes = 1000;  // half of the time
  static constexpr uint64_t kHeadBytes = 100;     // a quarter of the time

  // What NextToken() gives for a sequence; tests compute the expected text with it.
  static int32_t NextToken(const Options& options, const std::vector<int32_t>& tokens);

  // Lets the step that Options::hold_at_step names go on.
  void Release();

  // Loses the state as soon as the running step has ended, or at once when there is none.
  void Lose();

  // Says that it leaves, before its next step or plan; for the rest it goes on.
  void Leave();

  // Makes a worker that is not ready come back, with the next epoch.
  void Return();

  std::vector<std::string> violations() const;
  int64_t num_computed_rows() const;
  int num_saves() const;

 private:
  struct Slot {
    bool in_use = false;
    uint64_t incarnation = 0;
    switchyard::worker::v1::SlotStart start;
    std::vector<int32_t> tokens;
    std::vector<uint32_t> pages;
    uint32_t num_sampled = 0;
    bool generating = false;
    int32_t last_sampled = 0;
  };
  struct Checkpoint {
    std::vector<int32_t> tokens;
  };

  void Run();
  // Waits until there is something to do. False: the worker stops.
  bool TakePlan(switchyard::worker::v1::StepPlan& plan);
  // Runs a plan to its end. False: the worker failed for good.
  bool RunPlan(const switchyard::worker::v1::StepPlan& plan);
  void LoseState();
  // Tells of it if Leave() was called. `lock` is held before and after, not meanwhile.
  void TellLeaving(std::unique_lock<std::mutex>& lock);
  static void AddCosts(int step, switchyard::worker::v1::StepResult& result);
  void BecomeReady();
  void Apply(const switchyard::worker::v1::StepPlan& plan);
  void RunStep(const switchyard::worker::v1::StepPlan& plan, int step,
               switchyard::worker::v1::StepResult& result);
  void Compute(Slot& slot, int32_t token);
  void Sample(uint32_t index, Slot& slot, switchyard::worker::v1::StepResult& result);
  bool AnySlotGoesOn(const switchyard::worker::v1::StepPlan& plan) const;
  void Violate(std::string text);

  Options options_;
  coordinator::WorkerEvents* events_ = nullptr;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<switchyard::worker::v1::StepPlan> plans_;
  bool stopping_ = false;
  bool is_released_ = false;
  bool is_ready_ = false;
  bool lose_asked_ = false;
  bool leave_asked_ = false;
  bool return_asked_ = false;
  uint64_t epoch_ = 0;
  std::vector<std::string> violations_;
  int64_t num_computed_rows_ = 0;
  int num_saves_ = 0;
  int64_t num_steps_ = 0;

  // The step thread's own.
  std::vector<Slot> slots_;
  std::map<uint32_t, Checkpoint> checkpoints_;
  std::vector<std::vector<int32_t>> page_tokens_;
  std::thread thread_;
};

}  // namespace switchyard::testing
