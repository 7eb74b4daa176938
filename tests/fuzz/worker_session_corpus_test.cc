// Runs the fuzz target in every build: over the stored corpus, and over mutations of it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/worker/v1/session.pb.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace switchyard::testing {
namespace {

namespace v1 = switchyard::worker::v1;

const std::string kCorpus = SWITCHYARD_TEST_DATA "/fuzz/worker_session";

void RunTarget(const std::string& bytes) {
  // A copy of exactly this size, so that a read beyond it is seen by the sanitizers.
  const std::vector<uint8_t> input(bytes.begin(), bytes.end());
  EXPECT_EQ(LLVMFuzzerTestOneInput(input.data(), input.size()), 0);
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A group that has come this far: bit 0 = it serves, bits 1 and 2 = number of plans.
std::string InputOf(uint8_t stage, const std::vector<v1::WorkerSessionRequest>& messages) {
  std::string input(1, static_cast<char>(stage));
  for (const v1::WorkerSessionRequest& message : messages) {
    const std::string bytes = message.SerializeAsString();
    input += static_cast<char>(bytes.size() & 0xff);
    input += static_cast<char>(bytes.size() >> 8);
    input += bytes;
  }
  return input;
}

v1::WorkerSessionRequest ResultOf(uint64_t plan, uint32_t step) {
  v1::WorkerSessionRequest message;
  v1::StepResult& result = *message.mutable_step_result();
  result.set_plan(plan);
  result.set_step(step);
  result.set_last_of_plan(step == 3);
  result.set_seconds(0.01);
  result.add_costs()->set_seconds(0.01);
  v1::SlotResult& slot = *result.add_slots();
  slot.set_incarnation(plan);
  slot.add_token_ids(7);
  slot.set_position(5 + step);
  slot.set_num_rows(step == 0 ? 5 : 1);
  slot.add_logprobs()->set_token_id(7);
  slot.add_top_logprobs()->set_token_id(7);
  v1::SlotResult& other = *result.add_slots();
  other.set_slot(1);
  other.set_incarnation(3);
  other.add_token_ids(8);
  return message;
}

// Inputs that get deep, by name.
std::map<std::string, std::string> Seeds() {
  v1::WorkerSessionRequest heartbeat, progress, ready, fault, entered, none;
  heartbeat.mutable_heartbeat()->set_sequence_number(1);
  heartbeat.mutable_heartbeat()->set_state(v1::WORKER_STATE_READY);
  progress.mutable_shard_progress()->set_done_bytes(5);
  progress.mutable_shard_progress()->set_total_bytes(9);
  ready.mutable_shard_ready()->set_device("cpu");
  fault.mutable_fault()->set_code(8);
  fault.mutable_fault()->set_message("no\nmemory");
  entered.mutable_epoch_entered()->set_num_dropped_plans(1);
  v1::WorkerSessionRequest leaving = heartbeat;
  leaving.mutable_heartbeat()->set_state(v1::WORKER_STATE_DRAINING);
  v1::WorkerSessionRequest failed = ResultOf(1, 0);
  failed.mutable_step_result()->set_error("device is gone");
  v1::WorkerSessionRequest stale = ResultOf(1, 0);
  stale.set_epoch(1);
  return {
      {"Loading", InputOf(0, {heartbeat, progress, progress, ready})},
      {"LoadFault", InputOf(0, {progress, fault})},
      {"ReadyTwice", InputOf(0, {ready, ready})},
      {"Results", InputOf(1 | 2 << 1, {heartbeat, ResultOf(1, 0), ResultOf(1, 1), ResultOf(1, 2),
                                       ResultOf(1, 3), ResultOf(2, 0)})},
      {"ResultsOutOfOrder", InputOf(1 | 2 << 1, {ResultOf(2, 0)})},
      {"ResultWithoutAPlan", InputOf(1, {ResultOf(1, 0)})},
      {"FailedStep", InputOf(1 | 1 << 1, {failed})},
      {"StaleResult", InputOf(1 | 1 << 1, {stale, ResultOf(1, 0)})},
      {"Leaving", InputOf(1, {leaving})},
      {"EpochEntered", InputOf(1, {entered})},
      {"EmptyMessage", InputOf(1, {none})},
  };
}

std::string Mutate(std::string bytes, std::mt19937_64& random) {
  const auto below = [&](size_t limit) { return limit == 0 ? 0 : random() % limit; };
  for (size_t i = 0; i < 1 + below(4) && !bytes.empty(); ++i) {
    const size_t at = below(bytes.size());
    const size_t length = 1 + below(std::min<size_t>(16, bytes.size() - at));
    switch (below(5)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, length));
        break;
      default:
        bytes.resize(at);
    }
  }
  return bytes;
}

// With SWITCHYARD_WRITE_CORPUS set, writes the files instead.
TEST(WorkerSessionCorpusTest, StoredCorpusHoldsEverySeed) {
  const bool write = std::getenv("SWITCHYARD_WRITE_CORPUS") != nullptr;
  if (write) std::filesystem::create_directories(kCorpus);
  for (const auto& [name, bytes] : Seeds()) {
    if (write) std::ofstream(kCorpus + "/" + name, std::ios::binary) << bytes;
    EXPECT_EQ(ReadFile(kCorpus + "/" + name), bytes) << name;
  }
}

TEST(WorkerSessionCorpusTest, SurvivesTheStoredCorpus) {
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kCorpus)) {
    SCOPED_TRACE(entry.path());
    RunTarget(ReadFile(entry.path()));
    ++num_files;
  }
  EXPECT_GE(num_files, 11);
}

TEST(WorkerSessionCorpusTest, SurvivesMutations) {
  std::mt19937_64 random(20260201);
  for (const auto& [name, bytes] : Seeds()) {
    for (int i = 0; i < 2000; ++i) RunTarget(Mutate(bytes, random));
  }
}

TEST(WorkerSessionCorpusTest, SurvivesEveryTruncation) {
  for (const auto& [name, bytes] : Seeds()) {
    for (size_t size = 0; size <= bytes.size(); ++size) RunTarget(bytes.substr(0, size));
  }
}

}  // namespace
}  // namespace switchyard::testing
