// Every method and every class of error over a socket; the generator is driven by hand.
#include "coordinator/generation_service.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <mutex>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/error_info.h"
#include "base/status.h"
#include "coordinator/service_fixture.h"
#include "testing/fake_generator.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::generation::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GenerationServiceTest : public ::testing::Test {
 protected:
  static v1::StreamGenerateRequest TextRequest(const std::string& text = "hello") {
    v1::StreamGenerateRequest request;
    request.mutable_spec()->set_text(text);
    return request;
  }

  // Runs a streamed call to its end.
  grpc::Status Call(const v1::StreamGenerateRequest& request,
                    std::vector<v1::StreamGenerateResponse>* events = nullptr) {
    grpc::ClientContext context;
    const auto reader = fixture_.stub().StreamGenerate(&context, request);
    v1::StreamGenerateResponse event;
    while (reader->Read(&event)) {
      if (events != nullptr) events->push_back(event);
    }
    return reader->Finish();
  }

  // Start() delivers the whole answer "Hi" before it returns.
  void AnswerAtOnce() {
    GenerationEvent event;
    event.started = true;
    event.text = "Hi";
    event.token_ids = {39, 72};
    event.logprobs.resize(2);
    event.logprobs[0].token_id = 39;
    event.logprobs[0].logprob = -0.5f;
    event.logprobs[0].top = {{39, -0.5f}, {40, -1.5f}};
    event.logprobs[1].token_id = 72;
    event.finished = true;
    event.reason = FinishReason::kStopSequence;
    event.stop_sequence = "!";
    event.usage = {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 3};
    event.timings = {.queue_seconds = 0.5,
                     .prefill_seconds = 2,
                     .ttft_seconds = 2.5,
                     .decode_seconds = 0.5,
                     .total_seconds = 3};
    event.replayed = true;
    event.costs.num_steps = 2;
    event.costs.seconds = 0.25;
    event.costs.stages[worker::v1::STAGE_HEAD] = {.seconds = 0.125, .weight_bytes = 64};
    generator_.EmitAtStart(event);
  }

  testing::FakeGenerator generator_;
  ServiceFixture fixture_{generator_};
};

// ---- answers
// --------------------------------------------------------------------------------------

TEST_F(GenerationServiceTest, StreamHasStartDeltaAndEnd) {
  AnswerAtOnce();
  auto request = TextRequest();
  request.mutable_spec()->set_request_id("mine");
  request.mutable_spec()->mutable_output()->set_include_token_ids(true);
  request.mutable_spec()->mutable_output()->set_logprobs_top_n(2);
  std::vector<v1::StreamGenerateResponse> events;
  ASSERT_TRUE(Call(request, &events).ok());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].started().request_id(), "mine");
  EXPECT_EQ(events[0].started().model(), "tiny");
  EXPECT_EQ(events[0].started().plan_id(), "plan-1");
  EXPECT_EQ(events[0].started().prompt_tokens(), 10u);
  EXPECT_EQ(events[0].started().cached_tokens(), 4u);
  EXPECT_EQ(events[1].delta().text(), "Hi");
  EXPECT_THAT(events[1].delta().token_ids(), ElementsAre(39, 72));
  ASSERT_EQ(events[1].delta().logprobs_size(), 2);
  EXPECT_EQ(events[1].delta().logprobs(0).sampled().token(), "H");
  EXPECT_EQ(events[1].delta().logprobs(0).sampled().logprob(), -0.5f);
  EXPECT_EQ(events[1].delta().logprobs(0).top(1).token(), "I");
  const v1::Finished& finished = events[2].finished();
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_STOP_SEQUENCE);
  EXPECT_EQ(finished.stop_sequence(), "!");
  EXPECT_TRUE(finished.replayed());
  EXPECT_EQ(finished.usage().completion_tokens(), 3u);
  EXPECT_EQ(finished.timings().prompt_ms(), 2000);
  EXPECT_EQ(finished.timings().prompt_per_second(), 3);  // 6 evaluated in 2 s
  EXPECT_EQ(finished.timings().decode_per_second(), 4);  // 2 after the first in 0.5 s
  EXPECT_EQ(finished.timings().data_path().weight_bytes(), 64u);
  EXPECT_EQ(finished.timings().steps().num_steps(), 2u);
  ASSERT_EQ(finished.timings().steps().stages_size(), 2);
  EXPECT_EQ(finished.timings().steps().stages(0).stage(), "head");
  EXPECT_EQ(finished.timings().steps().stages(0).duration_ns(), 125'000'000u);
  EXPECT_EQ(finished.timings().steps().stages(1).stage(), "unattributed");
}

