// Keys that clients must present.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace switchyard::coordinator {

// Digests of keys, from a file with one SHA-256 a line in lower-case hexadecimal; the rest of a
// line from '#' on is a comment. Make a line with `printf %s KEY | sha256sum`.
//
// Threads: any.
class ApiKeys {
 public:
  // Errors: kNotFound (no such file), kInvalidArgument (a line that is no digest; no key at all).
  static absl::StatusOr<std::unique_ptr<ApiKeys>> Load(const std::string& path);

  // Reads the file again. On an error the keys of before stay.
  absl::Status Reload();

  // Whether `key` is one of the keys. The time does not depend on which it is or how it differs.
  bool Accepts(std::string_view key) const;

  // Checks the value of an `authorization` header: "Bearer KEY".
  // Errors: kUnauthenticated.
  absl::Status CheckAuthorization(std::string_view authorization) const;

 private:
  using Digest = std::array<uint8_t, 32>;

  explicit ApiKeys(std::string path) : path_(std::move(path)) {}
  static absl::StatusOr<std::vector<Digest>> Read(const std::string& path);

  const std::string path_;
  mutable std::mutex mutex_;
  std::vector<Digest> digests_;
};

}  // namespace switchyard::coordinator
