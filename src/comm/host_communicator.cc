#include "comm/host_communicator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <sys/prctl.h>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "comm/monotonic_clock.h"
#include "comm/tree_reduction.h"

namespace switchyard::comm {
namespace {

// Most bytes of a caller's buffer: products of counts and sizes stay far from overflow.
constexpr int64_t kMaxBytes = int64_t{1} << 48;

size_t Index(OpKind kind) { return static_cast<size_t>(kind); }

class HostRegistration final : public Registration {};

}  // namespace

HostCommunicator::HostCommunicator(const CommOptions& options, BackendKind backend,
                                   FaultInjector faults, std::unique_ptr<Transport> transport)
    : Communicator(options, backend),
      options_(options),
      transport_(std::move(transport)),
      faults_(std::move(faults)),
      sent_seq_(static_cast<size_t>(options.nranks)),
      received_seq_(static_cast<size_t>(options.nranks)),
      pieces_(static_cast<size_t>(options.nranks)),
      data_(static_cast<size_t>(options.nranks)),
      peer_counters_(static_cast<size_t>(options.nranks)) {
  group_.reserve(kMaxGroup);
}

HostCommunicator::~HostCommunicator() = default;

Capabilities HostCommunicator::caps() const {
  return {.deterministic_sum = true, .max_inline_bytes = transport_->exchange_bytes()};
}

absl::StatusOr<std::unique_ptr<Registration>> HostCommunicator::Register(void* ptr,
                                                                         int64_t num_bytes,
                                                                         MemSpace space) {
  SWITCHYARD_RETURN_IF_ERROR(Usable());
  if (ptr == nullptr || num_bytes <= 0) {
    return InvalidArgument("cannot register memory of {} bytes at {}", num_bytes, ptr);
  }
  if (space == MemSpace::kDevice) {
    return InvalidArgument("backend {} cannot reach device memory; register host memory",
                           Name(backend()));
  }
  return std::make_unique<HostRegistration>();  // all host memory can be used as it is
}

// ---- the frame of an operation -----------------------------------------------------------------

absl::Status HostCommunicator::Usable() const {
  if (failed_.load(std::memory_order_acquire)) return Health();
  if (absl::Status status = transport_->Aborted(); !status.ok()) [[unlikely]] {
    return Fail(status);
  }
  return absl::OkStatus();
}

absl::Status HostCommunicator::Check(OpKind kind, int64_t count, int64_t ranks_in_buffer,
                                     DataType type, RedOp op, Stream stream,
                                     bool has_pointers) const {
  SWITCHYARD_RETURN_IF_ERROR(Usable());
  if (type > DataType::kU8 || op > RedOp::kMax) {
    return InvalidArgument("{}: unknown datatype {} or redop {}", Name(kind),
                           static_cast<int>(type), static_cast<int>(op));
  }
  if (count < 0 || count > kMaxBytes / BytesOf(type) / ranks_in_buffer) {
    return InvalidArgument("{}: impossible count {}", Name(kind), count);
  }
  if (count > 0 && !has_pointers) return InvalidArgument("{}: null buffer", Name(kind));
  if (stream.native != nullptr) {
    return InvalidArgument("{}: backend {} runs on the host stream only", Name(kind),
                           Name(backend()));
  }
  if (in_group_ && kind != OpKind::kSend && kind != OpKind::kRecv) {
    return InvalidArgument("{}: only Send and Recv go between GroupStart and GroupEnd", Name(kind));
  }
  return absl::OkStatus();
}

absl::Status HostCommunicator::CheckPeer(OpKind kind, int peer) const {
  if (peer >= 0 && peer < nranks()) return absl::OkStatus();
  return InvalidArgument("{}: no rank {}; there are 0 to {}", Name(kind), peer, nranks() - 1);
}

absl::Status HostCommunicator::Begin(OpHeader header, int64_t num_bytes, int64_t deadline_ns) {
  header.seq = ++seq_;
  last_seq_.Add(1);
  BeginTimed(header.kind, header, num_bytes);
  if (deadline_ns != 0) op_.deadline_ns = deadline_ns;
  return absl::OkStatus();
}

void HostCommunicator::BeginTimed(OpKind kind, const OpHeader& header, int64_t num_bytes) {
  op_.header = header;
  op_.entry_ns = NowNs();
  op_.deadline_ns = DeadlineNs(op_.entry_ns, options_.op_timeout);
  kind_ = kind;
  last_entry_ns_ = op_.entry_ns;
  transport_->Announce(header);
  record_ = flight_recorder_.Begin(header.seq, kind, num_bytes, op_.entry_ns);
  OpCounters& counters = op_counters_[Index(kind)];
  counters.num_calls.Add(1);
  counters.num_bytes.Add(num_bytes);
  num_calls_.Add(1);
}

absl::Status HostCommunicator::End(const absl::Status& status) {
  if (!status.ok()) [[unlikely]] {
    return Fail(status);
  }
  const int64_t now_ns = NowNs();
  const int64_t total_ns = now_ns - op_.entry_ns;
  const int64_t wait_ns = std::clamp<int64_t>(last_entry_ns_ - op_.entry_ns, 0, total_ns);
  OpCounters& counters = op_counters_[Index(kind_)];
  counters.wait_ns.Add(wait_ns);
  counters.transfer_ns.Add(total_ns - wait_ns);
  wait_ns_.Add(wait_ns);
  transfer_ns_.Add(total_ns - wait_ns);
  const size_t bucket = std::bit_width(static_cast<uint64_t>(total_ns) / 1000);
  counters.time_histogram[std::min(bucket, counters.time_histogram.size() - 1)].Add(1);
  flight_recorder_.End(record_, op_.entry_ns + wait_ns, now_ns);
  return absl::OkStatus();
}

absl::Status HostCommunicator::Fail(const absl::Status& status) const {
  {
    const std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) return failure_;
    failure_ = status;
    failed_.store(true, std::memory_order_release);
  }
  transport_->Abort(status);
  // An abort is meant; what else ends a communicator is worth a look at what went before.
  const bool meant = absl::IsAborted(status);
  const std::vector<FlightRecord> records = flight_recorder_.Last(FlightRecorder::kCapacity);
  const int64_t now_ns = NowNs();
  constexpr size_t kShown = 8;
  const auto level = [&](size_t i) {
    return !meant && i + kShown >= records.size() ? LogLevel::kWarning : LogLevel::kDebug;
  };
  Log(meant ? LogLevel::kDebug : LogLevel::kWarning,
      "communicator {}/{} epoch {} rank {} failed: {}; its last operations:", options_.group_id,
      options_.channel, epoch(), rank(), Message(status));
  for (size_t i = 0; i < records.size(); ++i) {
    if (LogEnabled(level(i))) Log(level(i), "  {}", Describe(records[i], now_ns));
  }
  return status;
}

