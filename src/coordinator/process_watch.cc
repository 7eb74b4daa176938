#include "coordinator/process_watch.h"

#include <algorithm>

namespace switchyard::coordinator {

void ProcessWatch::Start(const std::string& worker_id, uint32_t pid, double now) {
  processes_.push_back({.worker_id = worker_id, .pid = pid, .last_seen = now});
}

bool ProcessWatch::End(const std::string& worker_id, uint32_t pid) {
  const auto process = std::find_if(processes_.begin(), processes_.end(), [&](const Process& p) {
    return p.worker_id == worker_id && p.pid == pid;
  });
  if (process == processes_.end()) return false;
  const bool was_member = process->was_member;
  processes_.erase(process);
  return was_member;
}

void ProcessWatch::See(const std::string& worker_id, uint32_t pid, double now) {
  for (Process& process : processes_) {
    if (process.worker_id != worker_id || process.pid != pid) continue;
    process.last_seen = now;
    process.was_member = true;
  }
}

void ProcessWatch::Check(
    double now, double seconds,
    const std::function<bool(const std::string& worker_id, uint32_t pid)>& is_member,
    const std::function<void(const std::string& worker_id, uint32_t pid)>& on_stale) {
  for (Process& process : processes_) {
    if (now - process.last_seen <= seconds || is_member(process.worker_id, process.pid)) continue;
    process.last_seen = now;  // once, should it not end at once
    on_stale(process.worker_id, process.pid);
  }
}

void ProcessWatch::Skip(double pause, double now) {
  for (Process& process : processes_) {
    process.last_seen = std::min(process.last_seen + pause, now);
  }
}

}  // namespace switchyard::coordinator
