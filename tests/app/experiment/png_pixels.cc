#include "app/experiment/png_pixels.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <zlib.h>

namespace switchyard::testing {
namespace {

uint32_t BigEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

// The predictor of filter type 4: PNG specification, section 9.4.
int Paeth(int left, int up, int up_left) {
  const int p = left + up - up_left;
  const int a = std::abs(p - left), b = std::abs(p - up), c = std::abs(p - up_left);
  return a <= b && a <= c ? left : b <= c ? up : up_left;
}

}  // namespace

double PngPixels::ShareOf(std::array<uint8_t, 3> colour, int tolerance) const {
  size_t count = 0;
  for (const auto& pixel : pixels) {
    bool is_near = true;
    for (size_t i = 0; i < 3; ++i) is_near &= std::abs(pixel[i] - colour[i]) <= tolerance;
    count += is_near ? 1 : 0;
  }
  return pixels.empty() ? 0 : static_cast<double>(count) / static_cast<double>(pixels.size());
}

PngPixels ReadPng(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::string_view all = bytes;
  if (!all.starts_with("\x89PNG\r\n\x1a\n")) throw std::runtime_error("is no PNG: " + path);
  PngPixels image;
  size_t channels = 0;
  std::string packed;
  for (size_t at = 8; at + 12 <= all.size();) {
    const size_t length = BigEndian(all.substr(at));
    const std::string_view type = all.substr(at + 4, 4);
    const std::string_view data = all.substr(at + 8, length);
    if (type == "IHDR") {
      image.width = static_cast<int>(BigEndian(data));
      image.height = static_cast<int>(BigEndian(data.substr(4)));
      const int colour_type = data[9];
      channels = colour_type == 2 ? 3 : colour_type == 6 ? 4 : 0;
      if (data[8] != 8 || channels == 0 || data[12] != 0) throw std::runtime_error("another PNG");
    } else if (type == "IDAT") {
      packed += data;
    }
    at += length + 12;
  }
  const size_t row_bytes = static_cast<size_t>(image.width) * channels;
  std::vector<uint8_t> rows((row_bytes + 1) * static_cast<size_t>(image.height));
  uLongf size = rows.size();
  if (uncompress(rows.data(), &size, reinterpret_cast<const Bytef*>(packed.data()),
                 packed.size()) != Z_OK ||
      size != rows.size()) {
    throw std::runtime_error("PNG is damaged: " + path);
  }
  std::vector<uint8_t> above(row_bytes);
  for (size_t y = 0; y < static_cast<size_t>(image.height); ++y) {
    const int filter = rows[y * (row_bytes + 1)];
    uint8_t* const row = rows.data() + y * (row_bytes + 1) + 1;
    for (size_t x = 0; x < row_bytes; ++x) {
      const int left = x >= channels ? row[x - channels] : 0;
      const int up_left = x >= channels ? above[x - channels] : 0;
      const int predicted = filter == 1   ? left
                            : filter == 2 ? above[x]
                            : filter == 3 ? (left + above[x]) / 2
                            : filter == 4 ? Paeth(left, above[x], up_left)
                                          : 0;
      row[x] = static_cast<uint8_t>(row[x] + predicted);
    }
    above.assign(row, row + row_bytes);
    for (size_t x = 0; x < row_bytes; x += channels) {
      image.pixels.push_back({row[x], row[x + 1], row[x + 2]});
    }
  }
  return image;
}

}  // namespace switchyard::testing
