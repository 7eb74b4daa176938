// Answers in the form of OpenAI's API: chat completions and completions, whole and streamed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/http/generation_call.h"
#include "model/answer_parser.h"

namespace switchyard::coordinator::http {

struct OpenAiAnswerOptions {
  std::string id;  // of the answer
  int64_t created_unix_seconds = 0;
  bool is_streamed = false;
  bool has_logprobs = false;
  bool includes_usage = false;  // a stream ends with a chunk that holds it
  bool has_token_ids = false;   // of completions: beside their text
};

// `model` must outlive the writer.
std::unique_ptr<AnswerWriter> MakeChatAnswer(const ServedModel& model, OpenAiAnswerOptions options,
                                             model::AnswerParserOptions answer);
std::unique_ptr<AnswerWriter> MakeCompletionAnswer(const ServedModel& model,
                                                   OpenAiAnswerOptions options);

}  // namespace switchyard::coordinator::http
