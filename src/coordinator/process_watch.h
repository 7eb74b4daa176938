// Processes that were started for a group, and whether they do what they were started for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace switchyard::coordinator {

// A process is looked after from its start to its end, as long as it is not a member: one that does
// not register, or not again after its session has ended, is stale.
//
// Threads: one at a time.
class ProcessWatch {
 public:
  void Start(const std::string& worker_id, uint32_t pid, double now);
  // Returns whether it has been a member.
  bool End(const std::string& worker_id, uint32_t pid);
  // The process is or was just now a member. Others than those started are ignored.
  void See(const std::string& worker_id, uint32_t pid, double now);

  // Calls `on_stale` for each that is no member and has not been seen for `seconds`; for the same
  // one again only after as long.
  void Check(double now, double seconds,
             const std::function<bool(const std::string& worker_id, uint32_t pid)>& is_member,
             const std::function<void(const std::string& worker_id, uint32_t pid)>& on_stale);

  // Moves the clocks by a time for which this process did not run.
  void Skip(double pause, double now);

 private:
  struct Process {
    std::string worker_id;
    uint32_t pid = 0;
    double last_seen = 0;     // while it is not in the group
    bool was_member = false;  // or is one
  };
  std::vector<Process> processes_;
};

}  // namespace switchyard::coordinator
