// What goes through rings: Broadcast, Send, Recv, and groups of the latter.
#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "base/status_macros.h"
#include "comm/host_communicator.h"
#include "comm/monotonic_clock.h"

namespace switchyard::comm {

bool HostCommunicator::CanMove(const Transfer& transfer) {
  if (transfer.done_bytes == transfer.num_bytes) return false;
  if (transfer.from != nullptr) return transport_->CanPut(transfer.ring, transfer.peer);
  Piece piece;
  return transport_->Peek(transfer.ring, transfer.peer, &piece);
}

absl::Status HostCommunicator::MovePiece(Transfer& transfer) {
  const int64_t left = transfer.num_bytes - transfer.done_bytes;
  if (transfer.from != nullptr) {
    const int64_t length = std::min(left, transport_->ring_bytes());
    SWITCHYARD_RETURN_IF_ERROR(transport_->Put(transfer.op, transfer.ring, transfer.peer,
                                               transfer.from + transfer.done_bytes, length));
    transfer.done_bytes += length;
    for (int peer = 0; peer < nranks(); ++peer) {
      const bool gets =
          transfer.ring == RingKind::kBroadcast ? peer != rank() : peer == transfer.peer;
      if (!gets) continue;
      peer_counters_[static_cast<size_t>(peer)].sent_bytes.Add(length);
      sent_bytes_.Add(length);
    }
    return absl::OkStatus();
  }
  Piece piece;
  transport_->Peek(transfer.ring, transfer.peer, &piece);
  SWITCHYARD_RETURN_IF_ERROR(Receive(transfer.op, transfer.peer, piece, transfer.op.entry_ns));
  if (piece.num_bytes > left)
    return Internal("piece of {} bytes, {} expected", piece.num_bytes, left);
  std::memcpy(transfer.to + transfer.done_bytes, piece.data, static_cast<size_t>(piece.num_bytes));
  transport_->Release(transfer.ring, transfer.peer);
  transfer.done_bytes += piece.num_bytes;
  return absl::OkStatus();
}

absl::Status HostCommunicator::RunTransfers(absl::Span<Transfer> transfers) {
  const auto bit = [](int rank) { return uint64_t{1} << rank; };
  while (true) {
    bool moved = false;
    uint64_t awaited = 0;
    // Peers with an unfinished transfer: a later one of the same direction must not overtake it.
    uint64_t blocked_writes = 0, blocked_reads = 0;
    for (Transfer& transfer : transfers) {
      if (transfer.done_bytes == transfer.num_bytes) continue;
      const bool writes = transfer.from != nullptr;
      uint64_t& blocked = writes ? blocked_writes : blocked_reads;
      while ((blocked & bit(transfer.peer)) == 0 && CanMove(transfer)) {
        SWITCHYARD_RETURN_IF_ERROR(MovePiece(transfer));
        moved = true;
      }
      if (transfer.done_bytes == transfer.num_bytes) continue;
      blocked |= bit(transfer.peer);
      awaited |= writes && transfer.ring == RingKind::kBroadcast
                     ? (~uint64_t{0} >> (64 - nranks())) & ~bit(rank())
                     : bit(transfer.peer);
    }
    if (awaited == 0) return absl::OkStatus();
    if (moved) continue;
    const int64_t begin_ns = blocked_reads != 0 ? 0 : NowNs();
    SWITCHYARD_RETURN_IF_ERROR(transport_->WaitUntil(op_, awaited, [&] {
      return std::any_of(transfers.begin(), transfers.end(),
                         [this](const Transfer& transfer) { return CanMove(transfer); });
    }));
    // A writer that is out of credits waits for its readers.
    if (blocked_reads == 0) last_entry_ns_ += NowNs() - begin_ns;
  }
}

absl::Status HostCommunicator::Broadcast(void* buffer, int64_t count, DataType type, int root,
                                         Stream stream) {
  SWITCHYARD_RETURN_IF_ERROR(
      Check(OpKind::kBroadcast, count, 1, type, RedOp::kSum, stream, buffer != nullptr));
  SWITCHYARD_RETURN_IF_ERROR(CheckPeer(OpKind::kBroadcast, root));
  const int64_t num_bytes = count * BytesOf(type);
  SWITCHYARD_RETURN_IF_ERROR(Begin({.kind = OpKind::kBroadcast,
                                    .type = type,
                                    .root = static_cast<uint8_t>(root),
                                    .count = count},
                                   num_bytes, 0));
  if (nranks() == 1) return End(absl::OkStatus());
  Transfer transfer = {.op = op_,
                       .kind = OpKind::kBroadcast,
                       .ring = RingKind::kBroadcast,
                       .peer = root,
                       .num_bytes = num_bytes};
  if (root == rank()) {
    transfer.from = static_cast<const std::byte*>(buffer);
  } else {
    transfer.to = static_cast<std::byte*>(buffer);
  }
  return End(RunTransfers({&transfer, 1}));
}

absl::Status HostCommunicator::Send(const void* buffer, int64_t count, DataType type, int peer,
                                    Stream stream) {
  SWITCHYARD_RETURN_IF_ERROR(
      Check(OpKind::kSend, count, 1, type, RedOp::kSum, stream, buffer != nullptr));
  return PairTransfer({.kind = OpKind::kSend,
                       .ring = RingKind::kPair,
                       .peer = peer,
                       .from = static_cast<const std::byte*>(buffer),
                       .num_bytes = count * BytesOf(type)},
                      count, type);
}

absl::Status HostCommunicator::Recv(void* buffer, int64_t count, DataType type, int peer,
                                    Stream stream) {
  SWITCHYARD_RETURN_IF_ERROR(
      Check(OpKind::kRecv, count, 1, type, RedOp::kSum, stream, buffer != nullptr));
  return PairTransfer({.kind = OpKind::kRecv,
                       .ring = RingKind::kPair,
                       .peer = peer,
                       .to = static_cast<std::byte*>(buffer),
                       .num_bytes = count * BytesOf(type)},
                      count, type);
}

absl::Status HostCommunicator::PairTransfer(Transfer transfer, int64_t count, DataType type) {
  SWITCHYARD_RETURN_IF_ERROR(CheckPeer(transfer.kind, transfer.peer));
  if (transfer.peer == rank()) {
    return InvalidArgument("{}: rank {} has no link to itself; copy instead", Name(transfer.kind),
                           rank());
  }
  if (in_group_ && group_.size() == kMaxGroup) {
    return InvalidArgument("{}: a group holds {} transfers; begin another", Name(transfer.kind),
                           kMaxGroup);
  }
  auto& seqs = transfer.kind == OpKind::kSend ? sent_seq_ : received_seq_;
  BeginTimed(transfer.kind,
             {.seq = ++seqs[static_cast<size_t>(transfer.peer)],
              .kind = OpKind::kSend,
              .type = type,
              .count = count},
             transfer.num_bytes);
  transfer.op = op_;
  transfer.record = record_;
  if (in_group_) {
    group_.push_back(transfer);
    return absl::OkStatus();
  }
  return End(RunTransfers({&transfer, 1}));
}

absl::Status HostCommunicator::GroupStart() {
  SWITCHYARD_RETURN_IF_ERROR(Usable());
  if (in_group_) return InvalidArgument("GroupStart: the last group has no GroupEnd");
  in_group_ = true;
  return absl::OkStatus();
}

absl::Status HostCommunicator::GroupEnd() {
  SWITCHYARD_RETURN_IF_ERROR(Usable());
  if (!in_group_) return InvalidArgument("GroupEnd without GroupStart");
  in_group_ = false;
  if (group_.empty()) return absl::OkStatus();
  // The time of the group counts for its last transfer.
  const int64_t now_ns = NowNs();
  for (Transfer& transfer : group_) {
    transfer.op.entry_ns = now_ns;
    transfer.op.deadline_ns = DeadlineNs(now_ns, options_.op_timeout);
  }
  op_ = group_.back().op;
  last_entry_ns_ = now_ns;
  const absl::Status status = RunTransfers(absl::MakeSpan(group_));
  for (const Transfer& transfer : group_) {
    if (status.ok()) flight_recorder_.End(transfer.record, now_ns, NowNs());
  }
  group_.clear();
  return End(status);
}

}  // namespace switchyard::comm
