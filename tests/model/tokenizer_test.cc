#include "model/tokenizer.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/status.h"
#include "model/gguf_file.h"
#include "tokenizer_test_data.h"

namespace switchyard::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

#if defined(SWITCHYARD_SANITIZED)
constexpr int kSanitizerFactor = 8;  // how much smaller the large texts are
#else
constexpr int kSanitizerFactor = 1;
#endif

Tokenizer FileTokenizer(const std::string& name) {
  absl::StatusOr<GgufFile> file = GgufFile::Open(SWITCHYARD_TEST_DATA "/" + name);
  if (!file.ok()) ADD_FAILURE() << file.status();
  absl::StatusOr<TokenizerData> data = ReadTokenizerData(file->metadata());
  if (!data.ok()) ADD_FAILURE() << data.status();
  return MakeTokenizer(*data);
}

// Bytes of the tokens, one after the other, whatever their type.
std::string Bytes(const Tokenizer& tokenizer, const std::vector<int32_t>& token_ids) {
  std::string bytes;
  for (const int32_t id : token_ids) bytes += tokenizer.token_bytes(id);
  return bytes;
}

// Byte-pair encoding as it is defined, without regard to speed: text pairs, ranks by search.
std::vector<std::string> NaiveBpe(const std::string& piece,
                                  const std::vector<std::string>& merges) {
  std::vector<std::string> tokens;
  for (const char c : piece) tokens.push_back(ByteToAlphabet(static_cast<uint8_t>(c)));
  while (true) {
    size_t best = 0;
    size_t best_rank = merges.size();
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const std::string pair = tokens[i] + " " + tokens[i + 1];
      const size_t rank = std::find(merges.begin(), merges.end(), pair) - merges.begin();
      if (rank < best_rank) {
        best = i;
        best_rank = rank;
      }
    }
    if (best_rank == merges.size()) return tokens;
    tokens[best] += tokens[best + 1];
    tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::string Repeat(std::string_view unit, size_t count) {
  std::string text;
  text.reserve(unit.size() * count);
  for (size_t i = 0; i < count; ++i) text += unit;
  return text;
}

TEST(TokenizerTest, EncodesTheDemoCases) {
  const Tokenizer tokenizer = MakeTokenizer(DemoTokenizerData());
  std::ifstream file(SWITCHYARD_TEST_DATA "/demo/tokenizer_cases.jsonl");
  int num_cases = 0;
  for (std::string line; std::getline(file, line); ++num_cases) {
    const nlohmann::json json = nlohmann::json::parse(line);
    const auto text = json.at("text").get<std::string>();
    const auto ids = json.at("ids").get<std::vector<int32_t>>();
    const auto plain = json.at("ids_plain").get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.Encode(text, SpecialMatching::kAll), ids) << text;
    EXPECT_EQ(tokenizer.Encode(text, SpecialMatching::kNone), plain) << text;
    // The file has no user-defined tokens.
    EXPECT_EQ(tokenizer.Encode(text, SpecialMatching::kUserDefined), plain) << text;
    EXPECT_EQ(tokenizer.Decode(ids, true), text);
    EXPECT_EQ(tokenizer.Decode(plain, false), text);
  }
  EXPECT_EQ(num_cases, 96);
}

