// Fuzz target of the GGUF reader and the model description: whatever the bytes, opening succeeds or
// returns an error, and what was accepted can be walked.
#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/status.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "model/model_summary.h"

namespace switchyard::model {
namespace {

volatile std::byte sink;  // keeps reads from being optimised away

void Walk(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata();
  for (const MetadataEntry& entry : metadata.entries()) {
    SWITCHYARD_CHECK(metadata.Find(entry.key) == &entry);
    (void)metadata.Describe(entry);
    (void)metadata.GetUint(entry.key);
    (void)metadata.GetFloat(entry.key);
    (void)metadata.GetBool(entry.key);
    (void)metadata.GetString(entry.key);
    (void)metadata.GetUints(entry.key);
    (void)metadata.GetInts(entry.key);
    (void)metadata.GetFloats(entry.key);
    (void)metadata.GetBools(entry.key);
    (void)metadata.GetStrings(entry.key);
  }
  for (const TensorInfo& tensor : file.tensors()) {
    const TensorView view = file.View(tensor);
    SWITCHYARD_CHECK(view.bytes() == tensor.bytes() && view.bytes() > 0);
    sink = view.data[0];
    sink = view.data[view.bytes() - 1];
  }
  const absl::StatusOr<ModelSpec> spec = LoadModelSpec(file);
  if (spec.ok()) (void)Summarize(*spec);
}

// Opens the bytes as a file, with `hole_bytes` of zeros behind them.
void OpenBytes(const uint8_t* data, size_t size, size_t hole_bytes) {
  const int fd = memfd_create("gguf", MFD_CLOEXEC);
  SWITCHYARD_CHECK(fd >= 0);
  SWITCHYARD_CHECK(size == 0 || write(fd, data, size) == static_cast<ssize_t>(size));
  SWITCHYARD_CHECK(ftruncate(fd, static_cast<off_t>(size + hole_bytes)) == 0);
  const absl::StatusOr<GgufFile> file = GgufFile::Open(fmt::format("/proc/self/fd/{}", fd));
  if (file.ok()) {
    Walk(*file);
  } else {
    SWITCHYARD_CHECK(!Message(file.status()).empty());
    SWITCHYARD_CHECK(Message(file.status()).find('\n') == std::string_view::npos);
  }
  close(fd);
}

}  // namespace
}  // namespace switchyard::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  switchyard::model::OpenBytes(data, size, 0);
  // A header alone, as its tensors were all zeros: small inputs reach the model description.
  switchyard::model::OpenBytes(data, size, size_t{4} << 20);
  return 0;
}
