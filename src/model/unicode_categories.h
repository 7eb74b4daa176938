// Unicode classes of code points, as far as splitting text into words needs them.
#pragma once

#include <cstdint>

namespace switchyard::model {

// The classes exclude each other: no white space is a letter, mark or number.
enum class CodePointClass : uint8_t {
  kOther,   // punctuation, symbols, controls, unassigned code points, bytes that are no UTF-8
  kLetter,  // general category L*
  kMark,    // general category M*: combining marks
  kNumber,  // general category N*: digits of any script, fractions, Roman numerals
  kSpace,   // property White_Space
};

// Returns the class of a code point; kOther above U+10FFFF.
//
// Source: Unicode 14.0.0 (the version of Debian 12's Python and PCRE2).
CodePointClass ClassOf(uint32_t code_point);

}  // namespace switchyard::model