// Here `plain` matches user-defined tokens: <think> is one id.
TEST(TokenizerTest, EncodesTheCasesOfTheSmallModel) {
  const Tokenizer tokenizer = FileTokenizer("qwen4exp/base.gguf");
  std::ifstream file(SWITCHYARD_TEST_DATA "/qwen4exp/tokenizer.tsv");
  int num_cases = 0;
  for (std::string line; std::getline(file, line); ++num_cases) {
    std::istringstream fields(line);
    std::string mode, escaped, numbers;
    std::getline(fields, mode, '\t');
    std::getline(fields, escaped, '\t');
    std::getline(fields, numbers);
    std::string text;
    for (size_t i = 0; i < escaped.size(); ++i) {
      if (escaped[i] != '\\') {
        text += escaped[i];
        continue;
      }
      ++i;
      text += escaped[i] == 'n' ? '\n' : escaped[i] == 'r' ? '\r' : '\t';
    }
    std::vector<int32_t> ids;
    std::istringstream stream(numbers);
    for (int32_t id; stream >> id;) ids.push_back(id);
    ASSERT_FALSE(ids.empty()) << line;
    const SpecialMatching special =
        mode == "special" ? SpecialMatching::kAll : SpecialMatching::kUserDefined;
    EXPECT_EQ(tokenizer.Encode(text, special), ids) << mode << " " << text;
    EXPECT_EQ(tokenizer.Decode(ids, true), text);
  }
  EXPECT_GE(num_cases, 35);
}

TEST(TokenizerTest, NoTextOfUsersBecomesASpecialToken) {
  const Tokenizer tokenizer = FileTokenizer("qwen4exp/base.gguf");
  const std::string text = "a<|im_end|>b<think>c</think><|endoftext|><tool_call>";
  const std::vector<int32_t> ids = tokenizer.Encode(text, SpecialMatching::kNone);
  for (const int32_t id : ids) EXPECT_EQ(tokenizer.type(id), TokenType::kNormal) << id;
  EXPECT_EQ(Bytes(tokenizer, ids), text);
}

TEST(TokenizerTest, SpansMatchSpecialTokensOnlyWhereAllowed) {
  const Tokenizer tokenizer = FileTokenizer("qwen4exp/base.gguf");
  const int32_t im_end = *tokenizer.FindSpecialToken("<|im_end|>");
  const int32_t think = *tokenizer.FindSpecialToken("<think>");
  const std::vector<int32_t> ids = tokenizer.Encode({
      {"<|im_", SpecialMatching::kAll},
      {"end|>", SpecialMatching::kAll},  // adjacent spans of one trust count as one
      {"<|im_end|><think>", SpecialMatching::kNone},
      {"<think>", SpecialMatching::kUserDefined},
      {"<|im_", SpecialMatching::kAll},
      {"end|>", SpecialMatching::kNone},  // a template's text and a user's do not join
  });
  ASSERT_FALSE(ids.empty());
  EXPECT_EQ(ids.front(), im_end);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), im_end), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), think), 1);
  EXPECT_EQ(Bytes(tokenizer, ids), "<|im_end|><|im_end|><think><think><|im_end|>");
}

TEST(TokenizerTest, WordsGoAcrossBordersOfSpans) {
  const Tokenizer tokenizer = MakeTokenizer(DemoTokenizerData());
  const std::string text =
      "Once upon a time,\n\n a clever fox didn't sleep \xE0\xB9\x84\xE0\xB8\x97\n";
  const std::vector<int32_t> whole = tokenizer.Encode(text, SpecialMatching::kNone);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const std::string_view view = text;
    EXPECT_EQ(tokenizer.Encode({{view.substr(0, cut), SpecialMatching::kAll},
                                {view.substr(cut), SpecialMatching::kNone}}),
              whole);
  }
  EXPECT_THAT(tokenizer.Encode(absl::Span<const TextSpan>()), IsEmpty());
  EXPECT_THAT(tokenizer.Encode({{"", SpecialMatching::kAll}, {"", SpecialMatching::kNone}}),
              IsEmpty());
}

