#include "coordinator/http/residency_json.h"

#include <string>
#include <string_view>

namespace switchyard::coordinator::http {
namespace {

namespace v1 = switchyard::worker::v1;

// By v1::ResidencyState.
constexpr std::string_view kLetters = ".fhlrp";

char LetterOf(char state) {
  const auto index = static_cast<unsigned char>(state);
  return index < kLetters.size() ? kLetters[index] : '?';
}

// Null where nothing was used.
Json HitRate(uint64_t hits, uint64_t misses) {
  if (hits + misses == 0) return nullptr;
  return static_cast<double>(hits) / static_cast<double>(hits + misses);
}

Json CountersJson(const v1::ExpertCounters& counters) {
  return {{"hits", counters.hits()},
          {"misses", counters.misses()},
          {"promotions", counters.promotions()},
          {"evictions", counters.evictions()},
          {"bytes_moved", counters.bytes_moved()}};
}

Json RankJson(const v1::Residency& rank, size_t number) {
  Json states = Json::array(), uses = Json::array(), layers = Json::array();
  for (uint32_t l = 0; l < rank.num_layers(); ++l) {
    const size_t begin = size_t{l} * rank.num_experts();
    std::string letters;
    Json counts = Json::array();
    for (size_t e = begin; e < begin + rank.num_experts(); ++e) {
      if (e < rank.states().size()) letters += LetterOf(rank.states()[e]);
      if (e < static_cast<size_t>(rank.uses_size()))
        counts.push_back(rank.uses(static_cast<int>(e)));
    }
    states.push_back(std::move(letters));
    uses.push_back(std::move(counts));
  }
  for (const v1::ExpertCounters& layer : rank.layers()) layers.push_back(CountersJson(layer));
  return {{"rank", number},
          {"version", rank.version()},
          {"num_layers", rank.num_layers()},
          {"num_experts", rank.num_experts()},
          {"host_bytes", rank.host_bytes()},
          {"device_bytes", rank.device_bytes()},
          {"budget_bytes", rank.budget_bytes()},
          {"states", std::move(states)},
          {"layers", std::move(layers)},
          {"uses", std::move(uses)}};
}

}  // namespace

Json ResidencyJson(const std::vector<v1::Residency>& ranks) {
  v1::ExpertCounters total;
  uint64_t device = 0, host = 0, file = 0;
  Json list = Json::array();
  for (const v1::Residency& rank : ranks) {
    if (rank.version() == 0) {
      list.push_back(nullptr);
      continue;
    }
    list.push_back(RankJson(rank, list.size()));
    for (const char state : rank.states()) {
      device += state == v1::RESIDENCY_STATE_RESIDENT || state == v1::RESIDENCY_STATE_PINNED;
      host += state == v1::RESIDENCY_STATE_HOST;
      file += state == v1::RESIDENCY_STATE_FILE || state == v1::RESIDENCY_STATE_LOADING;
    }
    for (const v1::ExpertCounters& layer : rank.layers()) {
      total.set_hits(total.hits() + layer.hits());
      total.set_misses(total.misses() + layer.misses());
      total.set_promotions(total.promotions() + layer.promotions());
      total.set_evictions(total.evictions() + layer.evictions());
      total.set_bytes_moved(total.bytes_moved() + layer.bytes_moved());
    }
  }
  Json json = {
      {"experts", device + host + file}, {"device", device}, {"host", host}, {"file", file}};
  json.update(CountersJson(total));
  json["hit_rate"] = HitRate(total.hits(), total.misses());
  json["ranks"] = std::move(list);
  return json;
}

}  // namespace switchyard::coordinator::http
