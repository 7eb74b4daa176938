#include "worker/step_header.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/status.h"
#include "base/status_macros.h"
#include "kernels/stage_types.h"
#include "worker/forward/rank_head.h"

namespace switchyard::worker {
namespace {

constexpr uint64_t kMagic = 0x31'70'65'74'53'79'53;  // "SyStep1"

void Append(const void* data, size_t num_bytes, std::vector<std::byte>& out) {
  const auto* begin = static_cast<const std::byte*>(data);
  out.insert(out.end(), begin, begin + num_bytes);
}

template <typename T>
void Append(const std::vector<T>& values, std::vector<std::byte>& out) {
  static_assert(std::is_trivially_copyable_v<T>);
  const uint64_t count = values.size();
  Append(&count, sizeof(count), out);
  if (count > 0) Append(values.data(), count * sizeof(T), out);
}

class Reader {
 public:
  explicit Reader(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  bool Read(void* to, size_t num_bytes) {
    if (num_bytes > bytes_.size()) return false;
    if (num_bytes > 0) std::memcpy(to, bytes_.data(), num_bytes);
    bytes_.remove_prefix(num_bytes);
    return true;
  }
  template <typename T>
  bool Read(std::vector<T>& values) {
    uint64_t count = 0;
    if (!Read(&count, sizeof(count)) || count > bytes_.size() / sizeof(T)) return false;
    values.resize(count);
    return Read(values.data(), count * sizeof(T));
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  absl::Span<const std::byte> bytes_;
};

absl::Status OutOfRange(const char* field, int64_t value, int64_t limit) {
  return InvalidArgument("step header is out of range: {}, got: {}, wanted: below {}", field, value,
                         limit);
}

bool IsBelow(int64_t value, int64_t limit) { return value >= 0 && value < limit; }

absl::Status CheckCheckpoints(const std::vector<StepHeader::Checkpoint>& entries,
                              const StepHeaderLimits& limits) {
  for (const StepHeader::Checkpoint& entry : entries) {
    if (!IsBelow(entry.slot, limits.num_slots)) {
      return OutOfRange("slot", entry.slot, limits.num_slots);
    }
    if (!IsBelow(entry.checkpoint, limits.num_checkpoints)) {
      return OutOfRange("checkpoint", entry.checkpoint, limits.num_checkpoints);
    }
    if (!IsBelow(entry.position, limits.max_context + 1)) {
      return OutOfRange("position", entry.position, limits.max_context + 1);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPages(const StepHeader& header, const StepHeaderLimits& limits) {
  const int64_t max_entries =
      (limits.max_context + kernels::kPageTokens - 1) / kernels::kPageTokens;
  int64_t num_pages = 0;
  for (const StepHeader::PageUpdate& update : header.page_updates) {
    if (!IsBelow(update.slot, limits.num_slots)) {
      return OutOfRange("slot", update.slot, limits.num_slots);
    }
    if (update.first_entry < 0 || update.num_pages < 0 ||
        int64_t{update.first_entry} + update.num_pages > max_entries) {
      return OutOfRange("page_updates", update.first_entry, max_entries);
    }
    num_pages += update.num_pages;
  }
  if (num_pages != static_cast<int64_t>(header.pages.size())) {
    return InvalidArgument("step header is out of order: pages, got: {}, wanted: {}",
                           header.pages.size(), num_pages);
  }
  for (const int32_t page : header.pages) {
    if (!IsBelow(page, limits.num_pages)) return OutOfRange("pages", page, limits.num_pages);
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const StepHeader& header, const StepHeaderLimits& limits) {
  const auto num_rows = static_cast<int64_t>(header.token_ids.size());
  if (num_rows > limits.max_step_rows) {
    return OutOfRange("token_ids", num_rows, int64_t{limits.max_step_rows} + 1);
  }
  int64_t next_row = 0, num_context = 0;
  for (const StepHeader::Sequence& rows : header.sequences) {
    if (!IsBelow(rows.slot, limits.num_slots)) {
      return OutOfRange("slot", rows.slot, limits.num_slots);
    }
    const bool fits = rows.row_begin == next_row && rows.num_rows > 0 && rows.num_committed >= 0 &&
                      rows.num_committed <= rows.num_rows && rows.num_replay >= 0 &&
                      rows.num_replay <= kernels::kMaxProvisionalRows && rows.num_context >= 0 &&
                      rows.num_rows - rows.num_committed <= kernels::kMaxProvisionalRows &&
                      rows.first_position >= 0 &&
                      rows.first_position + rows.num_rows <= limits.max_context;
    if (!fits) return InvalidArgument("step header is out of order: sequences, slot {}", rows.slot);
    next_row += rows.num_rows;
    num_context += rows.num_context;
  }
  if (next_row != num_rows || num_context != static_cast<int64_t>(header.context_ids.size())) {
    return InvalidArgument("step header is out of order: token_ids, got: {}, wanted: {}", num_rows,
                           next_row);
  }
  for (const std::vector<int32_t>* ids : {&header.token_ids, &header.context_ids}) {
    for (const int32_t id : *ids) {
      if (!IsBelow(id, limits.vocab_size)) return OutOfRange("token_ids", id, limits.vocab_size);
    }
  }
  int32_t last = -1;
  for (const int32_t row : header.output_rows) {
    if (row <= last || row >= num_rows) return OutOfRange("output_rows", row, num_rows);
    last = row;
  }
  if (header.num_candidates.size() != header.output_rows.size()) {
    return InvalidArgument("step header is out of order: num_candidates, got: {}, wanted: {}",
                           header.num_candidates.size(), header.output_rows.size());
  }
  for (const int32_t count : header.num_candidates) {
    if (!IsBelow(count, kMaxCandidates + 1)) {
      return OutOfRange("num_candidates", count, kMaxCandidates + 1);
    }
  }
  return absl::OkStatus();
}

}  // namespace

void StepHeader::Clear() {
  starts.clear();
  restores.clear();
  page_updates.clear();
  pages.clear();
  sequences.clear();
  context_ids.clear();
  token_ids.clear();
  output_rows.clear();
  num_candidates.clear();
  saves.clear();
}

int StepHeader::NumCandidates(int64_t first, int64_t count) const {
  const auto begin = num_candidates.begin() + first;
  if (std::find(begin, begin + count, 0) != begin + count) return 0;
  return *std::max_element(begin, begin + count);
}

void StepHeader::Encode(std::vector<std::byte>& out) const {
  Append(&kMagic, sizeof(kMagic), out);
  Append(&epoch, sizeof(epoch), out);
  Append(&step, sizeof(step), out);
  Append(starts, out);
  Append(restores, out);
  Append(page_updates, out);
  Append(pages, out);
  Append(sequences, out);
  Append(context_ids, out);
  Append(token_ids, out);
  Append(output_rows, out);
  Append(num_candidates, out);
  Append(saves, out);
}

absl::Status StepHeader::Decode(absl::Span<const std::byte> bytes) {
  Reader reader(bytes);
  uint64_t magic = 0;
  const bool is_read = reader.Read(&magic, sizeof(magic)) && magic == kMagic &&
                       reader.Read(&epoch, sizeof(epoch)) && reader.Read(&step, sizeof(step)) &&
                       reader.Read(starts) && reader.Read(restores) && reader.Read(page_updates) &&
                       reader.Read(pages) && reader.Read(sequences) && reader.Read(context_ids) &&
                       reader.Read(token_ids) && reader.Read(output_rows) &&
                       reader.Read(num_candidates) && reader.Read(saves) && reader.at_end();
  if (is_read) return absl::OkStatus();
  return InvalidArgument("step header is damaged: {} bytes", bytes.size());
}

absl::Status CheckStepHeader(const StepHeader& header, const StepHeaderLimits& limits) {
  for (const StepHeader::Start& start : header.starts) {
    if (!IsBelow(start.slot, limits.num_slots)) {
      return OutOfRange("slot", start.slot, limits.num_slots);
    }
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckCheckpoints(header.restores, limits));
  SWITCHYARD_RETURN_IF_ERROR(CheckCheckpoints(header.saves, limits));
  SWITCHYARD_RETURN_IF_ERROR(CheckPages(header, limits));
  return CheckRows(header, limits);
}

}  // namespace switchyard::worker
