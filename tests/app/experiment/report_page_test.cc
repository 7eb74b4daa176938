// The report as text: what stands first, what is left out, and that no name can break out of it.
#include "app/report/report_page.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/experiment/made_up_result.h"
#include "app/report/charts.h"
#include "app/report/html_text.h"

namespace switchyard::app {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string BodyOf(const std::string& page) { return page.substr(page.find("<body>")); }

TEST(ReportPageTest, SaysFirstWhatTheDevicesWere) {
  const std::string body = BodyOf(ReportPage(MadeUpResult()));
  EXPECT_TRUE(body.starts_with("<body>\n<p class=\"devices\">CPU workers with 1 thread each</p>"))
      << body.substr(0, 200);
}

TEST(ReportPageTest, NamesInjectedCauses) {
  const std::string page = ReportPage(MadeUpResult());
  EXPECT_THAT(page, HasSubstr("the link from rank 0 to rank 1 is late"));
  EXPECT_THAT(page, HasSubstr("rank 1 computes 2.00 times as long"));
}

TEST(ReportPageTest, ListsWhatCannotRunWithTheReason) {
  EXPECT_THAT(ReportPage(MadeUpResult()), HasSubstr("cannot run: mode single has one worker"));
}

TEST(ReportPageTest, SaysHowManyTokensAgree) {
  ExperimentResult result = MadeUpResult();
  AnswerSample& sample = result.runs[1].measurements[0].samples[2];
  sample.agrees = false;
  sample.num_equal_tokens = 9;
  EXPECT_THAT(ReportPage(result), HasSubstr("differ from single after 9"));
}

TEST(ReportPageTest, LeavesOutPanelsWithoutData) {
  ExperimentResult result = MadeUpResult();
  EXPECT_THAT(ReportPage(result), HasSubstr("Residency"));
  EXPECT_THAT(ReportPage(result), HasSubstr("Predicted and measured"));
  result.residency = nullptr;
  result.predictions = nullptr;
  EXPECT_THAT(ReportPage(result), Not(HasSubstr("<h2>Residency")));
  EXPECT_THAT(ReportPage(result), Not(HasSubstr("<h2>Predicted")));
  result.runs.clear();
  const std::string page = ReportPage(result);
  EXPECT_THAT(page, Not(HasSubstr("<svg class=\"chart\"")));
  EXPECT_THAT(page, HasSubstr("0 of 0 combinations ran"));
}

TEST(ReportPageTest, NothingInNamesBecomesMarkup) {
  ExperimentResult result = MadeUpResult();
  const std::string evil = "</script><script>alert(1)</script>\"'&<b>";
  result.name = result.devices = evil;
  result.runs[1].combination.condition.name = evil;
  result.runs[1].combination.condition.competitor_rank = 0;
  result.runs[1].measurements[0].prompt = evil;
  result.runs[1].plan_id = evil;
  result.settings["x"] = evil;
  result.runs[1].measurements[0].samples[0].token.ranks[0].stages[0].stage = evil;
  const std::string page = ReportPage(result);
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, Not(HasSubstr("&<b>")));
}

TEST(ReportPageTest, NeedsNothingFromElsewhere) {
  const std::string page = ReportPage(MadeUpResult());
  for (const char* const outside : {"http://", "https://", "src=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
}

TEST(ReportPageTest, HoldsTheWholeResult) {
  const ExperimentResult result = MadeUpResult();
  const std::string page = ReportPage(result);
  const std::string mark = "id=\"data\">";
  const size_t begin = page.find(mark) + mark.size();
  const auto data =
      ParseExperimentResult(page.substr(begin, page.find("</script>", begin) - begin), "page");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(ToJson(*data), ToJson(result));
}

TEST(ChartsTest, BarsEndWhereTheirValuesAre) {
  const std::string svg = BarChart("t", "ms", {{"a", {{2, 1, 4, 0}}}, {"b", {{1, 1, 1, 1}}}});
  // The longest whisker ends at 84 %.
  EXPECT_THAT(svg, HasSubstr("class=\"c0\" x=\"0\" y=\"17\" width=\"42.00%\""));
  EXPECT_THAT(svg, HasSubstr("x1=\"21.00%\" x2=\"84.00%\""));
  EXPECT_THAT(svg, HasSubstr("class=\"c1\" x=\"0\" y=\"56\" width=\"21.00%\""));
  EXPECT_EQ(BarChart("t", "ms", {}), "");
  EXPECT_EQ(BarChart("t", "ms", {{"a", {{}}}}), "");
}

TEST(ChartsTest, LanesAddUp) {
  const std::string svg = LaneChart("t", "ms", 1e3, {{"r", {{0.001, 0}, {0.003, 5}}}});
  EXPECT_THAT(svg, HasSubstr("c0\" x=\"0.000%\" y=\"17\" width=\"21.000%\""));
  EXPECT_THAT(svg, HasSubstr("c5\" x=\"21.000%\" y=\"17\" width=\"63.000%\""));
}

TEST(ChartsTest, NeighboursOfOneColourShareARectangle) {
  const std::string svg = HeatMap("t", {{1, 1, 0.5, -1}});
  EXPECT_THAT(svg, HasSubstr("layer 0, experts 0 to 1: 100 %"));
  EXPECT_THAT(svg, HasSubstr("layer 0, experts 2 to 2: 50 %"));
  EXPECT_THAT(svg, Not(HasSubstr("experts 3")));
}

TEST(HtmlTextTest, PrintsNumbersWithThreeDigits) {
  EXPECT_EQ(Short(0), "0");
  EXPECT_EQ(Short(1234.5), "1234");
  EXPECT_EQ(Short(12.345), "12.3");
  EXPECT_EQ(Short(0.012345), "0.0123");
  EXPECT_EQ(Short(1.0 / 0.0), "-");
}

}  // namespace
}  // namespace switchyard::app
