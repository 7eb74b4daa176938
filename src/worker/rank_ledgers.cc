#include "worker/rank_ledgers.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"

namespace switchyard::worker {

RankLedgers::RankLedgers(comm::Communicator& ranks, int lead_rank)
    : ranks_(ranks), lead_rank_(lead_rank), last_totals_(static_cast<size_t>(ranks.nranks())) {
  own_.resize(sizeof(Head) + last_totals_.size() * sizeof(PeerLine));
  other_.resize(own_.size());
  sums_.resize(last_totals_.size());
  for (Sum& sum : sums_) sum.peers.resize(last_totals_.size());
  for (int peer = 0; peer < ranks.nranks(); ++peer) {
    last_totals_[static_cast<size_t>(peer)] = ranks.TotalsOfPeer(peer);
  }
}

void RankLedgers::Close(const Ledger& ledger, double seconds, double idle_seconds) {
  Head head = {};
  head.seconds = seconds;
  head.idle_seconds = idle_seconds;
  double covered = 0;
  for (size_t i = 0; i < head.stages.size(); ++i) {
    const kernels::LedgerSlot& slot = ledger[static_cast<v1::Stage>(i)];
    head.stages[i] = {slot.seconds, slot.weight_bytes, slot.peer_bytes};
    if (i != v1::STAGE_UNSPECIFIED) covered += slot.seconds;
  }
  head.stages[v1::STAGE_UNSPECIFIED].seconds = std::max(seconds - covered, 0.0);
  std::memcpy(own_.data(), &head, sizeof(head));
  for (size_t peer = 0; peer < last_totals_.size(); ++peer) {
    const comm::PeerTotals now = ranks_.TotalsOfPeer(static_cast<int>(peer));
    const comm::PeerTotals& last = last_totals_[peer];
    const PeerLine line = {
        now.received_bytes - last.received_bytes, now.num_received - last.num_received,
        now.transfer_seconds - last.transfer_seconds, now.flight_seconds - last.flight_seconds};
    std::memcpy(own_.data() + sizeof(Head) + peer * sizeof(PeerLine), &line, sizeof(line));
    last_totals_[peer] = now;
  }
}

absl::Status RankLedgers::Send() {
  return ranks_.Send(own_.data(), static_cast<int64_t>(own_.size()), comm::DataType::kU8,
                     lead_rank_);
}

void RankLedgers::Add(int rank, const std::vector<std::byte>& bytes) {
  Sum& sum = sums_[static_cast<size_t>(rank)];
  Head head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  sum.head.seconds += head.seconds;
  sum.head.idle_seconds += head.idle_seconds;
  for (size_t i = 0; i < head.stages.size(); ++i) {
    sum.head.stages[i].seconds += head.stages[i].seconds;
    sum.head.stages[i].weight_bytes += head.stages[i].weight_bytes;
    sum.head.stages[i].peer_bytes += head.stages[i].peer_bytes;
  }
  for (size_t peer = 0; peer < sum.peers.size(); ++peer) {
    PeerLine line;
    std::memcpy(&line, bytes.data() + sizeof(Head) + peer * sizeof(PeerLine), sizeof(line));
    sum.peers[peer].num_bytes += line.num_bytes;
    sum.peers[peer].num_messages += line.num_messages;
    sum.peers[peer].transfer_seconds += line.transfer_seconds;
    sum.peers[peer].flight_seconds += line.flight_seconds;
  }
}

absl::Status RankLedgers::Collect() {
  for (int rank = 0; rank < ranks_.nranks(); ++rank) {
    if (rank == ranks_.rank()) continue;
    SWITCHYARD_RETURN_IF_ERROR(
        ranks_.Recv(other_.data(), static_cast<int64_t>(other_.size()), comm::DataType::kU8, rank));
    Add(rank, other_);
  }
  return absl::OkStatus();
}

void RankLedgers::Fill(int rank, const Sum& sum, v1::RankCost& cost) {
  cost.set_rank(static_cast<uint32_t>(rank));
  cost.set_seconds(sum.head.seconds);
  cost.set_idle_seconds(sum.head.idle_seconds);
  for (size_t i = 0; i < sum.head.stages.size(); ++i) {
    const StageLine& line = sum.head.stages[i];
    if (line.seconds == 0 && line.weight_bytes == 0 && line.peer_bytes == 0) continue;
    v1::StageCost& stage = *cost.add_costs();
    stage.set_stage(static_cast<v1::Stage>(i));
    stage.set_seconds(line.seconds);
    stage.set_weight_bytes(static_cast<uint64_t>(line.weight_bytes));
    stage.set_peer_bytes(static_cast<uint64_t>(line.peer_bytes));
  }
  for (size_t peer = 0; peer < sum.peers.size(); ++peer) {
    const PeerLine& line = sum.peers[peer];
    if (line.num_messages == 0) continue;
    v1::PeerTraffic& traffic = *cost.add_received();
    traffic.set_peer(static_cast<uint32_t>(peer));
    traffic.set_bytes(static_cast<uint64_t>(line.num_bytes));
    traffic.set_num_messages(static_cast<uint64_t>(line.num_messages));
    traffic.set_transfer_seconds(line.transfer_seconds);
    traffic.set_flight_seconds(line.flight_seconds);
  }
}

void RankLedgers::Report(v1::StepResult& result) {
  Add(ranks_.rank(), own_);
  for (size_t rank = 0; rank < sums_.size(); ++rank) {
    Sum& sum = sums_[rank];
    if (sum.head.seconds > 0) Fill(static_cast<int>(rank), sum, *result.add_ranks());
    sum.head = {};
    std::fill(sum.peers.begin(), sum.peers.end(), PeerLine{});
  }
}

}  // namespace switchyard::worker
