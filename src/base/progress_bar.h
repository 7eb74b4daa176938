// A line on a terminal that shows how far a long task is.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace switchyard {

// True if the file descriptor is a terminal.
bool IsTerminal(int file_descriptor);

// Redraws one line: label, bar, share done, rate and the time left. Takes the line away when it
// goes, so that nothing of it stays among the answers.
//
// Units:   total and done in `Unit`.
// Threads: one at a time.
class ProgressBar {
 public:
  enum class Unit {
    kBytes,   // "1.20 GB of 3.00 GB, 800 MB/s"
    kTokens,  // "512 of 4.10K tokens, 120 tokens/s"
  };
  struct Options {
    bool enabled = false;  // draws nothing if false; the application decides (IsTerminal(2))
    bool color = false;
    int bar_width = 30;  // columns
    Unit unit = Unit::kBytes;
    std::FILE* out = stderr;
    // Lines are drawn at most this often; the last state always is.
    double seconds_between_lines = 0.1;
  };

  // `clock` must outlive the bar.
  ProgressBar(std::string_view label, int64_t total, const Options& options,
              const Clock& clock = MonotonicClock::Get());
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Sets what is done so far, and redraws if it is time. More than `total` counts as total.
  void Set(int64_t done);
  void Add(int64_t more) { Set(done_ + more); }

 private:
  void Draw(double now_seconds);

  std::string label_;
  int64_t total_;
  int64_t done_ = 0;
  Options options_;
  const Clock& clock_;
  double start_seconds_;
  double last_draw_seconds_;
  bool drawn_ = false;
};

}  // namespace switchyard