absl::Status HostCommunicator::Health() const {
  if (!failed_.load(std::memory_order_acquire)) {
    const absl::Status status = transport_->LookForAbort();
    return status.ok() ? status : Fail(status);
  }
  const std::lock_guard lock(mutex_);
  return failure_;
}

void HostCommunicator::Abort(const absl::Status& reason) {
  if (failed_.load(std::memory_order_acquire)) return;
  const std::string_view message = reason.ok() ? "no reason given" : Message(reason);
  (void)Fail(absl::AbortedError(ToAbsl(message)));
}

// ---- pieces -------------------------------------------------------------------------------------

absl::Status HostCommunicator::SleepUntil(const OpContext& op, int peer, int64_t at_ns) {
  // The kernel may be 50 us late by default, as much as a link is slow.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  absl::Status status;
  for (int64_t now_ns = NowNs(); now_ns < at_ns && status.ok(); now_ns = NowNs()) {
    if (now_ns >= op.deadline_ns) {
      status = TimeoutError(op, now_ns, uint64_t{1} << peer);
      break;
    }
    // A wake-up takes some microseconds; the last ones are spent in short sleeps.
    constexpr int64_t kWakeUpNs = 20'000;
    constexpr int64_t kSliceNs = 10'000'000;
    const int64_t left_ns = std::min({at_ns, op.deadline_ns}) - now_ns;
    const timespec sleep = {
        0, static_cast<long>(std::clamp<int64_t>(left_ns - kWakeUpNs, 1, kSliceNs))};
    nanosleep(&sleep, nullptr);
    status = transport_->Aborted();
  }
  prctl(PR_SET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL);  // the default again
  return status;
}

