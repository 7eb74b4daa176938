// Ranks as forked processes, which a test may kill, and their rendezvous.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "absl/time/clock.h"
#include <gtest/gtest.h>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/shared_futex.h"

namespace switchyard::comm {

// Memory that forked processes share, with their rendezvous and whatever a test counts.
class ProcessGroup {
 public:
  explicit ProcessGroup(int nranks) : nranks_(nranks) {
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    shared_ = new (memory) Shared;
  }
  ~ProcessGroup() { munmap(shared_, sizeof(Shared)); }

  // Runs `body` as rank `rank` in a new process, which ends with status 0 if the body has no
  // failures. Returns its id. REQUIRES: this process has one thread.
  pid_t Start(int rank, const std::function<void(int)>& body) {
    fflush(nullptr);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    body(rank);
    fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  std::vector<pid_t> StartAll(const std::function<void(int)>& body) {
    std::vector<pid_t> pids;
    for (int rank = 0; rank < nranks_; ++rank) pids.push_back(Start(rank, body));
    return pids;
  }

  // A number that processes count up, and a way to wait for it.
  void Count() {
    shared_->count.fetch_add(1);
    SharedFutexWakeAll(shared_->count);
  }
  void AwaitCount(uint32_t least) {
    for (uint32_t count = shared_->count.load(); count < least; count = shared_->count.load()) {
      SharedFutexWait(shared_->count, count, 1'000'000'000);
    }
  }

  // A number that one process leaves for others, before it counts.
  void PutNumber(int number) { shared_->number.store(number); }
  int number() const { return shared_->number.load(); }

  // The rendezvous of a rank. Exchanges are matched by their order.
  class Meeting final : public Rendezvous {
   public:
    Meeting(ProcessGroup& group, int rank) : group_(group), rank_(rank) {}
    absl::StatusOr<std::vector<std::string>> Exchange(std::string_view key, const std::string& mine,
                                                      absl::Time deadline) override {
      auto& phase = group_.shared_->phases[num_exchanges_++];
      auto& blob = phase.blobs[rank_];
      if (mine.size() > sizeof(blob.bytes)) return Internal("blob of {} bytes", mine.size());
      std::memcpy(blob.bytes, mine.data(), mine.size());
      blob.size = mine.size();
      phase.num_come.fetch_add(1);
      SharedFutexWakeAll(phase.num_come);
      const uint32_t nranks = static_cast<uint32_t>(group_.nranks_);
      for (uint32_t come = phase.num_come.load(); come < nranks; come = phase.num_come.load()) {
        if (absl::Now() > deadline) return DeadlineExceeded("{}: {} came", key, come);
        SharedFutexWait(phase.num_come, come, 100'000'000);
      }
      std::vector<std::string> blobs;
      for (int rank = 0; rank < group_.nranks_; ++rank) {
        blobs.emplace_back(phase.blobs[rank].bytes, phase.blobs[rank].size);
      }
      return blobs;
    }

   private:
    ProcessGroup& group_;
    const int rank_;
    int num_exchanges_ = 0;
  };

 private:
  struct Phase {
    std::atomic<uint32_t> num_come{0};
    struct {
      size_t size = 0;
      char bytes[4096];
    } blobs[8];
  };
  struct Shared {
    std::atomic<uint32_t> count{0};
    std::atomic<int> number{0};
    Phase phases[8];
  };

  const int nranks_;
  Shared* shared_;
};

// Waits for the end of a process; 0 if it found no failures, the signal that ended it as a negative
// number.
inline int WaitForEnd(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace switchyard::comm