TEST_F(GenerationServiceTest, WholeAnswerHoldsAllOfIt) {
  AnswerAtOnce();
  v1::GenerateRequest request;
  request.mutable_spec()->set_text("hello");
  request.mutable_spec()->mutable_output()->set_include_token_ids(true);
  grpc::ClientContext context;
  v1::GenerateResponse response;
  ASSERT_TRUE(fixture_.stub().Generate(&context, request, &response).ok());
  EXPECT_THAT(response.request_id(), ::testing::StartsWith("req-"));
  EXPECT_EQ(response.model(), "tiny");
  EXPECT_EQ(response.text(), "Hi");
  EXPECT_THAT(response.token_ids(), ElementsAre(39, 72));
  EXPECT_EQ(response.finished().reason(), v1::FINISH_REASON_STOP_SEQUENCE);
}

TEST_F(GenerationServiceTest, EventsArriveWhileTheGenerationRuns) {
  grpc::ClientContext context;
  auto request = TextRequest();
  request.mutable_spec()->mutable_output()->set_include_prompt_progress(true);
  request.mutable_spec()->mutable_output()->set_include_step_trace(true);
  const auto reader = fixture_.stub().StreamGenerate(&context, request);
  generator_.WaitForStarts(1);
  GenerationEvent progress;
  progress.usage.prompt_tokens = 5;
  progress.num_prefilled = 3;
  generator_.Emit(1, progress);
  v1::StreamGenerateResponse event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.prompt_progress().processed_tokens(), 3u);
  EXPECT_EQ(event.prompt_progress().total_tokens(), 5u);
  GenerationEvent token;
  token.text = "a";
  token.token_ids = {64};
  token.num_prefilled = 3;
  token.costs.num_steps = 1;
  token.costs.seconds = 0.5;
  generator_.Emit(1, token);
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.delta().text(), "a");
  EXPECT_EQ(event.delta().token_ids_size(), 0) << "nobody asked";
  EXPECT_EQ(event.delta().trace().num_steps(), 1u);
  EXPECT_EQ(event.delta().trace().duration_ns(), 500'000'000u);
  generator_.Finish(1, FinishReason::kContextFull);
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.finished().reason(), v1::FINISH_REASON_CONTEXT_FULL);
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GenerationServiceTest, EveryOptionReachesTheGenerator) {
  AnswerAtOnce();
  auto request = TextRequest();
  v1::GenerationSpec& spec = *request.mutable_spec();
  v1::ChatPrompt& chat = *spec.mutable_chat();
  v1::ChatMessage& message = *chat.add_messages();
  message.set_role("user");
  message.set_content("hi");
  (*chat.mutable_template_arguments()->mutable_fields())["suffix"].set_string_value("~");
  v1::SamplingParams& sampling = *spec.mutable_sampling();
  sampling.set_top_p(0.5f);
  sampling.set_min_p(0.25f);
  sampling.set_top_k(7);
  sampling.set_typical_p(1);
  sampling.set_repetition_penalty(1.5f);
  sampling.set_presence_penalty(0.5f);
  sampling.set_frequency_penalty(-0.5f);
  sampling.set_seed(0);
  (*sampling.mutable_logit_bias())[3] = -2;
  sampling.add_order(v1::SAMPLER_KIND_PENALTIES);
  sampling.add_order(v1::SAMPLER_KIND_TOP_P);
  v1::StopCriteria& stop = *spec.mutable_stop();
  stop.set_max_tokens(9);
  stop.set_min_tokens(2);
  stop.add_stop("x");
  stop.add_stop_token_ids(5);
  stop.set_ignore_eos(true);
  stop.mutable_time_limit()->set_seconds(1);
  stop.mutable_time_limit()->set_nanos(500'000'000);
  spec.mutable_cache()->set_reuse_prefix(false);
  spec.mutable_cache()->set_cache_salt("s");
  ASSERT_TRUE(Call(request).ok());

  const GenerationRequest got = generator_.requests().at(0);
  EXPECT_EQ(got.prompt,
            ChatPrompt(fixture_.model().tokenizer, fixture_.model().chat_template,
                       {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"suffix", "~"}})
                ->token_ids);
  EXPECT_THAT(got.message_borders, ElementsAre(8));
  EXPECT_EQ(got.sampling.temperature(), 1) << "the default of the protocol";
  EXPECT_EQ(got.sampling.top_p(), 0.5f);
  EXPECT_EQ(got.sampling.min_p(), 0.25f);
  EXPECT_EQ(got.sampling.top_k(), 7u);
  EXPECT_EQ(got.sampling.repetition_penalty(), 1.5f);
  EXPECT_EQ(got.sampling.presence_penalty(), 0.5f);
  EXPECT_EQ(got.sampling.frequency_penalty(), -0.5f);
  EXPECT_TRUE(got.sampling.has_seed());
  EXPECT_EQ(got.sampling.logit_bias().at(3), -2);
  EXPECT_EQ(got.max_tokens, 9);
  EXPECT_EQ(got.min_tokens, 2);
  EXPECT_THAT(got.stop, ElementsAre("x"));
  EXPECT_THAT(got.stop_token_ids, ElementsAre(5));
  EXPECT_TRUE(got.ignore_eos);
  EXPECT_EQ(got.time_limit_seconds, 1.5);
  EXPECT_FALSE(got.reuse_prefix);
  EXPECT_EQ(got.cache_salt, "s");
}

