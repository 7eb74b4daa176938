#include "comm/local_group.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/status.h"
#include "base/status_macros.h"
#include "comm/host_communicator.h"
#include "comm/member_card.h"
#include "comm/segment_transport.h"

namespace switchyard::comm {
namespace {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::shared_ptr<std::byte>;

Memory NewMemory(int64_t num_bytes) {
  const size_t size = static_cast<size_t>((num_bytes + 127) / 128 * 128);
  // Pages come zeroed and are taken when touched; calloc() would not align.
  void* memory = std::aligned_alloc(128, size);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, size);
  return Memory(static_cast<std::byte*>(memory), FreeMemory{});
}

// Threads do not die alone, so no rank is ever dead; the last one to leave frees the memory.
class LocalHolder final : public SegmentHolder {
 public:
  explicit LocalHolder(Memory memory) : memory_(std::move(memory)) {}
  uint64_t DeadRanks() const override { return 0; }

 private:
  const Memory memory_;
};

std::unique_ptr<Communicator> MakeRank(const CommOptions& options, FaultInjector faults,
                                       const Memory& memory, int64_t spin_ns) {
  const Segment segment(memory.get(), options.nranks, options.slot_bytes, options.num_slots);
  return std::make_unique<HostCommunicator>(
      options, BackendKind::kLocal, std::move(faults),
      std::make_unique<SegmentTransport>(std::make_unique<LocalHolder>(memory), segment,
                                         options.rank, spin_ns));
}

// Memory of groups that form, until all of their ranks have it; by number.
struct FormingGroups {
  std::mutex mutex;
  uint64_t next = 1;
  std::map<uint64_t, Memory> memories;

  static FormingGroups& Get() {
    static FormingGroups* const groups = new FormingGroups;  // outlives threads at exit
    return *groups;
  }
};

}  // namespace

class LocalRendezvous::End final : public Rendezvous {
 public:
  End(LocalRendezvous* owner, int rank) : owner_(*owner), rank_(static_cast<size_t>(rank)) {}

  absl::StatusOr<std::vector<std::string>> Exchange(std::string_view key, const std::string& mine,
                                                    absl::Time deadline) override {
    const size_t nranks = static_cast<size_t>(owner_.nranks_);
    std::unique_lock lock(owner_.mutex_);
    Gathering& gathering = owner_.gatherings_[std::string(key)];
    gathering.blobs.resize(nranks);
    gathering.has_come.resize(nranks);
    if (gathering.has_come[rank_]) {
      return FailedPrecondition("rank {} came twice to the rendezvous {}", rank_, key);
    }
    gathering.has_come[rank_] = true;
    gathering.blobs[rank_] = mine;
    if (++gathering.num_come == owner_.nranks_) owner_.changed_.notify_all();
    // By steps, so that no conversion of far deadlines overflows.
    while (gathering.num_come < owner_.nranks_ && absl::Now() < deadline) {
      owner_.changed_.wait_for(lock, absl::ToChronoNanoseconds(std::min(
                                         deadline - absl::Now(), absl::Duration(absl::Hours(1)))));
    }
    if (gathering.num_come < owner_.nranks_) {
      std::string missing;
      for (size_t rank = 0; rank < nranks; ++rank) {
        if (!gathering.has_come[rank]) missing += fmt::format(" {}", rank);
      }
      return DeadlineExceeded("ranks that did not come to the rendezvous {}:{}", key, missing);
    }
    std::vector<std::string> blobs = gathering.blobs;
    if (++gathering.num_gone == owner_.nranks_) {
      owner_.gatherings_.erase(owner_.gatherings_.find(key));
    }
    return blobs;
  }

 private:
  LocalRendezvous& owner_;
  const size_t rank_;
};

LocalRendezvous::LocalRendezvous(int nranks) : nranks_(nranks) {
  for (int rank = 0; rank < nranks; ++rank) ends_.push_back(std::make_unique<End>(this, rank));
}

LocalRendezvous::~LocalRendezvous() = default;

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateLocalGroup(
    int nranks, const CommOptions& options) {
  CommOptions of_rank = options;
  of_rank.nranks = nranks;
  of_rank.rank = 0;
  SWITCHYARD_RETURN_IF_ERROR(CheckOptions(of_rank));
  const Memory memory = NewMemory(Segment::Bytes(nranks, options.slot_bytes, options.num_slots));
  if (memory == nullptr) return ResourceExhausted("no memory for a group of {} ranks", nranks);
  Segment(memory.get(), nranks, options.slot_bytes, options.num_slots).Create(of_rank);
  const std::vector<MemberCard> cards(static_cast<size_t>(nranks),
                                      MakeMemberCard(BackendKind::kLocal, of_rank));
  const int64_t spin_ns = SpinBudgetNs(options.wait, cards, 0);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < nranks; ++rank) {
    of_rank.rank = rank;
    SWITCHYARD_ASSIGN_OR_RETURN(FaultInjector faults,
                                FaultInjector::Parse(options.fault_rules, rank, nranks));
    group.push_back(MakeRank(of_rank, std::move(faults), memory, spin_ns));
  }
  return group;
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateLocalCommunicator(const CommOptions& options,
                                                                      Rendezvous& rendezvous) {
  SWITCHYARD_RETURN_IF_ERROR(CheckOptions(options));
  SWITCHYARD_ASSIGN_OR_RETURN(
      FaultInjector faults,
      FaultInjector::Parse(options.fault_rules, options.rank, options.nranks));
  const absl::Time deadline = absl::Now() + options.init_timeout;
  FormingGroups& groups = FormingGroups::Get();
  MemberCard card = MakeMemberCard(BackendKind::kLocal, options);
  uint64_t number = 0;
  Memory memory;
  if (options.rank == 0) {
    memory = NewMemory(Segment::Bytes(options.nranks, options.slot_bytes, options.num_slots));
    if (memory == nullptr) {
      card.status = ResourceExhausted("no memory for a group of {} ranks", options.nranks);
    } else {
      Segment(memory.get(), options.nranks, options.slot_bytes, options.num_slots).Create(options);
      const std::lock_guard lock(groups.mutex);
      number = groups.next++;
      groups.memories[number] = memory;
      card.address = std::to_string(number);
    }
  }
  const auto join = [&]() -> absl::StatusOr<std::vector<MemberCard>> {
    SWITCHYARD_ASSIGN_OR_RETURN(std::vector<MemberCard> cards,
                                ExchangeCards(card, "create", rendezvous, deadline));
    for (const MemberCard& other : cards) {
      if (other.host == card.host && other.pid == card.pid) continue;
      return FailedPrecondition("rank {} is in another process; use the backend shm", other.rank);
    }
    if (options.rank != 0) {
      const std::lock_guard lock(groups.mutex);
      const auto found = groups.memories.find(std::strtoull(cards[0].address.c_str(), nullptr, 10));
      if (found == groups.memories.end()) {
        card.status = absl::AbortedError("the group was given up while it formed");
      } else {
        memory = found->second;
      }
    }
    return ExchangeCards(card, "join", rendezvous, deadline);
  };
  absl::StatusOr<std::vector<MemberCard>> cards = join();
  if (options.rank == 0) {
    const std::lock_guard lock(groups.mutex);
    groups.memories.erase(number);
  }
  SWITCHYARD_RETURN_IF_ERROR(cards.status());
  return MakeRank(options, std::move(faults), memory,
                  SpinBudgetNs(options.wait, *cards, options.rank));
}

}  // namespace switchyard::comm
