// Reads every #include under src/ and fails on an arrow that points up. The tables below are those
// of docs/architecture.md; change them together.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// Says that files of `room` may include headers of `target`, a room or an external library.
struct Arrow {
  std::string_view room;
  std::string_view target;
  // Empty: every file of the room. "http/": that folder of the room. Else: files whose name
  // contains the text.
  std::string_view only_in = "";
};

constexpr std::string_view kRooms[] = {"base",      "device", "model",       "kernels", "comm",
                                       "placement", "worker", "coordinator", "app",     "proto"};

// A room may include itself, the standard library, system headers, abseil and fmt (base/status.h
// and base/log.h show it to everybody), and what is listed here.
constexpr Arrow kArrows[] = {
    {"base", "spdlog"},
    {"base", "prometheus"},
    {"base", "hwloc"},
    {"base", "grpc", "grpc_status"},
    {"base", "proto", "grpc_status"},  // google/rpc: details of errors
    {"device", "base"},
    {"device", "cuda"},
    {"model", "base"},
    {"model", "nlohmann"},
    {"model", "openssl", "model_digest"},
    {"kernels", "base"},
    {"kernels", "device", "cuda/"},
    {"kernels", "cuda", "cuda/"},
    {"comm", "base"},
    {"comm", "device"},
    {"comm", "cuda"},
    {"comm", "nccl"},
    {"comm", "ucx"},
    {"placement", "base"},
    {"placement", "model"},
    {"placement", "proto"},
    {"placement", "protobuf"},
    {"worker", "base"},
    {"worker", "device"},
    {"worker", "model"},
    {"worker", "kernels"},
    {"worker", "comm"},
    {"worker", "placement"},
    {"worker", "proto"},
    {"worker", "protobuf"},
    {"worker", "grpc", "worker_service"},
    {"worker", "grpc", "worker_session"},
    {"coordinator", "base"},
    {"coordinator", "model"},
    {"coordinator", "placement"},
    {"coordinator", "proto"},
    {"coordinator", "protobuf"},
    {"coordinator", "grpc", "_service"},
    {"coordinator", "grpc", "grpc_server"},
    {"coordinator", "grpc", "remote_worker"},
    {"coordinator", "boost", "http/"},
    {"coordinator", "openssl", "api_keys"},
    {"coordinator", "nlohmann"},  // values of chat templates
    {"app", "base"},
    {"app", "device"},
    {"app", "model"},
    {"app", "kernels"},
    {"app", "comm"},
    {"app", "placement"},
    {"app", "worker"},
    {"app", "coordinator"},
    {"app", "proto"},
    {"app", "protobuf"},
    {"app", "cli11"},
    {"app", "toml"},
    {"app", "nlohmann"},  // commands print JSON
    {"app", "grpc"},      // servers, and bench-serve that drives one
    {"app", "boost", "load_client"},
};

struct Library {
  std::string_view prefix;  // of the path in the #include
  std::string_view name;
};
constexpr Library kLibraries[] = {
    {"absl/", "abseil"},       {"fmt/", "fmt"},
    {"spdlog/", "spdlog"},     {"prometheus/", "prometheus"},
    {"hwloc.h", "hwloc"},      {"hwloc/", "hwloc"},
    {"grpc", "grpc"},          {"google/protobuf/", "protobuf"},
    {"nlohmann/", "nlohmann"}, {"boost/", "boost"},
    {"openssl/", "openssl"},   {"CLI/", "cli11"},
    {"toml", "toml"},          {"cuda", "cuda"},
    {"cublas", "cuda"},        {"nvtx3/", "cuda"},
    {"nccl", "nccl"},          {"ucp/", "ucx"},
    {"ucs/", "ucx"},           {"uct/", "ucx"},
    {"openssl/", "openssl"},
};

constexpr std::string_view kSystemFolders[] = {"sys/", "linux/", "netinet/", "arpa/"};
constexpr std::string_view kSystemHeaders[] = {
    "cpuid.h",     "dirent.h", "dlfcn.h",   "errno.h", "execinfo.h", "fcntl.h",
    "immintrin.h", "malloc.h", "netdb.h",   "poll.h",  "pthread.h",  "sched.h",
    "regex.h",     "signal.h", "termios.h", "time.h",  "unistd.h",   "x86intrin.h"};

