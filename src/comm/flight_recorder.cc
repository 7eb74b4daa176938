#include "comm/flight_recorder.h"

#include <algorithm>
#include <fmt/format.h>

namespace switchyard::comm {

FlightRecorder::FlightRecorder() : entries_(std::make_unique<Entry[]>(kCapacity)) {}

int64_t FlightRecorder::Begin(uint32_t seq, OpKind kind, int64_t num_bytes, int64_t enqueue_ns) {
  const int64_t index = num_recorded_.load(std::memory_order_relaxed);
  Entry& entry = entries_[static_cast<size_t>(index % kCapacity)];
  entry.op.store(seq | uint64_t{static_cast<uint8_t>(kind)} << 32, std::memory_order_relaxed);
  entry.num_bytes.store(num_bytes, std::memory_order_relaxed);
  entry.enqueue_ns.store(enqueue_ns, std::memory_order_relaxed);
  entry.start_ns.store(0, std::memory_order_relaxed);
  entry.end_ns.store(0, std::memory_order_relaxed);
  num_recorded_.store(index + 1, std::memory_order_release);
  return index;
}

void FlightRecorder::End(int64_t number, int64_t start_ns, int64_t end_ns) {
  Entry& entry = entries_[static_cast<size_t>(number % kCapacity)];
  entry.start_ns.store(start_ns, std::memory_order_relaxed);
  entry.end_ns.store(end_ns, std::memory_order_relaxed);
}

std::vector<FlightRecord> FlightRecorder::Last(int64_t most) const {
  const int64_t end = num_recorded_.load(std::memory_order_acquire);
  std::vector<FlightRecord> records;
  for (int64_t i = std::max<int64_t>(0, end - std::min(most, kCapacity)); i < end; ++i) {
    const Entry& entry = entries_[static_cast<size_t>(i % kCapacity)];
    const uint64_t op = entry.op.load(std::memory_order_relaxed);
    records.push_back({.seq = static_cast<uint32_t>(op),
                       .kind = static_cast<OpKind>(op >> 32),
                       .num_bytes = entry.num_bytes.load(std::memory_order_relaxed),
                       .enqueue_ns = entry.enqueue_ns.load(std::memory_order_relaxed),
                       .start_ns = entry.start_ns.load(std::memory_order_relaxed),
                       .end_ns = entry.end_ns.load(std::memory_order_relaxed)});
  }
  return records;
}

std::string Describe(const FlightRecord& record, int64_t now_ns) {
  const auto milliseconds = [](int64_t ns) { return static_cast<double>(ns) * 1e-6; };
  std::string text = fmt::format("{} #{}, {} bytes, {:.3f} ms ago", Name(record.kind), record.seq,
                                 record.num_bytes, milliseconds(now_ns - record.enqueue_ns));
  if (record.end_ns == 0) return text + ", not finished";
  return text + fmt::format(", waited {:.3f} ms, took {:.3f} ms",
                            milliseconds(record.start_ns - record.enqueue_ns),
                            milliseconds(record.end_ns - record.start_ns));
}

}  // namespace switchyard::comm
