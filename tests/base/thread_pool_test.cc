#include "base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <sched.h>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/cpu_topology.h"

namespace switchyard {
namespace {

ThreadPool::Options WithThreads(int num_threads) { return {.num_threads = num_threads}; }

// All threads work, whatever the machine: tasks may wait for each other.
ThreadPool::Options SideBySide(int num_threads) {
  return {.num_threads = num_threads,
          .num_running = num_threads,
          .late_after = std::chrono::nanoseconds(0)};
}

std::vector<CpuCore> CoresOf(const std::vector<int>& cpus) {
  std::vector<CpuCore> cores;
  for (int cpu : cpus) cores.push_back({.cpu = cpu});
  return cores;
}

class ThreadPoolSizeTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolSizeTest, RunsEachTaskOnce) {
  const int num_threads = GetParam();
  ThreadPool pool(WithThreads(num_threads));
  EXPECT_EQ(pool.num_threads(), num_threads);
  // Around the number of threads and well above; several stages, so that workers come late.
  for (int64_t num_tasks : {0, 1, 2, 3, 7, 8, 9, 100, 1000}) {
    for (int round = 0; round < 20; ++round) {
      // Plain ints: a task that ran twice or a missing hand-over is a data race as well.
      std::vector<int> num_runs(num_tasks, 0);
      std::vector<int> threads(num_tasks, -1);
      pool.ParallelFor(num_tasks, [&](int64_t task, int thread) {
        ++num_runs[task];
        threads[task] = thread;
      });
      for (int64_t task = 0; task < num_tasks; ++task) {
        ASSERT_EQ(num_runs[task], 1) << "task " << task << " of " << num_tasks;
        ASSERT_GE(threads[task], 0);
        ASSERT_LT(threads[task], num_threads);
      }
    }
  }
}

TEST_P(ThreadPoolSizeTest, NoTwoTasksShareAThreadIndexAtATime) {
  const int num_threads = GetParam();
  ThreadPool pool(WithThreads(num_threads));
  std::vector<std::atomic<int>> busy(num_threads);
  std::atomic<int> num_overlaps{0};
  for (int round = 0; round < 50; ++round) {
    pool.ParallelFor(64, [&](int64_t, int thread) {
      if (busy[thread].fetch_add(1) != 0) ++num_overlaps;
      busy[thread].fetch_sub(1);
    });
  }
  EXPECT_EQ(num_overlaps, 0);
}

// A stage sees all that the stage before wrote, whichever threads ran the two.
TEST_P(ThreadPoolSizeTest, StagesAreOrdered) {
  ThreadPool pool(WithThreads(GetParam()));
  constexpr int64_t kNumTasks = 33;
  std::vector<int64_t> values(kNumTasks, 0);
  std::vector<int64_t> next(kNumTasks, 0);
  constexpr int kNumStages = 300;
  for (int stage = 0; stage < kNumStages; ++stage) {
    pool.ParallelFor(kNumTasks, [&](int64_t task, int) {
      next[task] = values[(task + 1) % kNumTasks] + 1;  // reads what a neighbour wrote
    });
    values.swap(next);
  }
  for (int64_t value : values) EXPECT_EQ(value, kNumStages);
}

// Threads of three domains in two sockets, all on the CPUs that there are: counters of two levels,
// ranges taken across the borders.
TEST_P(ThreadPoolSizeTest, RunsEachTaskOnceAcrossDomains) {
  const int num_threads = GetParam();
  const std::vector<int> allowed = AllowedCpus();
  ThreadPool::Options options = SideBySide(num_threads);
  for (int thread = 0; thread < num_threads; ++thread) {
    options.cores.push_back({.cpu = allowed[thread % allowed.size()],
                             .l3_domain = thread % 3,
                             .package = thread % 3 / 2,
                             .numa_node = thread % 3});
  }
  ThreadPool pool(options);
  for (int64_t num_tasks : {1, 2, 3, 7, 100}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<int> num_runs(num_tasks, 0);
      pool.ParallelFor(num_tasks, [&](int64_t task, int) { ++num_runs[task]; });
      ASSERT_EQ(num_runs, std::vector<int>(num_tasks, 1));
    }
  }
}

