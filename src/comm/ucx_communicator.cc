#include "comm/ucx_communicator.h"

#include <utility>

#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "comm/host_communicator.h"
#include "comm/member_card.h"
#include "comm/monotonic_clock.h"
#include "comm/ucx_transport.h"

namespace switchyard::comm {

absl::StatusOr<std::unique_ptr<Communicator>> CreateUcxCommunicator(const CommOptions& options,
                                                                    Rendezvous& rendezvous) {
  SWITCHYARD_RETURN_IF_ERROR(CheckOptions(options));
  SWITCHYARD_ASSIGN_OR_RETURN(
      FaultInjector faults,
      FaultInjector::Parse(options.fault_rules, options.rank, options.nranks));
  const absl::Time deadline = absl::Now() + options.init_timeout;
  MemberCard card = MakeMemberCard(BackendKind::kUcx, options);
  absl::StatusOr<std::unique_ptr<UcxWorker>> worker = UcxWorker::Create(options.nranks);
  card.status = worker.status();
  if (worker.ok()) card.address = (*worker)->address();
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<MemberCard> cards,
                              ExchangeCards(card, "create", rendezvous, deadline));
  SWITCHYARD_ASSIGN_OR_RETURN(
      std::unique_ptr<UcxTransport> transport,
      UcxTransport::Create(options, *std::move(worker), cards, DeadlineNs(deadline)));
  return std::make_unique<HostCommunicator>(options, BackendKind::kUcx, std::move(faults),
                                            std::move(transport));
}

}  // namespace switchyard::comm
