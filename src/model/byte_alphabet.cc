#include "model/byte_alphabet.h"

#include <array>

#include "model/utf8.h"

namespace switchyard::model {
namespace {

constexpr uint32_t kNumMoved = 68;
constexpr uint32_t kAlphabetEnd = 0x100 + kNumMoved;

constexpr bool StandsForItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

struct Alphabet {
  std::array<uint32_t, 256> code_point{};    // of each byte
  std::array<int16_t, kAlphabetEnd> byte{};  // of each code point; -1: none
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.byte) byte = -1;
  uint32_t next_moved = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t code_point = StandsForItself(byte) ? byte : next_moved++;
    alphabet.code_point[byte] = code_point;
    alphabet.byte[code_point] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();
static_assert(kAlphabet.byte[0x120] == ' ' && kAlphabet.byte[kAlphabetEnd - 1] == 0xAD);

}  // namespace

std::string ByteToAlphabet(uint8_t byte) {
  const uint32_t code_point = kAlphabet.code_point[byte];
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

std::optional<std::string> DecodeByteAlphabet(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = DecodeUtf8(text);
    if (unit.status != Utf8Status::kValid || unit.code_point >= kAlphabetEnd ||
        kAlphabet.byte[unit.code_point] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kAlphabet.byte[unit.code_point]));
    text.remove_prefix(unit.num_bytes);
  }
  return bytes;
}

}  // namespace switchyard::model
