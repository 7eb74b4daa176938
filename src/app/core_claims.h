// Which cores the processes of one user on this host compute on, so that they divide them.
#pragma once

#include <filesystem>
#include <vector>

#include "base/cpu_topology.h"

namespace switchyard::app {

// Cores that this process has to itself, as far as others ask too: one file for each core, locked
// while it is claimed. Locks end with their process, whatever its end, so nothing becomes stale.
//
// Threads: one at a time.
class CoreClaims {
 public:
  // Claims those of `cores` that no other process has, in their order, `most` at most. An empty
  // folder claims nothing and finds all of them free, and so does one that cannot be used.
  CoreClaims(const std::filesystem::path& folder, const std::vector<CpuCore>& cores, int most);
  ~CoreClaims();
  CoreClaims(const CoreClaims&) = delete;
  CoreClaims& operator=(const CoreClaims&) = delete;

  // The claimed cores, in order.
  const std::vector<CpuCore>& cores() const { return cores_; }

  // Cores that others have, as far as it was looked.
  int num_taken() const { return num_taken_; }

  // Lets all but the first `num_cores` go.
  void KeepFirst(int num_cores);

 private:
  std::vector<CpuCore> cores_;
  std::vector<int> locks_;  // open files; empty if nothing is locked
  int num_taken_ = 0;
};

// $XDG_RUNTIME_DIR/switchyard/cores; empty where the environment names no such folder.
std::filesystem::path DefaultCoreClaimsFolder();

}  // namespace switchyard::app
