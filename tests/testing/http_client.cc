#include "testing/http_client.h"

#include <arpa/inet.h>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

namespace switchyard::testing {

std::string ClientResponse::Header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return "";
}

HttpClient::HttpClient(uint16_t port, const Options& options) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return;
  if (options.receive_buffer_bytes > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &options.receive_buffer_bytes, sizeof(int));
  }
  const timeval timeout{.tv_sec = 200, .tv_usec = 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd_);
    fd_ = -1;
  }
}

HttpClient::~HttpClient() {
  if (fd_ >= 0) close(fd_);
}

bool HttpClient::SendRaw(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

std::string HttpClient::RequestText(std::string_view method, std::string_view target,
                                    std::string_view body, std::string_view headers) {
  std::string text =
      std::string(method) + " " + std::string(target) + " HTTP/1.1\r\nHost: test\r\n";
  if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  text += headers;
  text += "\r\n";
  text += body;
  return text;
}

bool HttpClient::Fill() {
  char bytes[16384];
  const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
  if (got <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(got));
  return true;
}

std::optional<std::string> HttpClient::TakeLine() {
  size_t end;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!Fill()) return std::nullopt;
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

std::optional<std::string> HttpClient::TakeBytes(size_t count) {
  while (buffer_.size() < count) {
    if (!Fill()) return std::nullopt;
  }
  std::string bytes = buffer_.substr(0, count);
  buffer_.erase(0, count);
  return bytes;
}

ClientResponse HttpClient::ReadHead() {
  ClientResponse response;
  const auto status_line = TakeLine();
  if (!status_line || !status_line->starts_with("HTTP/1.1 ")) return response;
  response.status = std::atoi(status_line->c_str() + 9);
  while (const auto line = TakeLine()) {
    if (line->empty()) return response;
    const size_t colon = line->find(": ");
    std::string name = line->substr(0, colon);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    response.headers.emplace_back(name, colon == std::string::npos ? "" : line->substr(colon + 2));
  }
  return {};
}

std::optional<std::string> HttpClient::ReadChunk(ClientResponse& response) {
  const auto size_line = TakeLine();
  if (!size_line) return std::nullopt;
  const size_t size = std::strtoul(size_line->c_str(), nullptr, 16);
  auto chunk = TakeBytes(size);
  if (!chunk || TakeLine() != "") return std::nullopt;
  if (size == 0) {
    response.is_complete = true;
    return std::nullopt;
  }
  response.body += *chunk;
  response.chunks.push_back(*chunk);
  return chunk;
}

ClientResponse HttpClient::Read(bool has_no_body) {
  ClientResponse response = ReadHead();
  if (response.status == 0) return response;
  if (has_no_body || response.status == 100 || response.status == 204) {
    response.is_complete = true;
  } else if (response.Header("transfer-encoding") == "chunked") {
    while (ReadChunk(response)) {
    }
  } else if (const std::string length = response.Header("content-length"); !length.empty()) {
    auto body = TakeBytes(std::strtoul(length.c_str(), nullptr, 10));
    response.is_complete = body.has_value();
    response.body = body.value_or(buffer_);
  } else {
    while (Fill()) {
    }
    response.body = std::exchange(buffer_, "");
    response.is_complete = true;
  }
  return response;
}

ClientResponse HttpClient::Request(std::string_view method, std::string_view target,
                                   std::string_view body, std::string_view headers) {
  if (!SendRaw(RequestText(method, target, body, headers))) return {};
  return Read(method == "HEAD");
}

bool HttpClient::WaitForClose() {
  if (!buffer_.empty()) return false;
  char byte;
  const ssize_t got = recv(fd_, &byte, 1, 0);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

void HttpClient::ShutdownSending() { shutdown(fd_, SHUT_WR); }

void HttpClient::Reset() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close(fd_);
  fd_ = -1;
}

std::vector<std::string> SseData(std::string_view body) {
  std::vector<std::string> events;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    std::string_view block = body.substr(0, end);
    body.remove_prefix(end == std::string_view::npos ? body.size() : end + 2);
    while (!block.empty()) {
      const size_t line_end = block.find('\n');
      const std::string_view line = block.substr(0, line_end);
      block.remove_prefix(line_end == std::string_view::npos ? block.size() : line_end + 1);
      if (line.starts_with("data: ")) events.emplace_back(line.substr(6));
    }
  }
  return events;
}

}  // namespace switchyard::testing
