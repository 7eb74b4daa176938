#include "app/load/load_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <fmt/format.h>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace switchyard::app {
namespace {

// std::uniform_int_distribution may differ between libraries; prompts must not.
int32_t Draw(std::mt19937_64& random, int32_t vocab_size) {
  return static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size));
}

// Seconds after the start at which each request begins; all 0 in a closed loop.
std::vector<double> StartTimes(const LoadOptions& options) {
  std::vector<double> times(static_cast<size_t>(options.num_requests), 0.0);
  if (options.requests_per_second <= 0) return times;
  std::mt19937_64 random(options.seed);
  double at = 0;
  for (double& time : times) {
    time = at;
    const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
    at -= std::log(uniform) / options.requests_per_second;
  }
  return times;
}

// Looks whether the load is interrupted, and then stops the client and wakes who waits.
class InterruptWatch {
 public:
  InterruptWatch(LoadClient& client, const std::function<bool()>& is_interrupted)
      : thread_([this, &client, &is_interrupted] {
          constexpr std::chrono::milliseconds kInterval{20};
          std::unique_lock lock(mutex_);
          while (!is_over_ && !is_interrupted()) changed_.wait_for(lock, kInterval);
          if (is_over_) return;
          is_interrupted_ = true;
          changed_.notify_all();
          lock.unlock();
          client.Stop();
        }) {}
  ~InterruptWatch() {
    {
      std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // False if the interrupt comes before so much time has passed.
  bool Wait(double seconds) {
    std::unique_lock lock(mutex_);
    const std::chrono::duration<double> time(std::max(seconds, 0.0));
    return !changed_.wait_for(lock, time, [this] { return is_interrupted_; });
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool is_over_ = false;
  bool is_interrupted_ = false;
  std::thread thread_;
};

}  // namespace

std::vector<int32_t> LoadPrompt(const LoadOptions& options, int index, int32_t vocab_size) {
  if (!options.prompts.empty()) {
    return options.prompts[static_cast<size_t>(index) % options.prompts.size()];
  }
  std::vector<int32_t> prompt;
  std::mt19937_64 shared(options.seed);
  const int num_shared = std::min(options.shared_prefix_tokens, options.prompt_tokens);
  for (int i = 0; i < num_shared; ++i) prompt.push_back(Draw(shared, vocab_size));
  std::mt19937_64 own(options.seed * 1'000'003 + static_cast<uint64_t>(index) + 1);
  for (int i = num_shared; i < options.prompt_tokens; ++i) {
    prompt.push_back(Draw(own, vocab_size));
  }
  return prompt;
}

std::vector<int32_t> SharedPrefixPrompt(const LoadOptions& options, int32_t vocab_size) {
  LoadOptions shortened = options;
  shortened.prompt_tokens = std::min(options.shared_prefix_tokens + 1, options.prompt_tokens);
  return LoadPrompt(shortened, options.num_requests, vocab_size);
}

LoadResult RunLoad(LoadClient& client, const LoadOptions& options, int32_t vocab_size,
                   const std::function<bool()>& is_interrupted) {
  const Clock& clock = MonotonicClock::Get();
  InterruptWatch watch(client, is_interrupted);
  const auto send = [&](std::vector<int32_t> prompt) {
    return client.Run({std::move(prompt), options.max_tokens, options.cache_salt});
  };
  // Servers keep prefixes where prompts end, not where they part.
  if (options.shared_prefix_tokens > 0 && options.prompts.empty() && !is_interrupted()) {
    send(SharedPrefixPrompt(options, vocab_size));
  }
  // Warm-up prompts are those of other numbers, so that they leave nothing to reuse behind.
  for (int i = 0; i < options.num_warmup && !is_interrupted(); ++i) {
    send(LoadPrompt(options, options.num_requests + i, vocab_size));
  }
  LoadResult result;
  result.samples.resize(static_cast<size_t>(options.num_requests));
  const std::vector<double> start_times = StartTimes(options);
  const double start = clock.NowSeconds();
  std::atomic<int> next{0};
  const auto run = [&] {
    for (int i; (i = next.fetch_add(1)) < options.num_requests && !is_interrupted();) {
      const auto index = static_cast<size_t>(i);
      if (!watch.Wait(start + start_times[index] - clock.NowSeconds())) return;
      result.samples[index] = send(LoadPrompt(options, i, vocab_size));
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < std::min(options.concurrency, options.num_requests); ++i) {
    threads.emplace_back(run);
  }
  for (std::thread& thread : threads) thread.join();
  result.seconds = clock.NowSeconds() - start;
  // What an interrupt left out has no start, and what it ended is cancelled.
  const bool was_interrupted = !watch.Wait(0);
  std::erase_if(result.samples, [&](const LoadSample& sample) {
    return sample.start_seconds == 0 || (was_interrupted && absl::IsCancelled(sample.status));
  });
  return result;
}

}  // namespace switchyard::app
