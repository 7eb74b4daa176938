#include "app/core_claims.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <system_error>
#include <unistd.h>

namespace switchyard::app {

CoreClaims::CoreClaims(const std::filesystem::path& folder, const std::vector<CpuCore>& cores,
                       int most) {
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  const bool shares = !folder.empty() && !error;
  for (const CpuCore& core : cores) {
    if (static_cast<int>(cores_.size()) == most) return;
    if (shares) {
      // Never removed: whoever opened a file that is then replaced would hold a lock of no meaning.
      const std::string path = folder / fmt::format("cpu-{}", core.cpu);
      const int lock = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(lock);
        ++num_taken_;
        continue;
      }
      locks_.push_back(lock);  // -1 where there can be none: the core counts as free
    }
    cores_.push_back(core);
  }
}

CoreClaims::~CoreClaims() { KeepFirst(0); }

void CoreClaims::KeepFirst(int num_cores) {
  while (static_cast<int>(cores_.size()) > num_cores) {
    cores_.pop_back();
    if (locks_.empty()) continue;
    if (locks_.back() >= 0) close(locks_.back());
    locks_.pop_back();
  }
}

std::filesystem::path DefaultCoreClaimsFolder() {
  const char* const folder = std::getenv("XDG_RUNTIME_DIR");
  if (folder == nullptr || folder[0] != '/') return {};
  return std::filesystem::path(folder) / "switchyard" / "cores";
}

}  // namespace switchyard::app
