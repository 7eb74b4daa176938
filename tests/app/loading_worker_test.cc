#include "app/loading_worker.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "gtest/gtest.h"

#include "base/status.h"

namespace switchyard::app {
namespace {

// Keeps what a worker told last.
class Events : public coordinator::WorkerEvents {
 public:
  void OnReady(uint64_t) override {}
  void OnResult(const switchyard::worker::v1::StepResult&) override {}
  void OnLeaving() override {}
  void OnLost(const absl::Status& status, bool returns) override {
    std::lock_guard lock(mutex_);
    status_ = status;
    returns_ = returns;
    changed_.notify_all();
  }

  absl::Status WaitForLoss() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return !status_.ok(); });
    return status_;
  }
  bool returns() {
    std::lock_guard lock(mutex_);
    return returns_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status status_;
  bool returns_ = true;
};

TEST(LoadingWorkerTest, ALoadThatFailsLosesTheWorkerForGood) {
  Events events;
  LoadingWorker worker([](const std::atomic<bool>&) { return DataLoss("damaged"); }, {});
  worker.Start(events);
  EXPECT_EQ(Message(events.WaitForLoss()), "damaged");
  EXPECT_FALSE(events.returns());
}

TEST(LoadingWorkerTest, StopEndsTheLoad) {
  Events events;
  LoadingWorker worker(
      [](const std::atomic<bool>& is_stopped) {
        while (!is_stopped) std::this_thread::yield();
        return Cancelled("stopped");
      },
      {});
  worker.Start(events);
  worker.Stop();
  EXPECT_EQ(Message(events.WaitForLoss()), "stopped");
}

TEST(LoadingWorkerTest, StopWithoutStartDoesNothing) {
  LoadingWorker worker([](const std::atomic<bool>&) { return DataLoss("damaged"); }, {});
  worker.Stop();
}

}  // namespace
}  // namespace switchyard::app
