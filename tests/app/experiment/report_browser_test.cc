// The report in a real browser: it renders without an error, its charts are drawn, in light and
// dark and on a narrow screen. Skipped where there is no Chromium.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/experiment/made_up_result.h"
#include "app/experiment/png_pixels.h"
#include "app/report/report_page.h"
#include "testing/process.h"

namespace switchyard::app {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::PngPixels;
using testing::ProcessResult;

// The program, or "" where there is none.
std::string FindBrowser() {
  const char* const path = std::getenv("PATH");
  std::string folders = path != nullptr ? path : "";
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    for (const char* const name : {"chromium", "chromium-browser", "google-chrome"}) {
      const fs::path candidate = fs::path(folders.substr(begin, end - begin)) / name;
      if (access(candidate.c_str(), X_OK) == 0) return candidate.string();
    }
    begin = end + 1;
  }
  return "";
}

class ReportBrowserTest : public ::testing::Test {
 protected:
  void SetUp() override {
    browser_ = FindBrowser();
    if (browser_.empty()) GTEST_SKIP() << "there is no Chromium";
    std::string pattern = (fs::temp_directory_path() / "switchyard_report_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  // Writes the page, with something more at its end.
  void WritePage(const std::string& extra = "") {
    std::ofstream(folder_ / "page.html") << ReportPage(MadeUpResult()) << extra;
  }

  ProcessResult Browse(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(),
                     {browser_, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                      "--disable-dev-shm-usage", "--no-first-run", "--enable-logging=stderr",
                      "--user-data-dir=" + (folder_ / "profile").string()});
    arguments.push_back("file://" + (folder_ / "page.html").string());
    return testing::RunProcess(arguments);
  }

  PngPixels Screenshot(std::vector<std::string> arguments) const {
    const std::string path = (folder_ / "page.png").string();
    arguments.push_back("--screenshot=" + path);
    const ProcessResult result = Browse(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("CONSOLE")));
    // A copy for people, where one is asked for.
    if (const char* const keep = std::getenv("SWITCHYARD_KEEP_SCREENSHOTS")) {
      fs::copy_file(
          path,
          fs::path(keep) / (::testing::UnitTest::GetInstance()->current_test_info()->name() +
                            std::string(".png")),
          fs::copy_options::overwrite_existing);
    }
    return testing::ReadPng(path);
  }

  std::string browser_;
  fs::path folder_;
};

// The colours of report_style.h.
constexpr std::array<uint8_t, 3> kLightPage = {0xfb, 0xfb, 0xfa};
constexpr std::array<uint8_t, 3> kDarkPage = {0x16, 0x16, 0x15};
constexpr std::array<uint8_t, 3> kLightBars[] = {{0x00, 0x72, 0xb2},
                                                 {0xd9, 0x82, 0x00},
                                                 {0xb3, 0x57, 0x8c},
                                                 {0xc0, 0x4a, 0x00},
                                                 {0x8a, 0x7a, 0x00}};
constexpr std::array<uint8_t, 3> kDarkBars[] = {{0x4a, 0xa8, 0xe0},
                                                {0xf0, 0xab, 0x3c},
                                                {0xdd, 0x8f, 0xbb},
                                                {0xee, 0x7f, 0x45},
                                                {0xd9, 0xcb, 0x4a}};

// A bar 11 pixels high over a tenth of the width is 0.03 % of a page of 4000 lines.
constexpr double kLeastShare = 3e-4;

TEST_F(ReportBrowserTest, RunsItsScriptWithoutAnError) {
  WritePage();
  const ProcessResult result = Browse({"--dump-dom"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("CONSOLE")));
  // The script shows the filter, which nothing else does.
  EXPECT_THAT(result.out, HasSubstr("<div class=\"filter\">"));
  EXPECT_THAT(result.out, Not(HasSubstr("parsererror")));
}

TEST_F(ReportBrowserTest, AnErrorInAScriptIsSeenByTheseTests) {
  WritePage("<script>missing();</script>");
  EXPECT_THAT(Browse({"--dump-dom"}).err, HasSubstr("CONSOLE"));
}

TEST_F(ReportBrowserTest, DrawsItsCharts) {
  WritePage();
  const PngPixels image = Screenshot({"--window-size=1000,4000"});
  EXPECT_EQ(image.width, 1000);
  EXPECT_GT(image.ShareOf(kLightPage), 0.2);
  for (const auto& colour : kLightBars) EXPECT_GT(image.ShareOf(colour), kLeastShare);
}

TEST_F(ReportBrowserTest, IsReadableInTheDark) {
  WritePage();
  const PngPixels image =
      Screenshot({"--window-size=1000,4000", "--blink-settings=preferredColorScheme=0"});
  EXPECT_GT(image.ShareOf(kDarkPage), 0.2);
  for (const auto& colour : kDarkBars) EXPECT_GT(image.ShareOf(colour), kLeastShare);
}

TEST_F(ReportBrowserTest, FitsANarrowScreen) {
  // A frame as wide as a telephone: a browser's own window may not be that narrow.
  WritePage();
  fs::rename(folder_ / "page.html", folder_ / "inner.html");
  std::ofstream(folder_ / "page.html")
      << "<body style=\"margin:0\"><iframe src=\"inner.html\" style=\"border:0;width:360px;"
         "height:6000px\"></iframe>";
  const PngPixels image = Screenshot({"--window-size=600,6000"});
  EXPECT_GT(image.ShareOf(kLightBars[0]), kLeastShare);
  // Nothing is wider than the screen but what scrolls by itself.
  fs::rename(folder_ / "inner.html", folder_ / "page.html");
  std::ofstream(folder_ / "page.html", std::ios::app)
      << "<script>document.documentElement.style.width='360px';"
         "document.title='wide: '+[...document.querySelectorAll('body *')].filter(e=>"
         "!e.closest('.wide')&&!e.closest('svg')&&e.getBoundingClientRect().right>361)"
         ".map(e=>e.tagName).join();</script>";
  EXPECT_THAT(Browse({"--dump-dom"}).out, HasSubstr("<title>wide: </title>"));
}

}  // namespace
}  // namespace switchyard::app
