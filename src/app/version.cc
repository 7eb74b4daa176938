#include "app/version.h"

#include <fmt/format.h>

namespace switchyard::app {

std::string_view Version() { return SWITCHYARD_VERSION; }

std::string BuildDescription() {
  std::string sanitizers = SWITCHYARD_SANITIZERS;
  return fmt::format("{} build, gcc {}, CUDA {}{}", SWITCHYARD_BUILD_TYPE, __VERSION__,
                     SWITCHYARD_WITH_CUDA ? "on" : "off",
                     sanitizers.empty() ? "" : ", sanitizers " + sanitizers);
}

bool HasCuda() { return SWITCHYARD_WITH_CUDA; }

}  // namespace switchyard::app
