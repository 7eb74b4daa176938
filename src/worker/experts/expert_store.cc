#include "worker/experts/expert_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::worker {

absl::Status DivideBudget(const ResidencyOptions& options, int num_experts,
                          std::vector<ExpertLayer>& layers) {
  const size_t num_entries = layers.size() * static_cast<size_t>(num_experts);
  if (!options.earlier_uses.empty() && options.earlier_uses.size() != num_entries) {
    return InvalidArgument("counts of experts have another shape: got: {}, wanted: {} x {}",
                           options.earlier_uses.size(), layers.size(), num_experts);
  }
  std::vector<int> num_present;
  std::vector<int64_t> expert_bytes;
  int64_t smallest = 0;
  for (const ExpertLayer& layer : layers) {
    num_present.push_back(static_cast<int>(layer.present.size()));
    expert_bytes.push_back(layer.expert_bytes);
    if (layer.present.empty()) continue;
    if (smallest == 0 || layer.expert_bytes < smallest) smallest = layer.expert_bytes;
  }
  if (options.fast_bytes > 0 && options.fast_bytes < smallest) {
    return InvalidArgument(
        "budget is below one expert: host-expert-bytes, got: {}, one expert: {}; 0 leaves all in "
        "the file",
        options.fast_bytes, smallest);
  }
  const std::vector<int> slots =
      DivideSlots(options.fast_bytes, num_present, expert_bytes, options.earlier_uses, num_experts);
  for (size_t l = 0; l < layers.size(); ++l) layers[l].num_slots = slots[l];
  return absl::OkStatus();
}

ExpertStore::ExpertStore(ExpertStoreOptions options, ExpertCopy copy)
    : options_(std::move(options)),
      copy_(std::move(copy)),
      policy_(options_.policy, static_cast<int>(options_.layers.size()), options_.num_experts,
              options_.uses_per_token) {
  const size_t num_layers = options_.layers.size();
  const size_t num_entries = num_layers * static_cast<size_t>(options_.num_experts);
  states_.assign(num_entries, ExpertState::kAbsent);
  slots_.assign(num_entries, -1);
  uses_.assign(num_entries, 0);
  counters_.resize(num_layers);
  ResidencyTable table;
  table.num_experts_ = static_cast<size_t>(options_.num_experts);
  table.has_tiers_.assign(num_layers, 0);
  for (size_t l = 0; l < num_layers; ++l) {
    const ExpertLayer& layer = options_.layers[l];
    expert_bytes_.push_back(layer.expert_bytes);
    const bool is_whole = !layer.has_tiers();
    table.has_tiers_[l] = is_whole ? 0 : 1;
    has_tiers_ = has_tiers_ || !is_whole;
    for (const int expert : layer.present) {
      states_[Index(static_cast<int>(l), expert)] =
          is_whole ? options_.fast_state : ExpertState::kFile;
    }
  }
  table.slots_ = slots_;
  table.version_ = 1;
  tables_.assign(static_cast<size_t>(std::max(options_.max_running_steps, 1)), table);
  if (!options_.earlier_uses.empty()) policy_.Warm(options_.earlier_uses);
  // A layer has at most one expert on its way.
  swaps_.reserve(num_layers);
  waiting_.reserve(num_layers);
  landed_.reserve(num_layers);
  running_.reserve(tables_.size());
  if (has_tiers_) thread_ = std::thread([this] { RunCopies(); });
}

ExpertStore::~ExpertStore() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::Status ExpertStore::Fill(const std::function<absl::Status(int layer)>& on_copied) {
  for (int l = 0; l < static_cast<int>(options_.layers.size()); ++l) {
    const ExpertLayer& layer = options_.layers[static_cast<size_t>(l)];
    if (!layer.has_tiers()) continue;
    std::vector<int> best = policy_.Best(l, layer.present, layer.num_slots);
    std::sort(best.begin(), best.end());  // the file is read from front to back
    for (int slot = 0; slot < static_cast<int>(best.size()); ++slot) {
      const int expert = best[static_cast<size_t>(slot)];
      SWITCHYARD_RETURN_IF_ERROR(copy_(l, expert, slot));
      if (on_copied) SWITCHYARD_RETURN_IF_ERROR(on_copied(l));
      std::lock_guard lock(mutex_);
      states_[Index(l, expert)] = options_.fast_state;
      slots_[Index(l, expert)] = slot;
      is_dirty_ = true;
    }
  }
  return absl::OkStatus();
}

// ---- steps --------------------------------------------------------------------------------------

void ExpertStore::TakeLanded() {
  for (const Copy& copy : landed_) {
    const auto layer = static_cast<size_t>(copy.layer);
    states_[Index(copy.layer, copy.expert)] = options_.fast_state;
    slots_[Index(copy.layer, copy.expert)] = copy.slot;
    ++counters_[layer].promotions;
    counters_[layer].bytes_moved += static_cast<uint64_t>(expert_bytes_[layer]);
    moving_bytes_ -= expert_bytes_[layer];
    is_dirty_ = true;
  }
  landed_.clear();
}

void ExpertStore::Publish() {
  if (!is_dirty_) return;
  // Fewer steps run than there are tables, so one is free: the current one too, if no step reads
  // it.
  size_t next = 0;
  while (std::find(running_.begin(), running_.end(), next) != running_.end()) ++next;
  SWITCHYARD_CHECK(next < tables_.size());
  tables_[next].version_ = tables_[current_].version_ + 1;
  std::copy(slots_.begin(), slots_.end(), tables_[next].slots_.begin());
  current_ = next;
  is_dirty_ = false;
}

