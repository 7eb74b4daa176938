// What this build is.
#pragma once

#include <string>
#include <string_view>

namespace switchyard::app {

// Version of the project, as in CMakeLists.txt.
std::string_view Version();

// Compiler, build type, sanitizers and whether CUDA is in, on one line.
std::string BuildDescription();

// Whether the CUDA rooms are in.
bool HasCuda();

}  // namespace switchyard::app
