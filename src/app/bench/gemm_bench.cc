// bench gemm: the kernels of prefill beside the int8 peak of the cores.
#include <algorithm>
#include <memory>
#include <utility>

#include "app/bench/bench_options.h"
#include "app/bench/matrix_products.h"
#include "app/bench/peak_probe.h"
#include "app/bench/product_flags.h"
#include "app/bench/quiet_run.h"
#include "app/bench/spread.h"
#include "app/interrupt.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

using kernels::cpu::CpuLevel;

// GOP/s by the clock and by CPU time.
struct GemmSamples {
  std::vector<double> wall, cpu;
};

// Of one setting: the limit, and the products for each number of rows.
struct GemmRounds {
  GemmSamples limit;
  std::vector<GemmSamples> products;
};

// A multiplication and an addition for each weight and row.
double Operations(const MatrixSet& matrices, int num_rows) {
  return 2.0 * static_cast<double>(matrices.count() * matrices.shape().rows) *
         static_cast<double>(matrices.shape().cols) * num_rows;
}

absl::StatusOr<GemmRounds> MeasureRounds(const ProductOptions& options, CpuLevel level,
                                         const MatrixSet& matrices, ProductRun& products,
                                         TimedPool& pool) {
  GemmRounds rounds;
  rounds.products.resize(options.num_rows.size());
  for (int r = 0; r <= options.bench.repetitions; ++r) {
    if (IsInterrupted()) return InterruptedStatus();
    const bool is_warm = r > 0;
    SWITCHYARD_ASSIGN_OR_RETURN(const PeakRate limit, MeasureDotPeak(pool, level));
    if (is_warm) {
      rounds.limit.wall.push_back(limit.gop_per_second);
      rounds.limit.cpu.push_back(limit.gop_per_second_cpu);
    }
    for (size_t i = 0; i < options.num_rows.size(); ++i) {
      const StageTime time = products.Run(pool, level, options.num_rows[i], false);
      if (!is_warm) continue;
      const double operations = Operations(matrices, options.num_rows[i]) / 1e9;
      rounds.products[i].wall.push_back(operations / time.wall_seconds);
      rounds.products[i].cpu.push_back(operations / time.cpu_seconds);
    }
  }
  return rounds;
}

absl::Status CheckProducts(const ProductOptions& options, CpuLevel level, ProductRun& products,
                           TimedPool& pool) {
  // A plain evaluation of all rows would take longer than what is measured.
  constexpr int64_t kRowStep = 37;
  for (const int num_rows : options.num_rows) {
    SWITCHYARD_RETURN_IF_ERROR(products.Check(level, num_rows, kRowStep));
    products.Run(pool, level, num_rows, false);
    SWITCHYARD_RETURN_IF_ERROR(products.CheckLastRun(num_rows));
  }
  return absl::OkStatus();
}

// A share of the peak; null where there is none.
nlohmann::ordered_json Share(const std::vector<double>& rates, const std::vector<double>& limits) {
  const double limit = SpreadOf(limits).median;
  if (limit == 0) return nullptr;
  return SpreadOf(rates).median / limit;
}

void AddRows(const ProductOptions& options, CpuLevel level, const MatrixSet& matrices,
             int num_threads, const QuietRun<GemmRounds>& run, nlohmann::ordered_json& rows) {
  for (size_t i = 0; i < options.num_rows.size(); ++i) {
    const GemmSamples& samples = run.samples.products[i];
    nlohmann::ordered_json row = {{"format", Traits(matrices.dtype()).name},
                                  {"matrix_rows", matrices.shape().rows},
                                  {"matrix_cols", matrices.shape().cols},
                                  {"num_rows", options.num_rows[i]},
                                  {"threads", num_threads},
                                  {"cpu_level", CpuLevelName(level)},
                                  {"gop_per_second", SpreadJson(samples.wall)},
                                  {"gop_per_second_cpu", SpreadJson(samples.cpu)},
                                  {"peak_gop_per_second", SpreadJson(run.samples.limit.wall)},
                                  {"peak_gop_per_second_cpu", SpreadJson(run.samples.limit.cpu)},
                                  {"share_of_peak", Share(samples.wall, run.samples.limit.wall)},
                                  {"share_of_peak_cpu", Share(samples.cpu, run.samples.limit.cpu)}};
    AddQuiet(run, row);
    rows.push_back(std::move(row));
  }
}

absl::Status RunGemmBench(const ProductOptions& options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto levels, LevelsOf(options.bench));
  SWITCHYARD_ASSIGN_OR_RETURN(const auto products, ProductsOf(options));
  const std::vector<int> threads = ThreadsOf(options.bench);
  const int max_rows = *std::max_element(options.num_rows.begin(), options.num_rows.end());
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& [dtype, shape] : products) {
    const int64_t matrix_bytes = shape.rows * RowBytes(dtype, shape.cols);
    const int64_t count = (options.set_bytes + matrix_bytes - 1) / matrix_bytes;
    SWITCHYARD_ASSIGN_OR_RETURN(
        const MatrixSet matrices,
        MatrixSet::Create(dtype, shape, count, *std::max_element(threads.begin(), threads.end())));
    SWITCHYARD_ASSIGN_OR_RETURN(const ActivationSet activations,
                                ActivationSet::Create(max_rows, shape.cols));
    ProductRun run(matrices, activations, max_rows);
    for (const CpuLevel level : levels) {
      for (const int num_threads : threads) {
        TimedPool pool(num_threads);
        SWITCHYARD_RETURN_IF_ERROR(CheckProducts(options, level, run, pool));
        SWITCHYARD_ASSIGN_OR_RETURN(const auto rounds,
                                    MeasureQuietly<GemmRounds>(options.bench.max_foreign_cpus, [&] {
                                      return MeasureRounds(options, level, matrices, run, pool);
                                    }));
        AddRows(options, level, matrices, num_threads, rounds, rows);
      }
    }
  }
  return WriteBenchReport(
      BenchReport("gemm", std::move(rows)), options.bench,
      {"format", "matrix_rows", "matrix_cols", "num_rows", "threads", "cpu_level",
       "gop_per_second.median", "gop_per_second_cpu.median", "peak_gop_per_second.median",
       "share_of_peak", "share_of_peak_cpu", "foreign_cpus", "quiet"});
}

}  // namespace

void AddGemmBench(CLI::App& bench, CommandBody& body) {
  CLI::App* command =
      bench.add_subcommand("gemm", "Measure the kernels of prefill beside the int8 peak");
  auto options = std::make_shared<ProductOptions>();
  options->bench.repetitions = 5;
  options->num_rows = {16, 32, 64, 128, 256, 512};
  options->set_bytes = 8 << 20;
  AddProductFlags(*command, *options);
  command->footer(
      "The peak is that of byte products in registers: vpdpbusd, or on AVX2 vpmaddubsw with\n"
      "vpmaddwd. Products are checked first.\n"
      "Example:\n  switchyard bench gemm --format IQ4_XS --rows 32,512 -t 1,2");
  command->callback([&body, options] { body = [options] { return RunGemmBench(*options); }; });
}

}  // namespace switchyard::app