TEST_F(GenerationServiceTest, AbsentOptionsAreTheDefaults) {
  AnswerAtOnce();
  auto request = TextRequest();
  request.mutable_spec()->mutable_token_ids()->add_ids(5);
  ASSERT_TRUE(Call(request).ok());
  const GenerationRequest got = generator_.requests().at(0);
  EXPECT_THAT(got.prompt, ElementsAre(5));
  EXPECT_FALSE(got.max_tokens.has_value());
  EXPECT_EQ(got.min_tokens, 0);
  EXPECT_TRUE(got.reuse_prefix);
  EXPECT_FALSE(got.sampling.has_seed());
  EXPECT_FALSE(got.num_logprobs.has_value());
  EXPECT_FALSE(got.return_step_costs);
  EXPECT_EQ(got.time_limit_seconds, 6 * 3600) << "the server's cap";
}

TEST_F(GenerationServiceTest, TextAndTokensConvertBothWays) {
  grpc::ClientContext tokenize_context, detokenize_context;
  v1::TokenizeRequest tokenize;
  tokenize.set_text("a<|im_end|>");
  tokenize.set_parse_special(true);
  tokenize.set_include_pieces(true);
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(fixture_.stub().Tokenize(&tokenize_context, tokenize, &tokens).ok());
  EXPECT_THAT(tokens.token_ids(), ElementsAre('a' - '!', 257));
  EXPECT_THAT(tokens.pieces(), ElementsAre("a", "<|im_end|>"));
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = tokens.token_ids();
  detokenize.set_include_special(true);
  v1::DetokenizeResponse text;
  ASSERT_TRUE(fixture_.stub().Detokenize(&detokenize_context, detokenize, &text).ok());
  EXPECT_EQ(text.text(), "a<|im_end|>");
}

TEST_F(GenerationServiceTest, ControlTokensInTextAreTextUnlessAskedFor) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text("<|im_end|>");
  v1::TokenizeResponse response;
  ASSERT_TRUE(fixture_.stub().Tokenize(&context, request, &response).ok());
  EXPECT_EQ(response.token_ids_size(), 10);
}

TEST_F(GenerationServiceTest, ChatIsRenderedWithoutInference) {
  grpc::ClientContext context;
  v1::RenderChatRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("<|im_end|>");
  request.mutable_chat()->set_add_generation_prompt(false);
  v1::RenderChatResponse response;
  ASSERT_TRUE(fixture_.stub().RenderChat(&context, request, &response).ok());
  EXPECT_EQ(response.text(), "user:<|im_end|><|im_end|>");
  EXPECT_EQ(response.token_ids_size(), 16) << "only the template's end is a token";
  EXPECT_TRUE(response.spans(response.spans_size() - 1).is_template());
  EXPECT_FALSE(response.spans(0).is_template());
  EXPECT_TRUE(generator_.requests().empty());
}

