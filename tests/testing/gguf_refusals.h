// Files that a GGUF reader must refuse: cases of tests and seeds of the fuzzer.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "testing/gguf_writer.h"

namespace switchyard::testing {

struct GgufRefusal {
  std::string name;
  std::function<std::string()> bytes;
  std::vector<std::string> words;  // that the message must hold
};

// A small valid file of no architecture: two F32 matrices, so that offsets and names can collide.
GgufContents SmallGguf();

// Every case is SmallGguf(), or a file of one entry, with one thing wrong.
std::vector<GgufRefusal> GgufRefusals();

}  // namespace switchyard::testing
