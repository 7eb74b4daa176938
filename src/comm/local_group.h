// Ranks that are threads of one process: for tests, and groups within a process.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "comm/communicator.h"

namespace switchyard::comm {

// A rendezvous of threads.
//
// Threads: any; each rank uses its own Rendezvous.
class LocalRendezvous {
 public:
  explicit LocalRendezvous(int nranks);
  ~LocalRendezvous();

  // The rank's end. Valid as long as this object.
  Rendezvous& of(int rank) { return *ends_[static_cast<size_t>(rank)]; }

 private:
  struct Gathering {
    std::vector<std::string> blobs;
    std::vector<bool> has_come;
    int num_come = 0;
    int num_gone = 0;
  };
  class End;

  const int nranks_;
  std::vector<std::unique_ptr<Rendezvous>> ends_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Gathering, std::less<>> gatherings_;
};

// Creates all ranks of a group at once, by rank; options.rank and nranks are ignored. Each is then
// used by a thread of its own.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateLocalGroup(
    int nranks, const CommOptions& options);

// Creates one rank of a group whose ranks are threads of this process; see CreateCommunicator().
absl::StatusOr<std::unique_ptr<Communicator>> CreateLocalCommunicator(const CommOptions& options,
                                                                      Rendezvous& rendezvous);

}  // namespace switchyard::comm
