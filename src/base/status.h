// Status constructors with fmt arguments, and conversions between std:: and absl:: string views.
//
// Debian's abseil has a string_view of its own, so std::string_view does not convert to it. Our
// headers use std::string_view; what touches abseil goes through here.
#pragma once

#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace switchyard {

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

// Message of `status` without its code; empty for OK.
inline std::string_view Message(const absl::Status& status) { return ToStd(status.message()); }

// Each helper formats its message with fmt. Static words first, values last:
//   DataLoss("tensor is truncated: {}, wanted bytes: {}, got: {}", name, wanted, got)
#define SWITCHYARD_STATUS_HELPER(Name, code)                                                       \
  template <typename... Args>                                                                      \
  absl::Status Name(fmt::format_string<Args...> format, Args&&... args) {                          \
    return absl::Status(absl::StatusCode::code, fmt::format(format, std::forward<Args>(args)...)); \
  }
SWITCHYARD_STATUS_HELPER(InvalidArgument, kInvalidArgument)
SWITCHYARD_STATUS_HELPER(FailedPrecondition, kFailedPrecondition)
SWITCHYARD_STATUS_HELPER(NotFound, kNotFound)
SWITCHYARD_STATUS_HELPER(AlreadyExists, kAlreadyExists)
SWITCHYARD_STATUS_HELPER(Unauthenticated, kUnauthenticated)
SWITCHYARD_STATUS_HELPER(DeadlineExceeded, kDeadlineExceeded)
SWITCHYARD_STATUS_HELPER(ResourceExhausted, kResourceExhausted)
SWITCHYARD_STATUS_HELPER(Unavailable, kUnavailable)
SWITCHYARD_STATUS_HELPER(Cancelled, kCancelled)
SWITCHYARD_STATUS_HELPER(DataLoss, kDataLoss)
SWITCHYARD_STATUS_HELPER(Unimplemented, kUnimplemented)
SWITCHYARD_STATUS_HELPER(Internal, kInternal)
#undef SWITCHYARD_STATUS_HELPER

// Puts "`context`: " before the message of a non-OK status; code and payloads stay.
inline absl::Status WithContext(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status out(status.code(), fmt::format("{}: {}", context, Message(status)));
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& value) { out.SetPayload(type, value); });
  return out;
}

}  // namespace switchyard