// The way in which callers add up: fixed blocks, then the sums of blocks in order. Floats, so that
// another order shows.
TEST_P(ThreadPoolSizeTest, NumberOfThreadsDoesNotChangeASum) {
  constexpr int64_t kNumBlocks = 64, kBlock = 1000;
  const auto sum = [&](ThreadPool& pool) {
    std::vector<float> sums(kNumBlocks, 0);
    pool.ParallelFor(kNumBlocks, [&](int64_t block, int) {
      for (int64_t i = 0; i < kBlock; ++i) {
        sums[block] += 1.0f / static_cast<float>(block * kBlock + i + 1);
      }
    });
    return std::accumulate(sums.begin(), sums.end(), 0.0f);
  };
  ThreadPool one(WithThreads(1));
  ThreadPool pool(SideBySide(GetParam()));
  const float expected = sum(one);
  for (int round = 0; round < 20; ++round) EXPECT_EQ(sum(pool), expected);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolSizeTest, testing::Values(1, 2, 3, 8));

TEST(ThreadPoolTest, OneThreadRunsInlineInOrder) {
  ThreadPool pool(WithThreads(1));
  const std::thread::id caller = std::this_thread::get_id();
  std::vector<int64_t> order;
  pool.ParallelFor(5, [&](int64_t task, int thread) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(thread, 0);
    order.push_back(task);
  });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.num_barriers(), 0);
}

TEST(ThreadPoolTest, CountsStagesOfSeveralThreadsOnly) {
  ThreadPool pool(WithThreads(2));
  const auto nothing = [](int64_t, int) {};
  pool.ParallelFor(0, nothing);
  pool.ParallelFor(1, nothing);  // one task needs no second thread
  EXPECT_EQ(pool.num_barriers(), 0);
  pool.ParallelFor(2, nothing);
  pool.ParallelFor(100, nothing);
  EXPECT_EQ(pool.num_barriers(), 2);
}

// Task 0 waits until all others have run. Tasks 1 to 4 lie behind it in the same thread's range,
// so they can only run if another thread takes them.
TEST(ThreadPoolTest, IdleThreadsTakeTheRangeOfABusyOne) {
  ThreadPool pool(SideBySide(2));
  constexpr int64_t kNumTasks = 10;
  std::atomic<int64_t> num_done{0};
  std::vector<int> threads(kNumTasks, -1);
  pool.ParallelFor(kNumTasks, [&](int64_t task, int thread) {
    threads[task] = thread;
    if (task == 0) {
      while (num_done.load() < kNumTasks - 1) std::this_thread::yield();
    } else {
      ++num_done;
    }
  });
  for (int64_t task = 1; task < kNumTasks / 2; ++task) EXPECT_NE(threads[task], threads[0]);
}

