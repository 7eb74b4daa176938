#include "app/listen_address.h"

#include <charconv>
#include <fmt/format.h>

#include "base/status.h"

namespace switchyard::app {

std::string ListenAddress::Text() const {
  const bool has_colon = host.find(':') != std::string::npos;
  return has_colon ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text) {
  const auto error = InvalidArgument("wants host:port, such as 127.0.0.1:8080, got: {}", text);
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return error;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  const bool has_brackets = host.starts_with('[') && host.ends_with(']');
  if (has_brackets) host = host.substr(1, host.size() - 2);
  // Without brackets nobody can tell an IPv6 address from its port.
  if (host.empty() || (!has_brackets && host.find(':') != std::string_view::npos)) return error;
  ListenAddress address{std::string(host), 0};
  const auto result = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (result.ec != std::errc() || result.ptr != port.data() + port.size()) return error;
  return address;
}

}  // namespace switchyard::app
