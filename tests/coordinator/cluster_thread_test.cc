#include "coordinator/cluster_thread.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/status.h"
#include "coordinator/remote_worker.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

ClusterOptions TestOptions() {
  ClusterOptions options;
  options.configure.set_model_path("/models/a.gguf");
  options.configure.set_model_digest("sha256:a");
  options.configure.mutable_sizes()->set_num_slots(1);
  options.configure.mutable_sizes()->set_num_pages(1);
  options.configure.mutable_sizes()->set_max_context(64);
  options.configure.mutable_sizes()->set_max_step_rows(8);
  options.vocab_size = 10;
  return options;
}

// Answers every plan at once, from the cluster's thread as a stream does: as a message.
class EchoStream : public WorkerStream {
 public:
  EchoStream(ClusterThread& cluster, uint64_t lease_id) : cluster_(cluster), lease_id_(lease_id) {}
  void Send(v1::WorkerSessionResponse command) override {
    v1::WorkerSessionRequest message;
    message.set_lease_id(lease_id_);
    message.set_epoch(command.epoch());
    if (command.has_configure()) message.mutable_shard_ready();
    if (command.has_step_plan()) {
      message.mutable_step_result()->set_plan(command.step_plan().plan());
      message.mutable_step_result()->set_last_of_plan(true);
    }
    if (message.message_case() == v1::WorkerSessionRequest::MESSAGE_NOT_SET) return;
    cluster_.Post([lease_id = lease_id_, message](Cluster& cluster) {
      cluster.OnMessage(lease_id, message);
    });
  }
  void Close(const absl::Status&) override {}

 private:
  ClusterThread& cluster_;
  uint64_t lease_id_;
};

class Events : public WorkerEvents {
 public:
  void OnReady(uint64_t epoch) override {
    std::lock_guard lock(mutex_);
    epoch_ = epoch;
    changed_.notify_all();
  }
  void OnResult(const v1::StepResult& result) override {
    EXPECT_FALSE(is_detached);
    std::lock_guard lock(mutex_);
    EXPECT_EQ(result.plan(), last_plan_ + 1);
    last_plan_ = result.plan();
    changed_.notify_all();
  }
  void OnLeaving() override {}
  void OnLost(const absl::Status&, bool) override { EXPECT_FALSE(is_detached); }

  uint64_t WaitForReady() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return epoch_ != 0; });
    return epoch_;
  }
  void WaitForPlan(uint64_t plan) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return last_plan_ >= plan; });
  }

  std::atomic<bool> is_detached{false};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t epoch_ = 0;
  uint64_t last_plan_ = 0;
};

class ClusterThreadTest : public testing::Test {
 protected:
  ClusterThreadTest() : cluster_(TestOptions(), [](const std::string&, uint32_t) {}) {
    InitLogging({.threshold = LogLevel::kOff});
  }
  void Join() {
    cluster_.Post([this](Cluster& cluster) {
      v1::RegisterWorkerRequest request;
      request.set_worker_id("w");
      request.set_incarnation(1);
      request.set_protocol_version(kWorkerProtocolVersion);
      const uint64_t lease_id = cluster.Register(request)->lease_id();
      EXPECT_TRUE(
          cluster.OpenSession(lease_id, std::make_unique<EchoStream>(cluster_, lease_id)).ok());
    });
  }
  static v1::StepPlan PlanOf(uint64_t epoch, uint64_t number) {
    v1::StepPlan plan;
    plan.set_epoch(epoch);
    plan.set_plan(number);
    plan.set_run_ahead(1);
    return plan;
  }

  ClusterThread cluster_;
};

TEST_F(ClusterThreadTest, ResultsComeInTheOrderOfThePlans) {
  Events events;
  RemoteWorker worker(cluster_, WorkerCapacity{});
  worker.Start(events);
  Join();
  const uint64_t epoch = events.WaitForReady();
  for (uint64_t number = 1; number <= 1000; ++number) {
    ASSERT_TRUE(worker.Submit(PlanOf(epoch, number)).ok());
  }
  events.WaitForPlan(1000);
  EXPECT_EQ(cluster_.status().state, GroupState::kServing);
}

TEST_F(ClusterThreadTest, NothingComesOnceTheWorkerHasStopped) {
  Events events;
  Join();
  RemoteWorker worker(cluster_, WorkerCapacity{});
  worker.Start(events);
  const uint64_t epoch = events.WaitForReady();
  std::thread submitter([&] {
    for (uint64_t number = 1; number <= 1000; ++number) {
      EXPECT_TRUE(worker.Submit(PlanOf(epoch, number)).ok());
    }
  });
  events.WaitForPlan(1);
  worker.Stop();
  events.is_detached = true;
  submitter.join();
  EXPECT_EQ(cluster_.status().num_faults, 0);
}

TEST_F(ClusterThreadTest, WorkerMayComeAfterTheGroupWasLostForGood) {
  cluster_.Post([](Cluster& cluster) { cluster.Fail(DataLoss("file is damaged")); });
  class Lost : public WorkerEvents {
   public:
    void OnReady(uint64_t) override { ADD_FAILURE(); }
    void OnResult(const v1::StepResult&) override { ADD_FAILURE(); }
    void OnLeaving() override {}
    void OnLost(const absl::Status& status, bool returns) override {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_FALSE(returns);
      ++num_losses;
    }
    std::atomic<int> num_losses{0};
  } events;
  RemoteWorker worker(cluster_, WorkerCapacity{});
  worker.Start(events);
  worker.Stop();  // waits for what came before
  EXPECT_EQ(events.num_losses, 1);
}

TEST_F(ClusterThreadTest, CanBeAskedFromSeveralThreads) {
  Join();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int j = 0; j < 100; ++j) EXPECT_EQ(cluster_.status().members.size(), 1u);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace switchyard::coordinator