// Both tasks wait for each other: done only if two threads run at the same time.
TEST(ThreadPoolTest, TasksRunSideBySide) {
  ThreadPool pool(SideBySide(2));
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> num_arrived{0};
    pool.ParallelFor(2, [&](int64_t, int) {
      ++num_arrived;
      while (num_arrived.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(num_arrived, 2);
  }
}

// What made pools larger than the machine collapse: spinning threads without a CPU, and a wake-up
// of every thread for every stage. Counted, not timed.
TEST(ThreadPoolTest, WakesNoMoreThreadsThanThereAreCpus) {
  const int num_cpus = static_cast<int>(AllowedCpus().size());
  const int num_threads = num_cpus + 6;
  ThreadPool::Options options = WithThreads(num_threads);
  options.late_after = std::chrono::nanoseconds(0);
  ThreadPool pool(options);
  EXPECT_EQ(pool.num_threads(), num_threads);
  EXPECT_EQ(pool.num_active(), num_cpus);
  constexpr int kNumStages = 2000;
  std::atomic<int64_t> num_tasks{0};
  for (int stage = 0; stage < kNumStages; ++stage) {
    pool.ParallelFor(64, [&](int64_t, int thread) {
      num_tasks.fetch_add(1, std::memory_order_relaxed);
      ASSERT_LT(thread, num_cpus);
    });
  }
  EXPECT_EQ(num_tasks, int64_t{64} * kNumStages);
  EXPECT_EQ(pool.num_barriers(), kNumStages);
  EXPECT_LE(pool.num_wakeups(), int64_t{kNumStages} * (num_cpus - 1));
}

TEST(ThreadPoolTest, RunsAsManyThreadsAsItIsTold) {
  ThreadPool pool(SideBySide(4));
  for (int num_running : {1, 3, 2, 4}) {
    pool.SetNumRunning(num_running);
    EXPECT_EQ(pool.num_running(), num_running);
    EXPECT_EQ(pool.num_active(), num_running);
    std::vector<int> num_runs(pool.num_threads(), 0);
    std::atomic<int> num_arrived{0};
    pool.ParallelFor(num_running, [&](int64_t, int thread) {
      ++num_runs[thread];
      ++num_arrived;
      while (num_arrived.load() < num_running) std::this_thread::yield();
    });
    for (int thread = 0; thread < 4; ++thread) EXPECT_EQ(num_runs[thread], thread < num_running);
  }
}

TEST(ThreadPoolTest, FollowsTheMaskOfItsCreator) {
  std::thread([] {
    ASSERT_TRUE(PinThisThread(AllowedCpus().front()));
    ThreadPool pool(WithThreads(4));
    EXPECT_EQ(pool.num_active(), 1);
    int64_t num_run = 0;
    pool.ParallelFor(100, [&](int64_t, int) { ++num_run; });
    EXPECT_EQ(num_run, 100);
    EXPECT_EQ(pool.num_wakeups(), 0);
  }).join();
}

// Two and eight threads that all work and have one CPU together: whoever holds a task may lose it.
TEST(ThreadPoolTest, WorksWithFewerCpusThanThreads) {
  const int cpu = AllowedCpus().front();
  for (int num_threads : {2, 8}) {
    ThreadPool::Options options = SideBySide(num_threads);
    options.late_after = std::chrono::microseconds(200);
    options.cores = CoresOf(std::vector<int>(num_threads, cpu));
    ThreadPool pool(options);
    std::thread([&] {
      pool.PinCaller();
      std::vector<int64_t> values(65, 0), next(65, 0);
      constexpr int kNumStages = 1000;
      for (int stage = 0; stage < kNumStages; ++stage) {
        pool.ParallelFor(65, [&](int64_t task, int) { next[task] = values[(task + 1) % 65] + 1; });
        values.swap(next);
      }
      EXPECT_EQ(values, std::vector<int64_t>(65, kNumStages));
    }).join();
  }
}

// After a pause that is longer than any thread spins, the tasks of a stage still meet.
TEST(ThreadPoolTest, WakesWhoSleeps) {
  ThreadPool pool(SideBySide(3));
  for (int round = 0; round < 5; ++round) {
    const int64_t before = pool.num_wakeups();
    do {
      const auto start = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(1)) {
        std::this_thread::yield();
      }
      std::atomic<int> num_arrived{0};
      pool.ParallelFor(3, [&](int64_t, int) {
        ++num_arrived;
        while (num_arrived.load() < 3) std::this_thread::yield();
      });
    } while (pool.num_wakeups() == before);
  }
}

// Runs stages in which thread 1 keeps its task, without using a CPU, for long after the caller has
// ended its own, until the pool changes or `max_stages` are over.
void RunLateStages(ThreadPool& pool, int max_stages) {
  using Clock = std::chrono::steady_clock;
  const int num_active = pool.num_active();
  std::mutex mutex;
  std::condition_variable changed;
  int released = 0;  // stages
  std::atomic<int> caller_done{0};
  std::atomic<bool> stop{false};
  Clock::time_point start, done_at;
  std::thread helper([&] {
    for (int stage = 1; !stop; ++stage) {
      while (caller_done.load() < stage && !stop) std::this_thread::yield();
      if (stop) return;
      // Above what the pool takes for late: 200 us and twice the time until here.
      const auto until = done_at + std::chrono::milliseconds(1) + 4 * (done_at - start);
      while (Clock::now() < until) std::this_thread::yield();
      std::lock_guard lock(mutex);
      released = stage;
      changed.notify_all();
    }
  });
  for (int stage = 1; stage <= max_stages && pool.num_active() == num_active; ++stage) {
    std::atomic<int> num_arrived{0};
    start = Clock::now();
    pool.ParallelFor(2, [&](int64_t, int thread) {
      ++num_arrived;
      while (num_arrived.load() < 2) std::this_thread::yield();
      if (thread == 0) {
        done_at = Clock::now();
        caller_done = stage;
        return;
      }
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return released >= stage; });
    });
  }
  stop = true;
  helper.join();
}

TEST(ThreadPoolTest, AThreadThatKeepsStagesWaitingRests) {
  ThreadPool pool({.num_threads = 2, .num_running = 2, .retry_after = std::chrono::hours(1)});
  RunLateStages(pool, 1000);
  EXPECT_EQ(pool.num_active(), 1);
  EXPECT_GE(pool.num_late(), 6);
  int64_t num_run = 0;  // of one thread
  pool.ParallelFor(100, [&](int64_t, int) { ++num_run; });
  EXPECT_EQ(num_run, 100);
}

