#include "worker/experts/expert_profile.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <unistd.h>

#include "base/status.h"

namespace switchyard::worker {
namespace {

constexpr std::string_view kMagic = "SYEXPROF";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kMaxDigestBytes = 256;
constexpr uint32_t kMaxLayers = 65536, kMaxExperts = 65536;

template <typename T>
void Append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

uint64_t Fnv1a(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Takes values from the front of a file's bytes.
class Reader {
 public:
  Reader(std::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  absl::Status Take(size_t count, std::string_view& out) {
    if (bytes_.size() - at_ < count) {
      return DataLoss("expert profile is truncated: {}, wanted bytes: {}, got: {}", path_,
                      at_ + count, bytes_.size());
    }
    out = bytes_.substr(at_, count);
    at_ += count;
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status Take(T& value) {
    std::string_view bytes;
    const absl::Status status = Take(sizeof(T), bytes);
    if (status.ok()) std::memcpy(&value, bytes.data(), sizeof(T));
    return status;
  }
  size_t position() const { return at_; }
  size_t num_left() const { return bytes_.size() - at_; }

 private:
  std::string_view bytes_;
  const std::string& path_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<ExpertProfile> ReadExpertProfile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return NotFound("no such expert profile: {}", path);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  if (!bytes.starts_with(kMagic.substr(0, std::min(bytes.size(), kMagic.size()))) ||
      bytes.empty()) {
    return InvalidArgument("not an expert profile: {}; remove it, and the next run writes one",
                           path);
  }
  Reader reader(bytes, path);
  std::string_view magic, digest;
  uint32_t version = 0, num_layers = 0, num_experts = 0, digest_bytes = 0;
  for (absl::Status status :
       {reader.Take(kMagic.size(), magic), reader.Take(version), reader.Take(num_layers),
        reader.Take(num_experts), reader.Take(digest_bytes)}) {
    if (!status.ok()) return status;
  }
  if (version != kVersion) {
    return InvalidArgument("expert profile has another version: {}, version: {}, known: {}", path,
                           version, kVersion);
  }
  if (digest_bytes > kMaxDigestBytes || num_layers > kMaxLayers || num_experts > kMaxExperts) {
    return DataLoss("expert profile is damaged: {}, layers: {}, experts: {}, digest bytes: {}",
                    path, num_layers, num_experts, digest_bytes);
  }
  if (const absl::Status status = reader.Take(digest_bytes, digest); !status.ok()) return status;
  const size_t count = size_t{num_layers} * num_experts;
  std::string_view uses;
  if (const auto status = reader.Take(count * sizeof(uint64_t), uses); !status.ok()) return status;
  const uint64_t expected = Fnv1a(std::string_view(bytes).substr(0, reader.position()));
  uint64_t checksum = 0;
  if (const absl::Status status = reader.Take(checksum); !status.ok()) return status;
  if (checksum != expected || reader.num_left() != 0) {
    return DataLoss("expert profile is damaged: {}, its checksum is another one", path);
  }
  ExpertProfile profile;
  profile.model_digest = std::string(digest);
  profile.num_layers = static_cast<int>(num_layers);
  profile.num_experts = static_cast<int>(num_experts);
  profile.uses.resize(count);
  std::memcpy(profile.uses.data(), uses.data(), uses.size());
  return profile;
}

absl::Status CheckExpertProfile(const ExpertProfile& profile, const std::string& path,
                                const std::string& model_digest, int num_layers, int num_experts) {
  if (profile.model_digest != model_digest) {
    return FailedPrecondition(
        "expert profile is of another model: {}, digest: {}, wanted: {}; a file that does not "
        "exist is written anew",
        path, profile.model_digest, model_digest);
  }
  if (profile.num_layers != num_layers || profile.num_experts != num_experts) {
    return FailedPrecondition("expert profile has another shape: {}, {} x {}, wanted: {} x {}",
                              path, profile.num_layers, profile.num_experts, num_layers,
                              num_experts);
  }
  return absl::OkStatus();
}

absl::Status WriteExpertProfile(const std::string& path, const ExpertProfile& profile) {
  std::string bytes(kMagic);
  Append(bytes, kVersion);
  Append(bytes, static_cast<uint32_t>(profile.num_layers));
  Append(bytes, static_cast<uint32_t>(profile.num_experts));
  Append(bytes, static_cast<uint32_t>(profile.model_digest.size()));
  bytes += profile.model_digest;
  bytes.append(reinterpret_cast<const char*>(profile.uses.data()),
               profile.uses.size() * sizeof(uint64_t));
  Append(bytes, Fnv1a(bytes));
  // Ranks of one host must not share the unfinished file.
  const std::string partial = path + "." + std::to_string(getpid()) + ".partial";
  {
    std::ofstream stream(partial, std::ios::binary | std::ios::trunc);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    stream.close();
    if (!stream) {
      const int error = errno;
      std::remove(partial.c_str());
      return FailedPrecondition("expert profile cannot be written: {}: {}", path,
                                std::strerror(error));
    }
  }
  if (std::rename(partial.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(partial.c_str());
    return FailedPrecondition("expert profile cannot be written: {}: {}", path,
                              std::strerror(error));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::worker
