#include "app/input_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <unistd.h>

#include "app/interrupt.h"
#include "base/status.h"

namespace switchyard::app {
namespace {

constexpr size_t kReadBytes = size_t{1} << 16;

absl::StatusOr<std::string> ReadToEnd(int file_descriptor, std::string_view name) {
  std::string text;
  while (true) {
    const size_t size = text.size();
    text.resize(size + kReadBytes);
    const ssize_t got = read(file_descriptor, text.data() + size, kReadBytes);
    const int error = errno;
    text.resize(size + static_cast<size_t>(got > 0 ? got : 0));
    if (IsInterrupted()) return InterruptedStatus();
    if (got == 0) return text;
    if (got < 0 && error != EINTR) {
      return DataLoss("cannot read {}: {}", name, std::strerror(error));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ReadInputFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NotFound("cannot read {}: {}", path, std::strerror(errno));
  absl::StatusOr<std::string> text = ReadToEnd(fd, path);
  close(fd);
  return text;
}

absl::StatusOr<std::string> ReadStandardInput() {
  return ReadToEnd(STDIN_FILENO, "standard input");
}

}  // namespace switchyard::app
