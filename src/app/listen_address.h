// Addresses that servers listen on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace switchyard::app {

// "127.0.0.1:8080", "[::1]:8080", "localhost:0".
struct ListenAddress {
  std::string host;  // without brackets
  uint16_t port = 0;

  // With brackets where the host has colons.
  std::string Text() const;
};

// Errors: kInvalidArgument.
absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text);

}  // namespace switchyard::app
