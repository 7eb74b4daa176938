// Messages of UcxTransport: tags, posted receives, sends, credits and notices.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/status.h"
#include "comm/monotonic_clock.h"
#include "comm/ucx_transport.h"

namespace switchyard::comm {
namespace {

uint64_t Bit(int rank) { return uint64_t{1} << rank; }

}  // namespace

uint64_t UcxTransport::Tag(Kind kind, int sender, uint32_t number) const {
  return uint64_t{static_cast<uint8_t>(kind)} << 61 | static_cast<uint64_t>(sender) << 55 |
         tag_base_ | number;
}

void UcxTransport::OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t*,
                              void* user_data) {
  Inbox& inbox = *static_cast<Inbox*>(user_data);
  inbox.request = nullptr;
  inbox.arrived = status == UCS_OK;
  inbox.arrived_ns = inbox.owner->looked_ ? NowNs() : 0;
  Ucx().ucp_request_free(request);
}

void UcxTransport::Post(Inbox* inbox, uint64_t tag, uint64_t mask) {
  inbox->arrived = false;
  inbox->request = nullptr;
  ucp_tag_recv_info_t info;
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_RECV_INFO;
  param.cb.recv = &UcxTransport::OnReceived;
  param.user_data = inbox;
  param.recv_info.tag_info = &info;
  void* request = Ucx().ucp_tag_recv_nbx(worker_->get(), inbox->memory.get(),
                                         static_cast<size_t>(inbox->capacity), tag, mask, &param);
  if (request == nullptr) {  // it was here
    inbox->arrived = true;
    inbox->arrived_ns = 0;
  } else if (!UCS_PTR_IS_ERR(request)) {
    inbox->request = request;
  } else if (first_failure_ == UCS_OK) {
    first_failure_ = UCS_PTR_STATUS(request);
  }
}

void UcxTransport::OnSent(void* request, ucs_status_t, void* user_data) {
  // An error also reaches the endpoint's handler.
  --static_cast<Outbox*>(user_data)->num_pending;
  Ucx().ucp_request_free(request);
}

void UcxTransport::Send(Outbox* outbox, int peer, const void* data, size_t num_bytes, bool in_parts,
                        uint64_t tag) {
  if ((failed_peers_ & Bit(peer)) != 0 || worker_->endpoint(peer) == nullptr) return;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &UcxTransport::OnSent;
  param.user_data = outbox;
  if (in_parts) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = ucp_dt_make_iov();
  }
  void* request = Ucx().ucp_tag_send_nbx(worker_->endpoint(peer), data, num_bytes, tag, &param);
  if (UCS_PTR_IS_ERR(request)) {
    failed_peers_ |= Bit(peer);
    if (first_failure_ == UCS_OK) first_failure_ = UCS_PTR_STATUS(request);
  } else if (request != nullptr) {
    ++outbox->num_pending;
  }
}

void UcxTransport::SendSmall(int peer, const void* data, size_t num_bytes, uint64_t tag) {
  auto idle = std::find_if(small_.begin(), small_.end(),
                           [](const auto& outbox) { return outbox->num_pending == 0; });
  if (idle == small_.end()) {
    small_.push_back(std::make_unique<Outbox>());
    idle = small_.end() - 1;
    (*idle)->owner = this;
    (*idle)->memory.reset(new std::byte[sizeof(Notice)]);
  }
  std::memcpy((*idle)->memory.get(), data, num_bytes);
  Send(idle->get(), peer, (*idle)->memory.get(), num_bytes, false, tag);
}

void UcxTransport::SendNotice(const Notice& notice, uint64_t peers) {
  for (; peers != 0; peers &= peers - 1) {
    SendSmall(std::countr_zero(peers), &notice, sizeof(notice), Tag(Kind::kNotice, rank_, 0));
  }
}

void UcxTransport::PostExchange(uint32_t number) {
  for (int peer = 0; peer < nranks_; ++peer) {
    if (peer == rank_) continue;
    Post(&exchange_inbox_[number & 1][static_cast<size_t>(peer)],
         Tag(Kind::kExchange, peer, number), ~uint64_t{0});
  }
}

void UcxTransport::PostRing(RingKind ring, int peer, uint32_t number) {
  Inbox& inbox = reader(ring, peer).slots[number % static_cast<uint32_t>(num_slots_)];
  Post(&inbox, Tag(ring == RingKind::kBroadcast ? Kind::kBroadcast : Kind::kPair, peer, number),
       ~uint64_t{0});
}

void UcxTransport::PostCredit(int peer) {
  Post(&credit_inboxes_[static_cast<size_t>(peer)], Tag(Kind::kCredit, peer, 0), ~uint64_t{0});
}

void UcxTransport::PostNotice(size_t slot) {
  // From any sender.
  Post(&notice_inboxes_[slot], Tag(Kind::kNotice, 0, 0), ~(uint64_t{0x3f} << 55));
}

void UcxTransport::TakeCredits() {
  for (int peer = 0; peer < nranks_; ++peer) {
    if (peer == rank_) continue;
    Inbox& inbox = credit_inboxes_[static_cast<size_t>(peer)];
    while (inbox.arrived) {
      Credit credit;
      std::memcpy(&credit, inbox.memory.get(), sizeof(credit));
      Writer& writer = this->writer(static_cast<RingKind>(credit.ring), peer);
      if (!writer.num_read.empty()) {
        writer.num_read[static_cast<size_t>(peer)] = credit.num_read;
      }
      PostCredit(peer);
    }
  }
}

void UcxTransport::TakeNotices() {
  for (size_t slot = 0; slot < notice_inboxes_.size(); ++slot) {
    while (notice_inboxes_[slot].arrived) {
      Notice notice;
      std::memcpy(&notice, notice_inboxes_[slot].memory.get(), sizeof(notice));
      PostNotice(slot);
      if (notice.rank < 0 || notice.rank >= nranks_) continue;
      switch (notice.type) {
        case Notice::kWaiting:
          waiting_in_[static_cast<size_t>(notice.rank)] = notice.header;
          break;
        case Notice::kLeaving:
          left_peers_ |= Bit(notice.rank);
          break;
        case Notice::kAborted:
          notice.message[sizeof(notice.message) - 1] = '\0';
          SetAborted(absl::Status(static_cast<absl::StatusCode>(notice.code),
                                  fmt::format("rank {} reports: {}", notice.rank, notice.message)));
          break;
      }
    }
  }
}

}  // namespace switchyard::comm