absl::Status HostCommunicator::Receive(const OpContext& op, int peer, const Piece& piece,
                                       int64_t base_ns) {
  if (piece.header != op.header) [[unlikely]] {
    return MismatchError(rank(), op.header, peer, piece.header);
  }
  int64_t here_ns = piece.arrived_ns;
  if (!faults_.empty()) [[unlikely]] {
    const FaultInjector::Delivery delivery =
        faults_.OnRead(peer, op.header.kind, piece.publish_ns, piece.num_bytes);
    switch (delivery.kind) {
      case FaultInjector::Delivery::kDropped:
        return Unavailable("the link from rank {} to rank {} is cut, by a fault rule", peer,
                           rank());
      case FaultInjector::Delivery::kFrozen:
        return transport_->WaitUntil(op, uint64_t{1} << peer, [] { return false; });
      case FaultInjector::Delivery::kRead:
        break;
    }
    if (delivery.at_ns > piece.publish_ns) {
      SWITCHYARD_RETURN_IF_ERROR(SleepUntil(op, peer, delivery.at_ns));
      here_ns = std::max(here_ns, delivery.at_ns);
    }
  }
  PeerCounters& counters = peer_counters_[static_cast<size_t>(peer)];
  counters.num_received.Add(1);
  counters.received_bytes.Add(piece.num_bytes);
  received_bytes_.Add(piece.num_bytes);
  counters.flight_ns.Add(std::max<int64_t>(0, here_ns - piece.publish_ns));
  // What a link takes while another rank has not come yet delays nobody: it counts as waiting.
  last_entry_ns_ = std::max(last_entry_ns_, piece.entry_ns);
  const int64_t begin_ns = std::max({base_ns, piece.publish_ns, last_entry_ns_});
  counters.transfer_ns.Add(std::max<int64_t>(0, here_ns - begin_ns));
  return absl::OkStatus();
}

absl::Status HostCommunicator::Exchange(int64_t num_bytes, Spread spread) {
  SWITCHYARD_RETURN_IF_ERROR(
      transport_->FinishExchange(op_, num_bytes, spread, absl::MakeSpan(pieces_)));
  const size_t me = static_cast<size_t>(rank());
  const int64_t base_ns = pieces_[me].publish_ns;
  for (const Piece& piece : pieces_) last_entry_ns_ = std::max(last_entry_ns_, piece.entry_ns);
  for (int peer = 0; peer < nranks(); ++peer) {
    const size_t i = static_cast<size_t>(peer);
    data_[i] = pieces_[i].data;
    if (i == me) continue;
    int64_t sent_bytes = num_bytes;
    if (spread == Spread::kPersonal) sent_bytes /= nranks();
    if (spread == Spread::kToRoot && peer != op_.header.root) sent_bytes = 0;
    peer_counters_[i].sent_bytes.Add(sent_bytes);
    sent_bytes_.Add(sent_bytes);
    if (spread == Spread::kToRoot && rank() != op_.header.root) {
      // Nothing is read, so no link takes part.
      if (pieces_[i].header != op_.header) {
        return MismatchError(rank(), op_.header, peer, pieces_[i].header);
      }
      continue;
    }
    SWITCHYARD_RETURN_IF_ERROR(Receive(op_, peer, pieces_[i], base_ns));
  }
  return absl::OkStatus();
}

absl::Status HostCommunicator::ReduceInPieces(const std::byte* in, std::byte* out, int64_t count,
                                              Spread spread) {
  const int64_t size = BytesOf(op_.header.type);
  const int64_t most = transport_->exchange_bytes() / size;
  const bool wants_result = spread == Spread::kToAll || rank() == op_.header.root;
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t length = std::min(most, count - begin);
    SWITCHYARD_RETURN_IF_ERROR(transport_->BeginExchange(op_, &slot_));
    std::memcpy(slot_, in + begin * size, static_cast<size_t>(length * size));
    SWITCHYARD_RETURN_IF_ERROR(Exchange(length * size, spread));
    if (wants_result) {
      TreeReduce(data_, out + begin * size, length, op_.header.type, op_.header.redop);
    }
  }
  return absl::OkStatus();
}

