#include "app/bench/product_flags.h"

#include <fmt/format.h>
#include <string>
#include <utility>

#include "app/exit_code.h"
#include "base/status.h"

namespace switchyard::app {

void AddProductFlags(CLI::App& command, ProductOptions& options) {
  AddBenchFlags(command, options.bench);
  command
      .add_option_function<std::vector<std::string>>(
          "--format",
          [&options](const std::vector<std::string>& names) {
            options.formats.clear();
            for (const std::string& name : names) {
              const auto dtype = DTypeFromName(name);
              if (!dtype) throw CLI::ValidationError("--format", "no such format: " + name);
              options.formats.push_back(*dtype);
            }
          },
          "Formats of the weights; a list such as Q8_0,IQ4_XS (default: all with kernels)")
      ->delimiter(',')
      ->type_name("NAME");
  command
      .add_option_function<std::vector<std::string>>(
          "--matrix",
          [&options](const std::vector<std::string>& texts) {
            options.shapes.clear();
            for (const std::string& text : texts) {
              const auto shape = ParseMatrixShape(text);
              if (!shape.ok()) {
                throw CLI::ValidationError("--matrix", std::string(Message(shape.status())));
              }
              options.shapes.push_back(*shape);
            }
          },
          "Shapes of the weights, rows x columns; a list (default: 640x2560,2560x640)")
      ->delimiter(',')
      ->type_name("SHAPE");
  command.add_option("--rows", options.num_rows, "Rows of activations; a list")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  AddBytesFlag(command, "--set-bytes", options.set_bytes, 1,
               "Size of the matrices together, as in a file");
}

absl::StatusOr<std::vector<std::pair<DType, MatrixShape>>> ProductsOf(
    const ProductOptions& options) {
  std::vector<std::pair<DType, MatrixShape>> products;
  for (const DType dtype : options.formats) {
    for (const MatrixShape& shape : options.shapes) {
      if (FitsFormat(shape, dtype)) products.emplace_back(dtype, shape);
    }
  }
  if (!products.empty()) return products;
  return WithExitCode(InvalidArgument("nothing to measure: the columns are not whole blocks of {}",
                                      Traits(options.formats.front()).name),
                      ExitCode::kUsage);
}

}  // namespace switchyard::app
