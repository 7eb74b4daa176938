#include "end_to_end/group_harness.h"

#include <chrono>
#include <utility>

#include "app/engine_setup.h"
#include "app/placement_options.h"
#include "base/check.h"
#include "base/clock.h"
#include "coordinator/prompt.h"

namespace switchyard::testing {
namespace {

using coordinator::EngineState;

constexpr double kPatienceSeconds = 60;

double Now() { return MonotonicClock::Get().NowSeconds(); }

app::ModelOptions TestOptions(const app::LoadedModel& model) {
  app::ModelOptions options;
  options.path = model.file.path(0);
  options.num_threads = 1;
  options.context = 1024;
  options.num_slots = 4;
  options.chunk_tokens = 64;
  options.prefix_cache_bytes = int64_t{64} << 20;
  return options;
}

worker::WorkerOptions WorkerOptionsOf(const app::LoadedModel& model) {
  auto worker = app::MakeWorkerOptions(model, TestOptions(model));
  SWITCHYARD_CHECK(worker.ok());
  return *worker;
}

}  // namespace

std::unique_ptr<app::LoadedModel> OpenTestModel(const std::string& path) {
  auto model = app::OpenModel(path);
  SWITCHYARD_CHECK(model.ok());
  return *std::move(model);
}

coordinator::GenerationRequest TestRequest(const app::LoadedModel& model, int number) {
  std::string text = "Once upon a time";
  for (int i = 0; i < 20 * (1 + number % 5); ++i) text += " there was a day " + std::to_string(i);
  coordinator::GenerationRequest request;
  request.prompt = coordinator::RawPrompt(model.tokenizer, text).token_ids;
  request.prompt.resize(std::min<size_t>(request.prompt.size(), 700));
  request.max_tokens = 60 + 10 * (number % 4);
  request.ignore_eos = true;
  request.sampling.set_seed(static_cast<uint64_t>(1000 + number));
  if (number % 3 != 0) {
    request.sampling.set_temperature(0.9f);
    request.sampling.set_top_p(0.95f);
  }
  if (number % 4 == 1) request.sampling.set_repetition_penalty(1.2f);
  if (number % 4 == 2) request.sampling.set_frequency_penalty(0.5f);
  return request;
}

std::vector<Generated> UndisturbedTexts(const app::LoadedModel& model, int count) {
  auto engine = app::StartEngine(model, TestOptions(model));
  SWITCHYARD_CHECK(engine.ok());
  std::vector<Generated> out;
  for (int i = 0; i < count; ++i) {
    std::mutex mutex;
    std::condition_variable changed;
    Generated generated;
    const auto id =
        (*engine)->Start(TestRequest(model, i), [&](const coordinator::GenerationEvent& event) {
          std::lock_guard lock(mutex);
          generated.text += event.text;
          generated.token_ids.insert(generated.token_ids.end(), event.token_ids.begin(),
                                     event.token_ids.end());
          generated.last = event;
          changed.notify_all();
        });
    SWITCHYARD_CHECK(id.ok());
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return generated.is_finished(); });
    out.push_back(std::move(generated));
  }
  return out;
}

GroupHarness::GroupHarness(const app::LoadedModel& model, const Options& options) {
  app::WorkerGroupOptions group_options;
  app::ModelOptions model_options = TestOptions(model);
  model_options.mode = options.mode;
  model_options.partition = options.partition;
  model_options.dense = options.dense;
  auto placement = app::PlacementFor(model.spec, model_options, options.num_workers);
  SWITCHYARD_CHECK(placement.ok());
  group_options.placement = *placement;
  group_options.starts_processes = options.listen_address.empty();
  if (options.replan_seconds > 0) {
    group_options.replan_seconds = options.replan_seconds;
    group_options.replan = [&model, model_options](int num_workers) {
      return app::PlacementFor(model.spec, model_options, num_workers);
    };
  }
  group_options.listen_address = options.listen_address;
  group_options.program = SWITCHYARD_BINARY;
  const worker::WorkerOptions worker = WorkerOptionsOf(model);
  auto group = app::WorkerGroup::Start(model, model_options, worker, group_options);
  SWITCHYARD_CHECK(group.ok());
  group_ = *std::move(group);
  coordinator::EngineOptions engine_options;
  engine_options.scheduler.max_step_rows = worker.max_step_rows;
  engine_options.scheduler.mixed_prefill_rows = 64;
  engine_options.on_worker_loss = options.on_worker_loss;
  engine_options.on_state_change = [this](EngineState state) {
    std::lock_guard lock(mutex_);
    states_.emplace_back(state, Now());
    changed_.notify_all();
  };
  engine_ =
      std::make_unique<coordinator::Engine>(group_->MakeHandle(), model.tokenizer, engine_options);
}

GroupHarness::~GroupHarness() = default;

pid_t GroupHarness::worker_pid(size_t place) {
  return static_cast<pid_t>(group_->status().members[place].pid);
}

switchyard::worker::v1::WorkerState GroupHarness::worker_state(size_t place) {
  return group_->status().members[place].state;
}

double GroupHarness::TimeOfState(EngineState state, int count) {
  std::lock_guard lock(mutex_);
  for (const auto& [entered, time] : states_) {
    if (entered == state && --count == 0) return time;
  }
  return -1;
}

bool GroupHarness::WaitForState(EngineState state, int count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(kPatienceSeconds), [&] {
    int found = 0;
    for (const auto& [entered, time] : states_) found += entered == state;
    return found >= count;
  });
}

bool GroupHarness::WaitUntil(const std::function<bool()>& condition) {
  const double end = Now() + kPatienceSeconds;
  while (!condition()) {
    if (Now() > end) return false;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::microseconds(300));
  }
  return true;
}

int GroupHarness::Start(
    coordinator::GenerationRequest request,
    std::function<void(const Generated&, const coordinator::GenerationEvent&)> on_event) {
  Generated* generated = nullptr;
  int number = 0;
  {
    std::lock_guard lock(mutex_);
    number = static_cast<int>(generated_.size());
    generated = generated_.emplace_back(std::make_unique<Generated>()).get();
  }
  const auto id = engine_->Start(
      std::move(request),
      [this, generated, on_event = std::move(on_event)](const coordinator::GenerationEvent& event) {
        on_event(*generated, event);
        std::lock_guard lock(mutex_);
        generated->text += event.text;
        generated->token_ids.insert(generated->token_ids.end(), event.token_ids.begin(),
                                    event.token_ids.end());
        generated->last = event;
        changed_.notify_all();
      });
  SWITCHYARD_CHECK(id.ok());
  return number;
}

Generated GroupHarness::Wait(int number) {
  std::unique_lock lock(mutex_);
  Generated& generated = *generated_[static_cast<size_t>(number)];
  const bool is_finished = changed_.wait_for(lock, std::chrono::duration<double>(kPatienceSeconds),
                                             [&] { return generated.is_finished(); });
  SWITCHYARD_CHECK(is_finished);
  return generated;
}

}  // namespace switchyard::testing