TEST_F(GenerationServiceTest, ModelIsDescribed) {
  grpc::ClientContext get_context, list_context;
  v1::GetModelRequest get;
  get.set_name("tiny");
  v1::GetModelResponse got;
  ASSERT_TRUE(fixture_.stub().GetModel(&get_context, get, &got).ok());
  EXPECT_EQ(got.model().name(), "tiny");
  EXPECT_EQ(got.model().create_time().seconds(), 1000);
  EXPECT_EQ(got.model().context_tokens(), 1024u);
  EXPECT_EQ(got.model().file_bytes(), 77u);
  EXPECT_TRUE(got.model().has_own_chat_template());
  EXPECT_FALSE(got.model().supports_tools());
  v1::ListModelsResponse list;
  ASSERT_TRUE(fixture_.stub().ListModels(&list_context, {}, &list).ok());
  ASSERT_EQ(list.models_size(), 1);
  EXPECT_EQ(list.models(0).SerializeAsString(), got.model().SerializeAsString());
  EXPECT_EQ(list.next_page_token(), "");
}

// ---- errors
// ---------------------------------------------------------------------------------------

struct BadSpec {
  const char* name;
  std::function<void(v1::GenerationSpec&)> make;
  absl::StatusCode code;
  const char* field;
};

TEST_F(GenerationServiceTest, BadFieldsAreRefusedByName) {
  using Code = absl::StatusCode;
  const auto add_message = [](v1::GenerationSpec& spec, const char* role) {
    spec.mutable_chat()->add_messages()->set_role(role);
  };
  const BadSpec kCases[] = {
      {"no prompt", [](auto& s) { s.clear_text(); }, Code::kInvalidArgument, "spec.prompt"},
      {"token id", [](auto& s) { s.mutable_token_ids()->add_ids(9999); }, Code::kInvalidArgument,
       "spec.token_ids.ids"},
      {"huge token id", [](auto& s) { s.mutable_token_ids()->add_ids(0xffffffff); },
       Code::kInvalidArgument, "spec.token_ids.ids"},
      {"no messages", [](auto& s) { s.mutable_chat(); }, Code::kInvalidArgument,
       "spec.chat.messages"},
      {"no role", [&](auto& s) { add_message(s, ""); }, Code::kInvalidArgument,
       "spec.chat.messages"},
      {"template refuses", [&](auto& s) { add_message(s, "wizard"); }, Code::kInvalidArgument,
       "spec.chat.messages"},
      {"tools", [&](auto& s) { s.mutable_chat()->add_tools_json("{}"); }, Code::kUnimplemented,
       "spec.chat.tools_json"},
      {"model", [](auto& s) { s.set_model("other"); }, Code::kNotFound, ""},
      {"typical_p", [](auto& s) { s.mutable_sampling()->set_typical_p(0.5f); },
       Code::kUnimplemented, "spec.sampling.typical_p"},
      {"order",
       [](auto& s) {
         s.mutable_sampling()->add_order(v1::SAMPLER_KIND_TOP_P);
         s.mutable_sampling()->add_order(v1::SAMPLER_KIND_TOP_K);
       },
       Code::kUnimplemented, "spec.sampling.order"},
      {"bias", [](auto& s) { (*s.mutable_sampling()->mutable_logit_bias())[1] = NAN; },
       Code::kInvalidArgument, "spec.sampling.logit_bias"},
      {"presence", [](auto& s) { s.mutable_sampling()->set_presence_penalty(3); },
       Code::kInvalidArgument, "spec.sampling.presence_penalty"},
      {"max_tokens", [](auto& s) { s.mutable_stop()->set_max_tokens(0x80000000); },
       Code::kInvalidArgument, "spec.stop.max_tokens"},
      {"stop id", [](auto& s) { s.mutable_stop()->add_stop_token_ids(258); },
       Code::kInvalidArgument, "spec.stop.stop_token_ids"},
      {"stops",
       [](auto& s) {
         for (int i = 0; i < 17; ++i) s.mutable_stop()->add_stop("x");
       },
       Code::kInvalidArgument, "spec.stop.stop"},
      {"logprobs", [](auto& s) { s.mutable_output()->set_logprobs_top_n(21); },
       Code::kInvalidArgument, "spec.output.logprobs_top_n"},
      {"labels", [](auto& s) { (*s.mutable_labels())["k"] = std::string(65, 'x'); },
       Code::kInvalidArgument, "spec.labels"},
      {"request id", [](auto& s) { s.set_request_id(std::string(129, 'x')); },
       Code::kInvalidArgument, "spec.request_id"},
  };
  for (const BadSpec& c : kCases) {
    auto request = TextRequest();
    c.make(*request.mutable_spec());
    const absl::Status status = FromGrpcStatus(Call(request));
    EXPECT_EQ(status.code(), c.code) << c.name << ": " << status;
    EXPECT_EQ(FieldOf(status), c.field) << c.name;
    grpc::ClientContext context;
    v1::GenerateRequest unary;
    *unary.mutable_spec() = request.spec();
    v1::GenerateResponse response;
    EXPECT_EQ(FromGrpcStatus(fixture_.stub().Generate(&context, unary, &response)), status)
        << c.name << " without a stream";
  }
  EXPECT_TRUE(generator_.requests().empty());
}

