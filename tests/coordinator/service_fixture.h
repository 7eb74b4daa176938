// A GenerationService behind a real socket, over any generator.
#pragma once

#include <memory>
#include <string>

#include <grpcpp/create_channel.h>

#include "switchyard/generation/v1/generation.grpc.pb.h"

#include "base/check.h"
#include "base/grpc_status.h"
#include "coordinator/generation_service.h"
#include "coordinator/grpc_server.h"
#include "coordinator/request_gate.h"
#include "testing/byte_tokenizer.h"

namespace switchyard::coordinator {

class ServiceFixture {
 public:
  explicit ServiceFixture(Generator& generator, const GenerationServiceOptions& options = {})
      : gate_(generator, metrics_), service_(gate_, model_, options) {
    auto server = GrpcServer::Start({}, {&service_}, {kGenerationServiceName});
    SWITCHYARD_CHECK(server.ok());
    server_ = std::move(*server);
    server_->Follow(gate_, kGenerationServiceName);
    gate_.SetEngineState(EngineState::kServing);
    stub_ = Stub(DefaultChannelArguments(kMaxClientMessageBytes));
  }

  std::unique_ptr<generation::v1::GenerationService::Stub> Stub(
      const grpc::ChannelArguments& arguments) const {
    return generation::v1::GenerationService::NewStub(
        grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments));
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(server_->port()); }
  generation::v1::GenerationService::Stub& stub() { return *stub_; }
  RequestGate& gate() { return gate_; }
  ServingMetrics& metrics() { return metrics_; }
  GrpcServer& server() { return *server_; }
  const ServedModel& model() const { return model_; }

 private:
  static ServingMetricsOptions MetricsOptions() {
    ServingMetricsOptions options;
    options.model = "tiny";
    return options;
  }

  const model::ModelSpec spec_{};
  const model::Tokenizer tokenizer_ = testing::ByteTokenizer();
  // Refuses what is neither a user nor an assistant.
  const model::ChatTemplate template_ = *model::ChatTemplate::Parse(
      "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
      "{{ raise_exception('unknown role') }}{% endif %}{{ m.role }}:{{ m.content }}<|im_end|>"
      "{% endfor %}{% if suffix %}{{ suffix }}{% endif %}"
      "{% if add_generation_prompt %}assistant:{% endif %}");
  const ServedModel model_{.name = "tiny",
                           .created_unix_seconds = 1000,
                           .spec = spec_,
                           .tokenizer = tokenizer_,
                           .chat_template = template_,
                           .max_context = 1024,
                           .file_bytes = 77,
                           .digest = "abc",
                           .path_name = "tiny.gguf",
                           .mode = "single",
                           .plan_id = "plan-1"};
  ServingMetrics metrics_{MetricsOptions()};
  RequestGate gate_;
  GenerationService service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<generation::v1::GenerationService::Stub> stub_;
};

}  // namespace switchyard::coordinator
