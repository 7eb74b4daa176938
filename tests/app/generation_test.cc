// Generations of the demo model through engine and worker, as the commands run them.
#include <condition_variable>
#include <mutex>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/engine_setup.h"
#include "app/loaded_model.h"
#include "base/check.h"
#include "base/error_info.h"
#include "coordinator/prompt.h"

namespace switchyard::app {
namespace {

using coordinator::FinishReason;
using coordinator::GenerationEvent;
using coordinator::GenerationRequest;

// What one generation delivered; Wait() returns at its end.
class Generation {
 public:
  Generation(coordinator::Generator& generator, GenerationRequest request) {
    const auto id = generator.Start(std::move(request), [this](const GenerationEvent& event) {
      std::lock_guard lock(mutex_);
      token_ids_.insert(token_ids_.end(), event.token_ids.begin(), event.token_ids.end());
      logits_.insert(logits_.end(), event.logits.begin(), event.logits.end());
      text_ += event.text;
      last_ = event;
      if (event.finished) finished_.notify_all();
    });
    SWITCHYARD_CHECK(id.ok());
  }
  Generation& Wait() {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return last_.finished; });
    return *this;
  }
  const std::vector<int32_t>& token_ids() const { return token_ids_; }
  const std::vector<float>& logits() const { return logits_; }
  const std::string& text() const { return text_; }
  const GenerationEvent& last() const { return last_; }

 private:
  std::mutex mutex_;
  std::condition_variable finished_;
  std::vector<int32_t> token_ids_;
  std::vector<float> logits_;
  std::string text_;
  GenerationEvent last_;
};

class GenerationTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model =
        OpenModel(std::string(SWITCHYARD_SOURCE_DIR) + "/deploy/demo/switchyard-demo.gguf");
    SWITCHYARD_CHECK(model.ok());
    model_ = model->release();
  }
  static void TearDownTestSuite() { delete model_; }

  static std::unique_ptr<coordinator::Engine> Start(int num_slots, int64_t context = 1024) {
    ModelOptions options;
    options.num_slots = num_slots;
    options.context = context;
    options.num_threads = 2;
    options.prefix_cache_bytes = int64_t{64} << 20;
    auto engine = StartEngine(*model_, options);
    SWITCHYARD_CHECK(engine.ok());
    return std::move(*engine);
  }

  static std::vector<int32_t> Tokens(int count) {
    std::vector<int32_t> tokens(count);
    for (int i = 0; i < count; ++i) tokens[i] = 7 + (37 * i) % 900;
    return tokens;
  }

  static GenerationRequest Greedy(std::vector<int32_t> prompt, std::optional<int> max_tokens) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    return request;
  }

  static LoadedModel* model_;
};
LoadedModel* GenerationTest::model_ = nullptr;

TEST_F(GenerationTest, PromptAndCompletionMayFillTheContextExactly) {
  const auto engine = Start(1, 512);
  for (const auto& [num_prompt, max_tokens] : {std::pair(511, 1), std::pair(506, 6)}) {
    Generation generation(*engine, Greedy(Tokens(num_prompt), max_tokens));
    EXPECT_EQ(generation.Wait().token_ids().size(), static_cast<size_t>(max_tokens));
    EXPECT_EQ(generation.last().reason, FinishReason::kMaxTokens);
  }
  for (const auto& [num_prompt, max_tokens] :
       {std::pair(512, 1), std::pair(513, 1), std::pair(506, 7)}) {
    const auto id = engine->Start(Greedy(Tokens(num_prompt), max_tokens), [](const auto&) {});
    EXPECT_EQ(ReasonOf(id.status()), kContextLengthExceeded);
  }
  Generation unlimited(*engine, Greedy(Tokens(506), std::nullopt));
  EXPECT_EQ(unlimited.Wait().token_ids().size(), 6u);
  EXPECT_EQ(unlimited.last().reason, FinishReason::kContextFull);
}

// Prompts that end just before, at and just after a page border, cold and after a hit.
TEST_F(GenerationTest, PrefixHitGivesTheBitsOfTheColdRun) {
  const auto engine = Start(1);
  for (int num_prompt : {63, 64, 65, 66, 127, 128, 129, 191, 192, 193, 400}) {
    GenerationRequest request = Greedy(Tokens(num_prompt), 16);
    request.return_logits = true;
    request.cache_salt = std::to_string(num_prompt);  // so that the first run is cold
    Generation cold(*engine, request);
    cold.Wait();
    EXPECT_EQ(cold.last().usage.cached_tokens, 0);
    for (int i = 0; i < 2; ++i) {
      Generation hit(*engine, request);
      hit.Wait();
      EXPECT_EQ(hit.last().usage.cached_tokens, (num_prompt - 1) / 64 * 64) << num_prompt;
      EXPECT_EQ(hit.token_ids(), cold.token_ids()) << num_prompt;
      EXPECT_TRUE(hit.logits() == cold.logits()) << num_prompt;
    }
  }
}

