#include "base/progress_bar.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <unistd.h>

#include "base/units.h"

namespace switchyard {
namespace {

// Before this much time has passed a rate is mostly noise.
constexpr double kLeastSecondsForRate = 0.5;

std::string Amount(int64_t value, ProgressBar::Unit unit) {
  const auto number = static_cast<double>(value);
  return unit == ProgressBar::Unit::kBytes ? FormatBytes(number) : FormatCount(number);
}

std::string Rate(double per_second, ProgressBar::Unit unit) {
  return unit == ProgressBar::Unit::kBytes ? FormatBytesPerSecond(per_second)
                                           : FormatCount(per_second) + " tokens/s";
}

std::string TimeLeft(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(std::min(seconds, 359'999.0)));
  if (whole >= 3600)
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

bool IsTerminal(int file_descriptor) { return isatty(file_descriptor) == 1; }

ProgressBar::ProgressBar(std::string_view label, int64_t total, const Options& options,
                         const Clock& clock)
    : label_(label),
      total_(std::max<int64_t>(total, 0)),
      options_(options),
      clock_(clock),
      start_seconds_(clock.NowSeconds()),
      last_draw_seconds_(start_seconds_) {}

ProgressBar::~ProgressBar() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", options_.out);  // back to the first column, erase to the end of the line
  std::fflush(options_.out);
}

void ProgressBar::Set(int64_t done) {
  done_ = std::clamp<int64_t>(done, 0, total_);
  if (!options_.enabled) return;
  const double now_seconds = clock_.NowSeconds();
  const bool too_soon = drawn_ && now_seconds - last_draw_seconds_ < options_.seconds_between_lines;
  if (too_soon && done_ < total_) return;
  Draw(now_seconds);
}

void ProgressBar::Draw(double now_seconds) {
  const double share = total_ == 0 ? 1.0 : static_cast<double>(done_) / static_cast<double>(total_);
  const int filled = static_cast<int>(share * options_.bar_width);
  const std::string_view color_on = options_.color ? "\x1b[36m" : "";
  const std::string_view color_off = options_.color ? "\x1b[0m" : "";
  std::string line = fmt::format(
      "\r{} [{}{}{}{}] {:3.0f} % {} of {}", label_, color_on, std::string(filled, '='), color_off,
      std::string(std::max(0, options_.bar_width - filled), ' '), std::floor(share * 100),
      Amount(done_, options_.unit), Amount(total_, options_.unit));
  if (options_.unit == Unit::kTokens) line += " tokens";
  const double elapsed = now_seconds - start_seconds_;
  if (elapsed >= kLeastSecondsForRate && done_ > 0) {
    const double per_second = static_cast<double>(done_) / elapsed;
    line += fmt::format(", {}", Rate(per_second, options_.unit));
    if (done_ < total_) {
      line += fmt::format(", {} left", TimeLeft(static_cast<double>(total_ - done_) / per_second));
    }
  }
  line += "\x1b[K";
  std::fwrite(line.data(), 1, line.size(), options_.out);
  std::fflush(options_.out);
  last_draw_seconds_ = now_seconds;
  drawn_ = true;
}

}  // namespace switchyard
