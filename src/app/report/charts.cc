#include "app/report/charts.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "app/report/html_text.h"

namespace switchyard::app {
namespace {

// Percent of the page's width that the largest value takes; the rest is for its label.
constexpr double kPlotPercent = 84;

constexpr int kLabelHeight = 17;
constexpr int kBarHeight = 13;
constexpr int kRowGap = 9;
constexpr int kAxisHeight = 22;

// The step of an axis with about four marks: 1, 2 or 5 times a power of ten.
double TickStep(double largest) {
  const double raw = largest / 4;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string Tooltip(const std::string& text) {
  return text.empty() ? "" : fmt::format("<title>{}</title>", Escape(text));
}

std::string OpenSvg(const std::string& title, int height) {
  return fmt::format(
      "<figure><figcaption>{0}</figcaption><svg class=\"chart\" role=\"img\" aria-label=\"{0}\" "
      "width=\"100%\" height=\"{1}\">",
      Escape(title), height);
}

// Marks from zero to `largest`; what is drawn later lies over their lines.
std::string Axis(double largest, double scale, const std::string& unit, int height) {
  std::string out;
  const double step = TickStep(largest * scale);
  for (int i = 0; i * step <= largest * scale * 1.0001; ++i) {
    const double percent = kPlotPercent * i * step / (largest * scale);
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0:.2f}%\" x2=\"{0:.2f}%\" y1=\"0\" y2=\"{1}\"/>"
        "<text class=\"tick\" x=\"{0:.2f}%\" y=\"{2}\"{4}>{3}</text>",
        percent, height - kAxisHeight + 4, height - 6, Short(i * step),
        i == 0 ? "" : " text-anchor=\"middle\"");
  }
  return out + fmt::format("<text class=\"tick\" x=\"100%\" y=\"{}\" text-anchor=\"end\">{}</text>",
                           height - 6, Escape(unit));
}

}  // namespace

std::string BarChart(const std::string& title, const std::string& unit,
                     const std::vector<BarRow>& rows) {
  double largest = 0;
  int height = kAxisHeight;
  for (const BarRow& row : rows) {
    height += kLabelHeight + kBarHeight * static_cast<int>(row.bars.size()) + kRowGap;
    for (const Bar& bar : row.bars) largest = std::max({largest, bar.value, bar.high});
  }
  if (largest <= 0) return "";
  std::string out = OpenSvg(title, height) + Axis(largest, 1, unit, height);
  int y = 0;
  for (const BarRow& row : rows) {
    out +=
        fmt::format("<text class=\"label\" x=\"0\" y=\"{}\">{}</text>", y + 12, Escape(row.label));
    y += kLabelHeight;
    for (const Bar& bar : row.bars) {
      const auto percent = [&](double value) { return kPlotPercent * value / largest; };
      const double middle = y + (kBarHeight - 2) / 2.0;
      out += fmt::format(
          "<g class=\"bar\">{}<rect class=\"c{}\" x=\"0\" y=\"{}\" width=\"{:.2f}%\" height=\"{}\" "
          "rx=\"2\"/>",
          Tooltip(bar.title), bar.colour, y, percent(bar.value), kBarHeight - 2);
      if (bar.high > bar.low) {
        out += fmt::format(
            "<line class=\"whisker\" x1=\"{0:.2f}%\" x2=\"{1:.2f}%\" y1=\"{2}\" y2=\"{2}\"/>",
            percent(bar.low), percent(bar.high), middle);
        for (const double end : {bar.low, bar.high}) {
          out += fmt::format(
              "<line class=\"whisker\" x1=\"{0:.2f}%\" x2=\"{0:.2f}%\" y1=\"{1}\" y2=\"{2}\"/>",
              percent(end), middle - 3, middle + 3);
        }
      }
      out += fmt::format("<text class=\"value\" x=\"{:.2f}%\" dx=\"5\" y=\"{}\">{}</text></g>",
                         percent(std::max(bar.value, bar.high)), middle + 4, Short(bar.value));
      y += kBarHeight;
    }
    y += kRowGap;
  }
  return out + "</svg></figure>\n";
}

