#include "model/detokenizer.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "model/utf8.h"
#include "tokenizer_test_data.h"

namespace switchyard::model {
namespace {

using testing::ElementsAre;

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// Byte tokens (id = byte), then one of each other type.
class DetokenizerTest : public testing::Test {
 protected:
  DetokenizerTest() {
    control_ = AddToken(data_, "<|im_end|>", TokenType::kControl);
    user_defined_ = AddToken(data_, "<think>", TokenType::kUserDefined);
    unused_ = AddToken(data_, "[PAD0]", TokenType::kUnused);
    unknown_ = AddToken(data_, "<unk>", TokenType::kUnknown);
    byte_ = AddToken(data_, "<0x41>", TokenType::kByte);
    tokenizer_.emplace(MakeTokenizer(data_));
  }

  // Output of each Push, one byte a token, then of Flush.
  std::vector<std::string> Steps(std::string_view bytes) const {
    Detokenizer detokenizer(*tokenizer_);
    std::vector<std::string> steps;
    for (const char c : bytes) steps.push_back(detokenizer.Push(static_cast<uint8_t>(c)));
    steps.push_back(detokenizer.Flush());
    return steps;
  }

  std::string Text(std::string_view bytes) const {
    std::string text;
    for (const std::string& step : Steps(bytes)) text += step;
    return text;
  }

  TokenizerData data_ = ByteTokenizerData();
  std::optional<Tokenizer> tokenizer_;
  int32_t control_, user_defined_, unused_, unknown_, byte_;
};

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Unit unit = DecodeUtf8(text);
    if (unit.status != Utf8Status::kValid) return false;
    text.remove_prefix(unit.num_bytes);
  }
  return true;
}

TEST_F(DetokenizerTest, HoldsBackHalfACharacter) {
  EXPECT_THAT(Steps("A\xC3\xA9"), ElementsAre("A", "", "\xC3\xA9", ""));
  EXPECT_THAT(Steps("\xE2\x82\xAC!"), ElementsAre("", "", "\xE2\x82\xAC", "!", ""));
  EXPECT_THAT(Steps("\xF0\x9F\x98\x80"), ElementsAre("", "", "", "\xF0\x9F\x98\x80", ""));
}

TEST_F(DetokenizerTest, ReplacesWhatIsIncompleteAtTheEnd) {
  EXPECT_THAT(Steps("\xC3"), ElementsAre("", kReplacement));
  EXPECT_THAT(Steps("\xF0\x9F\x98"), ElementsAre("", "", "", kReplacement));
}

// The example of the Unicode Standard 14.0, table 3-8 and its neighbours: one U+FFFD for each
// maximal subpart.
TEST_F(DetokenizerTest, ReplacesMaximalSubparts) {
  const std::string r = kReplacement;
  EXPECT_EQ(Text("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(Text("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(Text("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(Text("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

TEST_F(DetokenizerTest, InvalidBytesDoNotWait) {
  EXPECT_THAT(Steps("\xFF"
                    "a"),
              ElementsAre(kReplacement, "a", ""));
  EXPECT_THAT(Steps("\xE2\x82"
                    "a"),
              ElementsAre("", "", std::string(kReplacement) + "a", ""));
  // The second byte ends the first character and begins another.
  EXPECT_THAT(Steps("\xE2\xC3\xA9"), ElementsAre("", kReplacement, "\xC3\xA9", ""));
}

TEST_F(DetokenizerTest, GivesTextByType) {
  const std::vector<int32_t> ids = {'a', control_, user_defined_, unused_, unknown_, byte_, 'b'};
  EXPECT_EQ(tokenizer_->Decode(ids, false), "a<think>Ab");
  EXPECT_EQ(tokenizer_->Decode(ids, true), "a<|im_end|><think><unk>Ab");
}

TEST_F(DetokenizerTest, IgnoresIdsOutsideTheVocabulary) {
  const std::vector<int32_t> ids = {'a', -1, tokenizer_->vocab_size(), 2147483647, 'b'};
  EXPECT_EQ(tokenizer_->Decode(ids, true), "ab");
}

TEST_F(DetokenizerTest, SpecialTokenWithTextEndsAHalfCharacter) {
  Detokenizer shown(*tokenizer_, {.include_special = true});
  EXPECT_EQ(shown.Push(0xE2), "");
  EXPECT_EQ(shown.Push(control_), std::string(kReplacement) + "<|im_end|>");
  EXPECT_EQ(shown.Flush(), "");
}

TEST_F(DetokenizerTest, IsAsNewAfterFlush) {
  Detokenizer detokenizer(*tokenizer_);
  EXPECT_EQ(detokenizer.Push(0xE2), "");
  EXPECT_EQ(detokenizer.Flush(), kReplacement);
  EXPECT_EQ(detokenizer.Flush(), "");
  EXPECT_EQ(detokenizer.Push('a'), "a");
}

// A text cut at every byte into two tokens comes out whole, and the first part never holds half a
// character.
TEST_F(DetokenizerTest, SplitsAtEveryByte) {
  const std::string text =
      "na\xC3\xAFve \xE0\xB9\x84\xE0\xB8\x97\xE0\xB8\xA2 "
      "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB.";
  for (size_t cut = 1; cut < text.size(); ++cut) {
    TokenizerData data = ByteTokenizerData();
    const auto add = [&data](std::string_view bytes) {
      std::string token;
      for (const char c : bytes) token += ByteToAlphabet(static_cast<uint8_t>(c));
      return AddToken(data, token, TokenType::kNormal);
    };
    const int32_t left = add(std::string_view(text).substr(0, cut));
    const int32_t right = add(std::string_view(text).substr(cut));
    const Tokenizer tokenizer = MakeTokenizer(data);
    Detokenizer detokenizer(tokenizer);
    const std::string first = detokenizer.Push(left);
    EXPECT_TRUE(IsValidUtf8(first)) << cut;
    EXPECT_LE(first.size(), cut);
    EXPECT_GT(first.size() + 4, cut);  // at most 3 bytes wait
    EXPECT_EQ(first + detokenizer.Push(right), text) << cut;
    EXPECT_EQ(detokenizer.Flush(), "");
  }
}

TEST_F(DetokenizerTest, OutputIsAlwaysValidAndKeepsValidText) {
  std::mt19937 random(3);
  const std::vector<std::string> parts = {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
  for (int round = 0; round < 3000; ++round) {
    std::string valid;
    std::string any;
    for (size_t i = random() % 12; i > 0; --i) {
      valid += parts[random() % parts.size()];
      const std::string& part = parts[random() % parts.size()];
      any += part.substr(0, random() % part.size() + 1);
      if (random() % 3 == 0) any += static_cast<char>(random());
    }
    EXPECT_EQ(Text(valid), valid);
    for (const std::string& step : Steps(any)) EXPECT_TRUE(IsValidUtf8(step));
  }
}

}  // namespace
}  // namespace switchyard::model
