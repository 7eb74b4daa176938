// Groups of ranks for tests: threads of this process, with any backend.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "comm/local_group.h"

namespace switchyard::comm {

using Ranks = std::vector<std::unique_ptr<Communicator>>;

// Runs `body` for each rank on a thread of its own.
inline void OnThreads(int nranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < nranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

// Creates a group through its rendezvous. Ranks that could not be created are null, with their
// errors in `errors` if that is given, else as failures.
inline Ranks CreateRanks(BackendKind kind, int nranks, const CommOptions& options,
                         std::vector<absl::Status>* errors = nullptr) {
  LocalRendezvous rendezvous(nranks);
  Ranks ranks(static_cast<size_t>(nranks));
  std::vector<absl::Status> statuses(static_cast<size_t>(nranks));
  OnThreads(nranks, [&](int rank) {
    CommOptions mine = options;
    mine.rank = rank;
    mine.nranks = nranks;
    auto created = CreateCommunicator(kind, mine, rendezvous.of(rank));
    statuses[static_cast<size_t>(rank)] = created.status();
    if (created.ok()) ranks[static_cast<size_t>(rank)] = *std::move(created);
  });
  if (errors != nullptr) {
    *errors = statuses;
  } else {
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  }
  return ranks;
}

// Runs `body` for each rank on a thread of its own; all ranks live until the last has finished.
inline void RunRanks(const Ranks& ranks, const std::function<void(Communicator&)>& body) {
  for (const auto& rank : ranks) ASSERT_NE(rank, nullptr);
  OnThreads(static_cast<int>(ranks.size()),
            [&](int rank) { body(*ranks[static_cast<size_t>(rank)]); });
}

}  // namespace switchyard::comm
