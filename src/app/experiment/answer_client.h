// Asks a server for answers whose ledger comes with them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "app/experiment/experiment_result.h"

namespace switchyard::app {

struct AnswerRequest {
  std::vector<int32_t> token_ids;  // the prompt, or
  std::string text;                // its text
  int max_tokens = 0;              // as many come: end tokens do not end the answer
  std::string cache_salt;          // requests with another one share no prefix
};

struct Answer {
  AnswerSample sample;  // but for what only a comparison of runs can tell
  std::vector<int32_t> token_ids;
};

struct AnsweringModel {
  int32_t vocab_size = 0;
  std::string digest;
  std::string architecture;
  std::string plan_id;
};

// Threads: one at a time.
class AnswerClient {
 public:
  virtual ~AnswerClient() = default;

  // Errors: kUnavailable.
  virtual absl::StatusOr<AnsweringModel> Describe() = 0;

  // Waits for the whole answer, at most `limit_seconds`. Greedy.
  // Errors: the server's, kDeadlineExceeded, kInternal for an answer that has no end.
  virtual absl::StatusOr<Answer> Ask(const AnswerRequest& request, double limit_seconds) = 0;
};

// `address` is host:port of a server's gRPC.
std::unique_ptr<AnswerClient> MakeAnswerClient(const std::string& address);

}  // namespace switchyard::app
