// Versions, slots and counters of the store, with copies that the test controls.
#include "worker/experts/expert_store.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/status.h"

namespace switchyard::worker {
namespace {

constexpr int64_t kBytes = 100;

// What lies in every slot, as a backend would know it, and a gate before each copy.
class FakeTiers {
 public:
  ExpertCopy Copy() {
    return [this](int layer, int expert, int slot) -> absl::Status {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_open_; });
      if (fails_) return DataLoss("file ends early");
      content_[{layer, slot}] = expert;
      ++num_copies_;
      return absl::OkStatus();
    };
  }
  void Open(bool is_open) {
    std::lock_guard lock(mutex_);
    is_open_ = is_open;
    changed_.notify_all();
  }
  void Fail() {
    std::lock_guard lock(mutex_);
    fails_ = true;
  }
  int At(int layer, int slot) {
    std::lock_guard lock(mutex_);
    const auto found = content_.find({layer, slot});
    return found == content_.end() ? -1 : found->second;
  }
  int num_copies() {
    std::lock_guard lock(mutex_);
    return num_copies_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true, fails_ = false;
  std::map<std::pair<int, int>, int> content_;
  int num_copies_ = 0;
};

ExpertStoreOptions Options(int num_layers, int num_experts, int num_slots) {
  ExpertStoreOptions options;
  options.num_experts = num_experts;
  for (int l = 0; l < num_layers; ++l) {
    ExpertLayer layer;
    for (int e = 0; e < num_experts; ++e) layer.present.push_back(e);
    layer.expert_bytes = kBytes;
    layer.num_slots = num_slots;
    options.layers.push_back(layer);
  }
  return options;
}

// What every table and snapshot must be true of.
void ExpectSound(const ExpertStore& store, const ResidencyTable& table, FakeTiers& tiers) {
  const ResidencySnapshot now = store.Snapshot();
  for (int l = 0; l < now.num_layers; ++l) {
    std::set<int> taken;
    const absl::Span<const int32_t> slots = table.slots(l);
    for (int e = 0; e < static_cast<int>(slots.size()); ++e) {
      const int slot = slots[static_cast<size_t>(e)];
      if (slot < 0) continue;
      EXPECT_TRUE(taken.insert(slot).second) << "two experts in one slot";
      EXPECT_EQ(tiers.At(l, slot), e) << "layer " << l;
    }
  }
}

void ExpectConserved(const ResidencySnapshot& now, int num_present, int num_filled) {
  int64_t states = 0;
  for (const ExpertState state : {ExpertState::kFile, ExpertState::kHost, ExpertState::kLoading,
                                  ExpertState::kResident, ExpertState::kPinned}) {
    states += now.Count(state);
  }
  EXPECT_EQ(states, num_present);
  const ExpertCounters total = now.Total();
  uint64_t uses = 0;
  for (const uint64_t count : now.uses) uses += count;
  EXPECT_EQ(uses, total.hits + total.misses);
  // What has landed and is in no table yet is still on its way.
  EXPECT_EQ(now.Count(ExpertState::kHost), num_filled - static_cast<int64_t>(total.evictions) +
                                               static_cast<int64_t>(total.promotions));
  EXPECT_EQ(total.bytes_moved, total.promotions * kBytes);
  EXPECT_EQ(now.fast_bytes, now.Count(ExpertState::kHost) * kBytes);
}

TEST(ExpertStoreTest, WithoutTiersEveryUseIsAHit) {
  FakeTiers tiers;
  ExpertStore store(Options(2, 3, 3), tiers.Copy());
  ASSERT_TRUE(store.Fill().ok());
  EXPECT_FALSE(store.has_tiers());
  const ResidencyTable& table = store.BeginStep();
  EXPECT_TRUE(table.slots(0).empty());
  store.EndStep(std::vector<uint32_t>{1, 0, 2, 3, 0, 0});
  const ResidencySnapshot now = store.Snapshot();
  EXPECT_EQ(now.Count(ExpertState::kHost), 6);
  EXPECT_EQ(now.counters[0].hits, 3u);
  EXPECT_EQ(now.Total().hits, 6u);
  EXPECT_EQ(now.Total().misses, 0u);
  EXPECT_EQ(tiers.num_copies(), 0);
}

TEST(ExpertStoreTest, FillsWithTheFirstOrTheMostUsed) {
  FakeTiers tiers;
  ExpertStore first(Options(1, 5, 2), tiers.Copy());
  ASSERT_TRUE(first.Fill().ok());
  EXPECT_EQ(first.BeginStep().slots(0), (std::vector<int32_t>{0, 1, -1, -1, -1}));
  ExpertStoreOptions options = Options(1, 5, 2);
  options.earlier_uses = {1, 0, 9, 0, 7};
  ExpertStore warm(options, tiers.Copy());
  ASSERT_TRUE(warm.Fill().ok());
  EXPECT_EQ(warm.BeginStep().slots(0), (std::vector<int32_t>{-1, -1, 0, -1, 1}));
}

TEST(ExpertStoreTest, ExpertsOfOtherRanksAreAbsent) {
  FakeTiers tiers;
  ExpertStoreOptions options = Options(1, 4, 1);
  options.layers[0].present = {1, 3};
  ExpertStore store(options, tiers.Copy());
  ASSERT_TRUE(store.Fill().ok());
  const ResidencySnapshot now = store.Snapshot();
  EXPECT_EQ(now.states, (std::vector<ExpertState>{ExpertState::kAbsent, ExpertState::kHost,
                                                  ExpertState::kAbsent, ExpertState::kFile}));
  EXPECT_EQ(now.budget_bytes, kBytes);
}

TEST(ExpertStoreTest, ACopyBecomesVisibleAtAStepBorderOnly) {
  FakeTiers tiers;
  ExpertStore store(Options(1, 2, 1), tiers.Copy());
  ASSERT_TRUE(store.Fill().ok());
  tiers.Open(false);
  EXPECT_EQ(store.BeginStep().slots(0), (std::vector<int32_t>{0, -1}));
  store.EndStep(std::vector<uint32_t>{0, 50});
  EXPECT_EQ(store.Snapshot().states[0], ExpertState::kFile);
  EXPECT_EQ(store.Snapshot().states[1], ExpertState::kLoading);
  // On its way: in nobody's table.
  const ResidencyTable& table = store.BeginStep();
  EXPECT_EQ(table.slots(0), (std::vector<int32_t>{-1, -1}));
  tiers.Open(true);
  store.WaitForCopies();
  EXPECT_EQ(table.slots(0), (std::vector<int32_t>{-1, -1}));
  store.EndStep(std::vector<uint32_t>{0, 7});
  EXPECT_EQ(store.BeginStep().slots(0), (std::vector<int32_t>{-1, 0}));
  store.EndStep(std::vector<uint32_t>{0, 2});
  const ExpertCounters total = store.Snapshot().Total();
  EXPECT_EQ(total.hits, 2u);
  EXPECT_EQ(total.misses, 57u);
  EXPECT_EQ(total.promotions, 1u);
  EXPECT_EQ(total.evictions, 1u);
}

TEST(ExpertStoreTest, ASlotIsFreeOnlyWhenNoStepReadsAnOlderTable) {
  FakeTiers tiers;
  ExpertStoreOptions options = Options(1, 2, 1);
  options.max_running_steps = 2;
  ExpertStore store(options, tiers.Copy());
  ASSERT_TRUE(store.Fill().ok());
  const ResidencyTable& first = store.BeginStep();
  const ResidencyTable& second = store.BeginStep();
  EXPECT_EQ(first.version(), second.version());
  store.EndStep(std::vector<uint32_t>{0, 50});  // of the first
  // The second still reads the slot.
  store.WaitForCopies();
  EXPECT_EQ(tiers.At(0, 0), 0);
  EXPECT_EQ(second.slots(0), (std::vector<int32_t>{0, -1}));
  const ResidencyTable& third = store.BeginStep();
  EXPECT_GT(third.version(), second.version());
  EXPECT_EQ(third.slots(0), (std::vector<int32_t>{-1, -1}));
  EXPECT_EQ(tiers.At(0, 0), 0);
  store.EndStep(std::vector<uint32_t>{1, 0});  // of the second: a hit
  store.WaitForCopies();
  EXPECT_EQ(tiers.At(0, 0), 1);
  store.EndStep(std::vector<uint32_t>{1, 0});  // of the third: a miss
  EXPECT_EQ(store.Snapshot().Total().hits, 1u);
  EXPECT_EQ(store.Snapshot().Total().misses, 51u);
}

TEST(ExpertStoreTest, ABadFileStopsTheMovesAndSaysWhy) {
  FakeTiers tiers;
  ExpertStore store(Options(1, 3, 1), tiers.Copy());
  ASSERT_TRUE(store.Fill().ok());
  tiers.Fail();
  store.BeginStep();
  store.EndStep(std::vector<uint32_t>{0, 50, 0});
  store.WaitForCopies();
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store.BeginStep().slots(0), (std::vector<int32_t>{-1, -1, -1}));
  store.EndStep(std::vector<uint32_t>{0, 500, 0});
  EXPECT_EQ(store.Snapshot().Count(ExpertState::kFile), 3);
}

