// Facts about an answer that several APIs show: times, tokens with their probabilities.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/generator.h"
#include "coordinator/http/json_text.h"
#include "coordinator/served_model.h"

namespace switchyard::coordinator::http {

// `timings` with the names of llama-server, and ours: queue_ms, ttft_ms, mode, plan_id, stages,
// data_path, and with several ranks what each rank and link did. Speeds count what was computed
// only: prompt_n leaves out the reused prefix, and predicted_per_second the first token, which
// belongs to the prompt.
//
// Units: milliseconds, tokens per second.
Json TimingsJson(const ServedModel& model, const GenerationEvent& last);

// OpenAI's `usage`.
Json UsageJson(const Usage& usage);

// The text of a token, for people; U+FFFD for bytes that are no UTF-8 by themselves.
std::string TokenText(const model::Tokenizer& tokenizer, int32_t token_id);

// What `logprobs.content` of a chat holds for each token.
Json ChatLogprobs(const model::Tokenizer& tokenizer, const std::vector<TokenInfo>& tokens);

// OpenAI's older form, of completions: parallel lists. `text_offset`: bytes of text before the
// first token; moved behind the last.
Json CompletionLogprobs(const model::Tokenizer& tokenizer, const std::vector<TokenInfo>& tokens,
                        int64_t& text_offset);

}  // namespace switchyard::coordinator::http
