// Generations of the demo model whose worker loses its state: every bit is that of an undisturbed
// run.
#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/engine_setup.h"
#include "app/loaded_model.h"
#include "lossy_worker.h"

namespace switchyard::app {
namespace {

using coordinator::FinishReason;
using coordinator::GenerationEvent;
using coordinator::GenerationRequest;

struct Delivered {
  std::vector<int32_t> token_ids;
  std::string text;
  std::vector<float> logits;
  std::vector<float> logprobs;  // the sampled token's, then those of the most likely ones
  FinishReason reason = FinishReason::kFailed;
  int num_replays = 0;
};

class ReplayTest : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    auto model =
        OpenModel(std::string(SWITCHYARD_SOURCE_DIR) + "/deploy/demo/switchyard-demo.gguf");
    SWITCHYARD_CHECK(model.ok());
    model_ = model->release();
  }
  static void TearDownTestSuite() { delete model_; }

  // Runs all requests at once on three slots.
  static std::vector<Delivered> Run(const std::vector<GenerationRequest>& requests,
                                    const std::set<int64_t>& losses) {
    ModelOptions options;
    options.num_slots = 3;
    options.context = 512;
    options.num_threads = 2;
    options.prefix_cache_bytes = int64_t{64} << 20;
    const auto worker_options = MakeWorkerOptions(*model_, options);
    SWITCHYARD_CHECK(worker_options.ok());
    auto worker = LoadWorker(*model_, options, *worker_options);
    SWITCHYARD_CHECK(worker.ok());
    coordinator::EngineOptions engine_options;
    engine_options.scheduler.max_step_rows = worker_options->max_step_rows;
    engine_options.max_replays = static_cast<int>(losses.size());
    coordinator::Engine engine(
        std::make_unique<LossyWorker>(std::move(*worker), *worker_options, losses),
        model_->tokenizer, engine_options);

    std::mutex mutex;
    std::condition_variable changed;
    size_t num_finished = 0;
    std::vector<Delivered> all(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine.Start(requests[i], [&, i](const GenerationEvent& event) {
        std::lock_guard lock(mutex);
        Delivered& d = all[i];
        d.token_ids.insert(d.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
        d.logits.insert(d.logits.end(), event.logits.begin(), event.logits.end());
        d.text += event.text;
        for (const coordinator::TokenInfo& info : event.logprobs) {
          d.logprobs.push_back(info.logprob);
          for (const auto& [token_id, logprob] : info.top) d.logprobs.push_back(logprob);
        }
        if (!event.finished) return;
        d.reason = event.reason;
        d.num_replays = event.num_replays;
        ++num_finished;
        changed.notify_all();
      });
      SWITCHYARD_CHECK(id.ok());
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return num_finished == requests.size(); });
    lock.unlock();
    EXPECT_EQ(engine.CheckInvariants(), absl::OkStatus());
    EXPECT_EQ(engine.stats().num_losses > 0, !losses.empty());
    return all;
  }

  // Prompts whose last chunk advances the delta net as a chunk (36 rows behind a page border) and
  // row by row (2 rows), one that ends at a border; each with other rules. Answers cross borders.
  static std::vector<GenerationRequest> Requests() {
    std::vector<GenerationRequest> requests;
    for (const int num_prompt : {100, 130, 192, 45, 257}) {
      GenerationRequest request;
      for (int i = 0; i < num_prompt; ++i) {
        request.prompt.push_back(7 + (37 * i + num_prompt) % 900);
      }
      request.max_tokens = 90;
      request.min_tokens = 60;
      request.return_logits = true;
      request.num_logprobs = 3;
      request.sampling.set_seed(static_cast<uint64_t>(num_prompt));
      requests.push_back(request);
    }
    requests[0].sampling.set_temperature(1.2f);
    requests[1].sampling.set_temperature(0.9f);
    requests[1].sampling.set_repetition_penalty(1.3f);
    requests[1].sampling.set_presence_penalty(0.4f);
    requests[1].sampling.set_frequency_penalty(0.2f);
    (*requests[2].sampling.mutable_logit_bias())[50] = 4;
    (*requests[2].sampling.mutable_logit_bias())[51] = -4;
    requests[2].sampling.set_temperature(1);
    requests[2].sampling.set_top_k(40);
    requests[4].sampling.set_temperature(1.5f);
    requests[4].sampling.set_top_p(0.9f);
    requests[4].sampling.set_frequency_penalty(0.5f);
    return requests;
  }

  static LoadedModel* model_;
};
LoadedModel* ReplayTest::model_ = nullptr;

TEST_P(ReplayTest, EveryBitIsThatOfAnUndisturbedRun) {
  std::vector<GenerationRequest> requests = Requests();
  std::vector<Delivered> undisturbed = Run(requests, {});
  // A long stop string out of the middle: text is held for it over many tokens.
  const std::string& text = undisturbed[3].text;
  ASSERT_GT(text.size(), 60u);
  requests[3].stop = {text.substr(20, 40)};
  undisturbed[3] = Run({requests[3]}, {})[0];
  ASSERT_EQ(undisturbed[3].reason, FinishReason::kStopSequence);

  std::mt19937 random(GetParam());
  std::set<int64_t> losses;
  for (int i = 0; i < 4; ++i) losses.insert(3 + static_cast<int64_t>(random() % 120));
  const std::vector<Delivered> disturbed = Run(requests, losses);
  int num_replays = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(disturbed[i].token_ids, undisturbed[i].token_ids) << i;
    EXPECT_EQ(disturbed[i].text, undisturbed[i].text) << i;
    EXPECT_EQ(disturbed[i].reason, undisturbed[i].reason) << i;
    EXPECT_TRUE(disturbed[i].logits == undisturbed[i].logits) << i;
    EXPECT_TRUE(disturbed[i].logprobs == undisturbed[i].logprobs) << i;
    num_replays += disturbed[i].num_replays;
  }
  EXPECT_GE(num_replays, static_cast<int>(losses.size()));
}

INSTANTIATE_TEST_SUITE_P(Seeds, ReplayTest, testing::Range(0, 4));

}  // namespace
}  // namespace switchyard::app