TEST_F(GenerationServiceTest, OtherMethodsRefuseToo) {
  grpc::ClientContext a, b, c, d;
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(258);
  v1::DetokenizeResponse text;
  const absl::Status status = FromGrpcStatus(fixture_.stub().Detokenize(&a, detokenize, &text));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(status), "token_ids");
  v1::TokenizeRequest tokenize;
  tokenize.set_model("other");
  v1::TokenizeResponse tokens;
  EXPECT_EQ(fixture_.stub().Tokenize(&b, tokenize, &tokens).error_code(), grpc::NOT_FOUND);
  v1::GetModelRequest get;
  get.set_name("other");
  v1::GetModelResponse model;
  EXPECT_EQ(fixture_.stub().GetModel(&c, get, &model).error_code(), grpc::NOT_FOUND);
  v1::ListModelsRequest list;
  list.set_page_token("2");
  v1::ListModelsResponse models;
  EXPECT_EQ(FieldOf(FromGrpcStatus(fixture_.stub().ListModels(&d, list, &models))), "page_token");
}

TEST_F(GenerationServiceTest, StatesAndFullQueuesSayWhenToTryAgain) {
  const auto expect = [&](absl::StatusCode code, std::string_view reason) {
    const absl::Status status = FromGrpcStatus(Call(TextRequest()));
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(ReasonOf(status), reason);
    EXPECT_TRUE(RetryAfterOf(status).has_value()) << status;
  };
  generator_.RefuseStarts(
      WithRetryAfter(WithReason(ResourceExhausted("queue is full"), kQueueFull), 1));
  expect(absl::StatusCode::kResourceExhausted, kQueueFull);
  fixture_.gate().SetEngineState(EngineState::kLoading);
  expect(absl::StatusCode::kUnavailable, kModelLoading);
  fixture_.gate().SetEngineState(EngineState::kFailed);
  expect(absl::StatusCode::kUnavailable, kWorkerLost);
  fixture_.gate().BeginDrain();
  expect(absl::StatusCode::kUnavailable, kDraining);
}

TEST_F(GenerationServiceTest, IdOfARunningRequestIsRefused) {
  auto request = TextRequest();
  request.mutable_spec()->set_request_id("same");
  grpc::ClientContext context;
  const auto reader = fixture_.stub().StreamGenerate(&context, request);
  generator_.WaitForStarts(1);
  EXPECT_EQ(Call(request).error_code(), grpc::ALREADY_EXISTS);
  generator_.Finish(1, FinishReason::kMaxTokens);
  v1::StreamGenerateResponse event;
  EXPECT_TRUE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GenerationServiceTest, LossInTheMiddleEndsWithItsReason) {
  grpc::ClientContext context;
  const auto reader = fixture_.stub().StreamGenerate(&context, TextRequest());
  generator_.WaitForStarts(1);
  generator_.EmitText(1, "half");
  v1::StreamGenerateResponse event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.delta().text(), "half");
  generator_.Finish(1, FinishReason::kFailed,
                    WithRetryAfter(WithReason(Unavailable("worker lost"), kWorkerLost), 3));
  EXPECT_FALSE(reader->Read(&event)) << "an error is no event";
  const absl::Status status = FromGrpcStatus(reader->Finish());
  EXPECT_EQ(ReasonOf(status), kWorkerLost);
  EXPECT_EQ(RetryAfterOf(status), 3);
}