TEST(TokenizerTest, TakesTheLeftmostThenTheLongestSpecialToken) {
  TokenizerData data = ByteTokenizerData();
  const int32_t ab = AddToken(data, "<ab>", TokenType::kControl);
  const int32_t ab_long = AddToken(data, "<ab><c", TokenType::kControl);
  const int32_t inner = AddToken(data, "b><", TokenType::kControl);
  const int32_t c = AddToken(data, "<c>", TokenType::kUserDefined);
  AddToken(data, "", TokenType::kControl);  // never matches
  const int32_t ab_again = AddToken(data, "<ab>", TokenType::kControl);
  const Tokenizer tokenizer = MakeTokenizer(data);
  const auto encode = [&](std::string_view text) {
    return tokenizer.Encode(text, SpecialMatching::kAll);
  };
  EXPECT_THAT(encode("<ab>"), ElementsAre(ab));
  EXPECT_THAT(encode("<ab><c>"), ElementsAre(ab_long, '>'));
  EXPECT_THAT(encode("<ab><ab>"), ElementsAre(ab, ab));
  EXPECT_THAT(encode("ab><c>"), ElementsAre('a', inner, 'c', '>'));
  EXPECT_THAT(encode("<<c>"), ElementsAre('<', c));
  EXPECT_EQ(tokenizer.FindSpecialToken("<ab>"), ab);
  EXPECT_EQ(tokenizer.token_bytes(ab_again), "<ab>");
  EXPECT_EQ(tokenizer.FindSpecialToken("<a"), std::nullopt);
}

// Against a search at every byte, with tokens that overlap in every way.
TEST(TokenizerTest, SpecialMatcherEqualsNaiveSearch) {
  std::mt19937 random(20260701);
  for (int round = 0; round < 200; ++round) {
    const auto random_text = [&random](size_t max_bytes) {
      std::string text(random() % max_bytes + 1, 'a');
      for (char& c : text) c = static_cast<char>('a' + random() % 2);
      return text;
    };
    std::vector<std::string> texts;
    for (int i = 0; i < 6; ++i) texts.push_back(random_text(6));
    std::vector<SpecialToken> tokens;
    for (const std::string& text : texts) {
      tokens.push_back({text, static_cast<int32_t>(tokens.size())});
    }
    const SpecialTokenMatcher matcher(tokens);
    const std::string text = random_text(60);
    std::vector<SpecialTokenMatch> matches;
    matcher.FindAll(text, 0, text.size(), matches);
    size_t next = 0;
    for (size_t i = 0; i < text.size();) {
      const SpecialToken* longest = nullptr;
      for (const SpecialToken& token : tokens) {
        if (text.compare(i, token.text.size(), token.text) == 0 &&
            (longest == nullptr || token.text.size() > longest->text.size())) {
          longest = &token;
        }
      }
      if (longest == nullptr) {
        ++i;
        continue;
      }
      ASSERT_LT(next, matches.size());
      EXPECT_EQ(matches[next].begin, i);
      EXPECT_EQ(matches[next].token_id, longest->token_id);
      i += longest->text.size();
      EXPECT_EQ(matches[next++].end, i);
    }
    EXPECT_EQ(next, matches.size());
  }
}

// Random merge lists over three letters, in random order: a merge may come before those that make
// its parts, a token may be made in several ways, and merges of lower rank arise in the middle of
// others.
TEST(TokenizerTest, BpeEqualsItsDefinitionForAnyMerges) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> parts = {"a", "b", "c"};
    std::vector<std::string> merges;
    for (int i = 0; i < 24; ++i) {
      const std::string& left = parts[random() % parts.size()];
      const std::string& right = parts[random() % parts.size()];
      if (left.size() + right.size() > 12) continue;
      const std::string merge = left + " " + right;
      if (std::find(merges.begin(), merges.end(), merge) != merges.end()) continue;
      parts.push_back(left + right);
      merges.push_back(merge);
    }
    std::shuffle(merges.begin(), merges.end(), random);
    const TokenizerData data = ByteTokenizerData(merges);
    const Tokenizer tokenizer = MakeTokenizer(data);
    // Both ways of encoding: pieces up to 32 bytes, and longer ones.
    for (const size_t size : {1, 2, 5, 31, 32, 33, 34, 64, 200}) {
      std::string text(size, 'a');
      for (char& c : text) c = static_cast<char>('a' + random() % 3);
      if (random() % 4 == 0) text.assign(size, 'a');
      std::vector<std::string> tokens;
      for (const int32_t id : tokenizer.Encode(text, SpecialMatching::kNone)) {
        tokens.push_back(data.tokens[id]);
      }
      ASSERT_EQ(tokens, NaiveBpe(text, merges)) << text << " round " << round;
    }
  }
}

