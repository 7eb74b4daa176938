// One request against a running server, timed as its client sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace switchyard::app {

// What to ask for.
struct LoadRequest {
  std::vector<int32_t> prompt;
  int max_tokens = 0;  // exactly as many come: end tokens do not end the answer
  std::string cache_salt;
};

// What came, with times in seconds of the monotonic clock.
struct LoadSample {
  absl::Status status;
  double start_seconds = 0;        // before the first byte was sent
  double first_token_seconds = 0;  // when the first non-empty piece had arrived
  double end_seconds = 0;          // after the last byte
  // Gaps between consecutive tokens. Of tokens that arrive in one piece, all but the first have
  // gaps of 0.
  std::vector<double> gap_seconds;
  int prompt_tokens = 0;
  int cached_tokens = 0;
  int completion_tokens = 0;
  // As the server says: evaluated prompt tokens a second.
  double prompt_per_second = 0;

  double ttft_seconds() const { return first_token_seconds - start_seconds; }
  double e2e_seconds() const { return end_seconds - start_seconds; }
  // Time per output token: the first belongs to the prompt. 0 with less than two tokens.
  double tpot_seconds() const {
    return completion_tokens < 2 ? 0 : (e2e_seconds() - ttft_seconds()) / (completion_tokens - 1);
  }
};

// What the server says of itself.
struct ServerFacts {
  std::string model;
  std::string digest;
  std::string mode;
  std::string plan_id;
  int64_t context_tokens = 0;
  int32_t vocab_size = 0;
};

// A connection to a server. Threads: Run() and Stop() from any number of threads.
class LoadClient {
 public:
  virtual ~LoadClient() = default;

  // Errors: kUnavailable (nobody answers), kUnauthenticated, kInternal (no sense in the answer).
  virtual absl::StatusOr<ServerFacts> Describe() = 0;

  // Streams one answer. A failure is in the sample's status.
  virtual LoadSample Run(const LoadRequest& request) = 0;

  // Ends what runs, and every later Run() at once, with kCancelled.
  virtual void Stop() = 0;
};

// `address` is host:port. An empty key sends none.
std::unique_ptr<LoadClient> MakeGrpcLoadClient(const std::string& address,
                                               const std::string& api_key);

// What the server at `url` (http://host:port) answers to GET `path`.
// Errors: kInvalidArgument (the url), kUnavailable (nobody answers), the server's.
absl::StatusOr<std::string> HttpGet(const std::string& url, const std::string& path,
                                    const std::string& api_key);

// `url` is http://host:port. Errors: kInvalidArgument.
absl::StatusOr<std::unique_ptr<LoadClient>> MakeHttpLoadClient(const std::string& url,
                                                               const std::string& api_key);

}  // namespace switchyard::app
