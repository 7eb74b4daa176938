// Answers in the form of Anthropic's messages API, whole and streamed.
#pragma once

#include <memory>
#include <string>

#include "coordinator/http/generation_call.h"
#include "model/answer_parser.h"

namespace switchyard::coordinator::http {

// `model` must outlive the writer. `id`: of the message.
std::unique_ptr<AnswerWriter> MakeMessageAnswer(const ServedModel& model, std::string id,
                                                bool is_streamed,
                                                model::AnswerParserOptions answer);

}  // namespace switchyard::coordinator::http
