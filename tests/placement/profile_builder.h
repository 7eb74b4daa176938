// Made-up profiles for tests of predictions.
#pragma once

#include <cstdint>
#include <string>

#include "placement/hardware_profile.h"

namespace switchyard::placement {

inline void SetSpread(v1::Spread& spread, double median) {
  spread.set_median(median);
  spread.set_min(median);
  spread.set_max(median);
}

inline void AddMemoryRead(v1::HardwareProfile& profile, uint32_t threads, double gb_per_second) {
  v1::MemoryRead& read = *profile.add_memory_reads();
  read.set_threads(threads);
  SetSpread(*read.mutable_gb_per_second(), gb_per_second);
}

inline void AddKernelRate(v1::HardwareProfile& profile, const std::string& format, uint32_t threads,
                          uint32_t num_rows, double gb_per_second) {
  v1::KernelRate& rate = *profile.add_kernel_rates();
  rate.set_format(format);
  rate.set_threads(threads);
  rate.set_num_rows(num_rows);
  SetSpread(*rate.mutable_gb_per_second(), gb_per_second);
}

inline void AddCollective(v1::HardwareProfile& profile, const std::string& op,
                          const std::string& backend, uint32_t nranks, uint64_t bytes, double us) {
  v1::Collective& collective = *profile.add_collectives();
  collective.set_op(op);
  collective.set_backend(backend);
  collective.set_nranks(nranks);
  collective.set_size_bytes(bytes);
  SetSpread(*collective.mutable_us(), us);
}

inline void AddFit(v1::HardwareProfile& profile, const std::string& op, const std::string& backend,
                   double a0_us, double a1_us, double beta) {
  v1::CollectiveFit& fit = *profile.add_fits();
  fit.set_op(op);
  fit.set_backend(backend);
  fit.set_a0_us(a0_us);
  fit.set_a1_us(a1_us);
  fit.set_beta_gb_per_second(beta);
}

// Two cores: one thread reads 10 GB/s, two 16; F32 kernels 8 GB/s with one thread and one row, half
// of it with 8 rows; stages of one thread cost 1 us; an all-reduce over shm takes 5 us up to 256
// bytes, 10 us with 10,240.
inline v1::HardwareProfile TwoCores() {
  v1::HardwareProfile profile;
  profile.set_schema_version(kProfileSchemaVersion);
  profile.mutable_host()->set_cores(2);
  profile.mutable_host()->set_mem_total_bytes(uint64_t{16} << 30);
  AddMemoryRead(profile, 1, 10);
  AddMemoryRead(profile, 2, 16);
  AddKernelRate(profile, "F32", 1, 1, 8);
  AddKernelRate(profile, "F32", 1, 8, 4);
  v1::ForkJoin& fork_join = *profile.add_fork_joins();
  fork_join.set_threads(1);
  SetSpread(*fork_join.mutable_us(), 1);
  for (const uint32_t nranks : {2U, 3U, 4U}) {
    AddCollective(profile, "all_reduce", "shm", nranks, 256, 5);
    AddCollective(profile, "all_reduce", "shm", nranks, 10240, 10);
  }
  return profile;
}

// `num_gpus` RTX 3090 in the figures of the published estimates: 936 GB/s of which kernels reach
// 0.7, 2 ms beside them, collectives that take `alpha_us`.
inline v1::HardwareProfile Cards(int num_gpus, double alpha_us) {
  v1::HardwareProfile profile;
  profile.set_schema_version(kProfileSchemaVersion);
  profile.set_is_estimate(true);
  profile.mutable_host()->set_mem_total_bytes(uint64_t{256} << 30);
  for (int i = 0; i < num_gpus; ++i) {
    v1::Gpu& gpu = *profile.add_gpus();
    gpu.set_index(static_cast<uint32_t>(i));
    gpu.set_memory_total_bytes(uint64_t{24} << 30);
    gpu.set_memory_gb_per_second(936);
    gpu.set_kernel_efficiency(0.7);
    gpu.set_tera_ops_per_second(35);
  }
  profile.set_step_overhead_us(2000);
  profile.set_host_expert_us(20);
  AddMemoryRead(profile, 24, 60);
  AddFit(profile, "all_reduce", "hostmap", alpha_us, 0, 1e6);
  AddFit(profile, "sendrecv", "hostmap", alpha_us, 0, 1e6);
  return profile;
}

}  // namespace switchyard::placement
