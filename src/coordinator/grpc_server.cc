#include "coordinator/grpc_server.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "base/status.h"

namespace switchyard::coordinator {
namespace {

// The reflection library adds itself to every server of a process that links it. This leaves it
// where it is wanted.
class ReflectionOption final : public grpc::ServerBuilderOption {
 public:
  explicit ReflectionOption(bool is_wanted) : is_wanted_(is_wanted) {}

  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    auto reflection = std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>();
    std::erase_if(*plugins,
                  [&](const auto& plugin) { return plugin->name() == reflection->name(); });
    if (is_wanted_) plugins->push_back(std::move(reflection));
  }

 private:
  const bool is_wanted_;
};

}  // namespace

// What reports health; shared with the gate's listener, which may outlive the server.
class GrpcServer::Health {
 public:
  void Attach(grpc::HealthCheckServiceInterface* service, const std::vector<std::string>& names) {
    std::lock_guard lock(mutex_);
    service_ = service;
    for (const std::string& name : names) service_->SetServingStatus(name, false);
    names_ = names;
  }

  void Set(const std::string& name, bool is_serving) {
    std::lock_guard lock(mutex_);
    if (service_ != nullptr && !is_draining_) service_->SetServingStatus(name, is_serving);
  }

  void BeginDrain() {
    std::lock_guard lock(mutex_);
    is_draining_ = true;
    if (service_ == nullptr) return;
    for (const std::string& name : names_) service_->SetServingStatus(name, false);
  }

  void Detach() {
    std::lock_guard lock(mutex_);
    service_ = nullptr;
  }

 private:
  std::mutex mutex_;
  grpc::HealthCheckServiceInterface* service_ = nullptr;
  std::vector<std::string> names_;
  bool is_draining_ = false;
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const GrpcServerOptions& options, const std::vector<grpc::Service*>& services,
    const std::vector<std::string>& health_names) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  ApplyServerDefaults(builder, options.max_message_bytes);
  builder.SetOption(std::make_unique<ReflectionOption>(options.has_reflection));
  std::unique_ptr<GrpcServer> out(new GrpcServer());
  builder.AddListeningPort(
      options.address,
      options.credentials ? options.credentials : grpc::InsecureServerCredentials(), &out->port_);
  for (grpc::Service* service : services) builder.RegisterService(service);
  out->server_ = builder.BuildAndStart();
  // For a Unix socket the port is 1, and 0 means failure for all.
  if (out->server_ == nullptr || out->port_ == 0) {
    return InvalidArgument("cannot listen for gRPC on {}", options.address);
  }
  if (options.address.starts_with("unix")) out->port_ = 0;
  out->health_ = std::make_shared<Health>();
  out->health_->Attach(out->server_->GetHealthCheckService(), health_names);
  return out;
}

GrpcServer::~GrpcServer() {
  if (health_ != nullptr) Stop(0);
}

void GrpcServer::SetServing(const std::string& health_name, bool is_serving) {
  health_->Set(health_name, is_serving);
}

void GrpcServer::Follow(RequestGate& gate, const std::string& health_name) {
  gate.OnStateChange([health = health_, health_name](GateState state) {
    health->Set(health_name, state == GateState::kServing);
  });
}

void GrpcServer::BeginDrain() { health_->BeginDrain(); }

void GrpcServer::Stop(double seconds) {
  if (server_ == nullptr) return;
  health_->BeginDrain();
  server_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
  health_->Detach();
  server_->Wait();
  server_ = nullptr;
}

}  // namespace switchyard::coordinator
