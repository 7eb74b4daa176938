// OpenAI's API: models, chat completions, completions.
#pragma once

#include <string_view>

#include "coordinator/http/api_call.h"

namespace switchyard::coordinator::http {

// Threads: any. ChatCompletions() and Completions() take long for long prompts: they belong on a
// thread that may be busy.
class OpenAiApi {
 public:
  // `context` must outlive the API.
  explicit OpenAiApi(const ApiContext& context) : context_(context) {}

  void ListModels(ApiCall call) const;
  void GetModel(ApiCall call, std::string_view name) const;
  void ChatCompletions(ApiCall call) const;
  void Completions(ApiCall call) const;

 private:
  Json ModelJson() const;

  const ApiContext& context_;
};

}  // namespace switchyard::coordinator::http
