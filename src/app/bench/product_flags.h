// Flags that `bench gemv` and `bench gemm` share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <utility>
#include <vector>

#include "app/bench/bench_options.h"
#include "app/bench/matrix_products.h"

namespace switchyard::app {

struct ProductOptions {
  BenchOptions bench;
  std::vector<DType> formats = KernelFormats();
  std::vector<MatrixShape> shapes = {{640, 2560}, {2560, 640}};
  std::vector<int> num_rows;
  int64_t set_bytes = 0;  // of the matrices together, as in a file
};

// Adds the flags of BenchOptions, `--format`, `--matrix`, `--rows` and `--set-bytes`.
void AddProductFlags(CLI::App& command, ProductOptions& options);

// Each format with each shape whose rows are whole blocks of it.
// Errors: kInvalidArgument with the exit code of wrong usage if there is none.
absl::StatusOr<std::vector<std::pair<DType, MatrixShape>>> ProductsOf(
    const ProductOptions& options);

}  // namespace switchyard::app
