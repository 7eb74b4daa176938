// Early return of a non-OK absl::Status, for code that passes errors on.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define SWITCHYARD_CONCAT_INNER(a, b) a##b
#define SWITCHYARD_CONCAT(a, b) SWITCHYARD_CONCAT_INNER(a, b)

// Returns from the enclosing function if `expression` is not OK.
#define SWITCHYARD_RETURN_IF_ERROR(expression)                                    \
  do {                                                                            \
    if (absl::Status switchyard_status = (expression); !switchyard_status.ok()) { \
      return switchyard_status;                                                   \
    }                                                                             \
  } while (false)

// Evaluates `expression` (an absl::StatusOr<T>); on error returns its status from the enclosing
// function, else moves the value into `left`, which may be a declaration.
#define SWITCHYARD_ASSIGN_OR_RETURN(left, expression) \
  SWITCHYARD_ASSIGN_OR_RETURN_INNER(SWITCHYARD_CONCAT(switchyard_or_, __LINE__), left, expression)
#define SWITCHYARD_ASSIGN_OR_RETURN_INNER(result, left, expression) \
  auto result = (expression);                                       \
  if (!result.ok()) return std::move(result).status();              \
  left = std::move(result).value()
