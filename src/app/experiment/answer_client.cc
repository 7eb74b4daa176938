#include "app/experiment/answer_client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "switchyard/generation/v1/generation.grpc.pb.h"

#include "base/clock.h"
#include "base/grpc_status.h"
#include "base/status.h"

namespace switchyard::app {
namespace {

namespace v1 = switchyard::generation::v1;

double Seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

std::vector<StageEntry> StagesOf(const google::protobuf::RepeatedPtrField<v1::StageTrace>& trace) {
  std::vector<StageEntry> stages;
  for (const v1::StageTrace& stage : trace) {
    stages.push_back(
        {stage.stage(), Seconds(stage.duration_ns()), static_cast<int64_t>(stage.bytes())});
  }
  return stages;
}

StepLedger LedgerOf(const v1::StepTrace& trace) {
  StepLedger ledger;
  ledger.num_steps = trace.num_steps();
  ledger.seconds = Seconds(trace.duration_ns());
  for (const v1::RankTrace& rank : trace.ranks()) {
    ledger.ranks.push_back({.rank = static_cast<int>(rank.rank()),
                            .num_steps = rank.num_steps(),
                            .seconds = Seconds(rank.duration_ns()),
                            .idle_seconds = Seconds(rank.idle_ns()),
                            .stages = StagesOf(rank.stages())});
  }
  if (ledger.ranks.empty() && trace.num_steps() > 0) {  // one worker is rank 0
    ledger.ranks.push_back({.rank = 0,
                            .num_steps = trace.num_steps(),
                            .seconds = ledger.seconds,
                            .idle_seconds = Seconds(trace.idle_ns()),
                            .stages = StagesOf(trace.stages())});
  }
  for (const v1::LinkTrace& link : trace.links()) {
    ledger.links.push_back({.from = static_cast<int>(link.from_rank()),
                            .to = static_cast<int>(link.to_rank()),
                            .bytes = static_cast<int64_t>(link.bytes()),
                            .num_messages = static_cast<int64_t>(link.num_messages()),
                            .transfer_seconds = Seconds(link.transfer_ns()),
                            .flight_seconds = Seconds(link.flight_ns())});
  }
  return ledger;
}

// The one with the median time among those of a single step.
StepLedger MedianStep(std::vector<StepLedger> steps) {
  std::erase_if(steps, [](const StepLedger& step) { return step.num_steps != 1; });
  if (steps.empty()) return {};
  const auto middle = steps.begin() + static_cast<ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end(),
                   [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  return *middle;
}

class GrpcAnswerClient : public AnswerClient {
 public:
  explicit GrpcAnswerClient(const std::string& address)
      : stub_(v1::GenerationService::NewStub(
            grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                      DefaultChannelArguments(kMaxClientMessageBytes)))) {}

  absl::StatusOr<AnsweringModel> Describe() override {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::GetModelResponse response;
    const grpc::Status status = stub_->GetModel(&context, v1::GetModelRequest(), &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return AnsweringModel{.vocab_size = static_cast<int32_t>(response.model().vocab_size()),
                          .digest = response.model().digest(),
                          .architecture = response.model().architecture(),
                          .plan_id = response.model().plan_id()};
  }

  absl::StatusOr<Answer> Ask(const AnswerRequest& request, double limit_seconds) override {
    v1::StreamGenerateRequest message;
    v1::GenerationSpec& spec = *message.mutable_spec();
    if (request.text.empty()) {
      spec.mutable_token_ids()->mutable_ids()->Add(request.token_ids.begin(),
                                                   request.token_ids.end());
    } else {
      spec.set_text(request.text);
    }
    spec.mutable_sampling()->set_temperature(0);
    spec.mutable_stop()->set_max_tokens(static_cast<uint32_t>(request.max_tokens));
    spec.mutable_stop()->set_ignore_eos(true);
    spec.mutable_output()->set_include_token_ids(true);
    spec.mutable_output()->set_include_step_trace(true);
    spec.mutable_cache()->set_cache_salt(request.cache_salt);

    const Clock& clock = MonotonicClock::Get();
    Answer answer;
    std::vector<StepLedger> steps;
    double last_seconds = 0;
    bool is_finished = false;
    v1::StepTrace all;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(static_cast<int64_t>(limit_seconds * 1e3)));
    const double start = clock.NowSeconds();
    const auto stream = stub_->StreamGenerate(&context, message);
    v1::StreamGenerateResponse event;
    AnswerSample& sample = answer.sample;
    while (stream->Read(&event)) {
      if (event.has_delta() && event.delta().token_ids_size() > 0) {
        const double now = clock.NowSeconds();
        const auto& ids = event.delta().token_ids();
        const bool is_first = answer.token_ids.empty();
        if (is_first) {
          sample.ttft_seconds = now - start;
        } else {
          sample.gap_seconds.push_back(now - last_seconds);
          // What comes with the first token was the prompt's.
          steps.push_back(LedgerOf(event.delta().trace()));
        }
        sample.gap_seconds.insert(sample.gap_seconds.end(), static_cast<size_t>(ids.size() - 1), 0);
        last_seconds = now;
        answer.token_ids.insert(answer.token_ids.end(), ids.begin(), ids.end());
      } else if (event.has_finished()) {
        const v1::Finished& finished = event.finished();
        is_finished = true;
        all = finished.timings().steps();
        sample.prompt_tokens = static_cast<int>(finished.usage().prompt_tokens());
        sample.cached_tokens = static_cast<int>(finished.usage().cached_tokens());
        sample.completion_tokens = static_cast<int>(finished.usage().completion_tokens());
        sample.prefill_per_second = finished.timings().prompt_per_second();
      }
    }
    const grpc::Status status = stream->Finish();
    if (!status.ok()) return FromGrpcStatus(status);
    if (!is_finished || answer.token_ids.size() < 2) return Internal("the answer has no end");
    sample.decode_per_second = static_cast<double>(answer.token_ids.size() - 1) /
                               (last_seconds - start - sample.ttft_seconds);
    for (const StepLedger& step : steps) Add(step, sample.decode);
    sample.prefill = Subtract(LedgerOf(all), sample.decode);
    sample.token = MedianStep(std::move(steps));
    return answer;
  }

 private:
  std::unique_ptr<v1::GenerationService::Stub> stub_;
};

}  // namespace

std::unique_ptr<AnswerClient> MakeAnswerClient(const std::string& address) {
  return std::make_unique<GrpcAnswerClient>(address);
}

}  // namespace switchyard::app
