#include <chrono>
#include <mutex>
#include <set>

#include <grpcpp/grpcpp.h>

#include "switchyard/generation/v1/generation.grpc.pb.h"

#include "app/load/load_client.h"
#include "base/clock.h"
#include "base/grpc_status.h"

namespace switchyard::app {
namespace {

namespace v1 = switchyard::generation::v1;

// A server that never answers must not hold the measurement for good.
constexpr std::chrono::hours kMaxCallTime{1};

class GrpcLoadClient : public LoadClient {
 public:
  GrpcLoadClient(const std::string& address, const std::string& api_key) : api_key_(api_key) {
    const auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                                   DefaultChannelArguments(kMaxClientMessageBytes));
    stub_ = v1::GenerationService::NewStub(channel);
  }

  absl::StatusOr<ServerFacts> Describe() override {
    grpc::ClientContext context;
    Prepare(context);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::GetModelResponse response;
    const grpc::Status status = stub_->GetModel(&context, v1::GetModelRequest(), &response);
    if (!status.ok()) return FromGrpcStatus(status);
    const v1::Model& model = response.model();
    return ServerFacts{.model = model.name(),
                       .digest = model.digest(),
                       .mode = model.mode(),
                       .plan_id = model.plan_id(),
                       .context_tokens = static_cast<int64_t>(model.context_tokens()),
                       .vocab_size = static_cast<int32_t>(model.vocab_size())};
  }

  LoadSample Run(const LoadRequest& request) override {
    v1::StreamGenerateRequest message;
    v1::GenerationSpec& spec = *message.mutable_spec();
    spec.mutable_token_ids()->mutable_ids()->Add(request.prompt.begin(), request.prompt.end());
    spec.mutable_sampling()->set_temperature(0);
    spec.mutable_stop()->set_max_tokens(static_cast<uint32_t>(request.max_tokens));
    spec.mutable_stop()->set_ignore_eos(true);
    spec.mutable_output()->set_include_token_ids(true);
    if (!request.cache_salt.empty()) spec.mutable_cache()->set_cache_salt(request.cache_salt);

    const Clock& clock = MonotonicClock::Get();
    LoadSample sample;
    grpc::ClientContext context;
    Prepare(context);
    context.set_deadline(std::chrono::system_clock::now() + kMaxCallTime);
    sample.start_seconds = clock.NowSeconds();
    const Running running(*this, context);
    const auto stream = stub_->StreamGenerate(&context, message);
    v1::StreamGenerateResponse event;
    double last_seconds = 0;
    while (stream->Read(&event)) {
      if (event.has_delta() && event.delta().token_ids_size() > 0) {
        const double now = clock.NowSeconds();
        const bool is_first = sample.first_token_seconds == 0;
        if (is_first) sample.first_token_seconds = now;
        if (!is_first) sample.gap_seconds.push_back(now - last_seconds);
        sample.gap_seconds.insert(sample.gap_seconds.end(),
                                  static_cast<size_t>(event.delta().token_ids_size() - 1), 0.0);
        last_seconds = now;
      } else if (event.has_finished()) {
        const v1::Finished& finished = event.finished();
        sample.prompt_tokens = static_cast<int>(finished.usage().prompt_tokens());
        sample.cached_tokens = static_cast<int>(finished.usage().cached_tokens());
        sample.completion_tokens = static_cast<int>(finished.usage().completion_tokens());
        sample.prompt_per_second = finished.timings().prompt_per_second();
      }
    }
    sample.status = FromGrpcStatus(stream->Finish());
    sample.end_seconds = clock.NowSeconds();
    return sample;
  }

  void Stop() override {
    std::lock_guard lock(mutex_);
    is_stopped_ = true;
    for (grpc::ClientContext* const context : running_) context->TryCancel();
  }

 private:
  // Lets Stop() find a call while it runs.
  class Running {
   public:
    Running(GrpcLoadClient& client, grpc::ClientContext& context)
        : client_(client), context_(context) {
      std::lock_guard lock(client_.mutex_);
      client_.running_.insert(&context_);
      if (client_.is_stopped_) context_.TryCancel();
    }
    ~Running() {
      std::lock_guard lock(client_.mutex_);
      client_.running_.erase(&context_);
    }

   private:
    GrpcLoadClient& client_;
    grpc::ClientContext& context_;
  };

  void Prepare(grpc::ClientContext& context) const {
    if (!api_key_.empty()) context.AddMetadata("authorization", "Bearer " + api_key_);
  }

  std::string api_key_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
  std::mutex mutex_;  // guards what follows
  std::set<grpc::ClientContext*> running_;
  bool is_stopped_ = false;
};

}  // namespace

std::unique_ptr<LoadClient> MakeGrpcLoadClient(const std::string& address,
                                               const std::string& api_key) {
  return std::make_unique<GrpcLoadClient>(address, api_key);
}

}  // namespace switchyard::app