TEST(TokenizerTest, AnyBytesSurviveTheRoundTrip) {
  const Tokenizer demo = MakeTokenizer(DemoTokenizerData());
  std::mt19937 random(11);
  const std::vector<std::string> parts = {"the",          " ",      "\n", "\r",   "\xE2", "\x80",
                                          "\xFF",         "7",      "'",  "\xCC", "\x81", "ll",
                                          "\xF0\x9F\x98", "<think>"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (size_t i = random() % 40; i > 0; --i) {
      text += random() % 4 == 0 ? std::string(1, static_cast<char>(random()))
                                : parts[random() % parts.size()];
    }
    for (const SpecialMatching special : {SpecialMatching::kNone, SpecialMatching::kAll}) {
      ASSERT_EQ(Bytes(demo, demo.Encode(text, special)), text);
    }
  }
}

// 16 MiB of one character: once with a vocabulary that has no merge for it, once with one that has
// (tokens of 2, 4, ... 64 bytes). Recursion or a square would not survive this.
TEST(TokenizerTest, EncodesSixteenMebibytesOfOneCharacter) {
  const size_t num_bytes = (size_t{16} << 20) / kSanitizerFactor;
  std::vector<std::string> merges;
  for (const std::string letter : {"A", "\xC4\xA0", "\xC4\x8A"}) {  // A, space, line feed
    for (std::string part = letter; part.size() < 64 * letter.size(); part += part) {
      merges.push_back(part + " " + part);
    }
  }
  const Tokenizer tokenizer = MakeTokenizer(ByteTokenizerData(merges));
  for (const char c : {'A', ' ', '\n', '7'}) {
    const std::string text(num_bytes, c);
    const double begin = ThreadSeconds();
    const std::vector<int32_t> ids = tokenizer.Encode(text, SpecialMatching::kAll);
    EXPECT_EQ(ids.size(), c == '7' ? num_bytes : num_bytes / 64);
    EXPECT_EQ(Bytes(tokenizer, ids), text);
    RecordProperty(std::string("seconds_of_byte_") + std::to_string(c),
                   std::to_string(ThreadSeconds() - begin));
  }
}

struct LongRunCase {
  std::string name;
  std::string unit;
  size_t count = size_t{1} << 21;
};

class LongRunTest : public testing::TestWithParam<LongRunCase> {};

// Twice the text in at most 2.6 times the time: n log n alone gives 2 * 22 / 21 = 2.1, the rest is
// for caches. Best of several rounds, in time of this thread, since other processes share the
// machine.
TEST_P(LongRunTest, TimeGrowsLinearly) {
  if (kSanitizerFactor > 1) GTEST_SKIP() << "times under a sanitizer say nothing";
  const Tokenizer tokenizer = MakeTokenizer(DemoTokenizerData());
  const std::string text = Repeat(GetParam().unit, GetParam().count);
  const std::string_view half = std::string_view(text).substr(0, text.size() / 2);
  const auto seconds = [&tokenizer](std::string_view text) {
    const double begin = ThreadSeconds();
    const std::vector<int32_t> ids = tokenizer.Encode(text, SpecialMatching::kNone);
    const double end = ThreadSeconds();
    EXPECT_EQ(Bytes(tokenizer, ids), text);
    return end - begin;
  };
  double best_half = std::numeric_limits<double>::infinity();
  double best_whole = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 3 || (round < 10 && best_whole > 2.6 * best_half); ++round) {
    best_half = std::min(best_half, seconds(half));
    best_whole = std::min(best_whole, seconds(text));
  }
  EXPECT_LE(best_whole, 2.6 * best_half) << best_half << " s and " << best_whole << " s";
}

