#include "comm/shm_communicator.h"

#include <cstring>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "comm/host_communicator.h"
#include "comm/member_card.h"
#include "comm/segment_transport.h"

namespace switchyard::comm {
namespace {

constexpr std::string_view kFolder = "/dev/shm";

std::string ErrorText(int error) { return std::strerror(error); }

// A segment's file name: with what tells later whether its creator still lives.
std::string SegmentName(const CommOptions& options, const MemberCard& card) {
  std::string space;
  for (char c : card.pid_namespace) {
    if (c >= '0' && c <= '9') space += c;
  }
  return fmt::format("switchyard-{}-{}-{:x}-{}", space, card.pid,
                     GroupHash(options.group_id, options.channel), options.epoch);
}

// Removes segments of killed processes: those that died between creating and unlinking.
void RemoveAbandoned(const std::string& my_name) {
  const std::string space = my_name.substr(0, my_name.find('-', sizeof("switchyard-") - 1) + 1);
  DIR* folder = opendir(std::string(kFolder).c_str());
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(space)) continue;
    const int pid = std::atoi(entry->d_name + space.size());
    if (pid <= 0 || kill(pid, 0) == 0 || errno != ESRCH) continue;
    if (shm_unlink(fmt::format("/{}", name).c_str()) == 0) {
      LogInfo("removed {}/{}, left by process {}, which has died", kFolder, name, pid);
    }
  }
  closedir(folder);
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// A mapping of a segment and the pidfds of its ranks.
class ShmHolder final : public SegmentHolder {
 public:
  ShmHolder(std::byte* memory, size_t num_bytes) : memory_(memory), num_bytes_(num_bytes) {}
  ~ShmHolder() override { munmap(memory_, num_bytes_); }

  std::byte* memory() const { return memory_; }

  // Watches the processes of the other ranks.
  absl::Status Watch(const std::vector<MemberCard>& cards, int rank) {
    for (const MemberCard& card : cards) {
      if (card.rank == rank) continue;
      if (card.pid_namespace != cards[static_cast<size_t>(rank)].pid_namespace) {
        LogWarning(
            "rank {} has other process ids (another container): its death is seen at deadlines",
            card.rank);
        continue;
      }
      Descriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, card.pid, 0)));
      if (pidfd.get() < 0 && errno == ENOSYS) {
        LogWarning("this kernel has no pidfd_open (Linux 5.3): deaths are seen at deadlines");
        return absl::OkStatus();
      }
      if (pidfd.get() < 0 || ProcessStartTime(card.pid) != card.start_time) {
        return Unavailable("rank {} (process {}) has died while the group formed", card.rank,
                           card.pid);
      }
      polls_.push_back({.fd = pidfd.get(), .events = POLLIN, .revents = 0});
      ranks_.push_back(card.rank);
      pidfds_.push_back(std::move(pidfd));
    }
    return absl::OkStatus();
  }

  uint64_t DeadRanks() const override {
    std::vector<pollfd> polls = polls_;  // once in 100 ms of sleep
    if (poll(polls.data(), polls.size(), 0) <= 0) return 0;
    uint64_t dead = 0;
    for (size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].revents != 0) dead |= uint64_t{1} << ranks_[i];
    }
    return dead;
  }

 private:
  std::byte* const memory_;
  const size_t num_bytes_;
  std::vector<Descriptor> pidfds_;
  std::vector<pollfd> polls_;
  std::vector<int> ranks_;
};

absl::Status NoRoom(int64_t needed, double free_bytes) {
  return ResourceExhausted(
      "{} has {} free, and the ranks need {} to share: make it larger (docker run --shm-size)",
      kFolder, FormatBytes(free_bytes), FormatBytes(static_cast<double>(needed)));
}