absl::Status HostCommunicator::ScatterInPieces(const std::byte* in, std::byte* out, int64_t count,
                                               bool reduce) {
  const int64_t size = BytesOf(op_.header.type);
  const int64_t most = std::max<int64_t>(1, transport_->exchange_bytes() / size / nranks());
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t length = std::min(most, count - begin);
    const size_t bytes = static_cast<size_t>(length * size);
    SWITCHYARD_RETURN_IF_ERROR(transport_->BeginExchange(op_, &slot_));
    for (int peer = 0; peer < nranks(); ++peer) {
      std::memcpy(slot_ + static_cast<size_t>(peer) * bytes, in + (peer * count + begin) * size,
                  bytes);
    }
    SWITCHYARD_RETURN_IF_ERROR(Exchange(length * size * nranks(), Spread::kPersonal));
    if (reduce) {
      TreeReduce(data_, out + begin * size, length, op_.header.type, op_.header.redop);
      continue;
    }
    for (int peer = 0; peer < nranks(); ++peer) {
      std::memcpy(out + (peer * count + begin) * size, data_[static_cast<size_t>(peer)], bytes);
    }
  }
  return absl::OkStatus();
}

// ---- collectives --------------------------------------------------------------------------------

absl::Status HostCommunicator::AllReduce(const void* in, void* out, int64_t count, DataType type,
                                         RedOp op, Stream stream) {
  SWITCHYARD_RETURN_IF_ERROR(
      Check(OpKind::kAllReduce, count, 1, type, op, stream, in != nullptr && out != nullptr));
  SWITCHYARD_RETURN_IF_ERROR(
      Begin({.kind = OpKind::kAllReduce, .type = type, .redop = op, .count = count},
            count * BytesOf(type), 0));
  if (nranks() == 1) {
    if (in != out && count > 0) std::memcpy(out, in, static_cast<size_t>(count * BytesOf(type)));
    return End(absl::OkStatus());
  }
  return End(ReduceInPieces(static_cast<const std::byte*>(in), static_cast<std::byte*>(out), count,
                            Spread::kToAll));
}

absl::Status HostCommunicator::Reduce(const void* in, void* out, int64_t count, DataType type,
                                      RedOp op, int root, Stream stream) {
  SWITCHYARD_RETURN_IF_ERROR(Check(OpKind::kReduce, count, 1, type, op, stream,
                                   in != nullptr && (out != nullptr || rank() != root)));
  SWITCHYARD_RETURN_IF_ERROR(CheckPeer(OpKind::kReduce, root));
  SWITCHYARD_RETURN_IF_ERROR(Begin({.kind = OpKind::kReduce,
                                    .type = type,
                                    .redop = op,
                                    .root = static_cast<uint8_t>(root),
                                    .count = count},
                                   count * BytesOf(type), 0));
  if (nranks() == 1) {
    if (in != out && count > 0) std::memcpy(out, in, static_cast<size_t>(count * BytesOf(type)));
    return End(absl::OkStatus());
  }
  return End(ReduceInPieces(static_cast<const std::byte*>(in), static_cast<std::byte*>(out), count,
                            Spread::kToRoot));
}

absl::Status HostCommunicator::AllGather(const void* in, void* out, int64_t count_per_rank,
                                         DataType type, Stream stream) {
  SWITCHYARD_RETURN_IF_ERROR(Check(OpKind::kAllGather, count_per_rank, nranks(), type, RedOp::kSum,
                                   stream, in != nullptr && out != nullptr));
  const int64_t size = BytesOf(type);
  SWITCHYARD_RETURN_IF_ERROR(
      Begin({.kind = OpKind::kAllGather, .type = type, .count = count_per_rank},
            count_per_rank * size * nranks(), 0));
  const std::byte* from = static_cast<const std::byte*>(in);
  std::byte* to = static_cast<std::byte*>(out);
  const int64_t total = count_per_rank * size;
  const int64_t most = transport_->exchange_bytes();
  const auto gather = [&]() -> absl::Status {
    for (int64_t begin = 0; begin < total; begin += most) {
      const int64_t length = std::min(most, total - begin);
      SWITCHYARD_RETURN_IF_ERROR(transport_->BeginExchange(op_, &slot_));
      std::memcpy(slot_, from + begin, static_cast<size_t>(length));
      SWITCHYARD_RETURN_IF_ERROR(Exchange(length, Spread::kToAll));
      for (int peer = 0; peer < nranks(); ++peer) {
        std::memcpy(to + peer * total + begin, data_[static_cast<size_t>(peer)],
                    static_cast<size_t>(length));
      }
    }
    return absl::OkStatus();
  };
  return End(gather());
}

