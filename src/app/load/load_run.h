// Many requests against a running server: by a number of concurrent clients, or at a rate.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "app/load/load_client.h"

namespace switchyard::app {

struct LoadOptions {
  int num_requests = 32;
  int concurrency = 1;             // requests at the same time, at most
  double requests_per_second = 0;  // 0 = the next request starts when one ends
  int num_warmup = 1;              // requests before the measurement; not in the samples
  int prompt_tokens = 128;
  int max_tokens = 64;
  // Leading tokens that all prompts share. A request of its own stores them before the measurement,
  // so that every measured one continues from them.
  int shared_prefix_tokens = 0;
  // Of every request: prefixes that a server keeps from others, such as an earlier run with the
  // same seed, are not reused.
  std::string cache_salt;
  uint64_t seed = 1;                          // of prompts and arrival times
  std::vector<std::vector<int32_t>> prompts;  // used in turn instead of random ones, if any
};

// The prompt that stores the shared prefix: what all share and one token more, since the last token
// of a prompt is always computed.
std::vector<int32_t> SharedPrefixPrompt(const LoadOptions& options, int32_t vocab_size);

// Prompt number `index`: random token ids that depend on the seed only.
std::vector<int32_t> LoadPrompt(const LoadOptions& options, int index, int32_t vocab_size);

struct LoadResult {
  std::vector<LoadSample> samples;  // in order of their starts
  double seconds = 0;               // from the first start to the last end
};

// Runs all requests. Once `is_interrupted` says so, none starts any more, and those that run are
// ended and left out. Request starts are a Poisson process at the given rate, or closed-loop.
LoadResult RunLoad(LoadClient& client, const LoadOptions& options, int32_t vocab_size,
                   const std::function<bool()>& is_interrupted);

}  // namespace switchyard::app
