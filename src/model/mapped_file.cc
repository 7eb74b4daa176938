#include "model/mapped_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "base/status.h"

namespace switchyard::model {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  MappedFile file;
  file.path_ = path;
  // Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
  file.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) {
    if (errno == ENOENT) return NotFound("model file does not exist: {}", path);
    return InvalidArgument("cannot open model file: {}: {}", path, std::strerror(errno));
  }
  struct stat info;
  if (fstat(file.fd_, &info) != 0) {
    return InvalidArgument("cannot examine model file: {}: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return InvalidArgument("model is not a regular file: {}", path);
  file.bytes_ = static_cast<uint64_t>(info.st_size);
  file.modified_ = info.st_mtim;
  if (file.bytes_ > 0) {
    void* map = mmap(nullptr, file.bytes_, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, file.fd_, 0);
    if (map == MAP_FAILED) {
      return ResourceExhausted("cannot map model file: {}, bytes: {}: {}", path, file.bytes_,
                               std::strerror(errno));
    }
    file.data_ = static_cast<const std::byte*>(map);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this == &other) return *this;
  Close();
  path_ = std::move(other.path_);
  fd_ = std::exchange(other.fd_, -1);
  bytes_ = std::exchange(other.bytes_, 0);
  data_ = std::exchange(other.data_, nullptr);
  modified_ = other.modified_;
  return *this;
}

MappedFile::~MappedFile() { Close(); }

void MappedFile::Close() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), bytes_);
  if (fd_ >= 0) close(fd_);
  data_ = nullptr;
  fd_ = -1;
}

absl::Status MappedFile::ReadAt(uint64_t offset, absl::Span<std::byte> out) const {
  uint64_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return DataLoss("cannot read model file: {}, offset: {}: {}", path_, offset + done,
                      std::strerror(errno));
    }
    if (got == 0) {
      return DataLoss(
          "model file ends early, it was truncated while in use: {}, offset: {}, "
          "wanted bytes: {}, got: {}",
          path_, offset, out.size(), done);
    }
    done += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

void MappedFile::Advise(uint64_t offset, uint64_t bytes, MapAdvice advice) const {
  if (data_ == nullptr || offset >= bytes_) return;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t first = (offset + page - 1) / page * page;
  const uint64_t last = (offset + std::min(bytes, bytes_ - offset)) / page * page;
  if (first >= last) return;
  const int flag = advice == MapAdvice::kRandom       ? MADV_RANDOM
                   : advice == MapAdvice::kSequential ? MADV_SEQUENTIAL
                                                      : MADV_DONTNEED;
  (void)madvise(const_cast<std::byte*>(data_) + first, last - first, flag);
}

absl::Status MappedFile::CheckUnchanged() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) {
    return DataLoss("cannot examine model file: {}: {}", path_, std::strerror(errno));
  }
  if (static_cast<uint64_t>(info.st_size) != bytes_) {
    return DataLoss("model file changed size while in use: {}, bytes when opened: {}, now: {}",
                    path_, bytes_, info.st_size);
  }
  if (info.st_mtim.tv_sec != modified_.tv_sec || info.st_mtim.tv_nsec != modified_.tv_nsec) {
    return DataLoss("model file was written to while in use: {}", path_);
  }
  return absl::OkStatus();
}

}  // namespace switchyard::model