absl::StatusOr<Descriptor> CreateSegmentFile(const std::string& name, int64_t num_bytes) {
  struct statvfs space;
  if (statvfs(std::string(kFolder).c_str(), &space) == 0) {
    const double free_bytes =
        static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
    if (free_bytes < static_cast<double>(num_bytes)) return NoRoom(num_bytes, free_bytes);
  }
  const std::string path = "/" + name;
  Descriptor file(shm_open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (file.get() < 0) {
    return Internal("cannot create {}/{}: {}", kFolder, name, ErrorText(errno));
  }
  // All pages now: a full file system would later end the process at a write.
  if (const int error = posix_fallocate(file.get(), 0, num_bytes); error != 0) {
    shm_unlink(path.c_str());
    if (error == ENOSPC) return NoRoom(num_bytes, 0);
    return Internal("cannot make {}/{} {} bytes long: {}", kFolder, name, num_bytes,
                    ErrorText(error));
  }
  return file;
}

absl::StatusOr<std::unique_ptr<ShmHolder>> Map(const Descriptor& file, int64_t num_bytes) {
  void* memory = mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                      file.get(), 0);
  if (memory == MAP_FAILED) {
    return ResourceExhausted("cannot map a shared segment of {} bytes: {}", num_bytes,
                             ErrorText(errno));
  }
  return std::make_unique<ShmHolder>(static_cast<std::byte*>(memory),
                                     static_cast<size_t>(num_bytes));
}

absl::StatusOr<std::unique_ptr<ShmHolder>> MapPeersSegment(const std::string& name,
                                                           int64_t num_bytes) {
  const Descriptor file(shm_open(("/" + name).c_str(), O_RDWR | O_CLOEXEC, 0));
  if (file.get() < 0) {
    return FailedPrecondition(
        "cannot open {}/{} of rank 0: {}; ranks of one host must share {}, else use the backend "
        "ucx",
        kFolder, name, ErrorText(errno), kFolder);
  }
  struct stat status;
  if (fstat(file.get(), &status) != 0 || status.st_size < num_bytes) {
    return FailedPrecondition("{}/{} of rank 0 is shorter than {} bytes", kFolder, name, num_bytes);
  }
  return Map(file, num_bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> CreateShmCommunicator(const CommOptions& options,
                                                                    Rendezvous& rendezvous) {
  SWITCHYARD_RETURN_IF_ERROR(CheckOptions(options));
  SWITCHYARD_ASSIGN_OR_RETURN(
      FaultInjector faults,
      FaultInjector::Parse(options.fault_rules, options.rank, options.nranks));
  const absl::Time deadline = absl::Now() + options.init_timeout;
  const int64_t num_bytes = Segment::Bytes(options.nranks, options.slot_bytes, options.num_slots);
  MemberCard card = MakeMemberCard(BackendKind::kShm, options);
  std::unique_ptr<ShmHolder> holder;
  const auto take = [&](absl::StatusOr<std::unique_ptr<ShmHolder>> mapped) {
    card.status = mapped.status();
    if (mapped.ok()) holder = *std::move(mapped);
  };
  const auto segment = [&] {
    return Segment(holder->memory(), options.nranks, options.slot_bytes, options.num_slots);
  };

  if (options.rank == 0) {
    card.address = SegmentName(options, card);
    RemoveAbandoned(card.address);
    absl::StatusOr<Descriptor> file = CreateSegmentFile(card.address, num_bytes);
    card.status = file.status();
    if (file.ok()) take(Map(*file, num_bytes));
    if (holder != nullptr) segment().Create(options);
  }
  const auto join = [&]() -> absl::StatusOr<std::vector<MemberCard>> {
    SWITCHYARD_ASSIGN_OR_RETURN(std::vector<MemberCard> cards,
                                ExchangeCards(card, "create", rendezvous, deadline));
    for (const MemberCard& other : cards) {
      if (other.host == card.host) continue;
      return FailedPrecondition("rank {} is on another host; use the backend ucx", other.rank);
    }
    if (options.rank != 0) {
      take(MapPeersSegment(cards[0].address, num_bytes));
      if (holder != nullptr) card.status = segment().Verify(options);
    }
    if (card.status.ok()) card.status = holder->Watch(cards, options.rank);
    return ExchangeCards(card, "map", rendezvous, deadline);
  };
  const absl::StatusOr<std::vector<MemberCard>> cards = join();
  if (options.rank == 0 && holder != nullptr) shm_unlink(("/" + card.address).c_str());
  SWITCHYARD_RETURN_IF_ERROR(cards.status());
  const Segment mapped = segment();
  return std::make_unique<HostCommunicator>(
      options, BackendKind::kShm, std::move(faults),
      std::make_unique<SegmentTransport>(std::move(holder), mapped, options.rank,
                                         SpinBudgetNs(options.wait, *cards, options.rank)));
}

}  // namespace switchyard::comm