// "base/log.h" out of `#include "base/log.h"  // why`, with the opening quote or bracket kept.
// Nothing for other lines.
std::optional<std::string> IncludedPath(std::string_view line) {
  const auto skip_space = [&line] {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  };
  skip_space();
  if (!line.starts_with('#')) return std::nullopt;
  line.remove_prefix(1);
  skip_space();
  if (!line.starts_with("include")) return std::nullopt;
  line.remove_prefix(7);
  skip_space();
  if (line.empty() || (line[0] != '"' && line[0] != '<')) return std::nullopt;
  const size_t end = line.find(line[0] == '"' ? '"' : '>', 1);
  if (end == std::string_view::npos) return std::nullopt;
  return std::string(line.substr(0, end));
}

// What an #include leads to: a room, a library, "system", or nothing if it is not known.
std::string TargetOf(std::string_view included) {
  const bool quoted = included[0] == '"';
  const std::string_view path = included.substr(1);
  for (const Library& library : kLibraries) {
    if (path.starts_with(library.prefix)) return std::string(library.name);
  }
  const std::string_view folder = path.substr(0, path.find('/'));
  if (quoted) {
    if (path.ends_with(".pb.h") && (folder == "switchyard" || folder == "google")) return "proto";
    const bool is_room = folder.size() < path.size() && std::ranges::count(kRooms, folder) > 0;
    return is_room ? std::string(folder) : "";
  }
  if (path.find_first_of("./") == std::string_view::npos) return "system";  // <vector>
  if (std::ranges::count(kSystemHeaders, path) > 0) return "system";
  for (std::string_view prefix : kSystemFolders) {
    if (path.starts_with(prefix)) return "system";
  }
  return "";
}

// True if `file` ("coordinator/http/openai_api.cc") lies where the arrow holds.
bool HoldsIn(const Arrow& arrow, std::string_view file) {
  if (arrow.only_in.empty()) return true;
  const std::string_view in_room = file.substr(file.find('/') + 1);
  if (arrow.only_in.ends_with('/')) return in_room.starts_with(arrow.only_in);
  return in_room.substr(in_room.rfind('/') + 1).find(arrow.only_in) != std::string_view::npos;
}

// Returns what is wrong with the includes of one file, a line each. `file` is rooted at src/.
std::vector<std::string> Violations(std::string_view file, std::string_view text) {
  const std::string_view room = file.substr(0, file.find('/'));
  std::vector<std::string> violations;
  size_t line_number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++line_number;
    const std::optional<std::string> included = IncludedPath(line);
    if (!included.has_value()) continue;
    const std::string target = TargetOf(*included);
    if (target == room || target == "system" || target == "abseil" || target == "fmt") continue;
    const bool allowed = std::ranges::any_of(kArrows, [&](const Arrow& arrow) {
      return arrow.room == room && arrow.target == target && HoldsIn(arrow, file);
    });
    if (allowed) continue;
    violations.push_back("src/" + std::string(file) + ":" + std::to_string(line_number) + ": " +
                         included->substr(1) +
                         (target.empty() ? " is neither in a room nor a known library"
                                         : " (" + target + ") is not below this file"));
  }
  return violations;
}

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(LayeringTest, ArrowsPointDown) {
  const fs::path root = fs::path(SWITCHYARD_SOURCE_DIR) / "src";
  int num_files = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cc" && extension != ".cu" && extension != ".inc") {
      continue;
    }
    ++num_files;
    const std::string file = fs::relative(entry.path(), root).generic_string();
    for (const std::string& violation : Violations(file, ReadFile(entry.path()))) {
      ADD_FAILURE() << violation;
    }
  }
  EXPECT_GT(num_files, 20) << "found too few sources under " << root;
}

TEST(LayeringTest, EveryFolderOfSourcesIsARoom) {
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(SWITCHYARD_SOURCE_DIR) / "src")) {
    if (!entry.is_directory()) continue;
    EXPECT_EQ(std::ranges::count(kRooms, entry.path().filename().string()), 1) << entry.path();
  }
}

// ---- the checker itself -----------------------------------------------------------------------

using testing::ElementsAre;
using testing::IsEmpty;

