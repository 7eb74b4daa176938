#include "model/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <pcre2.h>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/status.h"
#include "model/unicode_categories.h"
#include "model/utf8.h"

namespace switchyard::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Pieces(PreTokenizerKind kind, std::string_view text) {
  std::vector<std::string> pieces;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = PieceEnd(kind, text, begin);
    if (end <= begin || end > text.size()) {
      ADD_FAILURE() << "piece from " << begin << " to " << end;
      break;
    }
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

std::string ToUtf8(uint32_t code_point) {
  const auto tail = [code_point](int shift) {
    return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F));
  };
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  if (code_point < 0x800) return {static_cast<char>(0xC0 | code_point >> 6), tail(0)};
  if (code_point < 0x10000) {
    return {static_cast<char>(0xE0 | code_point >> 12), tail(6), tail(0)};
  }
  return {static_cast<char>(0xF0 | code_point >> 18), tail(12), tail(6), tail(0)};
}

bool IsSurrogate(uint32_t code_point) { return code_point >= 0xD800 && code_point < 0xE000; }

// The regular expressions as the tokenizers' authors wrote them, run by PCRE2.
//
// PCRE2's \s under PCRE2_UCP also takes U+180E, which has not been White_Space since Unicode 6.3:
// no text here holds it.
constexpr uint32_t kNotWhiteSpaceButForPcre2 = 0x180E;

// Code points assigned since then have another class in a newer PCRE2, and rightly so: tests over
// all code points compare equal versions only (Debian 12: PCRE2 10.42). The other tests hold code
// points that have not changed since long before.
constexpr char kOurUnicodeVersion[] = "14.0.0";

std::string Pcre2UnicodeVersion() {
  char version[64] = {};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);  // writes at most 24 bytes
  return version;
}

