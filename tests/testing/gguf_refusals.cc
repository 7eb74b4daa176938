#include "testing/gguf_refusals.h"

#include <cstdint>
#include <fmt/format.h>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "testing/gguf_writer.h"

namespace switchyard::testing {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kHigh = uint64_t{1} << 63;

// Makes the valid file, changes it and returns its bytes.
std::function<std::string()> Changed(std::function<void(GgufContents&)> change) {
  return [change] {
    GgufContents contents = SmallGguf();
    change(contents);
    return contents.Bytes();
  };
}

// A file whose one key-value entry is `entry`, taken as it is.
std::function<std::string()> WithEntry(std::string entry) {
  return [entry] {
    std::string bytes = "GGUF";
    AppendBytes(bytes, uint32_t{3});
    AppendBytes(bytes, uint64_t{0});
    AppendBytes(bytes, uint64_t{1});
    return bytes + entry;
  };
}

template <typename... Values>
std::string Pack(Values... values) {
  std::string bytes;
  (AppendBytes(bytes, values), ...);
  return bytes;
}

std::function<std::string()> FirstBytes(size_t count) {
  return [count] { return SmallGguf().Bytes().substr(0, count); };
}

void AddBeginnings(std::vector<GgufRefusal>& cases) {
  cases.push_back({"Empty", FirstBytes(0), {"truncated", "offset: 0"}});
  for (const size_t count : {1, 3, 4, 7, 8, 15, 16, 23}) {
    cases.push_back({fmt::format("First{}Bytes", count), FirstBytes(count), {"truncated"}});
  }
  cases.push_back(
      {"WrongMagic", Changed([](GgufContents& c) { c.magic = "GGML"; }), {"not a GGUF file"}});
  for (const uint32_t version : {0u, 1u, 4u, 0x03000000u, 0xffffffffu}) {
    cases.push_back({fmt::format("Version{}", version),
                     Changed([=](GgufContents& c) { c.version = version; }),
                     {"version", "offset: 4"}});
  }
  for (const uint64_t count : {kHigh, kMax, uint64_t{1000}}) {
    cases.push_back({fmt::format("TensorCount{}", count),
                     Changed([=](GgufContents& c) { c.num_tensors = count; }),
                     {"tensor count", "offset: 8"}});
    cases.push_back({fmt::format("KeyCount{}", count),
                     Changed([=](GgufContents& c) { c.num_keys = count; }),
                     {"metadata count", "offset: 16"}});
  }
}

void AddKeys(std::vector<GgufRefusal>& cases) {
  for (const uint64_t length : {kHigh, kMax, kMax - 31, uint64_t{1000}}) {
    cases.push_back({fmt::format("KeyLength{}", length),
                     WithEntry(Pack(length) + std::string(40, 'k')),
                     {"offset: "}});
    cases.push_back(
        {fmt::format("StringLength{}", length),
         WithEntry(GgufString("key") + Pack(uint32_t{8}, length) + std::string(40, 's')),
         {"string ends beyond the file", "key: key", "offset: "}});
    cases.push_back(
        {fmt::format("StringLengthInArray{}", length),
         WithEntry(GgufString("key") + Pack(uint32_t{9}, uint32_t{8}, uint64_t{1}, length) +
                   std::string(40, 's')),
         {"string ends beyond the file", "key: key", "offset: "}});
  }
  for (const uint32_t element : {0u, 4u, 6u, 8u, 10u}) {
    for (const uint64_t count : {kMax, kHigh, kMax / 8 + 1, kMax / 4 + 1, uint64_t{1000}}) {
      cases.push_back(
          {fmt::format("ArrayOf{}Count{}", element, count),
           WithEntry(GgufString("key") + Pack(uint32_t{9}, element, count) + std::string(40, 'x')),
           {"ends beyond the file", "key: key", "offset: "}});
    }
  }
  cases.push_back({"ArrayOfArrays",
                   WithEntry(GgufString("key") + Pack(uint32_t{9}, uint32_t{9}, uint64_t{1},
                                                      uint32_t{4}, uint64_t{1}, uint32_t{1})),
                   {"array of arrays", "key: key", "offset: "}});
  for (const uint32_t type : {13u, 0xffffffffu}) {
    cases.push_back({fmt::format("ValueType{}", type),
                     WithEntry(GgufString("key") + Pack(type, kMax, kMax)),
                     {"value type is unknown", "key: key", "offset: "}});
    cases.push_back({fmt::format("ElementType{}", type),
                     WithEntry(GgufString("key") + Pack(uint32_t{9}, type, uint64_t{1}, kMax)),
                     {"value type is unknown", "key: key", "offset: "}});
  }
  cases.push_back({"ValueCutOff",
                   WithEntry(GgufString("key") + Pack(uint32_t{10}, uint32_t{1})),
                   {"ends beyond the file", "key: key"}});
  cases.push_back({"DuplicateKey",
                   Changed([](GgufContents& c) { c.keys.push_back(c.keys[0]); }),
                   {"twice", "general.architecture"}});
  cases.push_back({"EmptyKey",
                   Changed([](GgufContents& c) { c.Set("", uint32_t{1}); }),
                   {"key is empty", "offset: "}});
  for (const char* key :
       {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"}) {
    cases.push_back({fmt::format("KeyNotText{}", cases.size()),
                     Changed([=](GgufContents& c) { c.Set(key, uint32_t{1}); }),
                     {"not UTF-8", "\\x", "offset: "}});
  }
  cases.push_back({"KeyTooLong",
                   Changed([](GgufContents& c) { c.Set(std::string(65537, 'k'), uint32_t{1}); }),
                   {"too long", "offset: "}});
}

void AddAlignments(std::vector<GgufRefusal>& cases) {
  for (const uint32_t alignment : {0u, 1u, 3u, 4u, 33u, 0x200000u, 0x80000000u}) {
    cases.push_back({fmt::format("Alignment{}", alignment),
                     Changed([=](GgufContents& c) { c.Set("general.alignment", alignment); }),
                     {"power of two", "general.alignment", "offset: "}});
  }
  cases.push_back({"AlignmentOfAnotherType",
                   Changed([](GgufContents& c) { c.Set("general.alignment", int32_t{32}); }),
                   {"wrong type", "wanted: u32, got: i32", "general.alignment", "offset: "}});
  cases.push_back({"AlignmentOfOneByte",
                   Changed([](GgufContents& c) {
                     c.tensors.clear();  // the byte is the last of the file
                     c.Set("general.alignment", uint8_t{32});
                   }),
                   {"wrong type", "general.alignment"}});
}

void AddShapes(std::vector<GgufRefusal>& cases) {
  const auto dims = [&](const std::string& name, std::vector<uint64_t> value, const char* word) {
    cases.push_back({name,
                     Changed([=](GgufContents& c) { c.tensors[0].dims = value; }),
                     {word, "first", "offset: "}});
  };
  dims("NoDims", {}, "number of dimensions");
  dims("FiveDims", {1, 1, 1, 1, 1}, "number of dimensions");
  cases.push_back({"DimCountMax",
                   [] {
                     GgufContents contents = SmallGguf();
                     contents.tensors.clear();
                     contents.num_tensors = 1;
                     return contents.Bytes() + GgufString("first") + Pack(0xffffffffu) +
                            std::string(64, 'x');
                   },
                   {"number of dimensions", "first", "offset: "}});
  dims("DimZero", {8, 0}, "invalid dimension: 0");
  dims("FirstDimZero", {0, 8}, "invalid dimension: 0");
  dims("DimMinusOne", {8, kMax}, "invalid dimension: -1");
  dims("DimHigh", {kHigh}, "invalid dimension");
  dims("ElementsOverflow", {uint64_t{1} << 32, uint64_t{1} << 31}, "too many elements");
  dims("ElementsOverflowToSmall", {uint64_t{1} << 32, uint64_t{1} << 32, 8}, "too many elements");
  dims("BytesOverflow", {uint64_t{1} << 31, uint64_t{1} << 30}, "too many bytes");
  dims("LargerThanFile", {uint64_t{1} << 40}, "truncated");
  const auto type = [&](uint32_t id, const char* word) {
    cases.push_back({fmt::format("TensorType{}", id),
                     Changed([=](GgufContents& c) { c.tensors[0].type = id; }),
                     {word, "first", "offset: "}});
  };
  // -1, removed types, types that are never in files, beyond the last.
  for (const uint32_t id : {0xffffffffu, 4u, 5u, 9u, 15u, 31u, 36u, 1000u}) type(id, "tensor type");
  for (const uint32_t id : {8u, 12u, 23u}) type(id, "whole number of blocks");
}

void AddPlaces(std::vector<GgufRefusal>& cases) {
  const auto name = [&](const std::string& label, const std::string& value, const char* word) {
    cases.push_back(
        {label, Changed([=](GgufContents& c) { c.tensors[1].name = value; }), {word, "offset: "}});
  };
  name("DuplicateTensor", "first", "twice");
  name("EmptyTensorName", "", "not text");
  name("TensorNameWithNul", std::string("a\0b", 3), "not text");
  name("TensorNameNotText", "\xff", "not text");
  name("TensorNameTooLong", std::string(64, 'n'), "too long");
  const auto offset = [&](uint64_t value, const char* word) {
    cases.push_back({fmt::format("Offset{}", value),
                     Changed([=](GgufContents& c) { c.tensors[1].offset = value; }),
                     {word, "second", "offset: "}});
  };
  offset(1, "not aligned");
  offset(31, "not aligned");
  offset(0, "overlap");
  offset(32, "overlap");
  offset(96, "truncated");  // its last half lies beyond the end
  offset(1 << 20, "truncated");
  offset(kHigh, "truncated");
  offset(kMax - 31, "truncated");  // offset plus size is small again
  cases.push_back({"DataCutOff",
                   [] {
                     const std::string bytes = SmallGguf().Bytes();
                     return bytes.substr(0, bytes.size() - 1);
                   },
                   {"truncated", "second", "wanted bytes: 64"}});
  cases.push_back({"SumOfSizesOverflows",
                   Changed([](GgufContents& c) {
                     for (auto& tensor : c.tensors) tensor.dims = {uint64_t{1} << 60};
                   }),
                   {"truncated", "first"}});
  cases.push_back({"TableCutOff",
                   [] { return SmallGguf().Bytes().substr(0, 24 + 8 + 20 + 4 + 8 + 4 + 30); },
                   {"offset: "}});
}

}  // namespace

GgufContents SmallGguf() {
  GgufContents contents;
  contents.SetString("general.architecture", "none");
  for (const char* name : {"first", "second"}) {
    contents.tensors.push_back(
        {.name = name, .dims = {8, 2}, .type = 0, .offset = {}, .bytes = 64, .data = {}});
  }
  return contents;
}

std::vector<GgufRefusal> GgufRefusals() {
  std::vector<GgufRefusal> cases;
  AddBeginnings(cases);
  AddKeys(cases);
  AddAlignments(cases);
  AddShapes(cases);
  AddPlaces(cases);
  return cases;
}

}  // namespace switchyard::testing
