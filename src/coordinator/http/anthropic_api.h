// Anthropic's messages API, translated into the conversation that OpenAI's form would give.
#pragma once

#include "coordinator/http/api_call.h"

namespace switchyard::coordinator::http {

// Threads: any. Both take long for long prompts: they belong on a thread that may be busy.
class AnthropicApi {
 public:
  // `context` must outlive the API.
  explicit AnthropicApi(const ApiContext& context) : context_(context) {}

  void Messages(ApiCall call) const;
  void CountTokens(ApiCall call) const;

 private:
  const ApiContext& context_;
};

}  // namespace switchyard::coordinator::http
