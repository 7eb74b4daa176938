#include "coordinator/http/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "coordinator/byte_budget.h"
#include "coordinator/http/http_connection.h"

namespace switchyard::coordinator::http {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

// Connections over the limit that may be told so at the same time; beyond, they are just closed.
constexpr int kMaxRefusals = 64;

// After an accept that failed for lack of files or memory, which only time can mend.
constexpr std::chrono::milliseconds kAcceptPause{100};

// Connects that wait until they are accepted; the system may allow fewer.
constexpr int kListenBacklog = 1024;

absl::StatusOr<asio::ip::address> ParseAddress(std::string_view text) {
  std::string literal(text == "localhost" ? "127.0.0.1" : text);
  if (literal.size() > 2 && literal.front() == '[' && literal.back() == ']') {
    literal = literal.substr(1, literal.size() - 2);
  }
  ErrorCode error;
  const asio::ip::address address = asio::ip::make_address(literal, error);
  if (error) return InvalidArgument("address is neither an IP address nor localhost: {}", text);
  return address;
}

}  // namespace

bool IsLoopback(std::string_view address) {
  const auto parsed = ParseAddress(address);
  if (!parsed.ok()) return false;
  if (parsed->is_v6() && parsed->to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, parsed->to_v6()).is_loopback();
  }
  return parsed->is_loopback();
}

// The server's inside. Connections share it, so it lives until the last of them is gone.
class HttpServer::Core : public HttpConnectionOwner, public std::enable_shared_from_this<Core> {
 public:
  Core(HttpHandler& handler, const HttpServerOptions& options)
      : handler_(handler),
        options_(options),
        bodies_(options.max_total_body_bytes),
        io_(std::max(options.num_io_threads, 1)),
        work_(io_.get_executor()),
        accept_strand_(asio::make_strand(io_)),
        acceptor_(accept_strand_),
        accept_pause_(accept_strand_),
        background_(static_cast<size_t>(std::max(options.num_background_threads, 1))) {}

  const HttpServerOptions& options() const override { return options_; }
  HttpHandler& handler() override { return handler_; }

  std::shared_ptr<const void> ReserveBody(size_t num_bytes) override {
    return bodies_.Take(num_bytes);
  }

  absl::Status Start() {
    const auto address = ParseAddress(options_.address);
    if (!address.ok()) return address.status();
    const asio::ip::tcp::endpoint endpoint(*address, options_.port);
    ErrorCode error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(kListenBacklog, error);
    if (error) {
      return Unavailable("cannot listen on {}:{}: {}", options_.address, options_.port,
                         error.message());
    }
    port_ = acceptor_.local_endpoint(error).port();
    asio::post(accept_strand_, [this] { Accept(); });
    for (int i = 0; i < std::max(options_.num_io_threads, 1); ++i) {
      threads_.emplace_back([this] { io_.run(); });
    }
    return absl::OkStatus();
  }

  uint16_t port() const { return port_; }

  void RunInBackground(std::function<void()> work) { asio::post(background_, std::move(work)); }

  void Stop(double patience_seconds) {
    if (threads_.empty()) return;
    asio::post(accept_strand_, [this] {
      ErrorCode ignored;
      acceptor_.close(ignored);
      accept_pause_.cancel();
    });
    std::unique_lock lock(mutex_);
    is_stopping_ = true;
    ForEach(lock, &HttpConnection::CloseWhenIdle);
    const auto none_left = [this] { return connections_.empty(); };
    changed_.wait_for(lock, std::chrono::duration<double>(std::max(patience_seconds, 0.0)),
                      none_left);
    ForEach(lock, &HttpConnection::CloseNow);
    changed_.wait(lock, none_left);
    lock.unlock();
    // What computes in the background may still answer: into nothing, by now.
    background_.join();
    // Without io_.stop(): what was cancelled must run, since it holds connections.
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void Remove(HttpConnection* connection) override {
    std::shared_ptr<HttpConnection> last;  // dies outside of the lock
    std::lock_guard lock(mutex_);
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return;
    (connection->is_refused() ? num_refusals_ : num_connections_) -= 1;
    last = std::move(found->second);
    connections_.erase(found);
    if (connections_.empty()) changed_.notify_all();
  }

  int num_connections() const {
    std::lock_guard lock(mutex_);
    return num_connections_;
  }

 private:
  // Calls `method` for every connection, without the lock.
  void ForEach(std::unique_lock<std::mutex>& lock, void (HttpConnection::*method)()) {
    std::vector<std::shared_ptr<HttpConnection>> connections;
    for (const auto& [key, connection] : connections_) connections.push_back(connection);
    lock.unlock();
    for (const auto& connection : connections) (*connection.*method)();
    lock.lock();
  }

  void Accept() {
    if (!acceptor_.is_open()) return;
    acceptor_.async_accept(asio::make_strand(io_),
                           [this](ErrorCode error, HttpConnection::Socket socket) {
                             OnAccepted(error, std::move(socket));
                           });
  }

  void OnAccepted(ErrorCode error, HttpConnection::Socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error && error != asio::error::connection_aborted) {
      accept_pause_.expires_after(kAcceptPause);
      accept_pause_.async_wait([this](ErrorCode cancelled) {
        if (!cancelled) Accept();
      });
      return;
    }
    if (!error) Add(std::move(socket));
    Accept();
  }

  void Add(HttpConnection::Socket socket) {
    std::shared_ptr<HttpConnection> connection;
    {
      std::lock_guard lock(mutex_);
      const bool is_refused = num_connections_ >= options_.max_connections;
      if (is_stopping_ || (is_refused && num_refusals_ >= kMaxRefusals)) return;
      connection =
          std::make_shared<HttpConnection>(std::move(socket), shared_from_this(), is_refused);
      (is_refused ? num_refusals_ : num_connections_) += 1;
      connections_.emplace(connection.get(), connection);
    }
    connection->Start();
  }

  HttpHandler& handler_;
  const HttpServerOptions options_;
  ByteBudget bodies_;
  uint16_t port_ = 0;

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::strand<asio::io_context::executor_type> accept_strand_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer accept_pause_;
  asio::thread_pool background_;
  std::vector<std::thread> threads_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;
  std::unordered_map<HttpConnection*, std::shared_ptr<HttpConnection>> connections_;
  int num_connections_ = 0;  // without the refused ones
  int num_refusals_ = 0;
};

HttpServer::HttpServer(HttpHandler& handler, const HttpServerOptions& options)
    : core_(std::make_shared<Core>(handler, options)) {}

HttpServer::~HttpServer() { core_->Stop(0); }

absl::Status HttpServer::Start() { return core_->Start(); }

uint16_t HttpServer::port() const { return core_->port(); }

void HttpServer::RunInBackground(std::function<void()> work) {
  core_->RunInBackground(std::move(work));
}

void HttpServer::Stop(double patience_seconds) { core_->Stop(patience_seconds); }

int HttpServer::num_connections() const { return core_->num_connections(); }

}  // namespace switchyard::coordinator::http