TEST_F(GenerationServiceTest, BugsTellNoPaths) {
  grpc::ClientContext context;
  const auto reader = fixture_.stub().StreamGenerate(&context, TextRequest());
  generator_.WaitForStarts(1);
  generator_.Finish(1, FinishReason::kFailed, Internal("bad page at 0x1234 in /srv/model.gguf"));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::INTERNAL);
  EXPECT_EQ(status.error_message(), "the server failed; its log says how");
}

TEST_F(GenerationServiceTest, MessagesOverTheLimitAreRefused) {
  const absl::Status status =
      FromGrpcStatus(Call(TextRequest(std::string(kMaxClientMessageBytes + 1000, 'x'))));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST_F(GenerationServiceTest, EndOfADrainReachesTheClient) {
  grpc::ClientContext context;
  const auto reader = fixture_.stub().StreamGenerate(&context, TextRequest());
  generator_.WaitForStarts(1);
  fixture_.gate().BeginDrain();
  fixture_.gate().CancelAll();
  const absl::Status status = FromGrpcStatus(reader->Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), kDraining);
}

// ---- cancellation and deadlines
// ---------------------------------------------------------------------

TEST_F(GenerationServiceTest, ClientThatLeavesEndsItsGeneration) {
  grpc::ClientContext context;
  const auto reader = fixture_.stub().StreamGenerate(&context, TextRequest());
  generator_.WaitForStarts(1);
  generator_.EmitText(1, "x");
  v1::StreamGenerateResponse event;
  ASSERT_TRUE(reader->Read(&event));
  context.TryCancel();
  generator_.WaitForCancels(1);
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(fixture_.gate().WaitUntilIdle(60));
}

TEST_F(GenerationServiceTest, ClientThatLeavesAnUnaryCallEndsItsGenerationToo) {
  grpc::ClientContext context;
  grpc::Status status;
  std::thread client([&] {
    v1::GenerateRequest request;
    request.mutable_spec()->set_text("hello");
    v1::GenerateResponse response;
    status = fixture_.stub().Generate(&context, request, &response);
  });
  generator_.WaitForStarts(1);
  context.TryCancel();
  generator_.WaitForCancels(1);
  client.join();
  EXPECT_EQ(status.error_code(), grpc::CANCELLED);
}

TEST_F(GenerationServiceTest, LostConnectionEndsItsGeneration) {
  {
    const auto stub = fixture_.Stub({});
    grpc::ClientContext context;
    const auto reader = stub->StreamGenerate(&context, TextRequest());
    generator_.WaitForStarts(1);
  }  // call and channel are gone
  generator_.WaitForCancels(1);
  EXPECT_TRUE(fixture_.gate().WaitUntilIdle(60));
}

TEST_F(GenerationServiceTest, DeadlineOfTheCallIsALimitOfTheGeneration) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(3000));
  const auto reader = fixture_.stub().StreamGenerate(&context, TextRequest());
  generator_.WaitForStarts(1);
  const double limit = *generator_.requests().at(0).time_limit_seconds;
  EXPECT_GT(limit, 2000);
  EXPECT_LE(limit, 3010);  // gRPC sends timeouts of this length in steps of ten seconds, rounded up
  generator_.Finish(1, FinishReason::kTimeLimit);
  EXPECT_EQ(reader->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
}

TEST_F(GenerationServiceTest, LimitOfTheClientsFieldIsAReasonNotAnError) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(3000));
  auto request = TextRequest();
  request.mutable_spec()->mutable_stop()->mutable_time_limit()->set_seconds(1);
  const auto reader = fixture_.stub().StreamGenerate(&context, request);
  generator_.WaitForStarts(1);
  generator_.Finish(1, FinishReason::kTimeLimit);
  v1::StreamGenerateResponse event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.finished().reason(), v1::FINISH_REASON_TIME_LIMIT);
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GenerationServiceTest, PassedDeadlineCancels) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  const auto reader = fixture_.stub().StreamGenerate(&context, TextRequest());
  EXPECT_EQ(reader->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_TRUE(fixture_.gate().WaitUntilIdle(60));
}

// ---- slow readers
// -----------------------------------------------------------------------------------

// Without these a client that never reads takes megabytes before anything blocks.
grpc::ChannelArguments SmallWindows() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  return arguments;
}

