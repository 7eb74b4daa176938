#include "coordinator/http/openai_answer.h"

#include <utility>
#include <vector>

#include "coordinator/http/answer_facts.h"

namespace switchyard::coordinator::http {
namespace {

std::string_view FinishReasonText(FinishReason reason) {
  switch (reason) {
    case FinishReason::kMaxTokens:
    case FinishReason::kContextFull:
    case FinishReason::kTimeLimit:
      return "length";
    default:
      return "stop";
  }
}

// What both kinds have: the frame around choices, the end of a stream.
class OpenAiAnswer : public AnswerWriter {
 public:
  OpenAiAnswer(const ServedModel& model, OpenAiAnswerOptions options)
      : model_(model), options_(std::move(options)) {}

  std::string ErrorEvent(const absl::Status& status) override {
    return SseEvent(ErrorJson(ToApiError(status), ErrorShape::kOpenAi));
  }

 protected:
  Json Frame(std::string_view object) const {
    return {{"id", options_.id},
            {"object", object},
            {"created", options_.created_unix_seconds},
            {"model", model_.name}};
  }

  // A chunk of a stream. `last`: of the final one, which has the finish reason.
  std::string Chunk(std::string_view object, Json choice, const GenerationEvent* last) const {
    Json chunk = Frame(object);
    chunk["choices"] = Json::array({std::move(choice)});
    if (options_.includes_usage) chunk["usage"] = nullptr;
    if (last != nullptr) chunk["timings"] = TimingsJson(model_, *last);
    return SseEvent(chunk);
  }

  std::string EndOfStream(std::string_view object, const GenerationEvent& last) const {
    std::string text;
    if (options_.includes_usage) {
      Json chunk = Frame(object);
      chunk["choices"] = Json::array();
      chunk["usage"] = UsageJson(last.usage);
      chunk["timings"] = TimingsJson(model_, last);
      text = SseEvent(chunk);
    }
    return text + "data: [DONE]\n\n";
  }

  Json WholeAnswer(std::string_view object, Json choice, const GenerationEvent& last) const {
    Json response = Frame(object);
    response["choices"] = Json::array({std::move(choice)});
    response["usage"] = UsageJson(last.usage);
    response["timings"] = TimingsJson(model_, last);
    return response;
  }

  const ServedModel& model_;
  const OpenAiAnswerOptions options_;
};

class ChatAnswer final : public OpenAiAnswer {
 public:
  ChatAnswer(const ServedModel& model, OpenAiAnswerOptions options,
             model::AnswerParserOptions answer)
      : OpenAiAnswer(model, std::move(options)), parser_(std::move(answer)) {}

  std::string OnEvent(const GenerationEvent& event) override {
    std::vector<model::AnswerPiece> pieces = parser_.Push(event.text);
    if (event.finished) {
      for (model::AnswerPiece& piece : parser_.Finish()) pieces.push_back(std::move(piece));
      last_ = event;
      finish_reason_ = FinishReasonText(event.reason);
      if (parser_.num_calls() > 0 && finish_reason_ == "stop") finish_reason_ = "tool_calls";
    }
    if (options_.is_streamed) return Chunks(event, pieces);
    for (const model::AnswerPiece& piece : pieces) answer_.Add(piece);
    tokens_.insert(tokens_.end(), event.logprobs.begin(), event.logprobs.end());
    return "";
  }

