// Invariants of our own: SWITCHYARD_CHECK always, SWITCHYARD_DCHECK in debug builds.
#pragma once

#include <cstdio>
#include <cstdlib>

// Aborts with file and line if `condition` is false. For what would corrupt results if we went on.
#define SWITCHYARD_CHECK(condition)                                                      \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#if !defined(NDEBUG) || defined(SWITCHYARD_DEBUG_CHECKS)
#define SWITCHYARD_DCHECK(condition) SWITCHYARD_CHECK(condition)
#else
#define SWITCHYARD_DCHECK(condition) \
  do {                               \
    (void)sizeof(condition);         \
  } while (false)
#endif