INSTANTIATE_TEST_SUITE_P(
    Units, LongRunTest,
    testing::Values(LongRunCase{"Letter", "A"}, LongRunCase{"Space", " "},
                    LongRunCase{"LineFeed", "\n"}, LongRunCase{"CombiningAcute", "\xCC\x81"},
                    LongRunCase{"Digit", "7"}, LongRunCase{"Words", "the lantern ", 1 << 17},
                    LongRunCase{"Letters", "thelantern", 1 << 18}, LongRunCase{"Brackets", "<|"}),
    [](const auto& info) { return info.param.name; });

TEST(TokenizerTest, KnowsTheEndsOfAGeneration) {
  TokenizerData data = ByteTokenizerData();
  const int32_t end_of_text = AddToken(data, "<|endoftext|>", TokenType::kControl);
  const int32_t im_end = AddToken(data, "<|im_end|>", TokenType::kControl);
  const int32_t turn = AddToken(data, "<turn>", TokenType::kControl);
  const int32_t other = AddToken(data, "<other>", TokenType::kControl);
  EXPECT_THAT(MakeTokenizer(data).end_of_generation_ids(), ElementsAre(end_of_text, im_end));
  data.eos_token_id = im_end;
  EXPECT_THAT(MakeTokenizer(data).end_of_generation_ids(), ElementsAre(end_of_text, im_end));
  data.eos_token_id = other;
  data.eot_token_id = turn;
  data.padding_token_id = 3;
  const Tokenizer tokenizer = MakeTokenizer(data);
  EXPECT_THAT(tokenizer.end_of_generation_ids(), ElementsAre(end_of_text, im_end, turn, other));
  EXPECT_TRUE(tokenizer.is_end_of_generation(im_end));
  EXPECT_FALSE(tokenizer.is_end_of_generation(3));
  EXPECT_EQ(tokenizer.eos_token_id(), other);
  // The same text as ordinary vocabulary ends nothing.
  data.token_types[end_of_text] = static_cast<int32_t>(TokenType::kUserDefined);
  EXPECT_THAT(MakeTokenizer(data).end_of_generation_ids(), ElementsAre(im_end, turn, other));
}

TEST(TokenizerTest, ListsUnusedTokens) {
  const Tokenizer tokenizer = MakeTokenizer(DemoTokenizerData());
  EXPECT_EQ(tokenizer.vocab_size(), 2048);
  ASSERT_EQ(tokenizer.unused_ids().size(), 79u);
  EXPECT_EQ(tokenizer.unused_ids().front(), 1956);
  EXPECT_EQ(tokenizer.unused_ids().back(), 2034);
}

TEST(TokenizerTest, PaddingRowsDoNotTakeTextFromRealTokens) {
  TokenizerData data = ByteTokenizerData({"a b"});
  const int32_t ab = 256;
  data.tokens[ab] = "x";  // now a second "x", and nothing makes "ab"
  data.merges.clear();
  data.token_types['x'] = static_cast<int32_t>(TokenType::kUnused);
  const int32_t x_again = AddToken(data, "x", TokenType::kNormal);
  const Tokenizer tokenizer = MakeTokenizer(data);
  EXPECT_THAT(tokenizer.Encode("x", SpecialMatching::kAll), ElementsAre(ab));
  EXPECT_EQ(tokenizer.token_bytes(x_again), "x");
}

// A token that a merge makes may be marked unused: text still encodes to it.
TEST(TokenizerTest, AcceptsUnusedTokensInMerges) {
  TokenizerData data = ByteTokenizerData({"a b", "ab c"});
  data.token_types[256] = static_cast<int32_t>(TokenType::kUnused);
  const Tokenizer tokenizer = MakeTokenizer(data);
  EXPECT_THAT(tokenizer.Encode("abc", SpecialMatching::kNone), ElementsAre(257));
  EXPECT_THAT(tokenizer.Encode("ab", SpecialMatching::kNone), ElementsAre(256));
  EXPECT_THAT(tokenizer.unused_ids(), ElementsAre(256));
}

