// Fuzz target of what workers send: whatever the messages, a session goes on or ends with one line,
// and nothing reaches the engine that its plans do not allow.
//
// Input: one byte that says how far the group has come, then messages, each as two bytes of length
// (little-endian) and a serialised WorkerSessionRequest. Leases cannot be guessed, so the right one
// is put in where the message has none; epoch 0 stands for the present one.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include <google/protobuf/stubs/logging.h>

#include "switchyard/worker/v1/session.pb.h"

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/cluster.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

constexpr uint32_t kNumSlots = 3;
constexpr uint32_t kVocabSize = 100;

class FuzzClock : public Clock {
 public:
  double NowSeconds() const override { return now; }
  double now = 1;
};

struct Sent {
  int num_ended = 0;
};

class FuzzStream : public WorkerStream {
 public:
  explicit FuzzStream(Sent& sent) : sent_(sent) {}
  void Send(v1::WorkerSessionResponse) override {}
  void Close(const absl::Status& status) override {
    SWITCHYARD_CHECK(!status.ok());
    SWITCHYARD_CHECK(Message(status).find('\n') == std::string_view::npos);
    ++sent_.num_ended;
  }

 private:
  Sent& sent_;
};

class FuzzEvents : public ClusterEvents {
 public:
  void OnReady(uint64_t epoch) override {
    SWITCHYARD_CHECK(ready_epoch == 0);
    ready_epoch = epoch;
  }
  void OnResult(const v1::StepResult& result) override {
    SWITCHYARD_CHECK(ready_epoch != 0 && !plans.empty() && plans.front() == result.plan());
    for (const v1::SlotResult& slot : result.slots()) {
      SWITCHYARD_CHECK(slot.slot() < kNumSlots);
      for (const uint32_t id : slot.token_ids()) SWITCHYARD_CHECK(id < kVocabSize);
    }
    if (result.last_of_plan()) plans.pop_front();
  }
  void OnLeaving() override {}
  void OnLost(const absl::Status& status, bool) override {
    SWITCHYARD_CHECK(ready_epoch != 0 && !status.ok());
    ready_epoch = 0;
    plans.clear();
  }
  void OnStaleProcess(const std::string&, uint32_t) override {}

  uint64_t ready_epoch = 0;
  std::deque<uint64_t> plans;
};

v1::StepPlan PlanOf(uint64_t epoch, uint64_t number) {
  v1::StepPlan plan;
  plan.set_epoch(epoch);
  plan.set_plan(number);
  plan.set_run_ahead(4);
  v1::SlotStart& start = *plan.add_starts();
  start.set_incarnation(number);
  start.set_num_logprobs(1);
  v1::PrefillChunk& chunk = *plan.add_prefill();
  chunk.set_incarnation(number);
  for (uint32_t i = 0; i < 5; ++i) chunk.add_token_ids(i);
  chunk.set_sample(true);
  plan.add_decode()->set_incarnation(number);
  v1::DecodeSlot& decode = *plan.add_decode();
  decode.set_slot(1);
  decode.set_incarnation(3);
  return plan;
}

void Play(const uint8_t* data, size_t size) {
  ClusterOptions options;
  options.configure.set_model_path("m");
  options.configure.set_model_digest("d");
  options.configure.mutable_sizes()->set_num_slots(kNumSlots);
  options.configure.mutable_sizes()->set_num_pages(8);
  options.configure.mutable_sizes()->set_max_context(128);
  options.configure.mutable_sizes()->set_max_step_rows(64);
  options.vocab_size = kVocabSize;
  FuzzClock clock;
  FuzzEvents events;
  Sent sent;
  Cluster cluster(options, clock, events);
  v1::RegisterWorkerRequest registration;
  registration.set_worker_id("w");
  registration.set_incarnation(1);
  registration.set_protocol_version(kWorkerProtocolVersion);
  const auto lease = cluster.Register(registration);
  SWITCHYARD_CHECK(lease.ok());
  SWITCHYARD_CHECK(cluster.OpenSession(lease->lease_id(), std::make_unique<FuzzStream>(sent)).ok());

  const uint8_t stage = data[0];
  if ((stage & 1) != 0) {
    v1::WorkerSessionRequest ready;
    ready.set_lease_id(lease->lease_id());
    ready.set_epoch(cluster.epoch());
    ready.mutable_shard_ready();
    cluster.OnMessage(lease->lease_id(), ready);
    SWITCHYARD_CHECK(events.ready_epoch != 0);
    for (uint64_t number = 1; number <= (stage >> 1 & 3U); ++number) {
      events.plans.push_back(number);
      SWITCHYARD_CHECK(cluster.Submit(PlanOf(events.ready_epoch, number)).ok());
    }
  }
  for (size_t at = 1; at + 2 <= size;) {
    const size_t length = std::min<size_t>(data[at] | data[at + 1] << 8, size - at - 2);
    v1::WorkerSessionRequest message;
    const bool is_message = message.ParseFromArray(data + at + 2, static_cast<int>(length));
    at += 2 + length;
    if (!is_message) continue;  // gRPC ends the call
    if (message.lease_id() == 0) message.set_lease_id(lease->lease_id());
    if (message.epoch() == 0) message.set_epoch(cluster.epoch());
    cluster.OnMessage(lease->lease_id(), message);
    clock.now += 0.05;
    cluster.Tick();
    (void)cluster.status();
  }
  SWITCHYARD_CHECK(sent.num_ended <= 1);
}

}  // namespace
}  // namespace switchyard::coordinator

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Messages that are none are the point of it; the library would write a line about each.
  [[maybe_unused]] static auto* const silenced = google::protobuf::SetLogHandler(nullptr);
  switchyard::InitLogging({.threshold = switchyard::LogLevel::kOff});
  google::protobuf::SetLogHandler(nullptr);  // it would complain of every string
  if (size > 0) switchyard::coordinator::Play(data, size);
  return 0;
}
