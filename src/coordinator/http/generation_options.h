// What requests of all HTTP APIs say about a generation beside its prompt.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "coordinator/generator.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/served_model.h"

namespace switchyard::coordinator::http {

// Checks the field `model`: absent, or the name of the served one.
// Errors: kNotFound.
void CheckModel(JsonFields& fields, const ServedModel& model);

// temperature (1 if absent), top_p, top_k, min_p and seed.
void ReadSampling(JsonFields& fields, GenerationRequest& request);

// A list of strings, or with `allows_one` also a single string: texts that end the generation.
void ReadStop(JsonFields& fields, std::string_view name, bool allows_one,
              GenerationRequest& request);

// What the OpenAI endpoints take besides, their own fields and those of llama-server and vLLM:
// penalties, logit_bias, ignore_eos, min_tokens, stop_token_ids, cache_prompt, cache_salt.
void ReadOpenAiOptions(JsonFields& fields, const ServedModel& model, GenerationRequest& request);

// Fields that change what is generated and that this server does not build: each is an error
// (kUnimplemented) rather than ignored.
void RefuseUnsupported(JsonFields& fields);

// labels: strings by strings, for reports.
std::map<std::string, std::string> ReadLabels(JsonFields& fields);

// Token ids, each inside the vocabulary.
std::vector<int32_t> ReadTokenIds(JsonFields& fields, std::string_view name, const Json& ids,
                                  const ServedModel& model);

}  // namespace switchyard::coordinator::http
