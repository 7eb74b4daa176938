#include "app/command.h"

#include <fmt/format.h>

namespace switchyard::app {

void AddOutputOption(CLI::App& command, std::string& output,
                     const std::vector<std::string>& formats) {
  output = formats.front();
  command.add_option("-o,--output", output, "Form of the output")
      ->check(CLI::IsMember(formats))
      ->capture_default_str();
}

}  // namespace switchyard::app
