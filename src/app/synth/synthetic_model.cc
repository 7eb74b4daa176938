#include "app/synth/synthetic_model.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <utility>

#include "absl/types/span.h"

#include "app/output_file.h"
#include "app/synth/gguf_encoder.h"
#include "app/synth/random_blocks.h"
#include "app/synth/router_skew.h"
#include "app/synth/synth_metadata.h"
#include "app/synth/tensor_list.h"
#include "app/synth/type_rules.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace switchyard::app {
namespace {

struct Shard {
  std::string path;
  std::string header;
  absl::Span<const SynthTensor> tensors;
  int64_t data_bytes = 0;  // of the tensors, each padded to the alignment
};

std::string ShardPath(const std::string& path, int shard, int num_shards) {
  if (num_shards == 1) return path;
  constexpr std::string_view kSuffix = ".gguf";
  std::string_view stem = path;
  if (stem.ends_with(kSuffix)) stem.remove_suffix(kSuffix.size());
  return fmt::format("{}-{:05d}-of-{:05d}{}", stem, shard + 1, num_shards, kSuffix);
}

int64_t DataBytes(absl::Span<const SynthTensor> tensors) {
  int64_t bytes = 0;
  for (const SynthTensor& tensor : tensors) bytes += AlignGguf(tensor.bytes());
  return bytes;
}

// Cuts the list into `num_parts` parts of about equal bytes, wherever that falls: loaders must cope
// with layers that straddle files. A part may be empty if there are more parts than tensors.
std::vector<absl::Span<const SynthTensor>> CutTensors(absl::Span<const SynthTensor> tensors,
                                                      int num_parts) {
  const int64_t total = DataBytes(tensors);
  std::vector<absl::Span<const SynthTensor>> parts;
  int64_t sum = 0;
  size_t begin = 0;
  for (int part = 1; part <= num_parts; ++part) {
    const double border = static_cast<double>(total) * part / num_parts;
    size_t end = begin;
    while (end < tensors.size() && (part == num_parts || static_cast<double>(sum) < border)) {
      sum += AlignGguf(tensors[end++].bytes());
    }
    parts.push_back(tensors.subspan(begin, end - begin));
    begin = end;
  }
  return parts;
}

std::vector<Shard> PlanShards(const SynthOptions& options, const TypeRules& types,
                              const std::string& path, absl::Span<const SynthTensor> tensors) {
  const int num_shards = options.num_shards;
  std::vector<absl::Span<const SynthTensor>> parts;
  if (num_shards == 1) {
    parts.push_back(tensors);
  } else {
    // As published models do it: the first file has the metadata only.
    parts = CutTensors(tensors, num_shards - 1);
    parts.insert(parts.begin(), absl::Span<const SynthTensor>());
  }
  std::vector<Shard> shards;
  for (int i = 0; i < num_shards; ++i) {
    GgufEncoder encoder;
    if (i == 0) {
      AddSynthMetadata(options, types, encoder);
    } else {
      encoder.AddString("general.architecture", options.architecture.name);
    }
    if (num_shards > 1) {
      encoder.AddUint16("split.no", static_cast<uint16_t>(i));
      encoder.AddUint16("split.count", static_cast<uint16_t>(num_shards));
      encoder.AddInt32("split.tensors.count", static_cast<int32_t>(tensors.size()));
    }
    const absl::Span<const SynthTensor> part = parts[static_cast<size_t>(i)];
    for (const SynthTensor& tensor : part) {
      encoder.AddTensor(tensor.name, tensor.dims, tensor.dtype, tensor.bytes());
    }
    shards.push_back({ShardPath(path, i, num_shards), encoder.Header(), part, DataBytes(part)});
  }
  return shards;
}

absl::Status CheckNoneExists(absl::Span<const Shard> shards) {
  for (const Shard& shard : shards) {
    struct stat unused;
    if (stat(shard.path.c_str(), &unused) == 0) {
      return FailedPrecondition("file exists: {} (--force replaces it)", shard.path);
    }
  }
  return absl::OkStatus();
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The old files, if any, stay until the new ones are complete: their room does not count.
absl::Status CheckFreeSpace(const std::string& path, int64_t wanted) {
  struct statvfs file_system;
  const std::string folder = FolderOf(path);
  if (statvfs(folder.c_str(), &file_system) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return NotFound("no such folder: {}", folder);
    return FailedPrecondition("cannot use folder {}: {}", folder, std::strerror(errno));
  }
  const auto free = static_cast<int64_t>(file_system.f_bavail * file_system.f_frsize);
  if (wanted <= free) return absl::OkStatus();
  return ResourceExhausted("too little space in {}: wanted bytes: {} ({}), free: {} ({})", folder,
                           wanted, FormatBytes(static_cast<double>(wanted)), free,
                           FormatBytes(static_cast<double>(free)));
}

class ModelWriter {
 public:
  ModelWriter(const SynthOptions& options, const SynthProgress& progress, int64_t total_bytes)
      : options_(options), progress_(progress), total_bytes_(total_bytes) {}

  absl::Status WriteShard(const Shard& shard, OutputFile& file) {
    SWITCHYARD_RETURN_IF_ERROR(Report(0));
    SWITCHYARD_RETURN_IF_ERROR(file.Write(shard.header.data(), shard.header.size()));
    SWITCHYARD_RETURN_IF_ERROR(Report(static_cast<int64_t>(shard.header.size())));
    if (options_.sparse) return file.Skip(static_cast<size_t>(shard.data_bytes));
    for (const SynthTensor& tensor : shard.tensors) {
      SWITCHYARD_RETURN_IF_ERROR(WriteTensor(tensor, file));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status WriteTensor(const SynthTensor& tensor, OutputFile& file) {
    SWITCHYARD_RETURN_IF_ERROR(
        WriteTensorData(tensor, options_.seed, [&](absl::Span<const std::byte> bytes) {
          SWITCHYARD_RETURN_IF_ERROR(file.Write(bytes.data(), bytes.size()));
          return Report(static_cast<int64_t>(bytes.size()));
        }));
    constexpr char kZeros[kGgufAlignment] = {};
    const int64_t padding = AlignGguf(tensor.bytes()) - tensor.bytes();
    SWITCHYARD_RETURN_IF_ERROR(file.Write(kZeros, static_cast<size_t>(padding)));
    return Report(padding);
  }

  absl::Status Report(int64_t more) {
    done_bytes_ += more;
    return progress_ == nullptr ? absl::OkStatus() : progress_(done_bytes_, total_bytes_);
  }

  const SynthOptions& options_;
  const SynthProgress& progress_;
  int64_t total_bytes_;
  int64_t done_bytes_ = 0;
};

}  // namespace

absl::StatusOr<SynthResult> WriteSyntheticModel(const SynthOptions& options,
                                                const std::string& path, bool overwrite,
                                                const SynthProgress& progress) {
  SWITCHYARD_RETURN_IF_ERROR(CheckSynthOptions(options));
  SWITCHYARD_ASSIGN_OR_RETURN(const TypeRules types, TypeRules::Create(options));
  const std::vector<SynthTensor> tensors = ListTensors(options, types);
  SWITCHYARD_RETURN_IF_ERROR(CheckRouterSkew(options, tensors));
  const std::vector<Shard> shards = PlanShards(options, types, path, tensors);
  if (!overwrite) SWITCHYARD_RETURN_IF_ERROR(CheckNoneExists(shards));

  SynthResult result;
  int64_t written_bytes = 0;
  for (const Shard& shard : shards) {
    const auto header_bytes = static_cast<int64_t>(shard.header.size());
    result.paths.push_back(shard.path);
    result.num_tensors += static_cast<int64_t>(shard.tensors.size());
    result.file_bytes += header_bytes + shard.data_bytes;
    written_bytes += header_bytes + (options.sparse ? 0 : shard.data_bytes);
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckFreeSpace(path, written_bytes));

  std::vector<OutputFile> files;
  files.reserve(shards.size());
  ModelWriter writer(options, progress, written_bytes);
  for (const Shard& shard : shards) {
    SWITCHYARD_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(shard.path));
    files.push_back(std::move(file));
    SWITCHYARD_RETURN_IF_ERROR(writer.WriteShard(shard, files.back()));
  }
  // The file that is opened by name comes last: when it is there, all are.
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    SWITCHYARD_RETURN_IF_ERROR(file->Commit());
  }
  return result;
}

}  // namespace switchyard::app