TEST(GenerationServiceSlowReaderTest, FullBufferCancelsAndTheClientLearnsWhy) {
  testing::FakeGenerator generator;
  ServiceFixture fixture(generator, {.max_buffered_bytes = 16384});
  const auto stub = fixture.Stub(SmallWindows());
  grpc::ClientContext context;
  v1::StreamGenerateRequest request;
  request.mutable_spec()->set_text("hello");
  const auto reader = stub->StreamGenerate(&context, request);
  generator.WaitForStarts(1);
  // 64 MB: far more than all windows on the way can hold.
  for (int i = 0; i < 16000 && generator.cancelled().empty(); ++i) {
    generator.EmitText(1, std::string(4096, 'x'));
  }
  EXPECT_THAT(generator.cancelled(), ElementsAre(1));
  EXPECT_TRUE(fixture.gate().WaitUntilIdle(60));
  v1::StreamGenerateResponse event;
  while (reader->Read(&event)) EXPECT_FALSE(event.has_finished());
  const absl::Status status = FromGrpcStatus(reader->Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), kSlowReader);
}

TEST(GenerationServiceSlowReaderTest, StalledClientIsCancelledThoughItsBufferHasRoom) {
  testing::FakeGenerator generator;
  GenerationServiceOptions options;
  options.client_stall_timeout_seconds = 0.1;
  options.max_buffered_bytes = size_t{64} << 20;
  ServiceFixture fixture(generator, options);
  const auto stub = fixture.Stub(SmallWindows());
  grpc::ClientContext context;
  v1::StreamGenerateRequest request;
  request.mutable_spec()->set_text("hello");
  const auto reader = stub->StreamGenerate(&context, request);
  generator.WaitForStarts(1);
  // Above what the connection takes; below the buffer, and below the longest message, which all of
  // it may be merged into.
  for (int i = 0; i < 2000; ++i) generator.EmitText(1, std::string(4096, 'x'));
  generator.WaitForCancels(1);
  EXPECT_TRUE(fixture.gate().WaitUntilIdle(60));
  v1::StreamGenerateResponse event;
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED) << "no status overtakes data";
  EXPECT_THAT(fixture.metrics().Text(),
              HasSubstr("switchyard_request_errors_total{code=\"RESOURCE_EXHAUSTED\"} 1\n"));
}

TEST(GenerationServiceSlowReaderTest, WaitingForTokensIsNoStall) {
  testing::FakeGenerator generator;
  GenerationServiceOptions options;
  options.client_stall_timeout_seconds = 0.02;
  ServiceFixture fixture(generator, options);
  grpc::ClientContext context;
  // The time limit of the fake stands for a long prefill: 10 times the stall timeout passes.
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  v1::StreamGenerateRequest request;
  request.mutable_spec()->set_text("hello");
  const auto reader = fixture.stub().StreamGenerate(&context, request);
  EXPECT_EQ(reader->Finish().error_code(), grpc::DEADLINE_EXCEEDED) << "not CANCELLED";
}

// ---- keys
// -------------------------------------------------------------------------------------------

TEST(GenerationServiceKeyTest, EveryMethodWantsAKey) {
  const std::string path = ::testing::TempDir() + "generation_service_keys.txt";
  // printf %s alpha | sha256sum
  std::ofstream(path) << "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8\n";
  const auto keys = ApiKeys::Load(path);
  ASSERT_TRUE(keys.ok());
  testing::FakeGenerator generator;
  GenerationServiceOptions options;
  options.api_keys = keys->get();
  ServiceFixture fixture(generator, options);
  auto& stub = fixture.stub();
  const auto codes = [&](const char* authorization) {
    std::vector<grpc::StatusCode> out;
    const auto call = [&](auto method, auto request, auto response) {
      grpc::ClientContext context;
      if (authorization != nullptr) context.AddMetadata("authorization", authorization);
      out.push_back((stub.*method)(&context, request, &response).error_code());
    };
    using Stub = v1::GenerationService::Stub;
    call(&Stub::Tokenize, v1::TokenizeRequest(), v1::TokenizeResponse());
    call(&Stub::Detokenize, v1::DetokenizeRequest(), v1::DetokenizeResponse());
    call(&Stub::GetModel, v1::GetModelRequest(), v1::GetModelResponse());
    call(&Stub::ListModels, v1::ListModelsRequest(), v1::ListModelsResponse());
    // Requests without a prompt: with a key they are invalid.
    call(&Stub::RenderChat, v1::RenderChatRequest(), v1::RenderChatResponse());
    call(&Stub::Generate, v1::GenerateRequest(), v1::GenerateResponse());
    grpc::ClientContext context;
    if (authorization != nullptr) context.AddMetadata("authorization", authorization);
    out.push_back(stub.StreamGenerate(&context, {})->Finish().error_code());
    return out;
  };
  using enum grpc::StatusCode;
  EXPECT_THAT(codes(nullptr), ::testing::Each(UNAUTHENTICATED));
  EXPECT_THAT(fixture.metrics().Text(),
              HasSubstr("switchyard_request_errors_total{code=\"UNAUTHENTICATED\"} 7\n"));
  EXPECT_THAT(codes("Bearer beta"), ::testing::Each(UNAUTHENTICATED));
  EXPECT_THAT(codes("Bearer alpha"),
              ElementsAre(OK, OK, OK, OK, INVALID_ARGUMENT, INVALID_ARGUMENT, INVALID_ARGUMENT));
}

