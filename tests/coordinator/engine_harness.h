// Runs an engine over a fake worker and collects what generations deliver.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/check.h"
#include "coordinator/engine.h"
#include "testing/byte_tokenizer.h"
#include "testing/fake_worker.h"

namespace switchyard::coordinator {

// Everything one generation delivered.
struct Collected {
  std::string text;
  std::vector<int32_t> token_ids;
  int num_started = 0;
  int num_finished = 0;
  std::vector<int64_t> progress;  // num_prefilled of every event
  std::vector<StepCosts> costs;   // of every event
  GenerationEvent last;
};

class EngineHarness {
 public:
  static testing::FakeWorker::Options WorkerOptions(int num_slots, int num_pages,
                                                    int num_checkpoints) {
    testing::FakeWorker::Options options;
    options.capacity = {.num_slots = num_slots,
                        .num_pages = num_pages,
                        .num_checkpoints = num_checkpoints,
                        .max_context = 1024,
                        .max_step_rows = 256};
    options.first_token = 'a' - '!';  // byte tokens begin at '!'
    options.eos = 257;
    return options;
  }

  EngineHarness(const testing::FakeWorker::Options& worker_options, EngineOptions options)
      : worker_options_(worker_options) {
    auto worker = std::make_unique<testing::FakeWorker>(worker_options);
    worker_ = worker.get();
    engine_ = std::make_unique<Engine>(std::move(worker), tokenizer_, options);
  }

  Engine& engine() { return *engine_; }
  testing::FakeWorker& worker() { return *worker_; }
  const testing::FakeWorker::Options& worker_options() const { return worker_options_; }

  absl::StatusOr<uint64_t> Start(GenerationRequest request, int key) {
    return engine_->Start(std::move(request), [this, key](const GenerationEvent& event) {
      std::lock_guard lock(mutex_);
      Collected& c = collected_[key];
      c.num_started += event.started;
      c.num_finished += event.finished;
      c.progress.push_back(event.num_prefilled);
      c.text += event.text;
      c.token_ids.insert(c.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
      c.costs.push_back(event.costs);
      c.last = event;
      changed_.notify_all();
    });
  }

  // Waits until generation `key` has ended.
  Collected Wait(int key) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return collected_[key].num_finished > 0; });
    return collected_[key];
  }

  // Waits until generation `key` has delivered `count` tokens or has ended.
  void WaitForTokens(int key, size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return collected_[key].token_ids.size() >= count || collected_[key].num_finished > 0;
    });
  }

  Collected Run(GenerationRequest request, int key) {
    const auto id = Start(std::move(request), key);
    SWITCHYARD_CHECK(id.ok());
    return Wait(key);
  }

  // Tokens that a generation must give: what the fake samples, up to an end token or `max_tokens`.
  std::vector<int32_t> Expected(std::vector<int32_t> tokens, int max_tokens,
                                int min_tokens = 0) const {
    std::vector<int32_t> out;
    while (static_cast<int>(out.size()) < max_tokens) {
      out.push_back(testing::FakeWorker::NextToken(worker_options_, tokens));
      if (out.back() == worker_options_.eos && static_cast<int>(out.size()) <= min_tokens) {
        out.back() = worker_options_.first_token;
      }
      if (out.back() == worker_options_.eos) break;
      tokens.push_back(out.back());
    }
    return out;
  }

  std::string Text(const std::vector<int32_t>& tokens) const {
    return tokenizer_.Decode(tokens, /*include_special=*/false);
  }

  static std::vector<int32_t> Prompt(int length, int seed) {
    std::vector<int32_t> prompt(length);
    for (int i = 0; i < length; ++i) prompt[i] = (i * 31 + seed * 17) % 90;
    return prompt;
  }

  static GenerationRequest Request(std::vector<int32_t> prompt, std::optional<int> max_tokens) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    return request;
  }

 private:
  model::Tokenizer tokenizer_ = testing::ByteTokenizer();
  testing::FakeWorker::Options worker_options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Collected> collected_;
  testing::FakeWorker* worker_ = nullptr;
  std::unique_ptr<Engine> engine_;  // last: its end delivers events
};

}  // namespace switchyard::coordinator
