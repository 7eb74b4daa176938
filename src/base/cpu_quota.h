// The CPU quota that control groups put on this process.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// One line of /proc/<pid>/cgroup.
struct CgroupMembership {
  bool is_v2 = false;    // the unified hierarchy
  bool has_cpu = false;  // v1: the hierarchy carries the cpu controller
  std::string path;      // of the group, from the root that this process sees
};

// One mount of a control group file system, from /proc/<pid>/mountinfo.
struct CgroupMount {
  bool is_v2 = false;
  std::string group;  // the group that is the mount's root
  std::string folder;
};

// Parse the two files. Lines that do not concern CPU quotas, or make no sense, are left out.
std::vector<CgroupMembership> ParseCgroupMemberships(std::string_view text);
std::vector<CgroupMount> ParseCgroupMounts(std::string_view text);

// CPUs that one group allows, nothing if it sets no limit or the text is not understood.
//
// V2: content of cpu.max, "150000 100000" or "max 100000".
// V1: contents of cpu.cfs_quota_us (-1 = no limit) and cpu.cfs_period_us.
std::optional<double> ParseCpuMax(std::string_view cpu_max);
std::optional<double> ParseCfsQuota(std::string_view quota_us, std::string_view period_us);

// Returns the least quota, in CPUs, of this process's groups and all their ancestors that can be
// seen, or nothing if no group limits it.
//
// `root` is where the file system starts: "/", or the top of a made-up tree in tests.
std::optional<double> ReadCpuQuota(const std::string& root);

}  // namespace switchyard
