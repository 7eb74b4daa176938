#include "base/unpinned_scope.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/cpu_topology.h"

namespace switchyard {
namespace {

// This file's tests run on the first thread of the process, which is not pinned.

std::vector<int> CpusOfANewThread() {
  std::vector<int> cpus;
  std::thread([&] { cpus = AllowedCpus(); }).join();
  return cpus;
}

TEST(UnpinnedScopeTest, ThreadsStartedWithinInheritNoPin) {
  const std::vector<int> all = AllowedCpus();
  std::thread([&] {
    const std::vector<int> pinned = {all.back()};
    ASSERT_TRUE(PinThisThread(all.back()));
    EXPECT_EQ(CpusOfANewThread(), pinned);
    {
      const UnpinnedScope scope;
      EXPECT_EQ(CpusOfANewThread(), all);
    }
    EXPECT_EQ(AllowedCpus(), pinned);
    EXPECT_EQ(CpusOfANewThread(), pinned);
  }).join();
}

TEST(UnpinnedScopeTest, ChangesNothingForAThreadThatIsNotPinned) {
  const std::vector<int> all = AllowedCpus();
  {
    const UnpinnedScope scope;
    EXPECT_EQ(AllowedCpus(), all);
  }
  EXPECT_EQ(AllowedCpus(), all);
}

}  // namespace
}  // namespace switchyard
