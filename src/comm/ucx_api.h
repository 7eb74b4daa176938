// The functions of UCX, loaded when a group first uses them.
//
// UCX is not linked: its libraries patch memory functions of the whole process as soon as they are
// loaded, which no process without this backend should pay for, and programs start where they are
// not installed.
#pragma once

#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include "absl/status/status.h"

namespace switchyard::comm {

#define SWITCHYARD_UCP_FUNCTIONS(F) \
  F(ucp_cleanup)                    \
  F(ucp_config_read)                \
  F(ucp_config_release)             \
  F(ucp_ep_close_nbx)               \
  F(ucp_ep_create)                  \
  F(ucp_ep_flush_nbx)               \
  F(ucp_init_version)               \
  F(ucp_request_cancel)             \
  F(ucp_request_check_status)       \
  F(ucp_request_free)               \
  F(ucp_tag_recv_nbx)               \
  F(ucp_tag_send_nbx)               \
  F(ucp_worker_arm)                 \
  F(ucp_worker_create)              \
  F(ucp_worker_destroy)             \
  F(ucp_worker_get_address)         \
  F(ucp_worker_get_efd)             \
  F(ucp_worker_progress)            \
  F(ucp_worker_release_address)     \
  F(ucp_worker_signal)
#define SWITCHYARD_UCS_FUNCTIONS(F) \
  F(ucs_log_push_handler)           \
  F(ucs_status_string)

struct UcxApi {
#define SWITCHYARD_DECLARE(name) decltype(&::name) name = nullptr;
  SWITCHYARD_UCP_FUNCTIONS(SWITCHYARD_DECLARE)
  SWITCHYARD_UCS_FUNCTIONS(SWITCHYARD_DECLARE)
#undef SWITCHYARD_DECLARE
};

// Loads the libraries, once in the life of the process. UCX's log goes to ours from then on.
//
// Threads: any.
// Errors:  UNIMPLEMENTED if they are not installed or too old.
absl::Status LoadUcx();

// REQUIRES: LoadUcx() was OK.
const UcxApi& Ucx();

}  // namespace switchyard::comm
