// What one rendering may cost: templates come from model files and messages from clients, so both
// are untrusted. Every loop, call and copy of the interpreter is paid for here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "base/status.h"

namespace switchyard::model::jinja {

inline constexpr size_t kMaxTemplateBytes = 256 << 10;
inline constexpr size_t kMaxTextBytes = 16 << 20;  // of the output, and of any one string
inline constexpr int kMaxNesting = 64;             // blocks and brackets while parsing; macro calls
inline constexpr int64_t kMaxSteps = 1'000'000;

// Operators on one path of an expression, such as the terms of a + b + c: they nest in the tree
// without nesting in the text. Published templates stay below 40.
inline constexpr int kMaxExpressionDepth = 256;

// Frames of the evaluator at once, over all macro calls. A frame takes below 2 KiB in an optimised
// build and below 6 KiB with sanitizers, so 768 fit a thread's usual 8 MiB stack.
inline constexpr int kMaxEvaluationDepth = 768;

// Lists and maps inside each other. Requests are limited to 64; lists made by a template and
// arguments that arrive as JSON in a string come on top.
inline constexpr int kMaxValueDepth = 192;

inline constexpr int64_t kMaxRange = 100'000;  // elements of range(), as in Jinja2's sandbox

// Counts the steps of one rendering.
//
// A step is one statement, loop iteration, call or element of a new list. Eight evaluated nodes of
// expressions, or 256 bytes read or written by text operations, count as one step too, so that
// steps bound time and memory: all text made in one rendering is at most 256 MiB.
class Budget {
 public:
  static constexpr int64_t kUnitsPerStep = 8;
  static constexpr int64_t kBytesPerUnit = 32;

  absl::Status ChargeNode() { return Charge(1); }
  absl::Status ChargeSteps(int64_t steps) {
    if (steps > kMaxSteps) units_left_ = 0;
    return Charge(steps * kUnitsPerStep);
  }
  absl::Status ChargeText(size_t bytes) {
    if (bytes > kMaxTextBytes) {
      return ResourceExhausted("text is too long, limit in bytes: {}", kMaxTextBytes);
    }
    return Charge(1 + static_cast<int64_t>(bytes) / kBytesPerUnit);
  }

 private:
  absl::Status Charge(int64_t units) {
    if (units > units_left_) [[unlikely]] {
      units_left_ = 0;
      return ResourceExhausted("rendering takes too long, limit in steps: {}", kMaxSteps);
    }
    units_left_ -= units;
    return absl::OkStatus();
  }

  int64_t units_left_ = kMaxSteps * kUnitsPerStep;
};

}  // namespace switchyard::model::jinja
