#include "coordinator/api_keys.h"

#include <fstream>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <optional>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::coordinator {
namespace {

// Nothing for what is no lower-case hexadecimal digit.
std::optional<uint8_t> HexValue(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  return std::nullopt;
}

template <typename Digest>
std::optional<Digest> ParseDigest(std::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < digest.size(); ++i) {
    const auto high = HexValue(hex[2 * i]), low = HexValue(hex[2 * i + 1]);
    if (!high || !low) return std::nullopt;
    digest[i] = static_cast<uint8_t>(*high << 4 | *low);
  }
  return digest;
}

std::string_view WithoutCommentAndSpace(std::string_view line) {
  line = line.substr(0, line.find('#'));
  constexpr std::string_view kSpace = " \t\r";
  const size_t begin = line.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(kSpace) + 1 - begin);
}

bool StartsWithIgnoringCase(std::string_view text, std::string_view lower_case_prefix) {
  if (text.size() < lower_case_prefix.size()) return false;
  for (size_t i = 0; i < lower_case_prefix.size(); ++i) {
    const char c = text[i];
    if ((c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c) != lower_case_prefix[i]) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::vector<ApiKeys::Digest>> ApiKeys::Read(const std::string& path) {
  std::ifstream file(path);
  if (!file) return NotFound("the file of API keys cannot be read: {}", path);
  std::vector<Digest> digests;
  int line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    const std::string_view hex = WithoutCommentAndSpace(line);
    if (hex.empty()) continue;
    const auto digest = ParseDigest<Digest>(hex);
    // The line itself stays out of the message: it may hold a key by mistake.
    if (!digest) {
      return InvalidArgument("not a SHA-256 in 64 lower-case hexadecimal digits: {}:{}", path,
                             line_number);
    }
    digests.push_back(*digest);
  }
  if (digests.empty()) return InvalidArgument("the file of API keys holds no key: {}", path);
  return digests;
}

absl::StatusOr<std::unique_ptr<ApiKeys>> ApiKeys::Load(const std::string& path) {
  std::unique_ptr<ApiKeys> keys(new ApiKeys(path));
  SWITCHYARD_RETURN_IF_ERROR(keys->Reload());
  return keys;
}

absl::Status ApiKeys::Reload() {
  SWITCHYARD_ASSIGN_OR_RETURN(std::vector<Digest> digests, Read(path_));
  std::lock_guard lock(mutex_);
  digests_ = std::move(digests);
  return absl::OkStatus();
}

bool ApiKeys::Accepts(std::string_view key) const {
  Digest digest;
  SHA256(reinterpret_cast<const uint8_t*>(key.data()), key.size(), digest.data());
  bool is_accepted = false;
  std::lock_guard lock(mutex_);
  for (const Digest& known : digests_) {
    is_accepted |= CRYPTO_memcmp(known.data(), digest.data(), digest.size()) == 0;
  }
  return is_accepted;
}

absl::Status ApiKeys::CheckAuthorization(std::string_view authorization) const {
  if (authorization.empty()) {
    return Unauthenticated("an API key is required: authorization: Bearer KEY");
  }
  constexpr std::string_view kScheme = "bearer ";
  if (!StartsWithIgnoringCase(authorization, kScheme)) {
    return Unauthenticated("authorization must be: Bearer KEY");
  }
  if (Accepts(authorization.substr(kScheme.size()))) return absl::OkStatus();
  return Unauthenticated("the API key is not valid");
}

}  // namespace switchyard::coordinator
