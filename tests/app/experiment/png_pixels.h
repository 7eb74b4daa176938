// Pixels of a PNG as browsers write it: eight bits a channel, not interlaced.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::testing {

struct PngPixels {
  int width = 0;
  int height = 0;
  std::vector<std::array<uint8_t, 3>> pixels{};  // [height, width]

  // Share of pixels that differ from the colour by at most `tolerance` in every channel.
  double ShareOf(std::array<uint8_t, 3> colour, int tolerance = 2) const;
};

// Throws std::runtime_error for what is no such file.
PngPixels ReadPng(const std::string& path);

}  // namespace switchyard::testing
