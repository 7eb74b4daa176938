#include "base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>

#include "base/status.h"

namespace switchyard {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t'; }

// ASCII only: tolower() would ask the locale.
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Splits "1.5 GiB" into 1.5 and "gib". Nothing if the number is missing, negative or in a form
// like "1e3" or "inf".
struct NumberAndUnit {
  double number = 0;
  std::string unit;
};
std::optional<NumberAndUnit> SplitUnit(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  NumberAndUnit result;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result.number,
                                            std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  for (char c : text) result.unit += Lower(c);
  return result;
}

// 1024 for "k", 1024^2 for "m", ...
std::optional<double> BinaryFactor(char prefix) {
  constexpr std::string_view kPrefixes = "kmgt";
  const size_t index = kPrefixes.find(prefix);
  if (index == std::string_view::npos) return std::nullopt;
  return std::pow(1024.0, static_cast<double>(index + 1));
}

std::optional<double> ByteFactor(std::string_view unit) {
  if (unit.empty() || unit == "b") return 1;
  const std::optional<double> binary = BinaryFactor(unit[0]);
  const std::string_view rest = unit.substr(1);
  if (!binary.has_value() || rest.empty() || rest == "ib") return binary;
  if (rest == "b") return std::pow(1000.0, std::round(std::log2(*binary) / 10));
  return std::nullopt;
}

std::optional<double> CountFactor(std::string_view unit) {
  if (unit.empty()) return 1;
  return unit.size() == 1 ? BinaryFactor(unit[0]) : std::nullopt;
}

// 2^63: the least double that does not fit.
constexpr double kTooLarge = 0x1p63;

struct Scaled {
  std::string digits;
  size_t step = 0;  // how many times the value was divided by 1000
};

// Divides by 1000 until below 1000, then prints three significant digits, or the whole number if
// nothing was divided. 999.96e3 prints as "1.00" one step up, never as "1000".
Scaled ScaleDown(double value, size_t max_steps) {
  Scaled scaled;
  double magnitude = std::abs(value);
  while (scaled.step < max_steps && magnitude >= 999.5) {
    magnitude /= 1000;
    ++scaled.step;
  }
  const int decimals = scaled.step == 0 ? 0 : magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0;
  scaled.digits = fmt::format("{}{:.{}f}", value < 0 ? "-" : "", magnitude, decimals);
  return scaled;
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  const std::optional<NumberAndUnit> parts = SplitUnit(text);
  const std::optional<double> factor = parts ? ByteFactor(parts->unit) : std::nullopt;
  if (!factor.has_value()) {
    return InvalidArgument("not a size (wanted for example 4096, 8k, 24GiB, 1.5GB): \"{}\"", text);
  }
  const double bytes = std::round(parts->number * *factor);
  if (bytes >= kTooLarge) return InvalidArgument("size is too large: \"{}\"", text);
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<int64_t> ParseCount(std::string_view text) {
  const std::optional<NumberAndUnit> parts = SplitUnit(text);
  const std::optional<double> factor = parts ? CountFactor(parts->unit) : std::nullopt;
  const double count = factor ? parts->number * *factor : 0.5;
  if (count != std::floor(count)) {
    return InvalidArgument("not a count (wanted for example 4096 or 16k): \"{}\"", text);
  }
  if (count >= kTooLarge) return InvalidArgument("count is too large: \"{}\"", text);
  return static_cast<int64_t>(count);
}

std::string FormatBytes(double bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  const Scaled scaled = ScaleDown(bytes, kUnits.size() - 1);
  return fmt::format("{} {}", scaled.digits, kUnits[scaled.step]);
}

std::string FormatBytesPerSecond(double bytes_per_second) {
  return FormatBytes(bytes_per_second) + "/s";
}

std::string FormatCount(double count) {
  constexpr std::array<std::string_view, 5> kUnits = {"", "K", "M", "G", "T"};
  const Scaled scaled = ScaleDown(count, kUnits.size() - 1);
  return fmt::format("{}{}", scaled.digits, kUnits[scaled.step]);
}

std::string FormatSeconds(double seconds) {
  constexpr std::array<std::string_view, 4> kUnits = {"s", "ms", "us", "ns"};
  double value = seconds;
  size_t unit = 0;
  while (unit + 1 < kUnits.size() && std::abs(value) < 0.9995 && value != 0) {
    value *= 1000;
    ++unit;
  }
  const double magnitude = std::abs(value);
  const int decimals = magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, kUnits[unit]);
}

}  // namespace switchyard
