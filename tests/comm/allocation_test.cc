// Operations of shm and local allocate nothing once a group runs.
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include <gtest/gtest.h>

#include "rank_group.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

// Not inlined: the compiler would see free() called on what new returned.
[[gnu::noinline]] void* operator new(size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size)) return memory;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace switchyard::comm {
namespace {

class AllocationTest : public testing::TestWithParam<BackendKind> {};

TEST_P(AllocationTest, OperationsAllocateNothing) {
  CommOptions options;
  options.group_id = "allocation";
  options.op_timeout = absl::Seconds(60);
  const Ranks ranks = CreateRanks(GetParam(), 3, options);
  std::atomic<int64_t> grown{0};
  RunRanks(ranks, [&](Communicator& comm) {
    // 400,000 bytes: several pieces.
    std::vector<float> x(100'000), all(300'000);
    const auto operate = [&] {
      bool ok = true;
      for (int turn = 0; turn < 20; ++turn) {
        ok &= comm.AllReduce(x.data(), x.data(), 100'000, DataType::kF32, RedOp::kSum).ok();
        ok &= comm.AllGather(x.data(), all.data(), 100'000, DataType::kF32).ok();
        ok &= comm.Reduce(x.data(), x.data(), 2560, DataType::kF32, RedOp::kSum, turn % 3).ok();
        ok &= comm.Broadcast(x.data(), 100'000, DataType::kF32, turn % 3).ok();
        ok &= comm.GroupStart().ok();
        ok &= comm.Send(x.data(), 100'000, DataType::kF32, (comm.rank() + 1) % 3).ok();
        ok &= comm.Recv(all.data(), 100'000, DataType::kF32, (comm.rank() + 2) % 3).ok();
        ok &= comm.GroupEnd().ok();
        ok &= comm.Barrier(absl::InfiniteFuture()).ok();
        ok &= comm.Totals().num_calls > 0 && comm.TotalsOfPeer(0).sent_bytes >= 0;
      }
      return ok;
    };
    EXPECT_TRUE(operate());
    EXPECT_TRUE(comm.Barrier(absl::InfiniteFuture()).ok());
    const int64_t before = num_allocations.load();
    const bool ok = operate();
    const int64_t after = num_allocations.load();
    // Nobody goes on to what allocates before all have counted.
    const bool met = comm.Barrier(absl::InfiniteFuture()).ok();
    grown.fetch_add(after - before);
    EXPECT_TRUE(ok && met);
  });
  EXPECT_EQ(grown.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, AllocationTest,
                         testing::Values(BackendKind::kLocal, BackendKind::kShm));

}  // namespace
}  // namespace switchyard::comm