TEST(ExpertStoreTest, AFillThatFailsIsAnError) {
  FakeTiers tiers;
  ExpertStore store(Options(1, 3, 2), tiers.Copy());
  EXPECT_EQ(store.Fill([](int) { return absl::CancelledError("enough"); }).code(),
            absl::StatusCode::kCancelled);
  tiers.Fail();
  EXPECT_EQ(store.Fill().code(), absl::StatusCode::kDataLoss);
}

TEST(ExpertStoreTest, CountersConserveForEveryBudgetAndOverlap) {
  constexpr int kLayers = 3, kExperts = 12;
  std::mt19937 random(3);
  for (const int num_slots : {0, 1, 5, kExperts - 1, kExperts}) {
    for (const int max_running : {1, 3}) {
      FakeTiers tiers;
      ExpertStoreOptions options = Options(kLayers, kExperts, num_slots);
      options.max_running_steps = max_running;
      options.policy.half_life_tokens = 20;  // restless
      options.policy.min_deviations = 0;
      options.policy.max_copy_bytes = 2 * kBytes;
      ExpertStore store(options, tiers.Copy());
      ASSERT_TRUE(store.Fill().ok());
      int running = 0;
      uint64_t num_uses = 0;
      for (int step = 0; step < 400; ++step) {
        const ResidencyTable& table = store.BeginStep();
        ++running;
        ExpectSound(store, table, tiers);
        if (running < max_running && random() % 2 == 0) continue;
        std::vector<uint32_t> counts(kLayers * kExperts);
        for (int i = 0; i < 10; ++i) {
          // Favourites that change.
          const auto e = (random() % 4 + static_cast<unsigned>(step / 40)) % kExperts;
          ++counts[random() % kLayers * kExperts + e];
          ++num_uses;
        }
        store.EndStep(counts);
        --running;
        if (random() % 4 == 0) store.WaitForCopies();
        ExpectConserved(store.Snapshot(), kLayers * kExperts, kLayers * num_slots);
      }
      const ResidencySnapshot end = store.Snapshot();
      EXPECT_EQ(end.Total().hits + end.Total().misses, num_uses);
      EXPECT_EQ(end.Total().misses == 0, num_slots == kExperts);
      EXPECT_EQ(end.Total().promotions > 0, num_slots > 0 && num_slots < kExperts);
    }
  }
}

}  // namespace
}  // namespace switchyard::worker
