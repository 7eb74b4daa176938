#include "model/model_spec.h"

#include "base/check.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "model/architectures.h"

namespace switchyard::model {

ColumnShards CutIntoShards(int64_t num_units, int64_t unit_columns, int num_strips) {
  SWITCHYARD_CHECK(num_units > 0 && unit_columns > 0 && num_strips > 0);
  ColumnShards shards;
  shards.num_strips = num_strips;
  shards.strip_columns = num_units * unit_columns;
  shards.unit_columns = unit_columns;
  for (int i = 0; i <= kNumVirtualShards; ++i) {
    shards.border[static_cast<size_t>(i)] = i * num_units / kNumVirtualShards * unit_columns;
  }
  return shards;
}

absl::StatusOr<ModelSpec> LoadModelSpec(const GgufFile& file) {
  constexpr std::string_view kKey = "general.architecture";
  const absl::StatusOr<std::string_view> name = file.metadata().GetString(kKey);
  if (absl::IsNotFound(name.status())) return InvalidArgument("{}", Message(name.status()));
  SWITCHYARD_RETURN_IF_ERROR(name.status());
  std::string known;
  for (const Architecture& architecture : Architectures()) {
    if (architecture.name == *name) return architecture.load(file);
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return InvalidArgument("model architecture is not supported: {}, supported: {}, {}",
                         Printable(*name), known,
                         file.metadata().Where(*file.metadata().Find(kKey)));
}

}  // namespace switchyard::model
