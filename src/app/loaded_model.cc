#include "app/loaded_model.h"

#include <utility>

#include "app/exit_code.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

model::ChatTemplate TemplateOf(const model::Tokenizer& tokenizer) {
  if (tokenizer.chat_template().empty()) {
    LogWarning("the model has no chat template; the built-in ChatML form is used");
    return model::ChatTemplate::BuiltInChatMl();
  }
  auto chat_template = model::ChatTemplate::Parse(tokenizer.chat_template());
  if (chat_template.ok()) return std::move(*chat_template);
  LogWarning("the model's chat template cannot be used, the built-in ChatML form is: {}",
             Message(chat_template.status()));
  return model::ChatTemplate::BuiltInChatMl();
}

absl::StatusOr<std::unique_ptr<LoadedModel>> Open(const std::string& path) {
  SWITCHYARD_ASSIGN_OR_RETURN(model::GgufFile file, model::GgufFile::Open(path));
  SWITCHYARD_ASSIGN_OR_RETURN(model::ModelSpec spec, model::LoadModelSpec(file));
  SWITCHYARD_ASSIGN_OR_RETURN(model::TokenizerData data, model::ReadTokenizerData(file.metadata()));
  SWITCHYARD_ASSIGN_OR_RETURN(model::Tokenizer tokenizer,
                              model::Tokenizer::Create(std::move(data)));
  if (tokenizer.vocab_size() > spec.vocab_size) {
    return DataLoss("the tokenizer has more tokens than the embedding has rows: {} > {}",
                    tokenizer.vocab_size(), spec.vocab_size);
  }
  model::ChatTemplate chat_template = TemplateOf(tokenizer);
  return std::make_unique<LoadedModel>(LoadedModel{std::move(file), std::move(spec),
                                                   std::move(tokenizer), std::move(chat_template)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoadedModel>> OpenModel(const std::string& path) {
  auto opened = Open(path);
  if (!opened.ok()) return WithExitCode(opened.status(), ExitCode::kModelRejected);
  return opened;
}

}  // namespace switchyard::app
