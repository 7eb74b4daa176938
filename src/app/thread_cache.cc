#include "app/thread_cache.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace switchyard::app {
namespace {

constexpr size_t kMostEntries = 64;
constexpr int kMostThreads = 1 << 16;

std::vector<std::string> Lines(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  return lines;
}

// The number in front of `key`, or nothing if the line says something else.
std::optional<int> NumThreadsOf(std::string_view line, std::string_view key) {
  const size_t tab = line.find('\t');
  if (tab == std::string_view::npos || line.substr(tab + 1) != key) return std::nullopt;
  int num_threads = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + tab, num_threads);
  if (error != std::errc() || end != line.data() + tab) return std::nullopt;
  if (num_threads < 1 || num_threads > kMostThreads) return std::nullopt;
  return num_threads;
}

}  // namespace

std::optional<int> ThreadCache::Find(std::string_view key) const {
  if (path_.empty()) return std::nullopt;
  for (const std::string& line : Lines(path_)) {
    if (const auto num_threads = NumThreadsOf(line, key)) return num_threads;
  }
  return std::nullopt;
}

void ThreadCache::Store(std::string_view key, int num_threads) const {
  if (path_.empty()) return;
  std::vector<std::string> lines = Lines(path_);
  std::erase_if(lines, [&](const std::string& line) {
    const size_t tab = line.find('\t');
    return tab == std::string::npos || std::string_view(line).substr(tab + 1) == key;
  });
  lines.push_back(fmt::format("{}\t{}", num_threads, key));
  std::error_code ignored;
  std::filesystem::create_directories(path_.parent_path(), ignored);
  // Written aside, so that nobody reads half a file.
  std::filesystem::path aside = path_;
  aside += fmt::format(".{}", getpid());
  {
    std::ofstream file(aside);
    const size_t first = lines.size() - std::min(lines.size(), kMostEntries);
    for (size_t i = first; i < lines.size(); ++i) file << lines[i] << '\n';
    file.close();
    if (file.fail()) {
      std::filesystem::remove(aside, ignored);
      return;
    }
  }
  std::filesystem::rename(aside, path_, ignored);
  if (ignored) std::filesystem::remove(aside, ignored);
}

std::filesystem::path DefaultThreadCachePath() {
  // A relative path is to be ignored, says the XDG base directory specification.
  const auto folder = [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && value[0] == '/' ? std::filesystem::path(value)
                                               : std::filesystem::path();
  };
  std::filesystem::path base = folder("XDG_CACHE_HOME");
  if (base.empty() && !folder("HOME").empty()) base = folder("HOME") / ".cache";
  return base.empty() ? base : base / "switchyard" / "threads";
}

std::string ThreadCacheKey(std::string_view cpu_model, std::string_view cpu_level,
                           std::string_view model_digest, const CpuBudget& budget) {
  std::string cores;
  for (const CpuCore& core : budget.cores) cores += fmt::format(" {}", core.cpu);
  std::string key = fmt::format("{} | {} | {} | {} of{}", cpu_model, cpu_level, model_digest,
                                budget.num_threads, cores);
  std::replace_if(
      key.begin(), key.end(), [](char c) { return c == '\t' || c == '\n' || c == '\r'; }, ' ');
  return key;
}

}  // namespace switchyard::app
