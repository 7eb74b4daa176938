// The process's log: lines on stderr, formatted with fmt. Backed by spdlog, which only log.cc sees.
//
// The log is the one object that all rooms share without being handed it. Never log in a step.
#pragma once

#include <fmt/format.h>
#include <string_view>
#include <utility>

namespace switchyard {

enum class LogLevel {
  kDebug,    // for who works on Switchyard
  kInfo,     // what a user may want to know: sizes, choices, progress of a start
  kWarning,  // works, but slower or otherwise than the user may expect
  kError,    // something was given up
  kOff,      // as a threshold: nothing is written
};

struct LogOptions {
  LogLevel threshold = LogLevel::kInfo;  // what is below is dropped
  bool color = false;  // colour the level; the application decides from terminal and environment
};

// Sets threshold and form of the log. Without a call, kInfo and no colour.
//
// Threads: before the first thread that logs is started.
void InitLogging(const LogOptions& options);

// True if lines of this level are written. Cheap.
bool LogEnabled(LogLevel level);

// Writes one line; line breaks inside `text` are the caller's. Threads: any.
void WriteLog(LogLevel level, std::string_view text);

// Formats and writes one line; formats nothing if the level is below the threshold.
template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(level)) WriteLog(level, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kWarning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace switchyard
