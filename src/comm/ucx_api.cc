#include "comm/ucx_api.h"

#include <cstdarg>
#include <cstdio>
#include <dlfcn.h>

#include "base/log.h"
#include "base/status.h"

namespace switchyard::comm {
namespace {

UcxApi api;

// UCX writes its log to stdout, which belongs to the application. What it warns of comes back as an
// error of the communicator too, so it is of interest to developers only.
ucs_log_func_rc_t OnLog(const char*, unsigned, const char*, ucs_log_level_t level,
                        const ucs_log_component_config_t*, const char* format, va_list arguments) {
  if (level <= UCS_LOG_LEVEL_WARN) {
    char text[512];
    std::vsnprintf(text, sizeof(text), format, arguments);
    LogDebug("UCX: {}", text);
  }
  return UCS_LOG_FUNC_RC_STOP;
}

absl::Status Load() {
  constexpr const char* kUcp = "libucp.so.0";
  constexpr const char* kUcs = "libucs.so.0";
  // Never closed: what it has patched stays so.
  void* const ucp = dlopen(kUcp, RTLD_NOW | RTLD_LOCAL);
  void* const ucs = ucp == nullptr ? nullptr : dlopen(kUcs, RTLD_NOW | RTLD_LOCAL);
  if (ucs == nullptr) {
    return Unimplemented("the backend ucx needs UCX; install libucx0 ({})", dlerror());
  }
  const char* missing = nullptr;
#define SWITCHYARD_FIND(library, name)                                    \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, #name)); \
  if (api.name == nullptr) missing = #name;
#define SWITCHYARD_FIND_UCP(name) SWITCHYARD_FIND(ucp, name)
#define SWITCHYARD_FIND_UCS(name) SWITCHYARD_FIND(ucs, name)
  SWITCHYARD_UCP_FUNCTIONS(SWITCHYARD_FIND_UCP)
  SWITCHYARD_UCS_FUNCTIONS(SWITCHYARD_FIND_UCS)
  if (missing != nullptr) {
    return Unimplemented("the installed UCX lacks {}; install UCX {}.{} or newer", missing,
                         UCP_API_MAJOR, UCP_API_MINOR);
  }
  api.ucs_log_push_handler(OnLog);
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadUcx() {
  static const absl::Status status = Load();
  return status;
}

const UcxApi& Ucx() { return api; }

}  // namespace switchyard::comm
