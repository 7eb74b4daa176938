#include "coordinator/http/anthropic_answer.h"

#include <utility>
#include <vector>

#include "coordinator/http/answer_facts.h"

namespace switchyard::coordinator::http {
namespace {

using Kind = model::AnswerPiece::Kind;

std::string_view StopReason(FinishReason reason, bool has_calls) {
  switch (reason) {
    case FinishReason::kMaxTokens:
    case FinishReason::kTimeLimit:
      return "max_tokens";
    case FinishReason::kContextFull:
      return "model_context_window_exceeded";
    case FinishReason::kStopSequence:
      return "stop_sequence";
    default:
      return has_calls ? "tool_use" : "end_turn";
  }
}

// There, input_tokens leaves out what came from the cache.
Json MessageUsage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

class MessageAnswer final : public AnswerWriter {
 public:
  MessageAnswer(const ServedModel& model, std::string id, bool is_streamed,
                model::AnswerParserOptions answer)
      : model_(model), id_(std::move(id)), is_streamed_(is_streamed), parser_(std::move(answer)) {}

  std::string OnEvent(const GenerationEvent& event) override {
    std::vector<model::AnswerPiece> pieces = parser_.Push(event.text);
    if (event.finished) {
      for (model::AnswerPiece& piece : parser_.Finish()) pieces.push_back(std::move(piece));
      last_ = event;
    }
    std::string out;
    if (is_streamed_ && !std::exchange(has_begun_, true)) out += MessageStart(event.usage);
    for (const model::AnswerPiece& piece : pieces) {
      if (is_streamed_) {
        AddDelta(piece, out);
      } else {
        AddToBlocks(piece);
      }
    }
    if (is_streamed_ && event.finished) {
      StopBlock(out);
      out += MessageStop();
    }
    return out;
  }

  Json Response() override {
    Json content = Json::array();
    for (Block& block : blocks_) content.push_back(BlockJson(std::move(block)));
    Json message = Message(std::move(content), last_.usage);
    message["stop_reason"] = StopReason(last_.reason, parser_.num_calls() > 0);
    message["stop_sequence"] = StopSequence();
    message["timings"] = TimingsJson(model_, last_);
    return message;
  }

  std::string ErrorEvent(const absl::Status& status) override {
    return SseEvent(ErrorJson(ToApiError(status), ErrorShape::kAnthropic), "error");
  }

  std::string Ping() const override { return SseEvent({{"type", "ping"}}, "ping"); }

 private:
  // A block of content; of a call, `text` is its input as JSON.
  struct Block {
    Kind kind = Kind::kContent;
    std::string text{};
    std::string call_id{};
    std::string call_name{};
  };

  static bool Continues(const Block& block, const model::AnswerPiece& piece) {
    return block.kind == piece.kind && piece.call_id.empty();
  }

  static Block NewBlock(const model::AnswerPiece& piece) {
    return {.kind = piece.kind, .call_id = piece.call_id, .call_name = piece.call_name};
  }

  static Json BlockJson(Block block) {
    switch (block.kind) {
      case Kind::kReasoning:
        // Signatures are for servers that check what comes back; here nothing is checked.
        return {{"type", "thinking"}, {"thinking", std::move(block.text)}, {"signature", ""}};
      case Kind::kContent:
        return {{"type", "text"}, {"text", std::move(block.text)}};
      case Kind::kToolCall:
        break;
    }
    Json input = Json::object();
    if (auto parsed = ParseJson(block.text); parsed.ok()) input = *std::move(parsed);
    return {{"type", "tool_use"},
            {"id", std::move(block.call_id)},
            {"name", std::move(block.call_name)},
            {"input", std::move(input)}};
  }

  void AddToBlocks(const model::AnswerPiece& piece) {
    if (blocks_.empty() || !Continues(blocks_.back(), piece)) blocks_.push_back(NewBlock(piece));
    blocks_.back().text += piece.text;
  }

  Json Message(Json content, const Usage& usage) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_.name},
            {"content", std::move(content)},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr},
            {"usage", MessageUsage(usage)}};
  }

  std::string MessageStart(const Usage& usage) const {
    return SseEvent({{"type", "message_start"}, {"message", Message(Json::array(), usage)}},
                    "message_start") +
           Ping();
  }

  // A stream has one open block at a time: the last of `blocks_`, whose text is not kept.
  void AddDelta(const model::AnswerPiece& piece, std::string& out) {
    if (!is_block_open_ || !Continues(blocks_.back(), piece)) {
      StopBlock(out);
      blocks_.push_back(NewBlock(piece));
      is_block_open_ = true;
      out += SseEvent({{"type", "content_block_start"},
                       {"index", blocks_.size() - 1},
                       {"content_block", BlockJson(blocks_.back())}},
                      "content_block_start");
    }
    if (piece.text.empty()) return;
    Json delta;
    switch (piece.kind) {
      case Kind::kReasoning:
        delta = {{"type", "thinking_delta"}, {"thinking", piece.text}};
        break;
      case Kind::kContent:
        delta = {{"type", "text_delta"}, {"text", piece.text}};
        break;
      case Kind::kToolCall:
        delta = {{"type", "input_json_delta"}, {"partial_json", piece.text}};
        break;
    }
    out += SseEvent({{"type", "content_block_delta"},
                     {"index", blocks_.size() - 1},
                     {"delta", std::move(delta)}},
                    "content_block_delta");
  }

  void StopBlock(std::string& out) {
    if (!std::exchange(is_block_open_, false)) return;
    out += SseEvent({{"type", "content_block_stop"}, {"index", blocks_.size() - 1}},
                    "content_block_stop");
  }

  std::string MessageStop() const {
    const Json delta = {{"stop_reason", StopReason(last_.reason, parser_.num_calls() > 0)},
                        {"stop_sequence", StopSequence()}};
    return SseEvent({{"type", "message_delta"},
                     {"delta", delta},
                     {"usage", MessageUsage(last_.usage)},
                     {"timings", TimingsJson(model_, last_)}},
                    "message_delta") +
           SseEvent({{"type", "message_stop"}}, "message_stop");
  }

  Json StopSequence() const {
    if (last_.reason != FinishReason::kStopSequence) return nullptr;
    return last_.stop_sequence;
  }

  const ServedModel& model_;
  const std::string id_;
  const bool is_streamed_;
  model::AnswerParser parser_;
  std::vector<Block> blocks_;
  bool is_block_open_ = false;
  bool has_begun_ = false;
  GenerationEvent last_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeMessageAnswer(const ServedModel& model, std::string id,
                                                bool is_streamed,
                                                model::AnswerParserOptions answer) {
  return std::make_unique<MessageAnswer>(model, std::move(id), is_streamed, std::move(answer));
}

}  // namespace switchyard::coordinator::http