TEST_F(GenerationTest, SecondTurnOfAChatReusesTheFirst) {
  const auto engine = Start(1);
  std::string story = "Tell me a story about a fox and a lantern.";
  for (int i = 0; i < 6; ++i) story += " The fox likes honey and the river.";
  nlohmann::ordered_json messages = {{{"role", "system"}, {"content", "You are kind."}},
                                     {{"role", "user"}, {"content", story}}};
  const auto render = [&] {
    return *coordinator::ChatPrompt(model_->tokenizer, model_->chat_template,
                                    {{"messages", messages}, {"enable_thinking", false}});
  };
  const auto request = [&](const coordinator::Prompt& prompt) {
    GenerationRequest out = Greedy(prompt.token_ids, 24);
    out.message_borders = prompt.message_borders;
    out.return_logits = true;
    return out;
  };
  Generation first(*engine, request(render()));
  messages.push_back({{"role", "assistant"}, {"content", first.Wait().text()}});
  messages.push_back({{"role", "user"}, {"content", "Who are you?"}});
  const coordinator::Prompt prompt = render();
  Generation warm(*engine, request(prompt));
  warm.Wait();
  EXPECT_GE(warm.last().usage.cached_tokens, 64);
  EXPECT_LT(warm.last().usage.cached_tokens, warm.last().usage.prompt_tokens);
  GenerationRequest without = request(prompt);
  without.reuse_prefix = false;
  Generation cold(*engine, without);
  EXPECT_EQ(cold.Wait().token_ids(), warm.token_ids());
  EXPECT_TRUE(cold.logits() == warm.logits());
}

TEST_F(GenerationTest, SeededTextDoesNotDependOnCompany) {
  const auto engine = Start(4);
  GenerationRequest seeded = Greedy(Tokens(20), 48);
  seeded.sampling.set_temperature(1);
  seeded.sampling.set_seed(42);
  seeded.reuse_prefix = false;
  Generation alone(*engine, seeded);
  alone.Wait();
  for (int where : {0, 3, 7}) {
    std::vector<std::unique_ptr<Generation>> all;
    for (int i = 0; i < 8; ++i) {
      GenerationRequest request = seeded;
      if (i != where && i % 3 == 0) request.sampling.clear_seed();
      if (i != where && i % 3 == 1) request = Greedy(Tokens(30 + i), 30);
      all.push_back(std::make_unique<Generation>(*engine, request));
    }
    for (auto& generation : all) generation->Wait();
    EXPECT_EQ(all[where]->token_ids(), alone.token_ids()) << where;
  }
}

TEST_F(GenerationTest, WithoutSeedTextsDiffer) {
  const auto engine = Start(2);
  GenerationRequest request = Greedy(Tokens(20), 24);
  request.sampling.set_temperature(1);
  Generation a(*engine, request), b(*engine, request), c(*engine, request);
  a.Wait(), b.Wait(), c.Wait();
  EXPECT_FALSE(a.token_ids() == b.token_ids() && b.token_ids() == c.token_ids());
  request.sampling.set_seed(0);
  Generation d(*engine, request), e(*engine, request);
  EXPECT_EQ(d.Wait().token_ids(), e.Wait().token_ids());
}

TEST_F(GenerationTest, RowsWithoutATokenAreNeverSampled) {
  ASSERT_FALSE(model_->tokenizer.unused_ids().empty());
  const auto engine = Start(1);
  const int32_t unused = model_->tokenizer.unused_ids().front();
  for (float temperature : {0.0f, 1.0f}) {
    GenerationRequest request = Greedy(Tokens(20), 32);
    request.sampling.set_temperature(temperature);
    (*request.sampling.mutable_logit_bias())[static_cast<uint32_t>(unused)] = 100;
    Generation generation(*engine, request);
    EXPECT_THAT(generation.Wait().token_ids(), testing::Not(testing::Contains(unused)));
  }
  GenerationRequest request = Greedy(Tokens(20), 8);
  (*request.sampling.mutable_logit_bias())[500] = 100;
  Generation biased(*engine, request);
  EXPECT_THAT(biased.Wait().token_ids(), testing::Each(500));
}

TEST_F(GenerationTest, LogprobsBelongToTheTokens) {
  const auto engine = Start(1);
  GenerationRequest request = Greedy(Tokens(20), 8);
  request.num_logprobs = 3;
  std::vector<coordinator::TokenInfo> infos;
  std::mutex mutex;
  std::condition_variable done;
  bool is_done = false;
  ASSERT_TRUE(engine
                  ->Start(request,
                          [&](const GenerationEvent& event) {
                            std::lock_guard lock(mutex);
                            infos.insert(infos.end(), event.logprobs.begin(), event.logprobs.end());
                            is_done = event.finished;
                            done.notify_one();
                          })
                  .ok());
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return is_done; });
  ASSERT_EQ(infos.size(), 8u);
  for (const auto& info : infos) {
    ASSERT_EQ(info.top.size(), 3u);
    EXPECT_EQ(info.top[0].first, info.token_id);  // greedy takes the most likely
    EXPECT_EQ(info.top[0].second, info.logprob);
    EXPECT_LE(info.top[1].second, info.top[0].second);
    EXPECT_LE(info.logprob, 0);
  }
}

TEST_F(GenerationTest, CancelledGenerationsLeaveTheOthersAlone) {
  const auto engine = Start(3);
  Generation reference(*engine, Greedy(Tokens(200), 40));
  reference.Wait();
  for (int round = 0; round < 5; ++round) {
    std::mutex mutex;
    int num_finished = 0;
    std::vector<uint64_t> ids;
    for (int i = 0; i < 6; ++i) {
      const auto id =
          engine->Start(Greedy(Tokens(100 + 50 * i), 300), [&](const GenerationEvent& event) {
            std::lock_guard lock(mutex);
            num_finished += event.finished;
          });
      ASSERT_TRUE(id.ok());
      ids.push_back(*id);
    }
    GenerationRequest request = Greedy(Tokens(200), 40);
    request.reuse_prefix = round % 2 == 0;
    Generation other(*engine, request);
    for (uint64_t id : ids) engine->Cancel(id);
    EXPECT_EQ(other.Wait().token_ids(), reference.token_ids());
    while (engine->stats().num_running + engine->stats().num_waiting > 0) std::this_thread::yield();
    std::lock_guard lock(mutex);
    EXPECT_EQ(num_finished, 6);
  }
}

}  // namespace
}  // namespace switchyard::app
