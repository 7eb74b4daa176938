// From flags to a running engine: backend, worker and coordinator core in one process.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "app/loaded_model.h"
#include "app/model_options.h"
#include "coordinator/engine.h"
#include "kernels/backend.h"
#include "worker/worker.h"

namespace switchyard::app {

// Threads that compute when nobody says how many.
int DefaultNumThreads();

// Makes the backend that `options` name. Where nobody says how many threads compute, and there are
// more than two cores, the number is measured once the weights are loaded; with `model_digest` the
// result is kept for the next start.
// Errors: kInvalidArgument with the exit code of unfit hardware for a level this machine lacks.
absl::StatusOr<std::unique_ptr<kernels::Backend>> MakeBackend(const ModelOptions& options,
                                                              const std::string& model_digest = {});

// Sizes of a worker for `options`. A sequence may use the whole context; the pages of one more are
// there for kept prefixes.
absl::StatusOr<worker::WorkerOptions> MakeWorkerOptions(const LoadedModel& model,
                                                        const ModelOptions& options);

// Loads the weights, with a bar on a terminal, and logs what takes how much memory. `on_progress`
// is told of each part; an error that it returns ends the load, as an interrupt does.
absl::StatusOr<std::unique_ptr<worker::Worker>> LoadWorker(
    const LoadedModel& model, const ModelOptions& options,
    const worker::WorkerOptions& worker_options, const worker::LoadProgress& on_progress = {});

// A worker that is loaded in this process, or, if `options` say so, processes that load now and are
// ready later.
// Errors: those of LoadWorker(), PlacementFor() and WorkerGroup::Start().
absl::StatusOr<std::unique_ptr<coordinator::WorkerHandle>> StartWorker(
    const LoadedModel& model, const ModelOptions& options,
    const worker::WorkerOptions& worker_options);

// All of the above and an engine on top. `model` must outlive it.
absl::StatusOr<std::unique_ptr<coordinator::Engine>> StartEngine(const LoadedModel& model,
                                                                 const ModelOptions& options);

}  // namespace switchyard::app
