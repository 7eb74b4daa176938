#include "comm/ucx_transport.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <poll.h>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "comm/monotonic_clock.h"
#include "comm/segment.h"

namespace switchyard::comm {
namespace {

constexpr int64_t kSliceNs = 100'000'000;
constexpr int kNumNotices = 4;  // posted receives for notices
constexpr int kNumClockTrips = 16;

uint64_t Bit(int rank) { return uint64_t{1} << rank; }

}  // namespace

// ---- construction -------------------------------------------------------------------------------

UcxTransport::UcxTransport(const CommOptions& options, std::unique_ptr<UcxWorker> worker,
                           const std::vector<MemberCard>& cards, int64_t spin_ns)
    : worker_(std::move(worker)),
      rank_(options.rank),
      nranks_(options.nranks),
      slot_bytes_(options.slot_bytes),
      num_slots_(options.num_slots),
      // 3 bits of kind, 6 of sender, 7 of channel, 16 of epoch, 32 of number.
      tag_base_((GroupHash(options.group_id, options.channel) & 0x7f) << 48 |
                (options.epoch & 0xffff) << 32),
      gauge_(spin_ns),
      pair_writers_(cards.size()),
      broadcast_readers_(cards.size()),
      pair_readers_(cards.size()),
      credit_inboxes_(cards.size()),
      notice_inboxes_(kNumNotices),
      clocks_(cards.size()),
      same_host_(cards.size()),
      waiting_in_(cards.size()) {
  const auto make_inbox = [this](Inbox* inbox, int64_t capacity) {
    inbox->owner = this;
    inbox->memory.reset(new std::byte[static_cast<size_t>(capacity)]);
    inbox->capacity = capacity;
  };
  for (int parity = 0; parity < 2; ++parity) {
    Outbox& outbox = exchange_outbox_[parity];
    outbox.owner = this;
    outbox.memory.reset(new std::byte[static_cast<size_t>(slot_bytes_)]);
    outbox.headers.resize(cards.size());
    outbox.parts.resize(2 * cards.size());
    exchange_inbox_[parity].resize(cards.size());
  }
  for (int peer = 0; peer < nranks_; ++peer) {
    const size_t i = static_cast<size_t>(peer);
    same_host_[i] = cards[i].host == cards[static_cast<size_t>(rank_)].host;
    if (peer == rank_) continue;
    for (auto& inboxes : exchange_inbox_) make_inbox(&inboxes[i], kHeaderBytes + slot_bytes_);
    for (auto* readers : {&broadcast_readers_, &pair_readers_}) {
      (*readers)[i].slots.resize(static_cast<size_t>(num_slots_));
      for (Inbox& inbox : (*readers)[i].slots) make_inbox(&inbox, kHeaderBytes + slot_bytes_);
    }
    make_inbox(&credit_inboxes_[i], sizeof(Credit));
  }
  for (Inbox& inbox : notice_inboxes_) make_inbox(&inbox, sizeof(Notice));
}

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(
    const CommOptions& options, std::unique_ptr<UcxWorker> worker,
    const std::vector<MemberCard>& cards, int64_t deadline_ns) {
  std::unique_ptr<UcxTransport> transport(new UcxTransport(
      options, std::move(worker), cards, SpinBudgetNs(options.wait, cards, options.rank)));
  UcxTransport& t = *transport;
  for (int peer = 0; peer < t.nranks_; ++peer) {
    if (peer == t.rank_) continue;
    SWITCHYARD_RETURN_IF_ERROR(t.worker_->Connect(peer, cards[static_cast<size_t>(peer)].address,
                                                  [&t, peer](ucs_status_t status) {
                                                    t.failed_peers_ |= Bit(peer);
                                                    if (t.first_failure_ == UCS_OK)
                                                      t.first_failure_ = status;
                                                  }));
    t.PostCredit(peer);
    for (uint32_t number = 0; number < static_cast<uint32_t>(t.num_slots_); ++number) {
      t.PostRing(RingKind::kBroadcast, peer, number);
      t.PostRing(RingKind::kPair, peer, number);
    }
  }
  for (size_t slot = 0; slot < t.notice_inboxes_.size(); ++slot) t.PostNotice(slot);
  t.PostExchange(1);
  SWITCHYARD_RETURN_IF_ERROR(t.SynchronizeClocks(deadline_ns));
  return transport;
}

UcxTransport::~UcxTransport() {
  const std::lock_guard lock(mutex_);
  if (!is_aborted_.load(std::memory_order_acquire)) {
    Notice leaving;
    leaving.type = Notice::kLeaving;
    leaving.rank = rank_;
    SendNotice(leaving, (~uint64_t{0} >> (64 - nranks_)) & ~Bit(rank_));
  }
  worker_->CloseEndpoints();
  const auto cancel = [this](Inbox& inbox) {
    if (inbox.request != nullptr) Ucx().ucp_request_cancel(worker_->get(), inbox.request);
  };
  for (auto& inboxes : exchange_inbox_) std::for_each(inboxes.begin(), inboxes.end(), cancel);
  for (auto* readers : {&broadcast_readers_, &pair_readers_}) {
    for (Reader& reader : *readers) {
      std::for_each(reader.slots.begin(), reader.slots.end(), cancel);
    }
  }
  std::for_each(credit_inboxes_.begin(), credit_inboxes_.end(), cancel);
  std::for_each(notice_inboxes_.begin(), notice_inboxes_.end(), cancel);
  while (worker_->Progress()) {
  }
}

absl::Status UcxTransport::SynchronizeClocks(int64_t deadline_ns) {
  // Pairs in one order on all ranks, so that nobody waits in a circle. This opens the connections
  // too, which UCX makes at the first message.
  std::unique_lock lock(mutex_);
  Inbox inbox;
  inbox.owner = this;
  inbox.memory.reset(new std::byte[sizeof(int64_t)]);
  inbox.capacity = sizeof(int64_t);
  OpContext op = {
      .header = {.kind = OpKind::kBarrier}, .entry_ns = NowNs(), .deadline_ns = deadline_ns};
  const auto receive = [&](int peer, uint32_t number) -> absl::StatusOr<int64_t> {
    Post(&inbox, Tag(Kind::kClock, peer, number), ~uint64_t{0});
    const absl::Status status = Await(
        lock, op, [&inbox] { return inbox.arrived; }, [peer] { return Bit(peer); });
    if (!status.ok()) {
      if (inbox.request != nullptr) {
        Ucx().ucp_request_cancel(worker_->get(), inbox.request);
        while (worker_->Progress()) {
        }
      }
      return WithContext(status, fmt::format("connect to rank {}", peer));
    }
    int64_t value;
    std::memcpy(&value, inbox.memory.get(), sizeof(value));
    return value;
  };
  const auto send = [&](int peer, uint32_t number, int64_t value) {
    SendSmall(peer, &value, sizeof(value), Tag(Kind::kClock, rank_, number));
  };
  for (int low = 0; low < nranks_; ++low) {
    for (int high = low + 1; high < nranks_; ++high) {
      if (rank_ != low && rank_ != high) continue;
      const int peer = rank_ == low ? high : low;
      PeerClock& clock = clocks_[static_cast<size_t>(peer)];
      for (uint32_t trip = 0; trip < kNumClockTrips; ++trip) {
        if (rank_ == low) {
          const int64_t sent_ns = NowNs();
          send(peer, trip, sent_ns);
          SWITCHYARD_ASSIGN_OR_RETURN(const int64_t peer_ns, receive(peer, trip));
          clock.AddRoundTrip(sent_ns, peer_ns, NowNs());
        } else {
          SWITCHYARD_RETURN_IF_ERROR(receive(peer, trip).status());
          send(peer, trip, NowNs());
        }
      }
      // The other side is told what came out.
      if (rank_ == low) {
        send(peer, kNumClockTrips, clock.offset_ns());
      } else {
        SWITCHYARD_ASSIGN_OR_RETURN(const int64_t offset_ns, receive(peer, kNumClockTrips));
        clock.AddRoundTrip(0, offset_ns, 0);
      }
    }
  }
  return absl::OkStatus();
}

// ---- waiting ------------------------------------------------------------------------------------

absl::Status UcxTransport::CheckPeers(const OpContext& op, uint64_t awaited) {
  TakeNotices();
  SWITCHYARD_RETURN_IF_ERROR(Aborted());
  if (const uint64_t dead = failed_peers_ & ~left_peers_; dead != 0) {
    return Unavailable("the link from {} to rank {} is gone ({}); {} cannot finish",
                       DescribeRanks(dead), rank_, Ucx().ucs_status_string(first_failure_),
                       Describe(op.header));
  }
  if (const uint64_t left = left_peers_ & awaited; left != 0) {
    return Unavailable("{} has left the group; {} cannot finish", DescribeRanks(left),
                       Describe(op.header));
  }
  if (op.header.kind == OpKind::kSend) return absl::OkStatus();
  for (int peer = 0; peer < nranks_; ++peer) {
    const OpHeader& theirs = waiting_in_[static_cast<size_t>(peer)];
    if (theirs.seq == op.header.seq && theirs.kind != OpKind::kSend && theirs != op.header) {
      return MismatchError(rank_, op.header, peer, theirs);
    }
  }
  return absl::OkStatus();
}

template <typename Ready, typename Awaited>
absl::Status UcxTransport::Await(std::unique_lock<std::mutex>& lock, const OpContext& op,
                                 Ready ready, Awaited awaited) {
  looked_ = false;
  if (gauge_.SpinUntil([&] {
        while (worker_->Progress()) {
        }
        looked_ = true;
        return ready();
      })) {
    TakeNotices();
    return Aborted();
  }
  int64_t next_notice_ns = 0;
  while (true) {
    while (worker_->Progress()) {
    }
    if (ready()) return absl::OkStatus();
    // What a peer did before it went still counts, so this comes after ready().
    SWITCHYARD_RETURN_IF_ERROR(CheckPeers(op, awaited()));
    const int64_t now_ns = NowNs();
    if (now_ns >= op.deadline_ns) return TimeoutError(op, now_ns, awaited());
    if (next_notice_ns == 0) next_notice_ns = now_ns + kSliceNs;
    if (now_ns >= next_notice_ns) {
      Notice waiting;
      waiting.rank = rank_;
      waiting.header = op.header;
      SendNotice(waiting, (~uint64_t{0} >> (64 - nranks_)) & ~Bit(rank_));
      next_notice_ns = now_ns + kSliceNs;
    }
    const ucs_status_t armed = Ucx().ucp_worker_arm(worker_->get());
    if (armed == UCS_ERR_BUSY) continue;
    if (armed != UCS_OK) return UcxStatus(armed, "sleep on the UCX worker");
    const int64_t most_ns = std::min(next_notice_ns, op.deadline_ns) - now_ns;
    lock.unlock();
    pollfd event = {.fd = worker_->event_fd(), .events = POLLIN, .revents = 0};
    const timespec limit = {most_ns / 1'000'000'000, most_ns % 1'000'000'000};
    ppoll(&event, 1, &limit, nullptr);
    lock.lock();
  }
}

absl::Status UcxTransport::WaitUntil(const OpContext& op, uint64_t awaited,
                                     absl::FunctionRef<bool()> ready) {
  // `ready` calls back into CanPut() and Peek(), which lock.
  std::unique_lock lock(mutex_);
  return Await(
      lock, op,
      [&] {
        lock.unlock();
        const bool is_ready = ready();
        lock.lock();
        return is_ready;
      },
      [awaited] { return awaited; });
}

// ---- exchanges ----------------------------------------------------------------------------------

absl::Status UcxTransport::BeginExchange(const OpContext& op, std::byte** slot) {
  std::unique_lock lock(mutex_);
  const uint32_t number = num_exchanges_ + 1;
  Outbox& outbox = exchange_outbox_[number & 1];
  if (outbox.num_pending > 0) {
    SWITCHYARD_RETURN_IF_ERROR(Await(
        lock, op, [&outbox] { return outbox.num_pending == 0; },
        [this] { return (~uint64_t{0} >> (64 - nranks_)) & ~Bit(rank_); }));
  }
  // Pieces of the last exchange have been used up, so its buffers can take those of the next.
  PostExchange(number + 1);
  *slot = outbox.memory.get();
  return absl::OkStatus();
}

void UcxTransport::FillPiece(const Inbox& inbox, int peer, Piece* piece) {
  const WireHeader& header = inbox.header();
  PeerClock& clock = clocks_[static_cast<size_t>(peer)];
  const bool same_host = same_host_[static_cast<size_t>(peer)];
  const auto here = [&](int64_t ns) { return same_host ? ns : clock.Here(ns); };
  if (!same_host) {
    clock.Observe(header.publish_ns, inbox.arrived_ns != 0 ? inbox.arrived_ns : NowNs(),
                  header.offset_ns);
  }
  piece->data = inbox.memory.get() + kHeaderBytes;
  piece->header = header.header;
  // A peer's word is not trusted with memory.
  piece->num_bytes = std::clamp<int64_t>(header.num_bytes, 0, slot_bytes_);
  piece->entry_ns = here(header.entry_ns);
  piece->publish_ns = here(header.publish_ns);
  piece->arrived_ns = inbox.arrived_ns != 0 ? inbox.arrived_ns : piece->publish_ns;
}

absl::Status UcxTransport::FinishExchange(const OpContext& op, int64_t num_bytes, Spread spread,
                                          absl::Span<Piece> pieces) {
  std::unique_lock lock(mutex_);
  const uint32_t number = ++num_exchanges_;
  Outbox& outbox = exchange_outbox_[number & 1];
  const int64_t part_bytes = num_bytes / nranks_;
  const int64_t publish_ns = NowNs();
  for (int distance = 1; distance < nranks_; ++distance) {
    const int peer = (rank_ + distance) % nranks_;
    const size_t i = static_cast<size_t>(peer);
    std::byte* data = outbox.memory.get();
    int64_t bytes = num_bytes;
    if (spread == Spread::kPersonal) {
      data += peer * part_bytes;
      bytes = part_bytes;
    }
    if (spread == Spread::kToRoot && peer != op.header.root) bytes = 0;
    WireHeader& header = outbox.headers[i];
    header = {.header = op.header,
              .num_bytes = bytes,
              .entry_ns = op.entry_ns,
              .publish_ns = publish_ns,
              .offset_ns = clocks_[i].offset_ns(),
              .reserved = {}};
    outbox.parts[2 * i] = {.buffer = &header, .length = kHeaderBytes};
    outbox.parts[2 * i + 1] = {.buffer = data, .length = static_cast<size_t>(bytes)};
    Send(&outbox, peer, &outbox.parts[2 * i], bytes > 0 ? 2 : 1, true,
         Tag(Kind::kExchange, rank_, number));
  }
  auto& inboxes = exchange_inbox_[number & 1];
  const auto missing = [&] {
    uint64_t ranks = 0;
    for (int peer = 0; peer < nranks_; ++peer) {
      if (peer != rank_ && !inboxes[static_cast<size_t>(peer)].arrived) ranks |= Bit(peer);
    }
    return ranks;
  };
  if (nranks_ > 1) {
    SWITCHYARD_RETURN_IF_ERROR(Await(
        lock, op, [&] { return missing() == 0; }, missing));
  }
  for (int peer = 0; peer < nranks_; ++peer) {
    Piece& piece = pieces[static_cast<size_t>(peer)];
    if (peer == rank_) {
      const bool personal = spread == Spread::kPersonal;
      piece = {.data = outbox.memory.get() + (personal ? rank_ * part_bytes : 0),
               .header = op.header,
               .num_bytes = personal ? part_bytes : num_bytes,
               .entry_ns = op.entry_ns,
               .publish_ns = publish_ns,
               .arrived_ns = publish_ns};
    } else {
      FillPiece(inboxes[static_cast<size_t>(peer)], peer, &piece);
    }
  }
  return absl::OkStatus();
}

// ---- rings --------------------------------------------------------------------------------------

UcxTransport::Writer& UcxTransport::writer(RingKind ring, int peer) {
  return ring == RingKind::kBroadcast ? broadcast_writer_
                                      : pair_writers_[static_cast<size_t>(peer)];
}

UcxTransport::Reader& UcxTransport::reader(RingKind ring, int peer) {
  return ring == RingKind::kBroadcast ? broadcast_readers_[static_cast<size_t>(peer)]
                                      : pair_readers_[static_cast<size_t>(peer)];
}

bool UcxTransport::CanPutLocked(RingKind ring, int peer) {
  TakeCredits();
  Writer& writer = this->writer(ring, peer);
  if (writer.slots.empty()) return true;
  const uint32_t num_slots = static_cast<uint32_t>(num_slots_);
  if (writer.slots[writer.num_written % num_slots].num_pending > 0) return false;
  for (int reader = 0; reader < nranks_; ++reader) {
    if (reader == rank_ || (ring == RingKind::kPair && reader != peer)) continue;
    if (writer.num_written - writer.num_read[static_cast<size_t>(reader)] >= num_slots) {
      return false;
    }
  }
  return true;
}

bool UcxTransport::CanPut(RingKind ring, int peer) {
  const std::lock_guard lock(mutex_);
  if (CanPutLocked(ring, peer)) return true;
  while (worker_->Progress()) {
  }
  return CanPutLocked(ring, peer);
}

absl::Status UcxTransport::Put(const OpContext& op, RingKind ring, int peer, const void* data,
                               int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  Writer& writer = this->writer(ring, peer);
  if (writer.slots.empty()) {
    writer.slots.resize(static_cast<size_t>(num_slots_));
    for (Outbox& outbox : writer.slots) {
      outbox.owner = this;
      outbox.memory.reset(new std::byte[static_cast<size_t>(kHeaderBytes + slot_bytes_)]());
    }
    writer.num_read.resize(static_cast<size_t>(nranks_));
  }
  const uint32_t number = writer.num_written++;
  Outbox& outbox = writer.slots[number % static_cast<uint32_t>(num_slots_)];
  WireHeader header = {.header = op.header,
                       .num_bytes = num_bytes,
                       .entry_ns = op.entry_ns,
                       .publish_ns = NowNs(),
                       .offset_ns = 0,
                       .reserved = {}};
  // One message for all readers, so it says nothing of their clocks.
  header.offset_ns =
      ring == RingKind::kPair ? clocks_[static_cast<size_t>(peer)].offset_ns() : INT64_MAX;
  std::memcpy(outbox.memory.get(), &header, sizeof(header));
  std::memcpy(outbox.memory.get() + kHeaderBytes, data, static_cast<size_t>(num_bytes));
  const Kind kind = ring == RingKind::kBroadcast ? Kind::kBroadcast : Kind::kPair;
  for (int reader = 0; reader < nranks_; ++reader) {
    if (reader == rank_ || (ring == RingKind::kPair && reader != peer)) continue;
    Send(&outbox, reader, outbox.memory.get(), static_cast<size_t>(kHeaderBytes + num_bytes), false,
         Tag(kind, rank_, number));
  }
  while (worker_->Progress()) {
  }
  return absl::OkStatus();
}

bool UcxTransport::Peek(RingKind ring, int peer, Piece* piece) {
  const std::lock_guard lock(mutex_);
  Reader& reader = this->reader(ring, peer);
  const Inbox& inbox = reader.slots[reader.num_read % static_cast<uint32_t>(num_slots_)];
  if (!inbox.arrived) {
    while (worker_->Progress()) {
    }
  }
  if (!inbox.arrived) return false;
  FillPiece(inbox, peer, piece);
  return true;
}

void UcxTransport::Release(RingKind ring, int peer) {
  const std::lock_guard lock(mutex_);
  Reader& reader = this->reader(ring, peer);
  const uint32_t num_slots = static_cast<uint32_t>(num_slots_);
  PostRing(ring, peer, reader.num_read + num_slots);
  ++reader.num_read;
  // Half of a ring at a time: a credit costs as much as a small piece.
  if (reader.num_read % std::max(1u, num_slots / 2) != 0) return;
  const Credit credit = {.ring = static_cast<uint32_t>(ring), .num_read = reader.num_read};
  SendSmall(peer, &credit, sizeof(credit), Tag(Kind::kCredit, rank_, 0));
}

// ---- aborts -------------------------------------------------------------------------------------

void UcxTransport::SetAborted(const absl::Status& status) {
  const std::lock_guard lock(aborted_mutex_);
  if (is_aborted_.load(std::memory_order_relaxed)) return;
  aborted_ = status;
  is_aborted_.store(true, std::memory_order_release);
}

absl::Status UcxTransport::Aborted() {
  if (!is_aborted_.load(std::memory_order_acquire)) [[likely]] {
    return absl::OkStatus();
  }
  const std::lock_guard lock(aborted_mutex_);
  return aborted_;
}

absl::Status UcxTransport::LookForAbort() {
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) {
    while (worker_->Progress()) {
    }
    TakeNotices();
  }
  return Aborted();
}

void UcxTransport::Abort(const absl::Status& reason) {
  if (is_aborted_.load(std::memory_order_acquire)) return;
  SetAborted(reason);
  worker_->Signal();
  const std::lock_guard lock(mutex_);
  Notice aborted;
  aborted.type = Notice::kAborted;
  aborted.rank = rank_;
  aborted.code = static_cast<int32_t>(reason.code());
  const std::string_view message = Message(reason);
  std::memcpy(aborted.message, message.data(),
              std::min(message.size(), sizeof(aborted.message) - 1));
  SendNotice(aborted, (~uint64_t{0} >> (64 - nranks_)) & ~Bit(rank_));
  while (worker_->Progress()) {
  }
}

}  // namespace switchyard::comm