absl::Status HostCommunicator::ReduceScatter(const void* in, void* out, int64_t count_per_rank,
                                             DataType type, RedOp op, Stream stream) {
  SWITCHYARD_RETURN_IF_ERROR(Check(OpKind::kReduceScatter, count_per_rank, nranks(), type, op,
                                   stream, in != nullptr && out != nullptr));
  SWITCHYARD_RETURN_IF_ERROR(
      Begin({.kind = OpKind::kReduceScatter, .type = type, .redop = op, .count = count_per_rank},
            count_per_rank * BytesOf(type) * nranks(), 0));
  return End(ScatterInPieces(static_cast<const std::byte*>(in), static_cast<std::byte*>(out),
                             count_per_rank, true));
}

absl::Status HostCommunicator::AllToAll(const void* in, void* out, int64_t count_per_peer,
                                        DataType type, Stream stream) {
  SWITCHYARD_RETURN_IF_ERROR(Check(OpKind::kAllToAll, count_per_peer, nranks(), type, RedOp::kSum,
                                   stream, in != nullptr && out != nullptr));
  SWITCHYARD_RETURN_IF_ERROR(
      Begin({.kind = OpKind::kAllToAll, .type = type, .count = count_per_peer},
            count_per_peer * BytesOf(type) * nranks(), 0));
  return End(ScatterInPieces(static_cast<const std::byte*>(in), static_cast<std::byte*>(out),
                             count_per_peer, false));
}

absl::Status HostCommunicator::Barrier(absl::Time deadline) {
  SWITCHYARD_RETURN_IF_ERROR(Check(OpKind::kBarrier, 0, 1, DataType::kU8, RedOp::kSum, {}, true));
  SWITCHYARD_RETURN_IF_ERROR(Begin({.kind = OpKind::kBarrier}, 0, DeadlineNs(deadline)));
  const auto exchange = [&]() -> absl::Status {
    SWITCHYARD_RETURN_IF_ERROR(transport_->BeginExchange(op_, &slot_));
    return Exchange(0, Spread::kToAll);
  };
  return End(exchange());
}

absl::Status HostCommunicator::Wait(Stream stream, absl::Time deadline) {
  (void)deadline;  // operations on the host stream have ended when their call returns
  return Check(OpKind::kBarrier, 0, 1, DataType::kU8, RedOp::kSum, stream, true);
}

// ---- counters -----------------------------------------------------------------------------------

namespace {
double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }
}  // namespace

CommTotals HostCommunicator::Totals() const {
  return {.num_calls = num_calls_.value(),
          .sent_bytes = sent_bytes_.value(),
          .received_bytes = received_bytes_.value(),
          .wait_seconds = Seconds(wait_ns_.value()),
          .transfer_seconds = Seconds(transfer_ns_.value())};
}

PeerTotals HostCommunicator::TotalsOfPeer(int peer) const {
  const PeerCounters& counters = peer_counters_[static_cast<size_t>(peer)];
  return {.sent_bytes = counters.sent_bytes.value(),
          .received_bytes = counters.received_bytes.value(),
          .num_received = counters.num_received.value(),
          .transfer_seconds = Seconds(counters.transfer_ns.value()),
          .flight_seconds = Seconds(counters.flight_ns.value())};
}

CommStats HostCommunicator::Stats() const {
  CommStats stats;
  for (size_t kind = 0; kind < stats.ops.size(); ++kind) {
    const OpCounters& counters = op_counters_[kind];
    OpStats& op = stats.ops[kind];
    op.num_calls = counters.num_calls.value();
    op.num_bytes = counters.num_bytes.value();
    op.wait_seconds = Seconds(counters.wait_ns.value());
    op.transfer_seconds = Seconds(counters.transfer_ns.value());
    for (size_t i = 0; i < op.time_histogram.size(); ++i) {
      op.time_histogram[i] = counters.time_histogram[i].value();
    }
  }
  for (int peer = 0; peer < nranks(); ++peer) stats.peers.push_back(TotalsOfPeer(peer));
  stats.totals = Totals();
  stats.last_seq = static_cast<uint64_t>(last_seq_.value());
  return stats;
}

}  // namespace switchyard::comm
