#include "model/utf8.h"

#include "base/check.h"

namespace switchyard::model {
namespace {

// What a first byte allows: length of the code point, its payload, and the range of the second byte
// (the third and fourth are always 80..BF).
struct LeadByte {
  size_t num_bytes = 0;  // 0: no code point begins with this byte
  uint32_t payload = 0;
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

LeadByte ReadLeadByte(uint8_t byte) {
  if (byte < 0x80) return {1, byte};
  if (byte < 0xC2) return {};  // a continuation, or an overlong form of ASCII
  if (byte < 0xE0) return {2, byte & 0x1Fu};
  if (byte == 0xE0) return {3, 0, 0xA0};          // below: overlong
  if (byte == 0xED) return {3, 0xD, 0x80, 0x9F};  // above: surrogates
  if (byte < 0xF0) return {3, byte & 0xFu};
  if (byte == 0xF0) return {4, 0, 0x90};        // below: overlong
  if (byte == 0xF4) return {4, 4, 0x80, 0x8F};  // above: over U+10FFFF
  if (byte < 0xF4) return {4, byte & 7u};
  return {};
}

}  // namespace

Utf8Unit DecodeUtf8(std::string_view text) {
  SWITCHYARD_DCHECK(!text.empty());
  const LeadByte lead = ReadLeadByte(static_cast<uint8_t>(text[0]));
  if (lead.num_bytes == 0) return {0, 1, Utf8Status::kInvalid};
  uint32_t code_point = lead.payload;
  for (size_t i = 1; i < lead.num_bytes; ++i) {
    if (i == text.size()) return {0, i, Utf8Status::kIncomplete};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {0, i, Utf8Status::kInvalid};
    code_point = code_point << 6 | (byte & 0x3Fu);
  }
  return {code_point, lead.num_bytes, Utf8Status::kValid};
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Unit unit = DecodeUtf8(text);
    if (unit.status != Utf8Status::kValid) return false;
    text.remove_prefix(unit.num_bytes);
  }
  return true;
}

}  // namespace switchyard::model
