// Where in the output each message ends.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "model/template/text.h"
#include "model/template/value.h"

namespace switchyard::model::jinja {

// Watches the loops of a rendering that run over messages and write to the output.
//
// Call order: for each such loop BeginLoop(), Iteration() after each iteration, EndLoop(); loops
// may nest. Resolve() last.
class MessageBorders {
 public:
  void BeginLoop() { loops_.emplace_back(); }
  // The iteration over `item` wrote the bytes [begin, end) of the output.
  void Iteration(const Value& item, size_t begin, size_t end);
  void EndLoop();

  // The end of each message in `rendered`, never decreasing.
  std::vector<size_t> Resolve(const Text& rendered, size_t num_messages) const;

 private:
  struct Visit {
    size_t message;
    size_t begin;
    size_t end;
  };

  void SetEnd(size_t message, size_t end);

  std::vector<std::vector<Visit>> loops_;  // running ones, the innermost last
  std::vector<std::optional<size_t>> ends_;
};

}  // namespace switchyard::model::jinja
