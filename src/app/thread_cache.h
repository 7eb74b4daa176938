// What was measured at an earlier start: how many threads are of use for a model on this machine.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/cpu_topology.h"

namespace switchyard::app {

// A small text file of lines "number of threads, tab, key", the newest last. It is a convenience:
// what cannot be read is not known, what cannot be written is measured again next time.
//
// Threads: any, and any number of processes; of two that write at once one may be forgotten.
class ThreadCache {
 public:
  // An empty path remembers nothing.
  explicit ThreadCache(std::filesystem::path path) : path_(std::move(path)) {}

  std::optional<int> Find(std::string_view key) const;
  // Replaces what is known for `key`, forgets the oldest of many entries.
  void Store(std::string_view key, int num_threads) const;

 private:
  std::filesystem::path path_;
};

// $XDG_CACHE_HOME/switchyard/threads, else below ~/.cache; empty if the environment names neither.
std::filesystem::path DefaultThreadCachePath();

// Names what a measurement depends on: CPU model, level of the kernels, model, and the cores that
// may be used.
std::string ThreadCacheKey(std::string_view cpu_model, std::string_view cpu_level,
                           std::string_view model_digest, const CpuBudget& budget);

}  // namespace switchyard::app
