#include "base/process_memory.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <string>

#include "base/status.h"

namespace switchyard {
namespace {

std::string ReadProcFile(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Value of a line "Key:   1234 kB", in bytes.
std::optional<int64_t> KilobyteLine(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.starts_with(key) || line.substr(key.size(), 1) != ":") continue;
    line.remove_prefix(key.size() + 1);
    const size_t digits = line.find_first_not_of(" \t");
    if (digits == std::string_view::npos) return std::nullopt;
    line.remove_prefix(digits);
    int64_t kilobytes = 0;
    const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), kilobytes);
    if (error != std::errc() || kilobytes < 0 || !line.ends_with(" kB")) return std::nullopt;
    if (rest != line.data() + line.size() - 3) return std::nullopt;
    return kilobytes * 1024;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<ProcessMemory> ParseProcessMemory(std::string_view status_text) {
  const std::optional<int64_t> anonymous = KilobyteLine(status_text, "RssAnon");
  const std::optional<int64_t> file = KilobyteLine(status_text, "RssFile");
  const std::optional<int64_t> shared = KilobyteLine(status_text, "RssShmem");
  if (!anonymous.has_value() || !file.has_value() || !shared.has_value()) {
    return DataLoss("process status lacks RssAnon, RssFile or RssShmem");
  }
  return ProcessMemory{.anonymous_bytes = *anonymous, .file_bytes = *file, .shared_bytes = *shared};
}

absl::StatusOr<ProcessMemory> ReadProcessMemory() {
  return ParseProcessMemory(ReadProcFile("/proc/self/status"));
}

std::optional<int64_t> ParseAvailableHostBytes(std::string_view meminfo_text) {
  return KilobyteLine(meminfo_text, "MemAvailable");
}

std::optional<int64_t> AvailableHostBytes() {
  return ParseAvailableHostBytes(ReadProcFile("/proc/meminfo"));
}

}  // namespace switchyard
