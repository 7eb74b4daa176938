// Moves pieces as tagged messages of UCX, between processes of any hosts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/member_card.h"
#include "comm/peer_clock.h"
#include "comm/transport.h"
#include "comm/ucx_worker.h"
#include "comm/wait_plan.h"

namespace switchyard::comm {

// Exchanges are one-shot: everybody sends to everybody. Receives for the next exchange, and for as
// many pieces of each ring as its writer may be ahead, are always posted, so that nothing arrives
// unexpected; readers return credits. Each message has a tag of kind, sender, epoch, channel and
// number, and begins with the header of its operation.
//
// A rank that waits polls as SpinGauge says, then sleeps on the worker's descriptor; every 100 ms
// it tells those it waits for in which operation it is, so that ranks in different ones find out.
class UcxTransport final : public Transport {
 public:
  // Connects to all peers and compares clocks. Collective.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(const CommOptions& options,
                                                              std::unique_ptr<UcxWorker> worker,
                                                              const std::vector<MemberCard>& cards,
                                                              int64_t deadline_ns);
  ~UcxTransport() override;

  int64_t exchange_bytes() const override { return slot_bytes_; }
  int64_t ring_bytes() const override { return slot_bytes_; }
  void Announce(const OpHeader& header) override { announced_ = header; }
  absl::Status BeginExchange(const OpContext& op, std::byte** slot) override;
  absl::Status FinishExchange(const OpContext& op, int64_t num_bytes, Spread spread,
                              absl::Span<Piece> pieces) override;
  bool CanPut(RingKind ring, int peer) override;
  absl::Status Put(const OpContext& op, RingKind ring, int peer, const void* data,
                   int64_t num_bytes) override;
  bool Peek(RingKind ring, int peer, Piece* piece) override;
  void Release(RingKind ring, int peer) override;
  absl::Status WaitUntil(const OpContext& op, uint64_t awaited,
                         absl::FunctionRef<bool()> ready) override;
  absl::Status Aborted() override;
  absl::Status LookForAbort() override;
  void Abort(const absl::Status& reason) override;

 private:
  enum class Kind : uint8_t { kExchange, kBroadcast, kPair, kCredit, kNotice, kClock };
  // In front of every payload.
  struct WireHeader {
    OpHeader header;
    int64_t num_bytes = 0;
    int64_t entry_ns = 0;  // by the sender's clock
    int64_t publish_ns = 0;
    int64_t offset_ns = 0;     // from the receiver's clock to the sender's, as the sender believes
    int64_t reserved[2] = {};  // zero; keeps payloads aligned
  };
  static constexpr int64_t kHeaderBytes = sizeof(WireHeader);
  static_assert(kHeaderBytes == 64);

  struct Credit {
    uint32_t ring = 0;
    uint32_t num_read = 0;
  };
  struct Notice {
    enum Type : uint32_t { kWaiting, kAborted, kLeaving } type = kWaiting;
    int32_t rank = 0;
    OpHeader header;   // of kWaiting
    int32_t code = 0;  // of kAborted
    char message[244] = {};
  };

  // A buffer with a posted receive.
  struct Inbox {
    UcxTransport* owner = nullptr;
    std::unique_ptr<std::byte[]> memory;
    int64_t capacity = 0;
    void* request = nullptr;
    bool arrived = false;
    int64_t arrived_ns = 0;  // 0 if it was here before this rank looked
    const WireHeader& header() const { return *reinterpret_cast<const WireHeader*>(memory.get()); }
  };
  // A buffer whose sends are under way.
  struct Outbox {
    UcxTransport* owner = nullptr;
    std::unique_ptr<std::byte[]> memory;
    int num_pending = 0;
    // For exchanges, in which every peer may get another part.
    std::vector<WireHeader> headers;
    std::vector<ucp_dt_iov_t> parts;  // two for each peer
  };
  struct Writer {
    std::vector<Outbox> slots;  // made at the first use
    uint32_t num_written = 0;
    std::vector<uint32_t> num_read;  // by reader
  };
  struct Reader {
    std::vector<Inbox> slots;
    uint32_t num_read = 0;
  };

  UcxTransport(const CommOptions& options, std::unique_ptr<UcxWorker> worker,
               const std::vector<MemberCard>& cards, int64_t spin_ns);

  uint64_t Tag(Kind kind, int sender, uint32_t number) const;
  absl::Status SynchronizeClocks(int64_t deadline_ns);
  void Post(Inbox* inbox, uint64_t tag, uint64_t mask);
  void Send(Outbox* outbox, int peer, const void* data, size_t num_bytes, bool in_parts,
            uint64_t tag);
  void SendSmall(int peer, const void* data, size_t num_bytes, uint64_t tag);
  void SendNotice(const Notice& notice, uint64_t peers);
  void PostExchange(uint32_t number);
  void PostRing(RingKind ring, int peer, uint32_t number);
  void PostCredit(int peer);
  void PostNotice(size_t slot);
  void TakeCredits();
  void TakeNotices();
  Writer& writer(RingKind ring, int peer);
  Reader& reader(RingKind ring, int peer);
  bool CanPutLocked(RingKind ring, int peer);
  void FillPiece(const Inbox& inbox, int peer, Piece* piece);
  // Progresses and sleeps until ready; `lock` is released while it sleeps.
  template <typename Ready, typename Awaited>
  absl::Status Await(std::unique_lock<std::mutex>& lock, const OpContext& op, Ready ready,
                     Awaited awaited);
  absl::Status CheckPeers(const OpContext& op, uint64_t awaited);
  void SetAborted(const absl::Status& status);

  static void OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                         void* user_data);
  static void OnSent(void* request, ucs_status_t status, void* user_data);

  // Guards everything below but aborted_: Abort() comes from any thread.
  std::mutex mutex_;
  const std::unique_ptr<UcxWorker> worker_;
  const int rank_;
  const int nranks_;
  const int64_t slot_bytes_;
  const int num_slots_;
  const uint64_t tag_base_;
  const std::string name_;
  SpinGauge gauge_;
  OpHeader announced_;

  uint32_t num_exchanges_ = 0;
  Outbox exchange_outbox_[2];             // by parity
  std::vector<Inbox> exchange_inbox_[2];  // by parity and peer
  Writer broadcast_writer_;
  std::vector<Writer> pair_writers_;
  std::vector<Reader> broadcast_readers_, pair_readers_;
  std::vector<Inbox> credit_inboxes_;  // by peer
  std::vector<Inbox> notice_inboxes_;
  std::vector<std::unique_ptr<Outbox>> small_;
  std::vector<PeerClock> clocks_;
  std::vector<bool> same_host_;

  bool looked_ = false;        // this wait has found nothing at least once
  uint64_t failed_peers_ = 0;  // whose endpoint has failed
  uint64_t left_peers_ = 0;    // that said goodbye
  ucs_status_t first_failure_ = UCS_OK;
  std::vector<OpHeader> waiting_in_;  // by peer, as its last notice said

  std::atomic<bool> is_aborted_{false};
  std::mutex aborted_mutex_;
  absl::Status aborted_;
};

}  // namespace switchyard::comm