class Oracle {
 public:
  explicit Oracle(PreTokenizerKind kind) {
    const std::string word = kind == PreTokenizerKind::kQwen35 ? "\\p{L}\\p{M}" : "\\p{L}";
    const std::string pattern =
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?[" + word +
        "]+|\\p{N}| ?[^\\s" + word + "\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
    EXPECT_NE(code_, nullptr) << error << " at " << offset;
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  std::vector<std::string> Pieces(const std::string& text) const {
    std::vector<std::string> pieces;
    for (size_t begin = 0; begin < text.size();) {
      // Checking the whole text again for each piece would take quadratic time.
      const uint32_t options = PCRE2_ANCHORED | (begin > 0 ? PCRE2_NO_UTF_CHECK : 0);
      const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                    text.size(), begin, options, match_.get(), nullptr);
      if (count < 1) {
        ADD_FAILURE() << "PCRE2 error " << count << " at " << begin;
        break;
      }
      const size_t end = pcre2_get_ovector_pointer(match_.get())[1];
      pieces.push_back(text.substr(begin, end - begin));
      begin = end;
    }
    return pieces;
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

class PreTokenizerTest : public testing::TestWithParam<PreTokenizerKind> {
 protected:
  void ExpectLikeOracle(const std::string& text) {
    ASSERT_EQ(Pieces(GetParam(), text), oracle_.Pieces(text)) << testing::PrintToString(text);
  }

  Oracle oracle_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Kinds, PreTokenizerTest,
                         testing::Values(PreTokenizerKind::kQwen2, PreTokenizerKind::kQwen35),
                         [](const auto& info) {
                           return info.param == PreTokenizerKind::kQwen2 ? "Qwen2" : "Qwen35";
                         });

TEST_P(PreTokenizerTest, MatchesOracleOnTheDemoCases) {
  std::ifstream file(SWITCHYARD_TEST_DATA "/demo/tokenizer_cases.jsonl");
  int num_cases = 0;
  for (std::string line; std::getline(file, line); ++num_cases) {
    ExpectLikeOracle(nlohmann::json::parse(line).at("text").get<std::string>());
  }
  EXPECT_EQ(num_cases, 96);
}

TEST_P(PreTokenizerTest, MatchesOracleOnItself) {
  for (const std::string name : {"tests/model/pre_tokenizer_test.cc", "src/model/pre_tokenizer.h",
                                 "src/model/generate_unicode_categories.py"}) {
    std::ifstream file(std::string(SWITCHYARD_SOURCE_DIR "/") + name);
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    ASSERT_GT(text.size(), 500u) << name;
    ExpectLikeOracle(text);
  }
}

// What the alternatives tell apart: every class, both line ends, spaces of several kinds, letters
// of the contractions in both cases, marks, joiners, ends of the code point range.
const uint32_t kInteresting[] = {
    ' ',    ' ',    ' ',    '\n',    '\n',    '\r',    '\t',    '\v',    '\'',    '\'',    's',
    'S',    't',    'T',    'r',     'R',     'e',     'E',     'v',     'V',     'm',     'M',
    'l',    'L',    'd',    'D',     'a',     'Z',     '0',     '9',     '.',     '!',     '<',
    '|',    '_',    0,      0x1C,    0x7F,    0x85,    0xA0,    0xAD,    0xB2,    0xBD,    0xDF,
    0xE9,   0x130,  0x131,  0x17F,   0x212A,  0x301,   0x301,   0x308,   0x34F,   0x489,   0x5D0,
    0x5B8,  0x627,  0x64E,  0x660,   0x939,   0x93F,   0x967,   0xE01,   0xE31,   0xE49,   0x1680,
    0x1680, 0x180D, 0x2000, 0x200A,  0x200B,  0x200D,  0x2019,  0x2028,  0x2029,  0x202F,  0x205F,
    0x2160, 0x20DD, 0x3000, 0x3007,  0x4E00,  0xAC00,  0xD7FF,  0xE000,  0xFE0F,  0xFEFF,  0xFF07,
    0xFF11, 0xFFFD, 0xFFFF, 0x10000, 0x1D165, 0x1D7CE, 0x1F600, 0x1F3FD, 0xE0100, 0x10FFFF};

TEST_P(PreTokenizerTest, MatchesOracleOnRandomTexts) {
  std::mt19937 random(20260702);
  for (int round = 0; round < 30000; ++round) {
    std::string text;
    for (size_t i = random() % 14 + 1; i > 0; --i) {
      text += ToUtf8(kInteresting[random() % std::size(kInteresting)]);
    }
    ExpectLikeOracle(text);
    if (HasFatalFailure()) return;
  }
}

// Runs of two classes: where one run ends and how its last code point joins the next.
TEST_P(PreTokenizerTest, MatchesOracleOnRuns) {
  std::mt19937 random(20260703);
  const uint32_t units[] = {' ', '\n', '\r', '\t', 'a', '7', '.', '\'', 0x301, 0x3000};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t runs = random() % 5 + 1; runs > 0; --runs) {
      const std::string unit = ToUtf8(units[random() % std::size(units)]);
      for (size_t i = random() % 4 + 1; i > 0; --i) text += unit;
    }
    ExpectLikeOracle(text);
    if (HasFatalFailure()) return;
  }
}

// Each code point between others that tell its class: behind a letter, before a letter, before a
// symbol, between digits, between spaces.
TEST_P(PreTokenizerTest, MatchesOracleOnEveryCodePoint) {
  if (Pcre2UnicodeVersion() != kOurUnicodeVersion) {
    GTEST_SKIP() << "PCRE2 has Unicode " << Pcre2UnicodeVersion();
  }
  std::string text;
  for (uint32_t code_point = 0; code_point < 0x110000; ++code_point) {
    if (IsSurrogate(code_point) || code_point == kNotWhiteSpaceButForPcre2) continue;
    const std::string unit = ToUtf8(code_point);
    text.append("a").append(unit).append("b7").append(unit).append("7 ").append(unit).append(" .");
    text.append(unit).append("!\n");
    if (text.size() < 4096) continue;
    ExpectLikeOracle(text);
    if (HasFatalFailure()) return;
    text.clear();
  }
  ExpectLikeOracle(text);
}

// Bytes that are no UTF-8 behave like U+FFFD, which is of no class either, one for each byte.
TEST_P(PreTokenizerTest, InvalidBytesAreCodePointsOfNoClass) {
  std::mt19937 random(5);
  const std::string parts[] = {"\xFF", "\x80", "\xE2\x82", "\xF0\x9F", "\xED\xA0\x80", "\xC0\xAF",
                               "a",    " ",    "\n",       "7",        "\xC3\xA9",     "\xCC\x81"};
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (size_t i = random() % 10 + 1; i > 0; --i) text += parts[random() % std::size(parts)];
    // The same text with each bad byte replaced, and where each byte of `text` went.
    std::string replaced;
    std::vector<size_t> offset_in_replaced;
    for (size_t i = 0; i < text.size();) {
      const Utf8Unit unit = DecodeUtf8(std::string_view(text).substr(i));
      const size_t num_bytes = unit.status == Utf8Status::kValid ? unit.num_bytes : 1;
      for (size_t j = 0; j < num_bytes; ++j) offset_in_replaced.push_back(replaced.size() + j);
      replaced += unit.status == Utf8Status::kValid ? text.substr(i, num_bytes) : ToUtf8(0xFFFD);
      i += num_bytes;
    }
    offset_in_replaced.push_back(replaced.size());
    std::vector<size_t> ends;
    for (size_t i = 0; i < text.size();) {
      i = PieceEnd(GetParam(), text, i);
      ends.push_back(offset_in_replaced[i]);
    }
    std::vector<size_t> expected;
    for (const std::string& piece : oracle_.Pieces(replaced)) {
      expected.push_back((expected.empty() ? 0 : expected.back()) + piece.size());
    }
    ASSERT_EQ(ends, expected) << testing::PrintToString(text);
  }
}