std::string LaneChart(const std::string& title, const std::string& unit, double scale,
                      const std::vector<Lane>& lanes) {
  constexpr int kLaneHeight = 20;
  double largest = 0;
  for (const Lane& lane : lanes) {
    double length = 0;
    for (const Span& span : lane.spans) length += span.length;
    largest = std::max(largest, length);
  }
  if (largest <= 0) return "";
  const int height =
      kAxisHeight + static_cast<int>(lanes.size()) * (kLabelHeight + kLaneHeight + kRowGap);
  std::string out = OpenSvg(title, height) + Axis(largest, scale, unit, height);
  int y = 0;
  for (const Lane& lane : lanes) {
    out +=
        fmt::format("<text class=\"label\" x=\"0\" y=\"{}\">{}</text>", y + 12, Escape(lane.label));
    y += kLabelHeight;
    double begin = 0;
    for (const Span& span : lane.spans) {
      out += fmt::format(
          "<rect class=\"span c{}\" x=\"{:.3f}%\" y=\"{}\" width=\"{:.3f}%\" "
          "height=\"{}\">{}</rect>",
          span.colour, kPlotPercent * begin / largest, y, kPlotPercent * span.length / largest,
          kLaneHeight, Tooltip(span.title));
      begin += span.length;
    }
    out += fmt::format("<text class=\"value\" x=\"{:.2f}%\" dx=\"5\" y=\"{}\">{}</text>",
                       kPlotPercent * begin / largest, y + 14, Short(begin * scale));
    y += kLaneHeight + kRowGap;
  }
  return out + "</svg></figure>\n";
}

std::string Legend(const std::vector<LegendEntry>& entries) {
  std::string out = "<ul class=\"legend\">";
  for (const LegendEntry& entry : entries) {
    out += fmt::format(
        "<li><svg width=\"12\" height=\"12\" aria-hidden=\"true\"><rect class=\"c{}\" width=\"12\" "
        "height=\"12\" rx=\"2\"/></svg>{}</li>",
        entry.colour, Escape(entry.text));
  }
  return out + "</ul>\n";
}

std::string Matrix(const std::string& title, const std::vector<std::vector<MatrixCell>>& cells) {
  double largest = 0;
  for (const auto& row : cells) {
    for (const MatrixCell& cell : row) largest = std::max(largest, cell.value);
  }
  std::string out = fmt::format(
      "<figure><figcaption>{}</figcaption><div class=\"wide\"><table class=\"matrix\">"
      "<tr><th>from \\ to</th>",
      Escape(title));
  for (size_t to = 0; to < cells.size(); ++to) out += fmt::format("<th>{}</th>", to);
  out += "</tr>";
  for (size_t from = 0; from < cells.size(); ++from) {
    out += fmt::format("<tr><th>{}</th>", from);
    for (const MatrixCell& cell : cells[from]) {
      if (cell.value < 0) {
        out += "<td class=\"none\">&middot;</td>";
        continue;
      }
      out += fmt::format("<td style=\"--depth:{:.2f}\">{}</td>",
                         largest > 0 ? 0.08 + 0.5 * cell.value / largest : 0.08, Escape(cell.text));
    }
    out += "</tr>";
  }
  return out + "</table></div></figure>\n";
}

std::string HeatMap(const std::string& title, const std::vector<std::vector<double>>& rows) {
  constexpr int kLevels = 16;  // more cannot be told apart, and fewer rectangles are needed
  constexpr int kRowHeight = 7;
  const int height = kRowHeight * static_cast<int>(rows.size());
  std::string out = OpenSvg(title, height);
  for (size_t layer = 0; layer < rows.size(); ++layer) {
    const std::vector<double>& row = rows[layer];
    const auto level = [&](size_t i) {
      return row[i] < 0 ? -1 : static_cast<int>(std::lround(std::min(1.0, row[i]) * kLevels));
    };
    for (size_t begin = 0; begin < row.size();) {
      size_t end = begin + 1;
      while (end < row.size() && level(end) == level(begin)) ++end;
      if (level(begin) >= 0) {
        out += fmt::format(
            "<rect class=\"heat\" x=\"{:.3f}%\" y=\"{}\" width=\"{:.3f}%\" height=\"{}\" "
            "style=\"--depth:{:.2f}\"><title>layer {}, experts {} to {}: {:.0f} %</title></rect>",
            100.0 * static_cast<double>(begin) / static_cast<double>(row.size()),
            layer * kRowHeight,
            100.0 * static_cast<double>(end - begin) / static_cast<double>(row.size()),
            kRowHeight - 1, 0.06 + 0.94 * level(begin) / kLevels, layer, begin, end - 1,
            100.0 * level(begin) / kLevels);
      }
      begin = end;
    }
  }
  return out + "</svg></figure>\n";
}

}  // namespace switchyard::app
