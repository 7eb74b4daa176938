#include "model/model_digest.h"

#include <algorithm>
#include <array>
#include <memory>
#include <openssl/evp.h>

#include "base/check.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::model {
namespace {

class Sha256 {
 public:
  // SHA-256 is in every OpenSSL; a step fails only for want of memory.
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    SWITCHYARD_CHECK(context_ != nullptr);
    SWITCHYARD_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }

  void Add(const void* data, size_t size) {
    SWITCHYARD_CHECK(EVP_DigestUpdate(context_.get(), data, size) == 1);
  }

  void AddNumber(uint64_t value) {  // little-endian on every machine
    std::array<unsigned char, 8> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(value >> 8 * i);
    Add(bytes.data(), bytes.size());
  }

  std::string Hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
    unsigned int size = 0;
    SWITCHYARD_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1);
    std::string text;
    for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

absl::StatusOr<std::string> ModelDigest(const GgufFile& file) {
  Sha256 hash;
  std::vector<std::byte> piece(size_t{64} << 10);
  for (int shard = 0; shard < file.num_shards(); ++shard) {
    const uint64_t header_bytes = file.header_bytes(shard);
    hash.AddNumber(header_bytes);  // so that no byte can move from one part to the next
    hash.AddNumber(file.file_bytes(shard));
    for (uint64_t offset = 0; offset < header_bytes;) {
      const auto size =
          static_cast<size_t>(std::min<uint64_t>(piece.size(), header_bytes - offset));
      SWITCHYARD_RETURN_IF_ERROR(
          file.ReadHeader(shard, offset, absl::MakeSpan(piece.data(), size)));
      hash.Add(piece.data(), size);
      offset += size;
    }
  }
  return "sha256:" + hash.Hex();
}

}  // namespace switchyard::model