TEST(LayeringCheckerTest, NamesFileLineAndTarget) {
  EXPECT_THAT(Violations("kernels/cpu/matmul.cc", "// text\n\n#include \"worker/worker.h\"\n"),
              ElementsAre("src/kernels/cpu/matmul.cc:3: worker/worker.h (worker) is not below this "
                          "file"));
}

TEST(LayeringCheckerTest, AcceptsWhatLiesBelow) {
  EXPECT_THAT(Violations("worker/forward/forward.cc",
                         "#include \"worker/forward/forward.h\"\n#include <vector>\n"
                         "#include <sys/mman.h>\n#include <unistd.h>\n#include <fmt/format.h>\n"
                         "#include \"absl/status/status.h\"\n"
                         "#include \"switchyard/worker/v1/step.pb.h\"\n"
                         "#include \"base/log.h\"\n#include \"kernels/backend.h\""),
              IsEmpty());
}

TEST(LayeringCheckerTest, RefusesEachArrowUpOrSideways) {
  const struct {
    const char* file;
    const char* include;
  } kCases[] = {
      {"base/log.h", "\"model/gguf_file.h\""},
      {"base/log.h", "<nlohmann/json.hpp>"},
      {"device/stream.h", "\"kernels/backend.h\""},
      {"model/model_spec.h", "\"kernels/backend.h\""},
      {"model/model_spec.h", "\"switchyard/worker/v1/step.pb.h\""},
      {"kernels/backend.h", "\"model/model_spec.h\""},
      {"kernels/cpu/matmul.cc", "\"device/stream.h\""},
      {"kernels/cpu/cuda_like.cc", "<cuda_runtime.h>"},
      {"placement/planner.cc", "\"worker/worker.h\""},
      {"worker/worker.cc", "\"coordinator/engine.h\""},
      {"worker/worker.cc", "\"app/local_worker.h\""},
      {"worker/worker.cc", "<grpcpp/grpcpp.h>"},
      {"coordinator/engine.cc", "\"worker/worker.h\""},
      {"coordinator/engine.cc", "\"kernels/backend.h\""},
      {"coordinator/engine.cc", "<boost/asio.hpp>"},
      {"coordinator/engine.cc", "<spdlog/spdlog.h>"},
      {"app/switchyard_main.cc", "<pcre2.h>"},
      {"app/switchyard_main.cc", "\"../base/log.h\""},
      {"app/switchyard_main.cc", "\"local_worker.h\""},
      {"app/switchyard_main.cc", "\"testing/tiny_model.h\""},
  };
  for (const auto& [file, include] : kCases) {
    const std::string line = std::string("#include ") + include + "\n";
    EXPECT_EQ(Violations(file, line).size(), 1u) << file << " includes " << include;
  }
}

TEST(LayeringCheckerTest, SomeFilesMayMore) {
  EXPECT_THAT(Violations("worker/worker_service.cc", "#include <grpcpp/grpcpp.h>"), IsEmpty());
  EXPECT_THAT(Violations("coordinator/remote_worker.h", "#include <grpcpp/grpcpp.h>"), IsEmpty());
  EXPECT_THAT(Violations("coordinator/http/openai_api.cc", "#include <nlohmann/json.hpp>"),
              IsEmpty());
  EXPECT_THAT(Violations("kernels/cuda/matmul.cu", "#include \"device/stream.h\""), IsEmpty());
  EXPECT_THAT(Violations("app/local_worker.cc",
                         "#include \"coordinator/worker_handle.h\"\n#include \"worker/worker.h\""),
              IsEmpty());
}

TEST(LayeringCheckerTest, ReadsIncludesInAnySpelling) {
  EXPECT_EQ(Violations("base/a.h", "  #  include\t\"app/b.h\"  // why").size(), 1u);
  EXPECT_EQ(Violations("base/a.h", "#include\"app/b.h\"\n#include <CLI/CLI.hpp>").size(), 2u);
  EXPECT_THAT(Violations("base/a.h", "// #include \"app/b.h\"\n#define X \"app/b.h\"\n#include X"),
              IsEmpty());
}

TEST(LayeringTableTest, NoTwoRoomsDependOnEachOther) {
  for (const Arrow& arrow : kArrows) {
    for (const Arrow& back : kArrows) {
      EXPECT_FALSE(arrow.room == back.target && arrow.target == back.room)
          << arrow.room << " and " << arrow.target;
    }
  }
}

}  // namespace
}  // namespace switchyard
