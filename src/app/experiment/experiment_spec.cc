#include "app/experiment/experiment_spec.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

// A reader without exceptions, compiled here alone.
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace switchyard::app {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kModes = {"single", "layer_split", "expert_parallel",
                                         "tensor_expert_parallel"};
const std::vector<std::string> kPartitions = {"whole", "sliced"};
const std::vector<std::string> kDense = {"replicated", "owner"};

constexpr int kMaxTokens = 1 << 20;
constexpr int kMaxRepetitions = 1000;
constexpr size_t kMaxListEntries = 256;

// Values of one table by name. What is asked for is remembered, so that Finish() finds the rest.
class TableReader {
 public:
  TableReader(const toml::table& table, std::string path, std::string place)
      : table_(table), path_(std::move(path)), place_(std::move(place)) {}

  const toml::node* Find(const std::string& key) {
    known_.push_back(key);
    return table_.get(key);
  }

  absl::Status Error(const toml::node& node, std::string_view what) const {
    return InvalidArgument("{}: line {}: {}", path_, node.source().begin.line, what);
  }

  // Texts: one or a list.
  absl::Status Read(const std::string& key, std::vector<std::string>& out,
                    const std::vector<std::string>* allowed = nullptr) {
    return ReadEach(key, out, [&](const toml::node& node) -> absl::StatusOr<std::string> {
      const auto text = node.value_exact<std::string>();
      if (!text) return Error(node, fmt::format("{}{} wants a text", place_, key));
      if (allowed != nullptr &&
          std::find(allowed->begin(), allowed->end(), *text) == allowed->end()) {
        return Error(node, fmt::format("{}{} is unknown: {} (nearest: {})", place_, key, *text,
                                       Nearest(*text, *allowed)));
      }
      return *text;
    });
  }

  // Whole numbers, one or a list; counts such as "8k" too.
  absl::Status Read(const std::string& key, std::vector<int>& out, int low, int high) {
    return ReadEach(key, out, [&](const toml::node& node) -> absl::StatusOr<int> {
      return Count(key, node, low, high);
    });
  }

  absl::Status Read(const std::string& key, std::string& out) {
    const toml::node* const node = Find(key);
    if (node == nullptr) return absl::OkStatus();
    const auto text = node->value_exact<std::string>();
    if (!text || text->empty()) return Error(*node, fmt::format("{}{} wants a text", place_, key));
    out = *text;
    return absl::OkStatus();
  }

  absl::Status Read(const std::string& key, bool& out) {
    const toml::node* const node = Find(key);
    if (node == nullptr) return absl::OkStatus();
    const auto value = node->value_exact<bool>();
    if (!value) return Error(*node, fmt::format("{}{} wants true or false", place_, key));
    out = *value;
    return absl::OkStatus();
  }

  absl::Status Read(const std::string& key, int& out, int low, int high) {
    const toml::node* const node = Find(key);
    if (node == nullptr) return absl::OkStatus();
    SWITCHYARD_ASSIGN_OR_RETURN(out, Count(key, *node, low, high));
    return absl::OkStatus();
  }

  // Refuses keys that nobody asked for.
  absl::Status Finish() const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      return Error(node, fmt::format("unknown key: {}{} (nearest: {}{})", place_, name, place_,
                                     Nearest(name, known_)));
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<int> Count(const std::string& key, const toml::node& node, int low,
                            int high) const {
    int64_t value = -1;
    if (const auto number = node.value_exact<int64_t>()) {
      value = *number;
    } else if (const auto text = node.value_exact<std::string>()) {
      const auto count = ParseCount(*text);
      if (count.ok()) value = *count;
    }
    if (value < low || value > high) {
      return Error(node,
                   fmt::format("{}{} wants whole numbers from {} to {}", place_, key, low, high));
    }
    return static_cast<int>(value);
  }

  template <typename T, typename Convert>
  absl::Status ReadEach(const std::string& key, std::vector<T>& out, const Convert& convert) {
    const toml::node* const node = Find(key);
    if (node == nullptr) return absl::OkStatus();
    out.clear();
    const toml::array* const list = node->as_array();
    if (list == nullptr) {
      SWITCHYARD_ASSIGN_OR_RETURN(T value, convert(*node));
      out.push_back(std::move(value));
      return absl::OkStatus();
    }
    if (list->empty() || list->size() > kMaxListEntries) {
      return Error(*node, fmt::format("{}{} wants 1 to {} entries", place_, key, kMaxListEntries));
    }
    for (const toml::node& entry : *list) {
      SWITCHYARD_ASSIGN_OR_RETURN(T value, convert(entry));
      if (std::find(out.begin(), out.end(), value) != out.end()) {
        return Error(entry, fmt::format("{}{} names an entry twice", place_, key));
      }
      out.push_back(std::move(value));
    }
    return absl::OkStatus();
  }

  const toml::table& table_;
  std::string path_;
  std::string place_;
  std::vector<std::string> known_;
};

// Calls `read` for every table of [[key]]; false if there is none.
absl::StatusOr<bool> ReadTables(TableReader& reader, const std::string& key,
                                const std::string& path,
                                const std::function<absl::Status(TableReader&)>& read) {
  const toml::node* const node = reader.Find(key);
  if (node == nullptr) return false;
  const toml::array* const list = node->as_array();
  if (list == nullptr || !list->is_array_of_tables() || list->size() > kMaxListEntries) {
    return reader.Error(*node, fmt::format("wants tables, each under a line [[{}]]", key));
  }
  for (const toml::node& entry : *list) {
    TableReader inner(*entry.as_table(), path, key + ".");
    SWITCHYARD_RETURN_IF_ERROR(read(inner));
    SWITCHYARD_RETURN_IF_ERROR(inner.Finish());
  }
  return true;
}

absl::StatusOr<TopologyMatrix> ReadTopology(TableReader& reader) {
  TopologyMatrix matrix;
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("workers", matrix.workers, 1, kMaxExperimentWorkers));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("mode", matrix.modes, &kModes));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("partition", matrix.partitions, &kPartitions));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("dense", matrix.dense, &kDense));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("layer_split", matrix.layer_splits));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("threads", matrix.threads, 1, 1024));
  return matrix;
}