// A user-defined token is its literal text: one that spells a space in the byte alphabet is no
// space.
TEST(TokenizerTest, UserDefinedTokensComeOutOfMergesOnlyIfTheyReadTheSame) {
  TokenizerData data = ByteTokenizerData({"a b"});
  data.token_types[256] = static_cast<int32_t>(TokenType::kUserDefined);
  EXPECT_THAT(MakeTokenizer(data).Encode("ab", SpecialMatching::kNone), ElementsAre(256));
  data.token_types[' '] = static_cast<int32_t>(TokenType::kUserDefined);
  EXPECT_TRUE(absl::IsDataLoss(Tokenizer::Create(data).status()));
}

TEST(TokenizerTest, ReadsAFile) {
  const Tokenizer tokenizer = FileTokenizer("qwen4exp/base.gguf");
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  EXPECT_EQ(tokenizer.pre_tokenizer(), PreTokenizerKind::kQwen35);
  EXPECT_EQ(tokenizer.eos_token_id(), 397);
  EXPECT_EQ(tokenizer.padding_token_id(), 395);
  EXPECT_EQ(tokenizer.bos_token_id(), std::nullopt);
  EXPECT_FALSE(tokenizer.add_bos());
  EXPECT_THAT(tokenizer.end_of_generation_ids(), ElementsAre(395, 397));
  EXPECT_THAT(tokenizer.chat_template(), HasSubstr("<|im_start|>"));
  EXPECT_EQ(tokenizer.unused_ids().size(), 104u);
}

// <|im_end|> and <|endoftext|>, of which the files declare only the former.
TEST(TokenizerTest, KnowsTheEndsOfEveryFamily) {
  const struct {
    const char* file;
    PreTokenizerKind pre_tokenizer;
  } families[] = {{"siblings/qwen3moe.gguf", PreTokenizerKind::kQwen2},
                  {"siblings/qwen3next.gguf", PreTokenizerKind::kQwen2},
                  {"siblings/qwen35moe.gguf", PreTokenizerKind::kQwen35}};
  for (const auto& family : families) {
    const Tokenizer tokenizer = FileTokenizer(family.file);
    EXPECT_EQ(tokenizer.pre_tokenizer(), family.pre_tokenizer) << family.file;
    EXPECT_EQ(tokenizer.eos_token_id(), tokenizer.FindSpecialToken("<|im_end|>")) << family.file;
    EXPECT_THAT(tokenizer.end_of_generation_ids(),
                ElementsAre(*tokenizer.FindSpecialToken("<|endoftext|>"),
                            *tokenizer.FindSpecialToken("<|im_end|>")))
        << family.file;
  }
}

// One thing wrong in an otherwise good file.
struct RefusalCase {
  std::string name;
  std::string message;  // part of it
  void (*spoil)(TokenizerData& data);
};

class TokenizerRefusalTest : public testing::TestWithParam<RefusalCase> {};

TEST_P(TokenizerRefusalTest, NamesTheReason) {
  TokenizerData data = ByteTokenizerData({"a b", "ab c"});
  AddToken(data, "<|im_end|>", TokenType::kControl);
  ASSERT_TRUE(Tokenizer::Create(data).ok());
  GetParam().spoil(data);
  const absl::Status status = Tokenizer::Create(data).status();
  EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(Message(status)), HasSubstr(GetParam().message));
}

constexpr auto kControlType = static_cast<int32_t>(TokenType::kControl);

