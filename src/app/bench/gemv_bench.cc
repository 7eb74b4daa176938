// bench gemv: the kernels of decode, from memory and from the cache, beside the read bandwidth.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "app/bench/bandwidth_probe.h"
#include "app/bench/bench_options.h"
#include "app/bench/matrix_products.h"
#include "app/bench/product_flags.h"
#include "app/bench/quiet_run.h"
#include "app/bench/spread.h"
#include "app/interrupt.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

using kernels::cpu::CpuLevel;

struct GemvOptions {
  ProductOptions products;
  BandwidthProbe::Options probe;
};

enum class Place { kMemory, kCache };
constexpr Place kPlaces[] = {Place::kMemory, Place::kCache};

// GB/s over bytes in memory of one number of rows and place, by the clock and by CPU time.
struct GemvSamples {
  std::vector<double> wall, cpu;
};

// Of one setting: the limit, and the products [rows][place].
struct GemvRounds {
  GemvSamples limit;
  std::vector<std::array<GemvSamples, 2>> products;
};

void AddSample(const StageTime& time, double bytes, GemvSamples& samples) {
  samples.wall.push_back(bytes / time.wall_seconds / 1e9);
  samples.cpu.push_back(bytes / time.cpu_seconds / 1e9);
}

// One round reads the array and multiplies with every number of rows.
absl::StatusOr<GemvRounds> MeasureRounds(const ProductOptions& options, CpuLevel level,
                                         BandwidthProbe& probe, const MatrixSet& matrices,
                                         ProductRun& products, TimedPool& pool) {
  GemvRounds rounds;
  rounds.products.resize(options.num_rows.size());
  const int64_t bytes = matrices.count() * matrices.memory_bytes();
  for (int r = 0; r <= options.bench.repetitions; ++r) {
    if (IsInterrupted()) return InterruptedStatus();
    SWITCHYARD_ASSIGN_OR_RETURN(const StageTime limit, probe.Read(pool, level, bytes));
    const bool is_warm = r > 0;
    if (is_warm) AddSample(limit, static_cast<double>(probe.BytesOfRead(bytes)), rounds.limit);
    for (size_t i = 0; i < options.num_rows.size(); ++i) {
      for (const Place place : kPlaces) {
        const StageTime time =
            products.Run(pool, level, options.num_rows[i], place == Place::kCache);
        if (is_warm) {
          AddSample(time, static_cast<double>(bytes),
                    rounds.products[i][static_cast<size_t>(place)]);
        }
      }
    }
  }
  return rounds;
}

// Once for each number of rows and place: what is timed is what was checked.
absl::Status CheckProducts(const ProductOptions& options, CpuLevel level, ProductRun& products,
                           TimedPool& pool) {
  for (const int num_rows : options.num_rows) {
    SWITCHYARD_RETURN_IF_ERROR(products.Check(level, num_rows, /*row_step=*/1));
    for (const Place place : kPlaces) {
      products.Run(pool, level, num_rows, place == Place::kCache);
      SWITCHYARD_RETURN_IF_ERROR(products.CheckLastRun(num_rows));
    }
  }
  return absl::OkStatus();
}

void AddRows(const ProductOptions& options, CpuLevel level, const MatrixSet& matrices,
             int num_threads, const QuietRun<GemvRounds>& run, nlohmann::ordered_json& rows) {
  const double limit = SpreadOf(run.samples.limit.wall).median;
  const double limit_cpu = SpreadOf(run.samples.limit.cpu).median;
  const double file_share =
      static_cast<double>(matrices.file_bytes()) / static_cast<double>(matrices.memory_bytes());
  for (size_t i = 0; i < options.num_rows.size(); ++i) {
    for (const Place place : kPlaces) {
      const GemvSamples& samples = run.samples.products[i][static_cast<size_t>(place)];
      const double rate = SpreadOf(samples.wall).median;
      const double rate_cpu = SpreadOf(samples.cpu).median;
      nlohmann::ordered_json row = {{"format", Traits(matrices.dtype()).name},
                                    {"matrix_rows", matrices.shape().rows},
                                    {"matrix_cols", matrices.shape().cols},
                                    {"num_rows", options.num_rows[i]},
                                    {"threads", num_threads},
                                    {"cpu_level", CpuLevelName(level)},
                                    {"place", place == Place::kCache ? "cache" : "memory"},
                                    {"memory_bytes", matrices.memory_bytes()},
                                    {"file_bytes", matrices.file_bytes()},
                                    {"set_bytes", matrices.count() * matrices.memory_bytes()},
                                    {"gb_per_second", SpreadJson(samples.wall)},
                                    {"gb_per_second_cpu", SpreadJson(samples.cpu)},
                                    {"file_gb_per_second", rate * file_share},
                                    {"read_gb_per_second", SpreadJson(run.samples.limit.wall)},
                                    {"read_gb_per_second_cpu", SpreadJson(run.samples.limit.cpu)},
                                    {"share_memory", rate / limit},
                                    {"share_file", rate * file_share / limit},
                                    {"share_memory_cpu", rate_cpu / limit_cpu}};
      AddQuiet(run, row);
      rows.push_back(std::move(row));
    }
  }
}

