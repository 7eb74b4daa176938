// Models of the test data, and the placements that they allow.
#pragma once

#include <string>
#include <vector>

#include "model/architecture_models.h"
#include "placement/placement.h"

namespace switchyard::placement {

// All fixtures with weights of every kind: "qwen4exp/base" and so on.
inline std::vector<std::string> FixtureNames() {
  return {"qwen4exp/base",     "qwen4exp/mixed",     "qwen4exp/shards",
          "qwen4exp/qsa",      "qwen4exp/mtp",       "qwen4exp/e512",
          "siblings/qwen3moe", "siblings/qwen3next", "siblings/qwen35moe"};
}

inline model::Model LoadFixture(const std::string& name) {
  return model::LoadModel(std::string(SWITCHYARD_TEST_DATA "/") + name + ".gguf");
}

// Every mode with every partition and dense part that it has.
inline std::vector<PlacementWish> AllWishes(int world_size) {
  std::vector<PlacementWish> wishes;
  const auto add = [&](v1::Mode mode, v1::Partition partition, v1::DensePart dense) {
    PlacementWish wish;
    wish.mode = mode;
    wish.world_size = world_size;
    wish.partition = partition;
    wish.dense = dense;
    wishes.push_back(wish);
  };
  add(v1::MODE_LAYER_SPLIT, v1::PARTITION_UNSPECIFIED, v1::DENSE_PART_UNSPECIFIED);
  for (const v1::Partition partition : {v1::PARTITION_WHOLE, v1::PARTITION_SLICED}) {
    for (const v1::DensePart dense : {v1::DENSE_PART_REPLICATED, v1::DENSE_PART_OWNER}) {
      add(v1::MODE_EXPERT_PARALLEL, partition, dense);
    }
  }
  add(v1::MODE_TENSOR_EXPERT_PARALLEL, v1::PARTITION_SLICED, v1::DENSE_PART_UNSPECIFIED);
  return wishes;
}

}  // namespace switchyard::placement