// ---- long calls ---------------------------------------------------------------------------------

// Work waits until the test lets it run.
class GenerationServiceLongCallTest : public ::testing::Test {
 protected:
  ~GenerationServiceLongCallTest() override { RunAll(); }

  GenerationServiceOptions Options() {
    GenerationServiceOptions options;
    options.max_total_request_bytes = 1000;
    options.run_in_background = [this](std::function<void()> work) {
      std::lock_guard lock(mutex_);
      works_.push_back(std::move(work));
      changed_.notify_all();
    };
    return options;
  }
  void WaitForWorks(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return works_.size() >= count; });
  }
  void RunAll() {
    std::vector<std::function<void()>> works;
    {
      std::lock_guard lock(mutex_);
      works.swap(works_);
    }
    for (const auto& work : works) work();
  }
  grpc::Status Tokenize(const std::string& text, v1::TokenizeResponse* response) {
    v1::TokenizeRequest request;
    request.set_text(text);
    grpc::ClientContext context;
    return fixture_.stub().Tokenize(&context, request, response);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> works_;
  testing::FakeGenerator generator_;
  ServiceFixture fixture_{generator_, Options()};
};

TEST_F(GenerationServiceLongCallTest, ManyAtATimeHoldUpNoOtherCall) {
  // More than gRPC has threads.
  constexpr size_t kNumCalls = 64;
  std::vector<std::thread> threads;
  std::atomic<int> num_good = 0;
  for (size_t i = 0; i < kNumCalls; ++i) {
    threads.emplace_back([&] {
      v1::TokenizeResponse response;
      if (Tokenize("abc", &response).ok() && response.token_ids_size() == 3) ++num_good;
    });
  }
  WaitForWorks(kNumCalls);
  grpc::ClientContext context;
  v1::GetModelResponse model;
  EXPECT_TRUE(fixture_.stub().GetModel(&context, {}, &model).ok());
  EXPECT_EQ(model.model().name(), "tiny");
  RunAll();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_good, static_cast<int>(kNumCalls));
}

TEST_F(GenerationServiceLongCallTest, RequestsThatWaitAreBoundedTogether) {
  v1::TokenizeResponse first_response;
  grpc::Status first_status;
  std::thread first([&] { first_status = Tokenize(std::string(600, 'a'), &first_response); });
  WaitForWorks(1);
  v1::TokenizeResponse response;
  const absl::Status refused = FromGrpcStatus(Tokenize(std::string(600, 'a'), &response));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfterOf(refused), 1);
  RunAll();
  first.join();
  EXPECT_TRUE(first_status.ok());
  EXPECT_EQ(first_response.token_ids_size(), 600);
  // The room is there again.
  std::thread second([&] { first_status = Tokenize(std::string(600, 'a'), &first_response); });
  WaitForWorks(1);
  RunAll();
  second.join();
  EXPECT_TRUE(first_status.ok());
}

TEST_F(GenerationServiceLongCallTest, ClientThatLeavesBeforeItsPromptIsRead) {
  grpc::ClientContext context;
  v1::StreamGenerateRequest request;
  request.mutable_spec()->set_text("hello");
  const auto reader = fixture_.stub().StreamGenerate(&context, request);
  WaitForWorks(1);
  context.TryCancel();
  v1::StreamGenerateResponse event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  RunAll();  // before or after the server has learnt of it
  EXPECT_TRUE(fixture_.gate().WaitUntilIdle(60));
}

}  // namespace
}  // namespace switchyard::coordinator
