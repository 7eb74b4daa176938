#include "coordinator/cluster_thread.h"

#include <chrono>
#include <future>
#include <utility>

#include "base/status.h"

namespace switchyard::coordinator {
namespace {

constexpr double kTicksPerHeartbeat = 5;

}  // namespace

ClusterThread::ClusterThread(const ClusterOptions& options, StaleProcess on_stale_process)
    : on_stale_process_(std::move(on_stale_process)),
      cluster_(options, MonotonicClock::Get(), *this),
      ticker_([this, seconds = options.heartbeat_seconds / kTicksPerHeartbeat] {
        RunTicks(seconds);
      }) {}

ClusterThread::~ClusterThread() {
  {
    std::unique_lock lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !is_running_; });
  }
  ticker_.join();
  inbox_.clear();
  events_ = nullptr;
  cluster_.Stop(Unavailable("the coordinator ends"));
}

void ClusterThread::RunTicks(double seconds) {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return is_stopping_; });
      if (is_stopping_) return;
    }
    Post([](Cluster& cluster) { cluster.Tick(); });
  }
}

void ClusterThread::Post(absl::AnyInvocable<void(Cluster&)> what) {
  std::unique_lock lock(mutex_);
  if (is_stopping_) return;
  inbox_.push_back(std::move(what));
  if (is_running_) return;
  is_running_ = true;
  while (!inbox_.empty() && !is_stopping_) {
    batch_.swap(inbox_);
    lock.unlock();
    for (auto& next : batch_) next(cluster_);
    batch_.clear();
    lock.lock();
  }
  is_running_ = false;
  if (is_stopping_) changed_.notify_all();
}

void ClusterThread::Call(absl::AnyInvocable<void(Cluster&)> what) {
  // Fulfilled by its destruction too, should the thread end before.
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> future = done->get_future();
  Post([done = std::move(done), what = std::move(what)](Cluster& cluster) mutable {
    what(cluster);
    done->set_value();
  });
  future.wait();
}

void ClusterThread::Attach(WorkerEvents& events) {
  Post([this, &events](Cluster&) {
    events_ = &events;
    if (ready_epoch_ != 0) events.OnReady(ready_epoch_);
    if (is_leaving_) events.OnLeaving();
    if (!end_.ok()) events.OnLost(end_, /*returns=*/false);
  });
}

void ClusterThread::Detach() {
  Call([this](Cluster&) { events_ = nullptr; });
}

ClusterStatus ClusterThread::status() {
  ClusterStatus status;
  Call([&status](Cluster& cluster) { status = cluster.status(); });
  return status;
}

// ---- events -------------------------------------------------------------------------------------

void ClusterThread::OnReady(uint64_t epoch) {
  ready_epoch_ = epoch;
  if (events_ != nullptr) events_->OnReady(epoch);
}

void ClusterThread::OnResult(const switchyard::worker::v1::StepResult& result) {
  if (events_ != nullptr) events_->OnResult(result);
}

void ClusterThread::OnLeaving() {
  is_leaving_ = true;
  if (events_ != nullptr) events_->OnLeaving();
}

void ClusterThread::OnLost(const absl::Status& status, bool returns) {
  ready_epoch_ = 0;
  is_leaving_ = false;
  if (!returns) end_ = status;
  if (events_ != nullptr) events_->OnLost(status, returns);
}

void ClusterThread::OnStaleProcess(const std::string& worker_id, uint32_t pid) {
  on_stale_process_(worker_id, pid);
}

}  // namespace switchyard::coordinator
