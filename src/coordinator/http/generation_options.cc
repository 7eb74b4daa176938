#include "coordinator/http/generation_options.h"

#include <charconv>
#include <limits>

#include "base/error_info.h"
#include "base/status.h"
#include "coordinator/request_limits.h"

namespace switchyard::coordinator::http {
namespace {

constexpr double kLargestFloat = std::numeric_limits<float>::max();
constexpr int64_t kLargestInt = std::numeric_limits<int32_t>::max();

// "17" -> 17; nothing for anything but decimal digits.
std::optional<int64_t> ParseTokenId(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value < 0 ||
      text[0] == '-') {
    return std::nullopt;
  }
  return value;
}

// Whether a field says no more than an absent one: clients send "" for what their user left open.
bool IsEmpty(const Json& value) {
  // Of a string empty() is false, whatever its length.
  return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
}

void ReadLogitBias(JsonFields& fields, const ServedModel& model, GenerationRequest& request) {
  const Json* const biases = fields.Object("logit_bias");
  if (biases == nullptr) return;
  if (biases->size() > kMaxLogitBias) {
    fields.FailType("logit_bias", fmt::format("of at most {} entries", kMaxLogitBias));
    return;
  }
  for (const auto& [key, bias] : biases->items()) {
    const std::string name = "logit_bias." + key;
    const std::optional<int64_t> token_id = ParseTokenId(key);
    if (!token_id || *token_id >= model.tokenizer.vocab_size()) {
      fields.Fail(WithField(InvalidArgument("logit_bias must be by token ids from 0 to {}, got: {}",
                                            model.tokenizer.vocab_size() - 1, key),
                            name));
      return;
    }
    if (!bias.is_number()) {
      fields.FailType(name, "a number");
      return;
    }
    const auto value = CheckedFloat(name, bias.get<double>(), -kMaxAbsLogitBias, kMaxAbsLogitBias);
    if (!value.ok()) {
      fields.Fail(value.status());
      return;
    }
    (*request.sampling.mutable_logit_bias())[static_cast<uint32_t>(*token_id)] = *value;
  }
}

}  // namespace

void CheckModel(JsonFields& fields, const ServedModel& model) {
  const std::optional<std::string> name = fields.String("model");
  if (!name || name->empty() || *name == model.name) return;
  fields.Fail(
      WithField(NotFound("model does not exist: {}, there is: {}", *name, model.name), "model"));
}

void ReadSampling(JsonFields& fields, GenerationRequest& request) {
  auto& sampling = request.sampling;
  sampling.set_temperature(fields.Number("temperature", 0, kLargestFloat).value_or(1));
  if (const auto value = fields.Number("top_p", 0, 1)) sampling.set_top_p(*value);
  if (const auto value = fields.Integer("top_k", 0, kLargestInt)) {
    sampling.set_top_k(static_cast<uint32_t>(*value));
  }
  if (const auto value = fields.Number("min_p", 0, 1)) sampling.set_min_p(*value);
  if (const auto value = fields.Unsigned("seed")) sampling.set_seed(*value);
}

void ReadStop(JsonFields& fields, std::string_view name, bool allows_one,
              GenerationRequest& request) {
  const Json* const stop = fields.Find(name);
  if (stop == nullptr) return;
  if (stop->is_string() && allows_one) {
    request.stop = {stop->get<std::string>()};
    return;
  }
  const std::string_view what = allows_one ? "a string or a list of strings" : "a list of strings";
  if (!stop->is_array()) {
    fields.FailType(name, what);
    return;
  }
  // The gate checks lengths; this bound keeps what is copied small.
  if (stop->size() > kMaxStopStrings) {
    fields.FailType(name, fmt::format("of at most {} strings", kMaxStopStrings));
    return;
  }
  for (const Json& text : *stop) {
    if (!text.is_string()) {
      fields.FailType(name, what);
      return;
    }
    request.stop.push_back(text.get<std::string>());
  }
}

