#include "app/synth/synth_tokenizer.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "model/byte_alphabet.h"
#include "model/vocabulary.h"

namespace switchyard::app {
namespace {

using model::TokenType;

constexpr std::string_view kCorpus =
    "the quick brown fox jumps over the lazy dog, and the other animals in the garden watch it "
    "with some interest. every morning the train leaves the station on time; the switch decides "
    "which line it takes, and the yard sends each wagon where it belongs. a router sends every "
    "token to a few experts, the experts answer, and their answers are added to the stream. what "
    "is the weather like in the north? there is rain in the morning and sun in the afternoon. "
    "please write a short story about a small house near the sea. she said that she would come "
    "back before the end of the week, because there was nothing more to do in the city. how many "
    "people live here? about three hundred, and most of them know each other.";

struct SpecialToken {
  std::string_view text;
  TokenType type;
};

// Source: the vocabulary of Qwen's published models from 2.5 on.
constexpr SpecialToken kSpecialTokens[] = {
    {"<|endoftext|>", TokenType::kControl},       {"<|im_start|>", TokenType::kControl},
    {"<|im_end|>", TokenType::kControl},          {"<|object_ref_start|>", TokenType::kControl},
    {"<|object_ref_end|>", TokenType::kControl},  {"<|box_start|>", TokenType::kControl},
    {"<|box_end|>", TokenType::kControl},         {"<|quad_start|>", TokenType::kControl},
    {"<|quad_end|>", TokenType::kControl},        {"<|vision_start|>", TokenType::kControl},
    {"<|vision_end|>", TokenType::kControl},      {"<|vision_pad|>", TokenType::kControl},
    {"<|image_pad|>", TokenType::kControl},       {"<|video_pad|>", TokenType::kControl},
    {"<tool_call>", TokenType::kUserDefined},     {"</tool_call>", TokenType::kUserDefined},
    {"<|fim_prefix|>", TokenType::kControl},      {"<|fim_middle|>", TokenType::kControl},
    {"<|fim_suffix|>", TokenType::kControl},      {"<|fim_pad|>", TokenType::kControl},
    {"<|repo_name|>", TokenType::kControl},       {"<|file_sep|>", TokenType::kControl},
    {"<tool_response>", TokenType::kUserDefined}, {"</tool_response>", TokenType::kUserDefined},
    {"<think>", TokenType::kUserDefined},         {"</think>", TokenType::kUserDefined},
};
constexpr int kNumSpecialTokens = static_cast<int>(std::size(kSpecialTokens));
constexpr int kNumBytes = 256;

using Word = std::vector<std::string>;

bool IsLetter(char c) { return c >= 'a' && c <= 'z'; }

// The corpus as a pre-tokenizer cuts it: letters with the space before them, and single others.
std::vector<Word> CorpusWords() {
  std::vector<Word> words;
  size_t i = 0;
  while (i < kCorpus.size()) {
    size_t end = i + 1;
    if (IsLetter(kCorpus[i]) || kCorpus[i] == ' ') {
      while (end < kCorpus.size() && IsLetter(kCorpus[end])) ++end;
    }
    Word word;
    for (; i < end; ++i) word.push_back(model::ByteToAlphabet(static_cast<uint8_t>(kCorpus[i])));
    words.push_back(std::move(word));
  }
  return words;
}

class MergeMaker {
 public:
  MergeMaker(SynthTokenizer& tokenizer, size_t num_tokens)
      : tokenizer_(tokenizer), num_tokens_(num_tokens) {}

  // Merges the most frequent pair of neighbours until no pair is left.
  void Train() {
    std::vector<Word> words = CorpusWords();
    while (!full()) {
      std::map<std::pair<std::string, std::string>, int> frequency;
      for (const Word& word : words) {
        for (size_t i = 0; i + 1 < word.size(); ++i) ++frequency[{word[i], word[i + 1]}];
      }
      // Of equally frequent pairs the first in the order of the map.
      const auto best =
          std::max_element(frequency.begin(), frequency.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
      if (best == frequency.end()) return;
      const auto [left, right] = best->first;
      Add(left, right);
      for (Word& word : words) Apply(left, right, word);
    }
  }

  // Adds all words of `length` small letters, each as a shorter word and a letter.
  // REQUIRES: all words of length - 1 letters are tokens.
  void AddWords(size_t length) {
    std::string word(length, 'a');
    while (!full()) {
      Add(word.substr(0, length - 1), word.substr(length - 1));
      size_t i = length;
      while (i > 0 && word[i - 1] == 'z') word[--i] = 'a';
      if (i == 0) return;
      ++word[i - 1];
    }
  }

 private:
  bool full() const { return tokenizer_.tokens.size() >= num_tokens_; }

  // A text can be made in two ways, but is a token only once; the first merge stands.
  void Add(const std::string& left, const std::string& right) {
    if (!known_.insert(left + right).second) return;
    tokenizer_.merges.push_back(left + " " + right);
    tokenizer_.tokens.push_back(left + right);
  }

  static void Apply(const std::string& left, const std::string& right, Word& word) {
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      if (word[i] != left || word[i + 1] != right) continue;
      word[i] += right;
      word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }

  SynthTokenizer& tokenizer_;
  size_t num_tokens_;
  std::unordered_set<std::string> known_;
};

}  // namespace

int MinVocabSize() { return kNumBytes + kNumSpecialTokens; }

SynthTokenizer MakeSynthTokenizer(int vocab_size, int num_unused) {
  SWITCHYARD_CHECK(vocab_size >= MinVocabSize() + num_unused);
  SynthTokenizer tokenizer;
  for (int byte = 0; byte < kNumBytes; ++byte) {
    tokenizer.tokens.push_back(model::ByteToAlphabet(static_cast<uint8_t>(byte)));
  }
  // In the order of the alphabet, as published vocabularies have them.
  std::sort(tokenizer.tokens.begin(), tokenizer.tokens.end());
  MergeMaker merges(tokenizer, static_cast<size_t>(vocab_size - num_unused - kNumSpecialTokens));
  merges.Train();
  for (size_t length = 2; length <= 4; ++length) merges.AddWords(length);
  tokenizer.token_types.assign(tokenizer.tokens.size(), static_cast<int32_t>(TokenType::kNormal));

  for (const SpecialToken& special : kSpecialTokens) {
    const auto id = static_cast<int32_t>(tokenizer.tokens.size());
    if (special.text == "<|endoftext|>") tokenizer.end_of_text_id = id;
    if (special.text == "<|im_end|>") tokenizer.end_of_turn_id = id;
    if (special.text == "<|image_pad|>") tokenizer.image_id = id;
    tokenizer.tokens.emplace_back(special.text);
    tokenizer.token_types.push_back(static_cast<int32_t>(special.type));
  }
  for (int i = 0; tokenizer.tokens.size() < static_cast<size_t>(vocab_size); ++i) {
    tokenizer.tokens.push_back(fmt::format("[UNUSED{}]", i));
  }
  tokenizer.token_types.resize(tokenizer.tokens.size(), static_cast<int32_t>(TokenType::kUnused));
  return tokenizer;
}

std::string_view SynthChatTemplate() {
  return R"({%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n<think>\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '\n</think>\n\n' }}
{%- endif %}
{%- endif %})";
}

}  // namespace switchyard::app
