// Random numbers and tensors in file encodings, written apart from the code under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/tensor_view.h"

namespace switchyard::fixtures {

// ---- random numbers
// --------------------------------------------------------------------------------

// The same numbers for the same seed with any standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // [0, 1)
  double Normal();  // mean 0, deviation 1
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Uniform() * static_cast<double>(bound));
  }
  std::vector<float> Normals(int64_t count, double deviation = 1, double mean = 0);

 private:
  std::mt19937_64 engine_;
};

// ---- tensors
// ---------------------------------------------------------------------------------------

// A tensor as it lies in a file.
struct TensorData {
  std::string name;
  DType dtype = DType::kF32;
  int64_t num_slabs = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<std::byte> bytes;

  TensorView view() const { return {bytes.data(), dtype, num_slabs, rows, cols}; }
};

// Encodes values, rounded to the nearest. REQUIRES: dtype is F32, F16, BF16, Q8_0 or Q4_0, and
// values.size() == num_slabs * rows * cols.
TensorData Encode(std::string name, const std::vector<float>& values, int64_t num_slabs,
                  int64_t rows, int64_t cols, DType dtype = DType::kF32);

// The values that an encoded tensor stands for. REQUIRES: dtype as for Encode().
std::vector<float> Decode(const TensorData& tensor);

}  // namespace switchyard::fixtures