std::vector<int32_t> ReadTokenIds(JsonFields& fields, std::string_view name, const Json& ids,
                                  const ServedModel& model) {
  std::vector<int32_t> token_ids;
  token_ids.reserve(ids.size());
  for (const Json& id : ids) {
    const auto value =
        JsonInteger(fields.Path(name), id, 0, int64_t{model.tokenizer.vocab_size()} - 1);
    if (!value.ok()) {
      fields.Fail(value.status());
      return {};
    }
    token_ids.push_back(static_cast<int32_t>(*value));
  }
  return token_ids;
}

void ReadOpenAiOptions(JsonFields& fields, const ServedModel& model, GenerationRequest& request) {
  CheckModel(fields, model);
  ReadSampling(fields, request);
  ReadStop(fields, "stop", /*allows_one=*/true, request);
  ReadLogitBias(fields, model, request);
  auto& sampling = request.sampling;
  for (const char* const name : {"repetition_penalty", "repeat_penalty"}) {
    if (const auto value = fields.Number(name, 0, kLargestFloat)) {
      sampling.set_repetition_penalty(*value);
    }
  }
  if (const auto value = fields.Number("presence_penalty", -kMaxAbsPenalty, kMaxAbsPenalty)) {
    sampling.set_presence_penalty(*value);
  }
  if (const auto value = fields.Number("frequency_penalty", -kMaxAbsPenalty, kMaxAbsPenalty)) {
    sampling.set_frequency_penalty(*value);
  }
  request.ignore_eos = fields.Bool("ignore_eos").value_or(false);
  request.min_tokens = static_cast<int>(fields.Integer("min_tokens", 0, kLargestInt).value_or(0));
  if (const Json* const ids = fields.Array("stop_token_ids")) {
    request.stop_token_ids = ReadTokenIds(fields, "stop_token_ids", *ids, model);
  }
  request.reuse_prefix = fields.Bool("cache_prompt").value_or(true);
  request.cache_salt = fields.String("cache_salt").value_or("");
  // The name that applies comes last.
  for (const char* const name : {"max_tokens", "max_completion_tokens"}) {
    if (const auto value = fields.Integer(name, 1, kLargestInt)) {
      request.max_tokens = static_cast<int>(*value);
    }
  }
}

void RefuseUnsupported(JsonFields& fields) {
  const auto refuse = [&](std::string_view name) {
    const std::string path = fields.Path(name);
    fields.Fail(WithField(Unimplemented("{} is not supported", path), path));
  };
  if (const auto n = fields.Integer("n", 1, 128); n && *n != 1) refuse("n");
  if (const auto best_of = fields.Integer("best_of", 1, 128); best_of && *best_of != 1) {
    refuse("best_of");
  }
  if (fields.Bool("echo").value_or(false)) refuse("echo");
  if (const auto suffix = fields.String("suffix"); suffix && !suffix->empty()) refuse("suffix");
  if (const Json* const format = fields.Object("response_format")) {
    JsonFields inner(*format, fields.Path("response_format"));
    const auto type = inner.String("type");
    fields.Fail(inner.status());
    if (type && *type != "text") refuse("response_format");
  }
  for (const char* const name :
       {"grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "structured_outputs", "functions", "function_call", "audio", "web_search_options"}) {
    if (const Json* const value = fields.Find(name); value != nullptr && !IsEmpty(*value)) {
      refuse(name);
    }
  }
}

std::map<std::string, std::string> ReadLabels(JsonFields& fields) {
  std::map<std::string, std::string> labels;
  const Json* const given = fields.Object("labels");
  if (given == nullptr) return labels;
  for (const auto& [key, value] : given->items()) {
    if (!value.is_string()) {
      fields.FailType("labels", "an object of strings");
      break;
    }
    labels.emplace(key, value.get<std::string>());
  }
  return labels;
}

}  // namespace switchyard::coordinator::http
