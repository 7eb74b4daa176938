// The gRPC listener: services, health, reflection, a port, and an orderly end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include <grpcpp/security/server_credentials.h>

#include "base/grpc_status.h"
#include "coordinator/request_gate.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace switchyard::coordinator {

// Name of generation.proto's service, for health checks.
inline constexpr char kGenerationServiceName[] = "switchyard.generation.v1.GenerationService";

struct GrpcServerOptions {
  std::string address = "127.0.0.1:0";  // host:port or unix:PATH; port 0 = any that is free
  std::shared_ptr<grpc::ServerCredentials> credentials{};  // null = plain text
  int max_message_bytes = kMaxClientMessageBytes;
  bool has_reflection = false;  // lets clients list services and their messages
};

// grpc.health.v1 says SERVING for the name "" as long as the server lives, and for each service
// what SetServing() or Follow() said last, NOT_SERVING at first.
//
// Threads: any, but Stop() and the destructor one at a time.
class GrpcServer {
 public:
  // Starts to listen and to serve. `services` must outlive the server; those in `health_names`
  // have a health of their own.
  // REQUIRES: at least one service.
  // Errors: kInvalidArgument (the address cannot be listened on: malformed, taken, not allowed).
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const GrpcServerOptions& options, const std::vector<grpc::Service*>& services,
      const std::vector<std::string>& health_names);

  // Stops at once.
  ~GrpcServer();

  // Where it listens; 0 for a Unix socket.
  int port() const { return port_; }

  // Sets the health of a service.
  void SetServing(const std::string& health_name, bool is_serving);

  // Keeps the health of a service as the gate's state: SERVING while requests are let in. The
  // server may end before the gate.
  void Follow(RequestGate& gate, const std::string& health_name);

  // NOT_SERVING for every service from here on, whatever is set later.
  void BeginDrain();

  // Takes no new calls; those that run may end within `seconds`, then they are cancelled. Waits
  // for the end of all. Idempotent.
  void Stop(double seconds);

 private:
  class Health;

  GrpcServer() = default;

  std::shared_ptr<Health> health_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace switchyard::coordinator
