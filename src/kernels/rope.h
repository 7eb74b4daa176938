// Angles of rotary position embedding, formed alike in every backend.
#pragma once

#include <cmath>
#include <cstdint>

namespace switchyard::kernels {

// Writes cosine and sine of position * base^(-2i / num_rotary_dims) for pairs i = 0 up to
// num_rotary_dims / 2. Angle and functions are in double, the results are rounded once to float:
// an angle in float would be off by 1.6e-2 rad at position 262144.
//
// Shapes: cosines and sines [num_rotary_dims / 2].
// Source: Su et al., 2021, arXiv:2104.09864, section 3.4.2.
inline void RopeAngles(int64_t position, int num_rotary_dims, float base, float* cosines,
                       float* sines) {
  for (int i = 0; i < num_rotary_dims / 2; ++i) {
    const double frequency =
        std::pow(static_cast<double>(base), -2.0 * i / static_cast<double>(num_rotary_dims));
    const double angle = static_cast<double>(position) * frequency;
    cosines[i] = static_cast<float>(std::cos(angle));
    sines[i] = static_cast<float>(std::sin(angle));
  }
}

// Rotates the pairs (i, i + num_rotary_dims / 2) of `x`; later elements stay.
//
// Shapes: x [>= num_rotary_dims], cosines and sines [num_rotary_dims / 2].
template <typename T>
void RopeRotate(int num_rotary_dims, const float* cosines, const float* sines, T* x) {
  const int half = num_rotary_dims / 2;
  for (int i = 0; i < half; ++i) {
    const T a = x[i], b = x[i + half];
    x[i] = a * cosines[i] - b * sines[i];
    x[i + half] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace switchyard::kernels
