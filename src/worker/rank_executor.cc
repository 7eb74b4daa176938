#include "worker/rank_executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "model/model_digest.h"
#include "worker/experts/expert_profile.h"
#include "worker/experts/residency_report.h"
#include "worker/weight_loader.h"

namespace switchyard::worker {
namespace {

double Now() { return MonotonicClock::Get().NowSeconds(); }

placement::v1::Placement PlacementOf(const WorkerOptions& options) {
  placement::v1::Placement placement = options.placement;
  if (placement.world_size() > 0) return placement;
  placement.set_mode(placement::v1::MODE_SINGLE);
  placement.set_world_size(1);
  return placement;
}

}  // namespace

absl::Status CheckWorkerOptions(const WorkerOptions& options, const model::ModelSpec& spec) {
  const auto check = [](const char* field, int64_t value, int64_t least) -> absl::Status {
    if (value >= least) return absl::OkStatus();
    return InvalidArgument("worker option is too small: {}, got: {}, at least: {}", field, value,
                           least);
  };
  SWITCHYARD_RETURN_IF_ERROR(check("num_slots", options.num_slots, 1));
  SWITCHYARD_RETURN_IF_ERROR(check("num_pages", options.num_pages, 1));
  SWITCHYARD_RETURN_IF_ERROR(check("num_checkpoints", options.num_checkpoints, 0));
  SWITCHYARD_RETURN_IF_ERROR(check("max_context", options.max_context, 1));
  // Every slot may decode in one step.
  SWITCHYARD_RETURN_IF_ERROR(check("max_step_rows", options.max_step_rows, options.num_slots));
  if (options.max_context > spec.context_length) {
    return InvalidArgument("context is longer than the model's: {}, model: {}", options.max_context,
                           spec.context_length);
  }
  for (const int32_t id : options.never_sampled) {
    if (id >= 0 && id < spec.vocab_size) continue;
    return InvalidArgument("id is outside the vocabulary: never_sampled, got: {}, size: {}", id,
                           spec.vocab_size);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankExecutor>> RankExecutor::Create(
    const model::GgufFile& file, const model::ModelSpec& spec,
    std::unique_ptr<kernels::Backend> backend, const WorkerOptions& options,
    const LoadProgress& progress) {
  const placement::v1::Placement placement = PlacementOf(options);
  SWITCHYARD_RETURN_IF_ERROR(placement::CheckPlacement(spec, placement));
  if (options.rank < 0 || options.rank >= static_cast<int>(placement.world_size())) {
    return InvalidArgument("rank is not in the group: {}, workers: {}", options.rank,
                           placement.world_size());
  }
  std::unique_ptr<RankExecutor> executor(new RankExecutor(file, spec, options));
  executor->share_ = placement::ShareOf(spec, placement, options.rank);
  executor->backend_ = std::move(backend);
  SWITCHYARD_RETURN_IF_ERROR(executor->LoadAll(progress));
  SWITCHYARD_RETURN_IF_ERROR(executor->AllocateState());
  return executor;
}

RankExecutor::~RankExecutor() { SaveProfile(); }

std::string RankExecutor::ProfilePath() const {
  const std::string& path = options_.residency.profile_path;
  return share_.rank == 0 ? path : fmt::format("{}.rank{}", path, share_.rank);
}

absl::Status RankExecutor::WarmFromProfile() {
  if (options_.residency.profile_path.empty()) return absl::OkStatus();
  SWITCHYARD_ASSIGN_OR_RETURN(model_digest_, model::ModelDigest(file_));
  if (!options_.residency.earlier_uses.empty()) return absl::OkStatus();
  auto profile = ReadExpertProfile(ProfilePath());
  if (profile.status().code() == absl::StatusCode::kNotFound) return absl::OkStatus();
  SWITCHYARD_RETURN_IF_ERROR(profile.status());
  SWITCHYARD_RETURN_IF_ERROR(CheckExpertProfile(*profile, ProfilePath(), model_digest_,
                                                static_cast<int>(spec_.layers.size()),
                                                spec_.moe.num_experts));
  options_.residency.earlier_uses = std::move(profile->uses);
  return absl::OkStatus();
}

void RankExecutor::SaveProfile() {
  if (experts_ == nullptr || model_digest_.empty()) return;
  const ResidencySnapshot now = residency();
  const ExpertCounters total = now.Total();
  if (total.hits + total.misses == 0) return;
  ExpertProfile profile = {.model_digest = model_digest_,
                           .num_layers = now.num_layers,
                           .num_experts = now.num_experts,
                           .uses = now.uses};
  // Earlier runs fade.
  const std::vector<uint64_t>& earlier = options_.residency.earlier_uses;
  for (size_t i = 0; i < earlier.size(); ++i) profile.uses[i] += earlier[i] / 2;
  const absl::Status status = WriteExpertProfile(ProfilePath(), profile);
  if (!status.ok()) LogWarning("{}", Message(status));
}

absl::Status RankExecutor::LoadAll(const LoadProgress& progress) {
  SWITCHYARD_RETURN_IF_ERROR(WarmFromProfile());
  std::vector<ExpertLayer> layers = DescribeExperts(spec_, share_, *backend_);
  SWITCHYARD_RETURN_IF_ERROR(DivideBudget(options_.residency, spec_.moe.num_experts, layers));
  // Files bytes of the slots that are filled once all else is loaded.
  int64_t fill_bytes = 0, loaded_bytes = 0;
  for (const ExpertLayer& layer : layers) {
    if (layer.has_tiers()) fill_bytes += layer.num_slots * layer.file_bytes;
  }
  const LoadProgress load_progress = [&](int64_t done, int64_t total) {
    loaded_bytes = total;
    return progress ? progress(done, total + fill_bytes) : absl::OkStatus();
  };
  SWITCHYARD_ASSIGN_OR_RETURN(weights_,
                              LoadWeights(file_, spec_, share_, layers, *backend_, load_progress));
  ExpertStoreOptions store;
  store.num_experts = spec_.moe.num_experts;
  store.uses_per_token = spec_.moe.top_k;
  store.layers = layers;
  store.policy = options_.residency.policy;
  store.earlier_uses = options_.residency.earlier_uses;
  experts_ = std::make_unique<ExpertStore>(
      std::move(store), [this](int layer, int expert, int slot) -> absl::Status {
        const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
        for (kernels::Weight* weight : weights.tiered_experts) {
          SWITCHYARD_RETURN_IF_ERROR(backend_->LoadSlab(*weight, weights.moe.slot_of(expert), slot,
                                                        /*beside_steps=*/!fills_slots_));
        }
        // What was read may else be of another file than the rest.
        return fills_slots_ ? absl::OkStatus() : file_.CheckUnchanged();
      });
  int64_t filled_bytes = 0;
  SWITCHYARD_RETURN_IF_ERROR(experts_->Fill([&](int layer) {
    filled_bytes += layers[static_cast<size_t>(layer)].file_bytes;
    return progress ? progress(loaded_bytes + filled_bytes, loaded_bytes + fill_bytes)
                    : absl::OkStatus();
  }));
  fills_slots_ = false;
  if (spec_.moe.num_experts > 0) LogInfo("experts: {}", ResidencyLine(residency()));
  uses_.resize(layers.size() * static_cast<size_t>(spec_.moe.num_experts));
  return experts_->has_tiers() ? file_.CheckUnchanged() : absl::OkStatus();
}

absl::Status RankExecutor::AllocateState() {
  SWITCHYARD_ASSIGN_OR_RETURN(
      KvCache kv_cache,
      KvCache::Create(*backend_, weights_.layers, options_.kv_type, options_.num_pages));
  kv_cache_ = std::make_unique<KvCache>(std::move(kv_cache));
  SWITCHYARD_ASSIGN_OR_RETURN(
      RecurrentState state, RecurrentState::Create(*backend_, spec_, weights_, options_.num_slots));
  state_ = std::make_unique<RecurrentState>(std::move(state));
  SWITCHYARD_ASSIGN_OR_RETURN(
      CheckpointStore checkpoints,
      CheckpointStore::Create(options_.num_checkpoints, state_->committed_bytes()));
  checkpoints_ = std::make_unique<CheckpointStore>(std::move(checkpoints));
  SWITCHYARD_ASSIGN_OR_RETURN(forward_, Forward::Create(file_, spec_, share_, weights_, *backend_,
                                                        {.max_rows = options_.max_step_rows,
                                                         .max_sequences = options_.num_slots,
                                                         .max_context = options_.max_context,
                                                         .never_sampled = options_.never_sampled,
                                                         .check_ranks = options_.check_ranks}));
  const int64_t max_entries =
      (options_.max_context + kernels::kPageTokens - 1) / kernels::kPageTokens;
  num_context_tokens_ = spec_.ple.has_value() ? static_cast<size_t>(spec_.ple->ngram_size - 1) : 0;
  pages_.resize(static_cast<size_t>(options_.num_slots));
  for (std::vector<int32_t>& pages : pages_) pages.reserve(static_cast<size_t>(max_entries));
  batch_.Reserve(options_.max_step_rows, options_.num_slots);
  memory_ = {.file_bytes = LoadedFileBytes(spec_, share_),
             .weight_bytes = backend_->resident_weight_bytes(),
             .mapped_bytes = weights_.has_ple() ? spec_.ple->table->bytes() : 0,
             .kv_bytes = kv_cache_->bytes(),
             .state_bytes = state_->bytes(),
             .checkpoint_bytes = checkpoints_->bytes(),
             .activation_bytes = forward_->activation_bytes(),
             .token = TokenWeightsOf(weights_, spec_.moe)};
  return absl::OkStatus();
}

absl::Status RankExecutor::Reset(const WorkerOptions& options) {
  const bool keeps_memory =
      options.num_slots == options_.num_slots && options.num_pages == options_.num_pages &&
      options.num_checkpoints == options_.num_checkpoints &&
      options.max_context == options_.max_context &&
      options.max_step_rows == options_.max_step_rows && options.kv_type == options_.kv_type &&
      options.never_sampled == options_.never_sampled &&
      options.check_ranks == options_.check_ranks;
  ResidencyOptions residency = std::move(options_.residency);  // of the weights, which stay
  options_ = options;
  options_.residency = std::move(residency);
  ranks_ = nullptr;
  if (keeps_memory) {
    checkpoints_->Clear();
    return absl::OkStatus();
  }
  // Gone before the new ones come: there may be no room for both.
  forward_.reset();
  checkpoints_.reset();
  state_.reset();
  kv_cache_.reset();
  pages_.clear();
  return AllocateState();
}

StepHeaderLimits RankExecutor::header_limits() const {
  return {.num_slots = options_.num_slots,
          .num_pages = options_.num_pages,
          .num_checkpoints = options_.num_checkpoints,
          .max_context = options_.max_context,
          .max_step_rows = options_.max_step_rows,
          .vocab_size = spec_.vocab_size};
}

absl::Status RankExecutor::ApplyChanges(const StepHeader& header, Ledger& ledger) {
  kernels::LedgerSlot& host = ledger[v1::STAGE_HOST];
  for (const StepHeader::Start& start : header.starts) {
    if (start.clears_state != 0) state_->Clear(start.slot, *backend_, host);
    pages_[static_cast<size_t>(start.slot)].clear();
  }
  for (const StepHeader::Checkpoint& restore : header.restores) {
    if (checkpoints_->position(restore.checkpoint) != restore.position) {
      return FailedPrecondition("checkpoint does not hold this position: {}, wanted: {}, holds: {}",
                                restore.checkpoint, restore.position,
                                checkpoints_->position(restore.checkpoint));
    }
    checkpoints_->Restore(restore.checkpoint, *state_, restore.slot, *backend_, host);
  }
  const int32_t* page = header.pages.data();
  for (const StepHeader::PageUpdate& update : header.page_updates) {
    std::vector<int32_t>& pages = pages_[static_cast<size_t>(update.slot)];
    const auto first = static_cast<size_t>(update.first_entry);
    const size_t end = first + static_cast<size_t>(update.num_pages);
    if (pages.size() < end) pages.resize(end);
    std::copy_n(page, update.num_pages, pages.begin() + update.first_entry);
    page += update.num_pages;
  }
  return absl::OkStatus();
}

void RankExecutor::FillBatch(const StepHeader& header) {
  batch_.Clear();
  batch_.token_ids.assign(header.token_ids.begin(), header.token_ids.end());
  batch_.output_rows.assign(header.output_rows.begin(), header.output_rows.end());
  const int32_t* context = header.context_ids.data();
  for (const StepHeader::Sequence& rows : header.sequences) {
    BatchSequence sequence;
    sequence.row_begin = rows.row_begin;
    sequence.num_rows = rows.num_rows;
    sequence.first_position = rows.first_position;
    sequence.num_replay = rows.num_replay;
    sequence.num_committed = rows.num_committed;
    sequence.slot = rows.slot;
    sequence.pages = pages_[static_cast<size_t>(rows.slot)];
    sequence.context = {context, static_cast<size_t>(rows.num_context)};
    context += rows.num_context;
    batch_.sequences.push_back(sequence);
    state_->MarkUsed(rows.slot);
  }
}

absl::Status RankExecutor::Run(const StepHeader& header, Ledger& ledger) {
  const double start = Now();
  SWITCHYARD_RETURN_IF_ERROR(ApplyChanges(header, ledger));
  for (const StepHeader::Sequence& rows : header.sequences) {
    const auto num_pages = static_cast<int64_t>(pages_[static_cast<size_t>(rows.slot)].size());
    if (rows.first_position + rows.num_rows <= num_pages * kernels::kPageTokens) continue;
    return InvalidArgument("rows have no page: slot {}, positions up to {}, pages: {}", rows.slot,
                           rows.first_position + rows.num_rows, num_pages);
  }
  FillBatch(header);
  ledger[v1::STAGE_HOST].seconds += Now() - start;
  if (batch_.num_rows() == 0) return absl::OkStatus();
  const StepExperts experts{experts_->BeginStep(), absl::MakeSpan(uses_)};
  const absl::Status status = forward_->Run(batch_, *kv_cache_, *state_, ranks_, experts, ledger);
  const double computed = Now();
  experts_->EndStep(uses_);
  std::fill(uses_.begin(), uses_.end(), 0);
  ledger[v1::STAGE_HOST].seconds += Now() - computed;
  return status;
}

absl::Status RankExecutor::Finish(const StepHeader& header, Ledger& ledger) {
  for (const StepHeader::Checkpoint& save : header.saves) {
    checkpoints_->Save(save.checkpoint, *state_, save.slot, save.position, *backend_,
                       ledger[v1::STAGE_HOST]);
  }
  return CheckComputed();
}

absl::Status RankExecutor::CheckComputed() const {
  SWITCHYARD_RETURN_IF_ERROR(backend_->Health());
  if (!experts_->has_tiers()) return absl::OkStatus();
  SWITCHYARD_RETURN_IF_ERROR(experts_->status());
  // A file that was written to meanwhile has other experts than those that were loaded.
  return file_.CheckUnchanged();
}

absl::Status RankExecutor::RunRows(const StepHeader& header, Ledger& ledger) {
  SWITCHYARD_RETURN_IF_ERROR(Run(header, ledger));
  const auto num_outputs = static_cast<int64_t>(header.output_rows.size());
  for (int64_t first = 0; first < num_outputs; first += kLogitRows) {
    const int64_t count = std::min<int64_t>(kLogitRows, num_outputs - first);
    const auto logits = Logits(header, first, count, ledger);
    if (!logits.ok()) return logits.status();
  }
  // Before the lead takes the step for good.
  return CheckComputed();
}

}  // namespace switchyard::worker
