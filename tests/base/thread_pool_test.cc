#include "base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <sched.h>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/cpu_topology.h"

namespace switchyard {
namespace {

ThreadPool::Options WithThreads(int num_threads) { return {.num_threads = num_threads}; }

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
  ThreadPool pool(WithThreads(2));
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
  ThreadPool pool(WithThreads(2));
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> num_arrived{0};
    pool.ParallelFor(2, [&](int64_t, int) {
      ++num_arrived;
      while (num_arrived.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(num_arrived, 2);
  }
}

// Eight threads share the CPUs that there are (two on small machines). A barrier that only spins
// takes milliseconds per stage then, most of a minute in total.
TEST(ThreadPoolTest, MoreThreadsThanCpusDoNotCollapse) {
  ThreadPool pool(WithThreads(8));
  constexpr int kNumStages = 10'000;
  std::atomic<int64_t> num_tasks{0};
  const auto start = std::chrono::steady_clock::now();
  for (int stage = 0; stage < kNumStages; ++stage) {
    pool.ParallelFor(8, [&](int64_t, int) { num_tasks.fetch_add(1, std::memory_order_relaxed); });
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(num_tasks, int64_t{8} * kNumStages);
  EXPECT_EQ(pool.num_barriers(), kNumStages);
  // Measured 0.1 to 1 s; sanitizers and a machine busy with other tests get the rest.
  EXPECT_LT(elapsed.count(), 20);
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

TEST(ThreadPoolTest, PinsWorkersButNotTheCaller) {
  const std::vector<int> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one CPU allowed";
  // Entry 0 belongs to the caller and is not applied: a CPU that does not exist does no harm.
  ThreadPool pool({.num_threads = 2, .cpus = {-1, allowed[1]}});
  std::vector<int> cpu_of_thread(2, -1);
  std::atomic<int> num_arrived{0};
  pool.ParallelFor(2, [&](int64_t, int thread) {
    ++num_arrived;
    while (num_arrived.load() < 2) std::this_thread::yield();  // one task for each thread
    const std::vector<int> mine = AllowedCpus();
    if (mine.size() == 1) cpu_of_thread[thread] = mine[0];
  });
  EXPECT_EQ(cpu_of_thread[0], -1);
  EXPECT_EQ(cpu_of_thread[1], allowed[1]);
  EXPECT_EQ(AllowedCpus(), allowed);
}

TEST(ThreadPoolTest, WorksOnWhenPinningIsRefused) {
  ThreadPool pool({.num_threads = 2, .cpus = {0, 1 << 19}});
  std::atomic<int> num_run{0};
  pool.ParallelFor(10, [&](int64_t, int) { ++num_run; });
  EXPECT_EQ(num_run, 10);
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
  EXPECT_DEATH(ThreadPool({.num_threads = 3, .cpus = {0, 1}}), "check failed");
  EXPECT_DEATH(ThreadPool(WithThreads(1)).ParallelFor(-1, [](int64_t, int) {}), "check failed");
}

}  // namespace
}  // namespace switchyard
