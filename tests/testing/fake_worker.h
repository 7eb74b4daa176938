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
    int fail_at_step = -1;  // report an error in this step
    int hold_at_step = -1;  // wait for Release() before this step
  };

  explicit FakeWorker(const Options& options);
  ~FakeWorker() override;

  coordinator::WorkerCapacity capacity() const override { return options_.capacity; }
  void Start(ResultCallback callback) override;
  absl::Status Submit(switchyard::worker::v1::StepPlan plan) override;
  void Stop() override;

  // What NextToken() gives for a sequence; tests compute the expected text with it.
  static int32_t NextToken(const Options& options, const std::vector<int32_t>& tokens);

  // Lets the step that Options::hold_at_step names go on.
  void Release();

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
  void Apply(const switchyard::worker::v1::StepPlan& plan);
  void RunStep(const switchyard::worker::v1::StepPlan& plan, int step,
               switchyard::worker::v1::StepResult& result);
  void Compute(Slot& slot, int32_t token);
  void Sample(uint32_t index, Slot& slot, switchyard::worker::v1::StepResult& result);
  bool AnySlotGoesOn(const switchyard::worker::v1::StepPlan& plan) const;
  void Violate(std::string text);

  Options options_;
  ResultCallback callback_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<switchyard::worker::v1::StepPlan> plans_;
  bool stopping_ = false;
  bool is_released_ = false;
  std::vector<std::string> violations_;
  int64_t num_computed_rows_ = 0;
  int num_saves_ = 0;
  int num_steps_ = 0;

  // The step thread's own.
  std::vector<Slot> slots_;
  std::map<uint32_t, Checkpoint> checkpoints_;
  std::vector<std::vector<int32_t>> page_tokens_;
  std::thread thread_;
};

}  // namespace switchyard::testing