TEST_P(PreTokenizerTest, PiecesOfAnyBytesConcatenateToTheInput) {
  std::mt19937 random(6);
  for (int round = 0; round < 3000; ++round) {
    std::string text(random() % 100, '\0');
    for (char& c : text) c = static_cast<char>(random());
    std::string joined;
    for (const std::string& piece : Pieces(GetParam(), text)) joined += piece;
    ASSERT_EQ(joined, text);
  }
}

TEST(PreTokenizerKindTest, MarksJoinWordsInQwen35Only) {
  const std::string hindi = "\xE0\xA4\xB9\xE0\xA4\xBF\xE0\xA4\xA8";  // ha, vowel sign i, na
  EXPECT_THAT(Pieces(PreTokenizerKind::kQwen35, hindi), ElementsAre(hindi));
  EXPECT_THAT(Pieces(PreTokenizerKind::kQwen2, hindi),
              ElementsAre("\xE0\xA4\xB9", "\xE0\xA4\xBF\xE0\xA4\xA8"));
}

TEST(PreTokenizerKindTest, ParsesNames) {
  EXPECT_EQ(ParsePreTokenizerKind("qwen2").value(), PreTokenizerKind::kQwen2);
  EXPECT_EQ(ParsePreTokenizerKind("qwen35").value(), PreTokenizerKind::kQwen35);
  const absl::Status status = ParsePreTokenizerKind("llama-bpe").status();
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(std::string(Message(status)), HasSubstr("'llama-bpe', known: qwen2, qwen35"));
}

TEST(UnicodeCategoriesTest, MatchPcre2) {
  if (Pcre2UnicodeVersion() != kOurUnicodeVersion) {
    GTEST_SKIP() << "PCRE2 has Unicode " << Pcre2UnicodeVersion();
  }
  const std::pair<const char*, CodePointClass> classes[] = {{"\\p{L}", CodePointClass::kLetter},
                                                            {"\\p{M}", CodePointClass::kMark},
                                                            {"\\p{N}", CodePointClass::kNumber},
                                                            {"\\s", CodePointClass::kSpace}};
  for (const auto& [pattern, code_point_class] : classes) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr);
    ASSERT_NE(code, nullptr);
    pcre2_match_data* match = pcre2_match_data_create_from_pattern(code, nullptr);
    int num_members = 0;
    for (uint32_t code_point = 0; code_point < 0x110000; ++code_point) {
      if (IsSurrogate(code_point) || code_point == kNotWhiteSpaceButForPcre2) continue;
      const std::string unit = ToUtf8(code_point);
      const bool member = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(unit.data()), unit.size(),
                                      0, 0, match, nullptr) > 0;
      ASSERT_EQ(ClassOf(code_point) == code_point_class, member) << pattern << " " << code_point;
      num_members += member;
    }
    EXPECT_GE(num_members, 25) << pattern;  // White_Space, the smallest, has 25
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
  EXPECT_EQ(ClassOf(0x110000), CodePointClass::kOther);
  EXPECT_EQ(ClassOf(0xFFFFFFFF), CodePointClass::kOther);
}

TEST(Utf8Test, DecodesEveryCodePoint) {
  for (uint32_t code_point = 0; code_point < 0x110000; ++code_point) {
    const std::string text = ToUtf8(code_point) + "x";
    const Utf8Unit unit = DecodeUtf8(text);
    if (IsSurrogate(code_point)) {
      ASSERT_EQ(unit.status, Utf8Status::kInvalid) << code_point;
      ASSERT_EQ(unit.num_bytes, 1u);
      continue;
    }
    ASSERT_EQ(unit.status, Utf8Status::kValid) << code_point;
    ASSERT_EQ(unit.code_point, code_point);
    ASSERT_EQ(unit.num_bytes, text.size() - 1);
    for (size_t size = 1; size + 1 < text.size(); ++size) {
      const Utf8Unit part = DecodeUtf8(std::string_view(text).substr(0, size));
      ASSERT_EQ(part.status, Utf8Status::kIncomplete) << code_point;
      ASSERT_EQ(part.num_bytes, size);
    }
  }
}

}  // namespace
}  // namespace switchyard::model