absl::StatusOr<Condition> ReadCondition(TableReader& reader) {
  Condition condition;
  condition.name.clear();
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("name", condition.name));
  std::vector<std::string> rules;
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("links", rules));
  for (const std::string& rule : rules) {
    condition.link_rules += (condition.link_rules.empty() ? "" : "; ") + rule;
  }
  SWITCHYARD_RETURN_IF_ERROR(
      reader.Read("competitor_rank", condition.competitor_rank, 0, kMaxExperimentWorkers - 1));
  if (condition.name.empty()) {
    condition.name = condition.link_rules;
    if (condition.competitor_rank >= 0) {
      condition.name += fmt::format("{}competitor beside rank {}",
                                    condition.name.empty() ? "" : ", ", condition.competitor_rank);
    }
  }
  return condition;
}

absl::Status CheckWhole(const ExperimentSpec& spec, const std::string& path) {
  if (spec.model.empty()) return InvalidArgument("{}: names no model: model = \"FILE.gguf\"", path);
  if (spec.contexts.empty() && spec.prompts.empty()) {
    return InvalidArgument("{}: says not what to run: contexts = [64, 512] or prompts = [\"...\"]",
                           path);
  }
  std::set<std::string> names;
  for (const Condition& condition : spec.conditions) {
    if (!names.insert(condition.name).second) {
      return InvalidArgument("{}: two conditions have one name: {}", path, condition.name);
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string Nearest(std::string_view word, const std::vector<std::string>& known) {
  const auto distance = [&](const std::string& other) {
    std::vector<size_t> row(other.size() +
                            1);  // of the edit distance, one letter of word at a time
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < word.size(); ++i) {
      size_t diagonal = row[0]++;
      for (size_t j = 0; j < other.size(); ++j) {
        const size_t changed = diagonal + (word[i] == other[j] ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({changed, diagonal + 1, row[j] + 1});
      }
    }
    return row.back();
  };
  return *std::min_element(
      known.begin(), known.end(),
      [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
}

absl::StatusOr<ExperimentSpec> ParseExperiment(std::string_view text, const std::string& path) {
  const toml::parse_result parsed = toml::parse(text, std::string_view(path));
  if (!parsed) {
    return InvalidArgument("{}: line {}: is no TOML: {}", path, parsed.error().source().begin.line,
                           parsed.error().description());
  }
  ExperimentSpec spec;
  spec.name = fs::path(path).stem().string();
  TableReader reader(parsed.table(), path, "");
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("name", spec.name));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("model", spec.model));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("max_tokens", spec.max_tokens, 2, kMaxTokens));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("repetitions", spec.repetitions, 1, kMaxRepetitions));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("warmup", spec.warmup, 0, kMaxRepetitions));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("prefix_hits", spec.prefix_hits));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("pin_workers", spec.pin_workers));
  int seed = 1;
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("seed", seed, 0, std::numeric_limits<int>::max()));
  spec.seed = static_cast<uint64_t>(seed);
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("contexts", spec.contexts, 1, kMaxTokens));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("prompts", spec.prompts));
  SWITCHYARD_RETURN_IF_ERROR(reader.Read("serve_flags", spec.serve_flags));
  SWITCHYARD_ASSIGN_OR_RETURN(
      const bool has_topology,
      ReadTables(reader, "topology", path, [&](TableReader& table) -> absl::Status {
        SWITCHYARD_ASSIGN_OR_RETURN(TopologyMatrix matrix, ReadTopology(table));
        spec.topologies.push_back(std::move(matrix));
        return absl::OkStatus();
      }));
  spec.conditions.emplace_back();
  SWITCHYARD_ASSIGN_OR_RETURN(
      const bool has_condition,
      ReadTables(reader, "condition", path, [&](TableReader& table) -> absl::Status {
        SWITCHYARD_ASSIGN_OR_RETURN(Condition condition, ReadCondition(table));
        SWITCHYARD_RETURN_IF_ERROR(table.Finish());
        if (condition.is_disturbed()) {
          spec.conditions.push_back(std::move(condition));
          return absl::OkStatus();
        }
        return InvalidArgument(
            "{}: a condition disturbs nothing: give links = \"0->1 delay=300us\" or "
            "competitor_rank = 1 (the undisturbed run is always made)",
            path);
      }));
  static_cast<void>(has_condition);
  SWITCHYARD_RETURN_IF_ERROR(reader.Finish());
  if (!has_topology) {
    return InvalidArgument("{}: has no topology: [[topology]], workers = [1, 2]", path);
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckWhole(spec, path));
  if (fs::path(spec.model).is_relative()) {
    spec.model = (fs::path(path).parent_path() / spec.model).lexically_normal().string();
  }
  return spec;
}

}  // namespace switchyard::app
