// Prints how long collectives take between real processes: not a test, run it by hand.
//
//   collective_latency [shm|ucx] RANKS BYTES [ITERATIONS [FAULT RULES]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/monotonic_clock.h"
#include "comm/tree_reduction.h"
#include "rank_processes.h"

namespace switchyard::comm {
namespace {

int Main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "shm";
  const int nranks = argc > 2 ? std::atoi(argv[2]) : 2;
  const int64_t count = (argc > 3 ? std::atoll(argv[3]) : 10240) / 4;
  const int iterations = argc > 4 ? std::atoi(argv[4]) : 5000;
  ProcessGroup group(nranks);
  const std::vector<pid_t> pids = group.StartAll([&](int rank) {
    ProcessGroup::Meeting meeting(group, rank);
    CommOptions options;
    options.group_id = "collective_latency";
    options.rank = rank;
    options.nranks = nranks;
    if (argc > 5) options.fault_rules = argv[5];
    const BackendKind kind = name == "ucx" ? BackendKind::kUcx : BackendKind::kShm;
    auto created = CreateCommunicator(kind, options, meeting);
    if (!created.ok()) {
      std::fprintf(stderr, "rank %d: %s\n", rank, created.status().ToString().c_str());
      _exit(1);
    }
    Communicator& comm = **created;
    std::vector<float> x(static_cast<size_t>(count), 1.0f);
    std::vector<double> all_reduce, hop;
    for (int i = 0; i < iterations; ++i) {
      const int64_t begin = NowNs();
      if (!comm.AllReduce(x.data(), x.data(), count, DataType::kF32, RedOp::kMax).ok()) _exit(1);
      if (i >= iterations / 10) all_reduce.push_back(static_cast<double>(NowNs() - begin) * 1e-3);
    }
    for (int i = 0; nranks > 1 && i < iterations && rank < 2; ++i) {
      const int64_t begin = NowNs();
      for (int turn = 0; turn < 2; ++turn) {
        const absl::Status status = turn == rank
                                        ? comm.Send(x.data(), count, DataType::kF32, 1 - rank)
                                        : comm.Recv(x.data(), count, DataType::kF32, 1 - rank);
        if (!status.ok()) _exit(1);
      }
      if (i >= iterations / 10) hop.push_back(static_cast<double>(NowNs() - begin) * 0.5e-3);
    }
    if (!comm.Barrier(absl::InfiniteFuture()).ok()) _exit(1);
    for (int peer = 0; argc > 5 && peer < nranks; ++peer) {
      const PeerTotals link = comm.TotalsOfPeer(peer);
      if (peer == rank) continue;
      std::printf("  %d->%d: %.1f us on the way, %.3f s of transfer\n", peer, rank,
                  link.flight_seconds / static_cast<double>(link.num_received) * 1e6,
                  link.transfer_seconds);
    }
    if (rank != 0) return;
    const auto print = [&](const char* what, std::vector<double>& us) {
      if (us.empty()) return;
      std::sort(us.begin(), us.end());
      const auto at = [&us](double part) {
        return us[static_cast<size_t>(part * static_cast<double>(us.size() - 1))];
      };
      std::printf("%s %-10s %d ranks %ld bytes: min %.1f p50 %.1f p90 %.1f p99 %.1f us\n",
                  name.c_str(), what, nranks, static_cast<long>(count * 4), at(0), at(0.5), at(0.9),
                  at(0.99));
    };
    print("all_reduce", all_reduce);
    print("half trip", hop);
    const CommTotals totals = comm.Totals();
    std::printf("  waiting %.3f s, transfer %.3f s\n", totals.wait_seconds,
                totals.transfer_seconds);
  });
  int failures = 0;
  for (pid_t pid : pids) failures += WaitForEnd(pid) != 0;
  return failures;
}

}  // namespace
}  // namespace switchyard::comm

int main(int argc, char** argv) { return switchyard::comm::Main(argc, argv); }