const ResidencyTable& ExpertStore::BeginStep() {
  std::lock_guard lock(mutex_);
  SWITCHYARD_CHECK(running_.size() < tables_.size());
  TakeLanded();
  Publish();
  running_.push_back(current_);
  return tables_[current_];
}

void ExpertStore::CountUses(const ResidencyTable& table, absl::Span<const uint32_t> counts) {
  const auto num_experts = static_cast<size_t>(options_.num_experts);
  for (size_t l = 0; l < counters_.size(); ++l) {
    const absl::Span<const int32_t> slots = table.slots(static_cast<int>(l));
    uint64_t hits = 0, misses = 0;
    for (size_t e = 0; e < num_experts; ++e) {
      const uint64_t count = counts[l * num_experts + e];
      uses_[l * num_experts + e] += count;
      (slots.empty() || slots[e] >= 0 ? hits : misses) += count;
    }
    counters_[l].hits += hits;
    counters_[l].misses += misses;
  }
}

void ExpertStore::EndStep(absl::Span<const uint32_t> counts) {
  bool has_copies = false;
  {
    std::lock_guard lock(mutex_);
    SWITCHYARD_CHECK(!running_.empty() && counts.size() == uses_.size());
    CountUses(tables_[running_.front()], counts);
    running_.erase(running_.begin());
    if (has_tiers_) {
      policy_.Observe(counts);
      StartSwaps();
      has_copies = !waiting_.empty();
    }
  }
  if (has_copies) changed_.notify_all();
}

void ExpertStore::StartSwaps() {
  if (!status_.ok()) return;
  swaps_.clear();
  policy_.Propose(states_, expert_bytes_, options_.policy.max_copy_bytes - moving_bytes_, swaps_);
  for (const ExpertSwap& swap : swaps_) {
    const size_t evicted = Index(swap.layer, swap.evict);
    const int slot = slots_[evicted];
    SWITCHYARD_CHECK(slot >= 0);
    slots_[evicted] = -1;
    states_[evicted] = ExpertState::kFile;
    states_[Index(swap.layer, swap.promote)] = ExpertState::kLoading;
    ++counters_[static_cast<size_t>(swap.layer)].evictions;
    moving_bytes_ += expert_bytes_[static_cast<size_t>(swap.layer)];
    is_dirty_ = true;
    waiting_.push_back({swap.layer, swap.promote, slot, tables_[current_].version_ + 1});
  }
}

// ---- copies -------------------------------------------------------------------------------------

bool ExpertStore::MayStart(const Copy& copy) const {
  // Steps begin with the newest table, so the oldest one that runs reads the oldest. A step that
  // begins later reads a table without the evicted expert.
  return running_.empty() || tables_[running_.front()].version() >= copy.version;
}

void ExpertStore::RunCopies() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(
        lock, [&] { return is_stopping_ || (!waiting_.empty() && MayStart(waiting_.front())); });
    if (is_stopping_) return;
    const Copy copy = waiting_.front();
    waiting_.erase(waiting_.begin());
    is_copying_ = true;
    lock.unlock();
    absl::Status status = copy_(copy.layer, copy.expert, copy.slot);
    lock.lock();
    is_copying_ = false;
    if (status.ok()) {
      landed_.push_back(copy);
    } else {
      // The slot stays empty. Nothing else is tried: the file has gone bad.
      status_ = std::move(status);
      for (const Copy& dropped : waiting_) {
        states_[Index(dropped.layer, dropped.expert)] = ExpertState::kFile;
        moving_bytes_ -= expert_bytes_[static_cast<size_t>(dropped.layer)];
      }
      waiting_.clear();
      states_[Index(copy.layer, copy.expert)] = ExpertState::kFile;
      moving_bytes_ -= expert_bytes_[static_cast<size_t>(copy.layer)];
    }
    changed_.notify_all();
  }
}

void ExpertStore::WaitForCopies() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [&] { return !is_copying_ && (waiting_.empty() || !MayStart(waiting_.front())); });
}

// ---- reports ------------------------------------------------------------------------------------

absl::Status ExpertStore::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

ResidencySnapshot ExpertStore::Snapshot() const {
  ResidencySnapshot snapshot;
  snapshot.num_layers = static_cast<int>(options_.layers.size());
  snapshot.num_experts = options_.num_experts;
  snapshot.fast_state = options_.fast_state;
  std::lock_guard lock(mutex_);
  snapshot.version = tables_[current_].version();
  snapshot.states = states_;
  snapshot.uses = uses_;
  snapshot.counters = counters_;
  for (size_t l = 0; l < options_.layers.size(); ++l) {
    const ExpertLayer& layer = options_.layers[l];
    const int64_t most = static_cast<int64_t>(layer.present.size());
    snapshot.budget_bytes += std::min<int64_t>(layer.num_slots, most) * layer.expert_bytes;
  }
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i] != options_.fast_state && states_[i] != ExpertState::kPinned) continue;
    snapshot.fast_bytes += expert_bytes_[i / static_cast<size_t>(options_.num_experts)];
  }
  return snapshot;
}

}  // namespace switchyard::worker
