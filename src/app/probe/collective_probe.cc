#include "app/probe/collective_probe.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

#include "app/bench/spread.h"
#include "app/interrupt.h"
#include "app/load/percentiles.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "comm/local_group.h"

namespace switchyard::app {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::RedOp;

constexpr int kLeastCalls = 50;
constexpr int kMostCalls = 20'000;
// Every so many calls the result is looked at; that call and the next are not timed.
constexpr int kCheckEvery = 64;

// Whole numbers, so that sums are exact in any order.
float Value(int rank, int64_t i, int call) {
  return static_cast<float>((i * 7 + rank * 13 + call) % 101);
}

// One operation as a rank runs it on its buffers.
struct Operation {
  std::string name;
  double ops_per_call = 1;  // the time of a call is divided by this
  std::vector<std::string> counts_as;
  absl::Status (*run)(Communicator& comm, const std::vector<float>& in, std::vector<float>& out);
  // What element i of `out` must be on this rank after the call; a rank that gets nothing has -1.
  float (*wanted)(int rank, int nranks, int64_t i, int call);
};

float Sum(int /*rank*/, int nranks, int64_t i, int call) {
  float sum = 0;
  for (int r = 0; r < nranks; ++r) sum += Value(r, i, call);
  return sum;
}

const std::vector<Operation>& Operations() {
  static const auto& operations = *new std::vector<Operation>{
      {"all_reduce",
       1,
       {"all_reduce"},
       [](Communicator& comm, const std::vector<float>& in, std::vector<float>& out) {
         return comm.AllReduce(in.data(), out.data(), static_cast<int64_t>(in.size()),
                               DataType::kF32, RedOp::kSum);
       },
       &Sum},
      // Rank 0's values to all, then their sum over ranks back.
      {"broadcast and reduce",
       2,
       {"broadcast", "reduce"},
       [](Communicator& comm, const std::vector<float>& in, std::vector<float>& out) {
         const auto count = static_cast<int64_t>(in.size());
         if (comm.rank() == 0) out = in;
         SWITCHYARD_RETURN_IF_ERROR(comm.Broadcast(out.data(), count, DataType::kF32, 0));
         return comm.Reduce(out.data(), out.data(), count, DataType::kF32, RedOp::kSum, 0);
       },
       [](int rank, int nranks, int64_t i, int call) {
         return rank == 0 ? static_cast<float>(nranks) * Value(0, i, call) : -1.0F;
       }},
      {"sendrecv",
       2,
       {"sendrecv"},
       [](Communicator& comm, const std::vector<float>& in, std::vector<float>& out) {
         const auto count = static_cast<int64_t>(in.size());
         if (comm.rank() == 0) {
           SWITCHYARD_RETURN_IF_ERROR(comm.Send(in.data(), count, DataType::kF32, 1));
           return comm.Recv(out.data(), count, DataType::kF32, 1);
         }
         SWITCHYARD_RETURN_IF_ERROR(comm.Recv(out.data(), count, DataType::kF32, 0));
         return comm.Send(out.data(), count, DataType::kF32, 0);
       },
       [](int /*rank*/, int /*nranks*/, int64_t i, int call) { return Value(0, i, call); }},
  };
  return operations;
}

struct RankResult {
  absl::Status status;
  std::vector<double> us;  // of rank 0
  uint64_t wrong = 0;
};

class RankRun {
 public:
  RankRun(Communicator& comm, const Operation& operation, int64_t bytes)
      : comm_(comm),
        operation_(operation),
        in_(static_cast<size_t>(bytes) / sizeof(float)),
        out_(in_.size()) {}

  // All ranks make the same number of calls.
  absl::Status Run(int num_calls, RankResult& result) {
    bool is_timed = false;
    for (int call = 0; call < num_calls; ++call) {
      const bool checks = call % kCheckEvery == 0 || call + 1 == num_calls;
      if (checks) Fill(call);
      const double start = MonotonicClock::Get().NowSeconds();
      SWITCHYARD_RETURN_IF_ERROR(operation_.run(comm_, in_, out_));
      const double seconds = MonotonicClock::Get().NowSeconds() - start;
      if (is_timed && !checks && comm_.rank() == 0) {
        result.us.push_back(1e6 * seconds / operation_.ops_per_call);
      }
      if (checks) result.wrong += CountWrong(call);
      is_timed = !checks;
    }
    return absl::OkStatus();
  }

 private:
  void Fill(int call) {
    for (size_t i = 0; i < in_.size(); ++i) {
      in_[i] = Value(comm_.rank(), static_cast<int64_t>(i), call);
    }
  }

  uint64_t CountWrong(int call) const {
    uint64_t wrong = 0;
    for (size_t i = 0; i < out_.size(); ++i) {
      const float wanted =
          operation_.wanted(comm_.rank(), comm_.nranks(), static_cast<int64_t>(i), call);
      wrong += wanted >= 0 && out_[i] != wanted;
    }
    return wrong;
  }

