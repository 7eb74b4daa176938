#include "worker/forward/rank_exchange.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/local_group.h"

namespace switchyard::worker {
namespace {

constexpr int kRanks = 3;

// What `run` returns on each rank.
std::vector<absl::Status> OnRanks(const std::function<absl::Status(int, RankExchange&)>& run) {
  comm::CommOptions options;
  options.group_id = "exchange";
  options.wait = comm::WaitPolicy::kBlock;
  auto group = comm::CreateLocalGroup(kRanks, options);
  EXPECT_TRUE(group.ok()) << group.status();
  std::vector<absl::Status> statuses(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      Ledger ledger;
      RankExchange exchange(*(*group)[static_cast<size_t>(rank)], ledger);
      statuses[static_cast<size_t>(rank)] = run(rank, exchange);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

TEST(RankExchangeTest, RanksThatAreAlikePassTheCheck) {
  for (const absl::Status& status : OnRanks([](int, RankExchange& exchange) {
         const std::vector<float> values = {1, 2, 3};
         return exchange.CheckAlike(values.data(), 12, "values", 0);
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(RankExchangeTest, OneBitOfDifferenceIsNamedOnEveryRank) {
  for (const absl::Status& status : OnRanks([](int rank, RankExchange&exchange) {
         std::vector<float> values = {1, 0, 3};
         if (rank == 2) values[1] = -0.0f;
         return exchange.CheckAlike(values.data(), 12, "the output of experts", 7);
       })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(status.message(), "ranks differ in the output of experts: layer 7, ranks 0 and 2");
  }
}

TEST(RankExchangeTest, TheLedgerHasBytesAndSecondsOfWhatWasReceived) {
  comm::CommOptions options;
  options.group_id = "ledger";
  auto group = comm::CreateLocalGroup(2, options);
  ASSERT_TRUE(group.ok());
  Ledger ledgers[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<float> values(100, 1.0f);
      RankExchange exchange(*(*group)[static_cast<size_t>(rank)], ledgers[rank]);
      EXPECT_TRUE(exchange.AllReduce({values.data(), 4, 25}).ok());
      EXPECT_THAT(values, testing::Each(2.0f));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ledger& ledger : ledgers) {
    EXPECT_EQ(ledger[v1::STAGE_COLLECTIVE].peer_bytes, 400);
    EXPECT_GT(ledger[v1::STAGE_COLLECTIVE].seconds + ledger[v1::STAGE_COLLECTIVE_WAIT].seconds, 0);
  }
}

}  // namespace
}  // namespace switchyard::worker