absl::Status RunGemvBench(GemvOptions options) {
  ProductOptions& flags = options.products;
  SWITCHYARD_ASSIGN_OR_RETURN(const auto levels, LevelsOf(flags.bench));
  SWITCHYARD_ASSIGN_OR_RETURN(const auto products, ProductsOf(flags));
  const std::vector<int> threads = ThreadsOf(flags.bench);
  const int most_threads = *std::max_element(threads.begin(), threads.end());
  TimedPool filler(most_threads);
  SWITCHYARD_ASSIGN_OR_RETURN(BandwidthProbe probe, BandwidthProbe::Create(options.probe, filler));
  // Eight times the caches: little of a round is left in them when the next begins.
  if (flags.set_bytes == 0) {
    flags.set_bytes = 8 * ReadMachineDescription("/").last_level_cache_bytes();
  }
  const int max_rows = *std::max_element(flags.num_rows.begin(), flags.num_rows.end());
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& [dtype, shape] : products) {
    const int64_t matrix_bytes = shape.rows * RowBytes(dtype, shape.cols);
    const int64_t count = (flags.set_bytes + matrix_bytes - 1) / matrix_bytes;
    SWITCHYARD_ASSIGN_OR_RETURN(const MatrixSet matrices,
                                MatrixSet::Create(dtype, shape, count, most_threads));
    SWITCHYARD_ASSIGN_OR_RETURN(const ActivationSet activations,
                                ActivationSet::Create(max_rows, shape.cols));
    ProductRun run(matrices, activations, max_rows);
    for (const CpuLevel level : levels) {
      for (const int num_threads : threads) {
        TimedPool pool(num_threads);
        SWITCHYARD_RETURN_IF_ERROR(CheckProducts(flags, level, run, pool));
        SWITCHYARD_ASSIGN_OR_RETURN(
            const auto rounds, MeasureQuietly<GemvRounds>(flags.bench.max_foreign_cpus, [&] {
              return MeasureRounds(flags, level, probe, matrices, run, pool);
            }));
        AddRows(flags, level, matrices, num_threads, rounds, rows);
      }
    }
  }
  return WriteBenchReport(BenchReport("gemv", std::move(rows)), flags.bench,
                          {"format", "matrix_rows", "matrix_cols", "num_rows", "threads",
                           "cpu_level", "place", "gb_per_second.median", "file_gb_per_second",
                           "gb_per_second_cpu.median", "read_gb_per_second.median", "share_memory",
                           "share_file", "share_memory_cpu", "foreign_cpus", "quiet"});
}

}  // namespace

void AddGemvBench(CLI::App& bench, CommandBody& body) {
  CLI::App* command =
      bench.add_subcommand("gemv", "Measure the kernels of decode beside the read bandwidth");
  auto options = std::make_shared<GemvOptions>();
  options->products.bench.repetitions = 5;
  options->products.num_rows = {1, 2, 4, 8};
  AddProductFlags(*command, options->products);
  AddBytesFlag(*command, "--bytes", options->probe.bytes, 1,
               "Size of the array whose reading is the limit (default: as for membw)");
  command->footer(
      "From memory: matrices that together exceed the caches (default: eight times the last-level\n"
      "cache); from cache: one matrix again and again. Products are checked first.\n"
      "Example:\n  switchyard bench gemv --format IQ4_XS,IQ3_S -t 1,2 --cpu-level avx2,avx512vnni");
  command->callback([&body, options] { body = [options] { return RunGemvBench(*options); }; });
}

}  // namespace switchyard::app
