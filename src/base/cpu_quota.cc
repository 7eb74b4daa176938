#include "base/cpu_quota.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>

namespace switchyard {
namespace {

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool Contains(const std::vector<std::string_view>& parts, std::string_view wanted) {
  return std::find(parts.begin(), parts.end(), wanted) != parts.end();
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::optional<int64_t> ParseInteger(std::string_view text) {
  text = Trim(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> Ratio(std::optional<int64_t> quota, std::optional<int64_t> period) {
  if (!quota.has_value() || !period.has_value() || *quota <= 0 || *period <= 0) {
    return std::nullopt;
  }
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// mountinfo writes space, tab, newline and backslash as \ and three octal digits.
std::string Unescape(std::string_view text) {
  const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && is_octal(text[i + 1]) && is_octal(text[i + 2]) &&
        is_octal(text[i + 3])) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                               (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Files of proc and cgroup file systems have no size: read until the end. Empty if unreadable.
std::string ReadSmallFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::optional<double> Least(std::optional<double> a, std::optional<double> b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() ? a : b;
  return std::min(*a, *b);
}

std::optional<double> QuotaOfFolder(const std::string& folder, bool is_v2) {
  if (is_v2) return ParseCpuMax(ReadSmallFile(folder + "/cpu.max"));
  return ParseCfsQuota(ReadSmallFile(folder + "/cpu.cfs_quota_us"),
                       ReadSmallFile(folder + "/cpu.cfs_period_us"));
}

// Path of `group` below the mount's folder, "" for the folder itself. A group outside the mount
// (another cgroup namespace) counts as its root: all we can see of it.
std::string_view PathInMount(std::string_view group, std::string_view mount_group) {
  while (!mount_group.empty() && mount_group.back() == '/') mount_group.remove_suffix(1);
  while (!group.empty() && group.back() == '/') group.remove_suffix(1);
  if (!group.starts_with(mount_group)) return {};
  group.remove_prefix(mount_group.size());
  if (!group.empty() && group.front() != '/') return {};  // "/ab" is not below "/a"
  if (Contains(Split(group, '/'), "..")) return {};
  return group;
}

// The least quota from `group` up to the root of the mount.
std::optional<double> QuotaOfBranch(const std::string& folder, std::string_view group, bool is_v2) {
  std::optional<double> least = QuotaOfFolder(folder, is_v2);
  while (!group.empty()) {
    least = Least(least, QuotaOfFolder(folder + std::string(group), is_v2));
    group = group.substr(0, group.rfind('/'));
  }
  return least;
}

}  // namespace

std::vector<CgroupMembership> ParseCgroupMemberships(std::string_view text) {
  std::vector<CgroupMembership> memberships;
  for (std::string_view line : Split(text, '\n')) {
    // hierarchy:controllers:path, and the path may hold colons
    const size_t first = line.find(':');
    if (first == std::string_view::npos) continue;
    const size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    CgroupMembership membership;
    membership.is_v2 = line.substr(0, first) == "0" && controllers.empty();
    membership.has_cpu = Contains(Split(controllers, ','), "cpu");
    membership.path = line.substr(second + 1);
    if (membership.is_v2 || membership.has_cpu) memberships.push_back(std::move(membership));
  }
  return memberships;
}

std::vector<CgroupMount> ParseCgroupMounts(std::string_view text) {
  std::vector<CgroupMount> mounts;
  for (std::string_view line : Split(text, '\n')) {
    // id parent device root folder options [tags...] - type source super-options
    const std::vector<std::string_view> fields = Split(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (dash - fields.begin() < 6 || fields.end() - dash < 4) continue;
    const bool is_v2 = dash[1] == "cgroup2";
    const bool is_v1_cpu = dash[1] == "cgroup" && Contains(Split(dash[3], ','), "cpu");
    if (!is_v2 && !is_v1_cpu) continue;
    mounts.push_back({.is_v2 = is_v2, .group = Unescape(fields[3]), .folder = Unescape(fields[4])});
  }
  return mounts;
}

std::optional<double> ParseCpuMax(std::string_view cpu_max) {
  const std::vector<std::string_view> fields = Split(Trim(cpu_max), ' ');
  if (fields.size() != 2) return std::nullopt;
  return Ratio(ParseInteger(fields[0]), ParseInteger(fields[1]));  // "max" is no integer: no limit
}

std::optional<double> ParseCfsQuota(std::string_view quota_us, std::string_view period_us) {
  return Ratio(ParseInteger(quota_us), ParseInteger(period_us));
}

std::optional<double> ReadCpuQuota(const std::string& root) {
  std::vector<CgroupMount> mounts = ParseCgroupMounts(ReadSmallFile(root + "/proc/self/mountinfo"));
  // The usual places too: a sandbox may show the files there without a mount of their type.
  mounts.push_back({.is_v2 = true, .group = "/", .folder = "/sys/fs/cgroup"});
  mounts.push_back({.is_v2 = false, .group = "/", .folder = "/sys/fs/cgroup/cpu"});
  mounts.push_back({.is_v2 = false, .group = "/", .folder = "/sys/fs/cgroup/cpu,cpuacct"});
  std::vector<CgroupMembership> memberships =
      ParseCgroupMemberships(ReadSmallFile(root + "/proc/self/cgroup"));
  // Where proc shows no membership, the root of what is mounted is all we can know.
  memberships.push_back({.is_v2 = true, .has_cpu = false, .path = "/"});
  memberships.push_back({.is_v2 = false, .has_cpu = true, .path = "/"});
  std::optional<double> least;
  for (const CgroupMembership& membership : memberships) {
    for (const CgroupMount& mount : mounts) {
      if (mount.is_v2 != membership.is_v2) continue;
      least = Least(least, QuotaOfBranch(root + mount.folder,
                                         PathInMount(membership.path, mount.group), mount.is_v2));
    }
  }
  return least;
}

}  // namespace switchyard