INSTANTIATE_TEST_SUITE_P(
    Cases, TokenizerRefusalTest,
    testing::Values(
        RefusalCase{"NoTokens", "no tokens", [](TokenizerData& data) { data.tokens.clear(); }},
        RefusalCase{"FewerTypes", "wanted: 259, got: 258",
                    [](TokenizerData& data) { data.token_types.pop_back(); }},
        RefusalCase{"MoreTypes", "wanted: 259, got: 260",
                    [](TokenizerData& data) { data.token_types.push_back(1); }},
        RefusalCase{"TypeZero", "token id: 7,",
                    [](TokenizerData& data) { data.token_types[7] = 0; }},
        RefusalCase{"TypeSeven", "got: 7", [](TokenizerData& data) { data.token_types[9] = 7; }},
        RefusalCase{"LongToken", "token is too long, token id: 257, allowed bytes: 1048576",
                    [](TokenizerData& data) { data.tokens[257].assign((1 << 20) + 1, 'x'); }},
        RefusalCase{"NegativeByte", "got: '<0x-1>'",
                    [](TokenizerData& data) { AddToken(data, "<0x-1>", TokenType::kByte); }},
        RefusalCase{"LongByte", "got: '<0x100>'",
                    [](TokenizerData& data) { AddToken(data, "<0x100>", TokenType::kByte); }},
        RefusalCase{"MissingByte", "no token for byte: 0x0a",
                    [](TokenizerData& data) { data.tokens[10] = "zzz"; }},
        RefusalCase{"MergeWithoutSpace", "rank: 1, got: 'abc'",
                    [](TokenizerData& data) { data.merges[1] = "abc"; }},
        RefusalCase{"MergeWithTwoSpaces", "rank: 1, got: 'a b c'",
                    [](TokenizerData& data) { data.merges[1] = "a b c"; }},
        RefusalCase{"MergeWithoutLeft", "rank: 0",
                    [](TokenizerData& data) { data.merges[0] = " b"; }},
        RefusalCase{"MergeWithoutRight", "rank: 0",
                    [](TokenizerData& data) { data.merges[0] = "a "; }},
        RefusalCase{"EmptyMerge", "rank: 0", [](TokenizerData& data) { data.merges[0].clear(); }},
        RefusalCase{"MergeOfUnknownToken", "rank: 0, token: 'qq'",
                    [](TokenizerData& data) { data.merges[0] = "qq a"; }},
        RefusalCase{"MergeIntoUnknownToken", "rank: 2, token: 'ba'",
                    [](TokenizerData& data) { data.merges.push_back("b a"); }},
        RefusalCase{"MergeIntoControlToken", "not for text, rank: 0, token: 'ab'",
                    [](TokenizerData& data) { data.token_types[256] = kControlType; }},
        RefusalCase{"ByteOfControlType", "no token for byte: 0x20",
                    [](TokenizerData& data) { data.token_types[' '] = kControlType; }},
        RefusalCase{"UnknownPreTokenizer", "'gpt4', known: qwen2, qwen35",
                    [](TokenizerData& data) { data.pre_tokenizer = "gpt4"; }},
        RefusalCase{"EosAbove", "eos_token_id is outside the vocabulary, tokens: 259, got: 259",
                    [](TokenizerData& data) { data.eos_token_id = 259; }},
        RefusalCase{"EosBelow", "got: -1", [](TokenizerData& data) { data.eos_token_id = -1; }},
        RefusalCase{"EotAbove", "eot_token_id",
                    [](TokenizerData& data) { data.eot_token_id = int64_t{1} << 32; }},
        RefusalCase{"BosAbove", "bos_token_id",
                    [](TokenizerData& data) { data.bos_token_id = int64_t{1} << 62; }},
        RefusalCase{"PaddingAbove", "padding_token_id",
                    [](TokenizerData& data) { data.padding_token_id = 5000; }},
        RefusalCase{"AddBosWithoutBos", "no bos_token_id",
                    [](TokenizerData& data) { data.add_bos = true; }},
        RefusalCase{"SpecialTokensTooLong", "special tokens are too long",
                    [](TokenizerData& data) {
                      for (int i = 0; i < 17; ++i) {
                        AddToken(data, std::string(1 << 20, static_cast<char>('a' + i)),
                                 TokenType::kControl);
                      }
                    }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace switchyard::model
