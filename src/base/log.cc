#include "base/log.h"

#include <memory>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_color_sinks.h>

namespace switchyard {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

struct Logger {
  std::shared_ptr<spdlog::sinks::stderr_color_sink_mt> sink =
      std::make_shared<spdlog::sinks::stderr_color_sink_mt>(spdlog::color_mode::never);
  spdlog::logger logger{"switchyard", sink};

  Logger() {
    logger.set_level(spdlog::level::info);
    logger.set_pattern("%H:%M:%S.%e %^%l%$ %v");
    logger.flush_on(spdlog::level::debug);  // stderr may be a pipe that someone watches
  }
};

// Never destroyed: threads may log while the process ends.
Logger& TheLogger() {
  static Logger& logger = *new Logger;
  return logger;
}

}  // namespace

void InitLogging(const LogOptions& options) {
  Logger& log = TheLogger();
  log.logger.set_level(ToSpdlog(options.threshold));
  log.sink->set_color_mode(options.color ? spdlog::color_mode::always : spdlog::color_mode::never);
}

bool LogEnabled(LogLevel level) {
  return level != LogLevel::kOff && TheLogger().logger.should_log(ToSpdlog(level));
}

void WriteLog(LogLevel level, std::string_view text) {
  if (level == LogLevel::kOff) return;
  // As an argument, not as a format: braces in `text` are only text.
  TheLogger().logger.log(ToSpdlog(level), "{}", text);
}

}  // namespace switchyard
