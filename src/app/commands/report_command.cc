#include <fmt/format.h>
#include <memory>
#include <utility>

#include "app/command.h"
#include "app/exit_code.h"
#include "app/experiment/experiment_result.h"
#include "app/input_file.h"
#include "app/output_file.h"
#include "app/report/report_page.h"
#include "app/terminal.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

struct ReportOptions {
  std::string input;
  std::string output;
};

absl::Status Report(const ReportOptions& options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(options.input));
  auto result = ParseExperimentResult(text, options.input);
  if (!result.ok()) return WithExitCode(result.status(), ExitCode::kUsage);
  const std::string page = ReportPage(*result);
  if (options.output == "-") return WriteOutput(page);
  SWITCHYARD_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(options.output));
  SWITCHYARD_RETURN_IF_ERROR(file.Write(page.data(), page.size()));
  return file.Commit();
}

}  // namespace

void AddReportCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command = app.add_subcommand("report", "Make one HTML file of an experiment's results");
  auto options = std::make_shared<ReportOptions>();
  command->add_option("RESULT", options->input, "JSON that `experiment run` wrote")->required();
  command->add_option("-o,--output", options->output, "HTML file to write; - = stdout")->required();
  command->footer(
      "The file needs no network and no other file.\n"
      "Example:\n  switchyard report result.json -o report.html");
  command->callback([&body, options] { body = [options] { return Report(*options); }; });
}

}  // namespace switchyard::app
