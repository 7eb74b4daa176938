#include "worker/rank_group.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "comm/local_group.h"

namespace switchyard::worker {
namespace {

void CheckOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

template <typename T>
T ValueOrDie(absl::StatusOr<T> value) {
  CheckOk(value.status());
  return *std::move(value);
}

}  // namespace

RankGroup::RankGroup(const std::string& model_path, const Device& device,
                     const WorkerOptions& options, const placement::PlacementWish& wish)
    : file_(ValueOrDie(model::GgufFile::Open(model_path))),
      spec_(std::make_unique<model::ModelSpec>(ValueOrDie(model::LoadModelSpec(file_)))),
      options_(options) {
  options_.placement = ValueOrDie(placement::MakePlacement(*spec_, wish));
  options_.check_ranks = true;
  lead_rank_ = placement::LeadRank(options_.placement);
  for (int rank = 0; rank < static_cast<int>(options_.placement.world_size()); ++rank) {
    options_.rank = rank;
    workers_.push_back(
        ValueOrDie(Worker::Create(file_, *spec_, MakeBackend(device), options_, {})));
    workers_.back()->Start(
        [this](const v1::StepResult& result) {
          std::lock_guard lock(mutex_);
          results_.push_back(result);
          changed_.notify_all();
        },
        [this, rank](const absl::Status&) {
          std::lock_guard lock(mutex_);
          lost_ranks_.push_back(rank);
          changed_.notify_all();
        });
  }
  Join();
}

RankGroup::~RankGroup() {
  for (const auto& worker : workers_) worker->Stop();
}

void RankGroup::Join() {
  const auto nranks = static_cast<int>(workers_.size());
  if (nranks == 1) return;
  comm::CommOptions options;
  options.group_id = "test";
  options.epoch = options_.epoch;
  options.wait = comm::WaitPolicy::kBlock;  // more ranks than cores
  options.op_timeout = absl::Seconds(60);   // sanitizers are slow
  auto tensors = ValueOrDie(comm::CreateLocalGroup(nranks, options));
  options.channel = "control";
  options.op_timeout = absl::InfiniteDuration();
  auto control = ValueOrDie(comm::CreateLocalGroup(nranks, options));
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    CheckOk(workers_[rank]->Join({std::move(tensors[rank]), std::move(control[rank])}));
  }
}

void RankGroup::NextEpoch() {
  ++options_.epoch;
  last_plan_ = 0;
  for (const auto& worker : workers_) CheckOk(worker->Reset(options_));
  {
    std::lock_guard lock(mutex_);
    results_.clear();
    lost_ranks_.clear();
  }
  Join();
}

v1::StepPlan RankGroup::NewPlan() {
  v1::StepPlan plan;
  plan.set_plan(++last_plan_);
  plan.set_epoch(options_.epoch);
  plan.set_run_ahead(1);
  return plan;
}

std::vector<v1::StepResult> RankGroup::Run(const std::vector<v1::StepPlan>& plans) {
  {
    std::lock_guard lock(mutex_);
    results_.clear();
  }
  for (const v1::StepPlan& plan : plans) CheckOk(worker(lead_rank_).Submit(plan));
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return !lost_ranks_.empty() || (!results_.empty() && results_.back().last_of_plan() &&
                                    results_.back().plan() == plans.back().plan());
  });
  return results_;
}

std::vector<int> RankGroup::WaitForLosses(size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return lost_ranks_.size() >= count; });
  std::vector<int> ranks = lost_ranks_;
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

RankGroup::Continuation RankGroup::Continue(absl::Span<const int32_t> tokens, int num_new,
                                            int64_t chunk) {
  Continuation out;
  const auto size = static_cast<int64_t>(tokens.size());
  for (int64_t first = 0; first < size; first += chunk) {
    v1::StepPlan plan = NewPlan();
    if (first == 0) {
      v1::SlotStart& start = *plan.add_starts();
      start.set_incarnation(++incarnation_);
      start.set_max_new_tokens(static_cast<uint32_t>(std::max(num_new, 1)));
      v1::PageTableUpdate& pages = *plan.add_page_tables();
      for (int i = options_.num_pages / options_.num_slots; i > 0; --i) {
        pages.add_pages(static_cast<uint32_t>(i - 1));
      }
    }
    const bool is_last = first + chunk >= size;
    v1::PrefillChunk& rows = *plan.add_prefill();
    rows.set_incarnation(incarnation_);
    rows.set_first_position(static_cast<uint32_t>(first));
    for (int64_t i = first; i < std::min(first + chunk, size); ++i) {
      rows.add_token_ids(static_cast<uint32_t>(tokens[static_cast<size_t>(i)]));
    }
    rows.set_return_all_logits(true);
    rows.set_sample(is_last && num_new > 0);
    if (is_last && num_new > 0) {
      plan.add_decode()->set_incarnation(incarnation_);
      plan.set_run_ahead(1000);
    }
    for (const v1::StepResult& result : Run({plan})) {
      if (!result.error().empty()) std::fprintf(stderr, "%s\n", result.error().c_str());
      SWITCHYARD_CHECK(result.error().empty());
      for (const v1::SlotResult& slot : result.slots()) {
        for (const uint32_t id : slot.token_ids()) out.ids.push_back(static_cast<int32_t>(id));
        const absl::Span<const float> part(reinterpret_cast<const float*>(slot.logits().data()),
                                           slot.logits().size() / sizeof(float));
        out.logits.insert(out.logits.end(), part.begin(), part.end());
      }
    }
  }
  return out;
}

}  // namespace switchyard::worker