  Json Response() override {
    const bool only_calls = answer_.content.empty() && !answer_.tool_calls.empty();
    Json message = {{"role", "assistant"}, {"content", nullptr}};
    if (!only_calls) message["content"] = std::move(answer_.content);
    if (!answer_.reasoning.empty()) message["reasoning_content"] = std::move(answer_.reasoning);
    if (!answer_.tool_calls.empty()) {
      Json calls = Json::array();
      for (const auto& call : answer_.tool_calls) {
        calls.push_back({{"id", call.id},
                         {"type", "function"},
                         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
      }
      message["tool_calls"] = std::move(calls);
    }
    Json choice = {{"index", 0}, {"message", std::move(message)}};
    choice["logprobs"] = LogprobsMember(tokens_);
    choice["finish_reason"] = finish_reason_;
    return WholeAnswer("chat.completion", std::move(choice), last_);
  }

 private:
  static constexpr std::string_view kChunk = "chat.completion.chunk";

  std::string Chunks(const GenerationEvent& event, const std::vector<model::AnswerPiece>& pieces) {
    std::string text;
    if (!std::exchange(has_begun_, true)) {
      text += DeltaChunk({{"role", "assistant"}, {"content", ""}}, nullptr);
    }
    // Text may be held back while its tokens are known: they go with the first chunk there is.
    Json logprobs = event.logprobs.empty() ? Json() : LogprobsMember(event.logprobs);
    for (const model::AnswerPiece& piece : pieces) {
      text += DeltaChunk(Delta(piece), std::exchange(logprobs, nullptr));
    }
    if (!logprobs.is_null()) text += DeltaChunk(Json::object(), std::move(logprobs));
    if (event.finished) {
      Json choice = Choice(Json::object(), nullptr);
      choice["finish_reason"] = finish_reason_;
      text += Chunk(kChunk, std::move(choice), &event) + EndOfStream(kChunk, event);
    }
    return text;
  }

  Json LogprobsMember(const std::vector<TokenInfo>& tokens) const {
    if (!options_.has_logprobs) return nullptr;
    return {{"content", ChatLogprobs(model_.tokenizer, tokens)}, {"refusal", nullptr}};
  }

  static Json Choice(Json delta, Json logprobs) {
    return {{"index", 0},
            {"delta", std::move(delta)},
            {"logprobs", std::move(logprobs)},
            {"finish_reason", nullptr}};
  }

  std::string DeltaChunk(Json delta, Json logprobs) const {
    return Chunk(kChunk, Choice(std::move(delta), std::move(logprobs)), nullptr);
  }

  static Json Delta(const model::AnswerPiece& piece) {
    using Kind = model::AnswerPiece::Kind;
    if (piece.kind == Kind::kReasoning) return {{"reasoning_content", piece.text}};
    if (piece.kind == Kind::kContent) return {{"content", piece.text}};
    Json call = {{"index", piece.call_index}};
    Json function = Json::object();
    if (!piece.call_id.empty()) {
      call["id"] = piece.call_id;
      call["type"] = "function";
      function["name"] = piece.call_name;
    }
    function["arguments"] = piece.text;
    call["function"] = std::move(function);
    return {{"tool_calls", Json::array({std::move(call)})}};
  }

  model::AnswerParser parser_;
  model::ParsedAnswer answer_;
  std::vector<TokenInfo> tokens_;
  bool has_begun_ = false;
  GenerationEvent last_;
  std::string_view finish_reason_;
};

class CompletionAnswer final : public OpenAiAnswer {
 public:
  using OpenAiAnswer::OpenAiAnswer;

  std::string OnEvent(const GenerationEvent& event) override {
    if (event.finished) last_ = event;
    if (options_.is_streamed) return Chunks(event);
    text_ += event.text;
    token_ids_.insert(token_ids_.end(), event.token_ids.begin(), event.token_ids.end());
    tokens_.insert(tokens_.end(), event.logprobs.begin(), event.logprobs.end());
    return "";
  }

  Json Response() override {
    Json choice = Choice(std::move(text_), token_ids_);
    if (options_.has_logprobs) {
      int64_t text_offset = 0;
      choice["logprobs"] = CompletionLogprobs(model_.tokenizer, tokens_, text_offset);
    }
    choice["finish_reason"] = FinishReasonText(last_.reason);
    return WholeAnswer(kObject, std::move(choice), last_);
  }

 private:
  static constexpr std::string_view kObject = "text_completion";

  std::string Chunks(const GenerationEvent& event) {
    std::string out;
    const bool has_logprobs = options_.has_logprobs && !event.logprobs.empty();
    // Text may be held back while its tokens are known.
    const bool has_token_ids = options_.has_token_ids && !event.token_ids.empty();
    if (!event.text.empty() || has_logprobs || has_token_ids) {
      Json choice = Choice(event.text, event.token_ids);
      if (has_logprobs) {
        choice["logprobs"] = CompletionLogprobs(model_.tokenizer, event.logprobs, text_offset_);
      }
      out += Chunk(kObject, std::move(choice), nullptr);
    }
    if (event.finished) {
      Json choice = Choice("", {});
      choice["finish_reason"] = FinishReasonText(event.reason);
      out += Chunk(kObject, std::move(choice), &event) + EndOfStream(kObject, event);
    }
    return out;
  }

  Json Choice(std::string text, const std::vector<int32_t>& token_ids) const {
    Json choice = {
        {"index", 0}, {"text", std::move(text)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
    if (options_.has_token_ids) choice["token_ids"] = token_ids;
    return choice;
  }

  std::string text_;
  std::vector<int32_t> token_ids_;
  std::vector<TokenInfo> tokens_;
  int64_t text_offset_ = 0;
  GenerationEvent last_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeChatAnswer(const ServedModel& model, OpenAiAnswerOptions options,
                                             model::AnswerParserOptions answer) {
  return std::make_unique<ChatAnswer>(model, std::move(options), std::move(answer));
}

std::unique_ptr<AnswerWriter> MakeCompletionAnswer(const ServedModel& model,
                                                   OpenAiAnswerOptions options) {
  return std::make_unique<CompletionAnswer>(model, std::move(options));
}

}  // namespace switchyard::coordinator::http