  Communicator& comm_;
  const Operation& operation_;
  std::vector<float> in_, out_;
};

// Runs all operations and sizes on the ranks of one group.
class GroupRun {
 public:
  explicit GroupRun(const CollectiveProbe& probe) : probe_(probe), rendezvous_(probe.nranks) {}

  absl::StatusOr<std::vector<placement::v1::Collective>> Run() {
    std::vector<std::thread> threads;
    results_.resize(static_cast<size_t>(probe_.nranks));
    for (int rank = 0; rank < probe_.nranks; ++rank) {
      threads.emplace_back([this, rank] {
        RankResult& result = results_[static_cast<size_t>(rank)];
        result.status = RunRank(rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const RankResult& result : results_) SWITCHYARD_RETURN_IF_ERROR(result.status);
    return std::move(rows_);
  }

 private:
  absl::Status RunRank(int rank) {
    comm::CommOptions options;
    options.group_id = fmt::format("probe.{}", getpid());
    options.rank = rank;
    options.nranks = probe_.nranks;
    options.num_compute_threads = probe_.threads_per_rank;
    SWITCHYARD_ASSIGN_OR_RETURN(
        const std::unique_ptr<Communicator> comm,
        comm::CreateCommunicator(probe_.backend, options, rendezvous_.of(rank)));
    absl::Status status = Measure(*comm);
    if (!status.ok()) comm->Abort(status);
    return status;
  }

  absl::Status Measure(Communicator& comm) {
    for (const Operation& operation : Operations()) {
      // A message concerns two ranks: others would only wait.
      if (operation.name == "sendrecv" && comm.nranks() != 2) continue;
      for (const int64_t bytes : probe_.sizes) {
        SWITCHYARD_RETURN_IF_ERROR(Measure(comm, operation, bytes));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Measure(Communicator& comm, const Operation& operation, int64_t bytes) {
    RankRun run(comm, operation, bytes);
    RankResult result;
    // A first few calls say how many fit the time; rank 0 decides, so that all make as many.
    constexpr int kTrialCalls = 10;
    const double start = MonotonicClock::Get().NowSeconds();
    SWITCHYARD_RETURN_IF_ERROR(run.Run(kTrialCalls, result));
    const double each = std::max(1e-7, (MonotonicClock::Get().NowSeconds() - start) / kTrialCalls);
    int32_t num_calls = static_cast<int32_t>(
        std::clamp(probe_.seconds / each, double{kLeastCalls}, double{kMostCalls}));
    if (IsInterrupted()) return InterruptedStatus();
    SWITCHYARD_RETURN_IF_ERROR(comm.Broadcast(&num_calls, 1, DataType::kI32, 0));
    result.us.clear();
    SWITCHYARD_RETURN_IF_ERROR(run.Run(num_calls, result));
    auto wrong = static_cast<int32_t>(std::min<uint64_t>(result.wrong, 1 << 30) / comm.nranks());
    if (result.wrong > 0) wrong = std::max(wrong, 1);
    SWITCHYARD_RETURN_IF_ERROR(comm.AllReduce(&wrong, &wrong, 1, DataType::kI32, RedOp::kSum));
    if (comm.rank() == 0) AddRows(operation, bytes, num_calls, result.us, wrong);
    return absl::OkStatus();
  }

  void AddRows(const Operation& operation, int64_t bytes, int num_calls,
               const std::vector<double>& us, int32_t wrong) {
    for (const std::string& name : operation.counts_as) {
      placement::v1::Collective& row = rows_.emplace_back();
      row.set_op(name);
      row.set_backend(std::string(comm::Name(probe_.backend)));
      row.set_nranks(static_cast<uint32_t>(probe_.nranks));
      row.set_threads_per_rank(static_cast<uint32_t>(probe_.threads_per_rank));
      row.set_size_bytes(static_cast<uint64_t>(bytes));
      row.set_iters(static_cast<uint32_t>(num_calls));
      const Spread spread = SpreadOf(us);
      row.mutable_us()->set_median(spread.median);
      row.mutable_us()->set_min(spread.min);
      row.mutable_us()->set_max(spread.max);
      row.mutable_us()->set_num_samples(static_cast<uint32_t>(us.size()));
      row.set_p99_us(Percentile(us, 99));
      row.set_wrong(static_cast<uint64_t>(wrong));
    }
  }

  const CollectiveProbe& probe_;
  comm::LocalRendezvous rendezvous_;
  std::vector<RankResult> results_;
  std::vector<placement::v1::Collective> rows_;
};

}  // namespace

std::vector<int64_t> DefaultCollectiveSizes() {
  constexpr int64_t kKiB = 1024;
  return {8,         1 * kKiB,  5 * kKiB,    10 * kKiB,      20 * kKiB,
          40 * kKiB, 80 * kKiB, 1024 * kKiB, 4 * 1024 * kKiB};
}

absl::StatusOr<std::vector<placement::v1::Collective>> MeasureCollectives(
    const CollectiveProbe& probe) {
  return GroupRun(probe).Run();
}

}  // namespace switchyard::app
