// The server's own endpoints, most in the form of llama-server: health, tokenizer, template,
// settings, slots, metrics, description of the API.
#pragma once

#include "coordinator/http/api_call.h"

namespace switchyard::coordinator::http {

// Threads: any. Tokenize(), Detokenize() and ApplyTemplate() take long for long texts, Residency()
// for many experts: they belong on a thread that may be busy.
class NativeApi {
 public:
  // `context` must outlive the API.
  explicit NativeApi(const ApiContext& context) : context_(context) {}

  void Live(ApiCall call) const;
  void Ready(ApiCall call) const;
  void Tokenize(ApiCall call) const;
  void Detokenize(ApiCall call) const;
  void ApplyTemplate(ApiCall call) const;
  void Props(ApiCall call) const;
  void Slots(ApiCall call) const;
  void Metrics(ApiCall call) const;
  void Residency(ApiCall call) const;
  void OpenApi(ApiCall call) const;

 private:
  const ApiContext& context_;
};

}  // namespace switchyard::coordinator::http