TEST(ThreadPoolTest, AThreadThatRestedIsTriedAgain) {
  ThreadPool pool({.num_threads = 2, .num_running = 2, .retry_after = std::chrono::nanoseconds(1)});
  RunLateStages(pool, 1000);
  ASSERT_EQ(pool.num_active(), 1);
  std::atomic<int> num_arrived{0};
  pool.ParallelFor(2, [&](int64_t, int) {
    EXPECT_EQ(pool.num_active(), 2);
    ++num_arrived;
    while (num_arrived.load() < 2) std::this_thread::yield();
  });
}

TEST(ThreadPoolTest, StartsAndStopsAtOnceManyTimes) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(WithThreads(4));
    if (round % 2 == 0) pool.ParallelFor(4, [](int64_t, int) {});
  }
}

TEST(ThreadPoolTest, TwoPoolsMayNest) {
  ThreadPool outer(WithThreads(2));
  std::vector<std::unique_ptr<ThreadPool>> inner;
  for (int i = 0; i < 2; ++i) inner.push_back(std::make_unique<ThreadPool>(WithThreads(2)));
  std::vector<int64_t> sums(2, 0);
  outer.ParallelFor(2, [&](int64_t task, int) {
    std::vector<int64_t> values(10, 0);
    inner[task]->ParallelFor(10, [&](int64_t i, int) { values[i] = i; });
    sums[task] = std::accumulate(values.begin(), values.end(), int64_t{0});
  });
  EXPECT_EQ(sums, (std::vector<int64_t>{45, 45}));
}

// CPU of each thread that may use one only, else -1.
std::vector<int> CpuOfEachThread(ThreadPool& pool) {
  std::vector<int> cpus(pool.num_threads(), -1);
  std::atomic<int> num_arrived{0};
  pool.ParallelFor(pool.num_threads(), [&](int64_t, int thread) {
    ++num_arrived;
    while (num_arrived.load() < pool.num_threads()) std::this_thread::yield();  // one task each
    const std::vector<int> mine = AllowedCpus();
    if (mine.size() == 1) cpus[thread] = mine[0];
  });
  return cpus;
}

TEST(ThreadPoolTest, PinsWorkersButNotTheCaller) {
  const std::vector<int> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one CPU allowed";
  ThreadPool::Options options = SideBySide(2);
  // Entry 0 belongs to the caller and is not applied: a CPU that does not exist does no harm.
  options.cores = CoresOf({-1, allowed[1]});
  ThreadPool pool(options);
  EXPECT_EQ(CpuOfEachThread(pool), (std::vector<int>{-1, allowed[1]}));
  EXPECT_EQ(AllowedCpus(), allowed);
}

TEST(ThreadPoolTest, PinsTheCallerWhenAsked) {
  const std::vector<int> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one CPU allowed";
  ThreadPool::Options options = SideBySide(2);
  options.cores = CoresOf({allowed[1], allowed[0]});
  ThreadPool pool(options);
  std::thread([&] {
    pool.PinCaller();
    EXPECT_EQ(CpuOfEachThread(pool), (std::vector<int>{allowed[1], allowed[0]}));
  }).join();
  EXPECT_EQ(AllowedCpus(), allowed);  // nobody else is touched
}

TEST(ThreadPoolTest, WorksOnWhenPinningIsRefused) {
  ThreadPool::Options options = SideBySide(2);
  options.cores = CoresOf({1 << 19, 1 << 19});
  ThreadPool pool(options);
  std::thread([&] {
    pool.PinCaller();
    std::atomic<int> num_run{0};
    pool.ParallelFor(10, [&](int64_t, int) { ++num_run; });
    EXPECT_EQ(num_run, 10);
  }).join();
}

class ThreadPoolDeathTest : public testing::Test {
 protected:
  // The child starts anew instead of as a fork: the test process has had threads.
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(ThreadPoolDeathTest, RefusesAStageInsideATask) {
  for (int num_threads : {1, 2}) {
    EXPECT_DEATH(
        {
          ThreadPool pool(WithThreads(num_threads));
          pool.ParallelFor(2, [&](int64_t, int) { pool.ParallelFor(1, [](int64_t, int) {}); });
        },
        "check failed: !nested");
  }
}

TEST_F(ThreadPoolDeathTest, RefusesNonsense) {
  EXPECT_DEATH(ThreadPool(WithThreads(0)), "check failed");
  EXPECT_DEATH(ThreadPool({.num_threads = 3, .cores = CoresOf({0, 1})}), "check failed");
  EXPECT_DEATH(ThreadPool(WithThreads(2)).SetNumRunning(3), "check failed");
  EXPECT_DEATH(ThreadPool(WithThreads(1)).ParallelFor(-1, [](int64_t, int) {}), "check failed");
}

}  // namespace
}  // namespace switchyard
