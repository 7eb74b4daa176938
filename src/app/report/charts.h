// Charts as inline SVG. Places along the page are percentages and letters have a size of their own,
// so that a chart is readable on a narrow screen too; colours are classes of report_style.h.
#pragma once

#include <string>
#include <vector>

namespace switchyard::app {

// One bar with whiskers.
struct Bar {
  double value = 0;     // its length: the median
  double low = 0;       // left end of the whisker
  double high = 0;      // right end
  int colour = 0;       // c0 to c7
  std::string title{};  // shown where the pointer rests
};

struct BarRow {
  std::string label;
  std::vector<Bar> bars;
};

// Bars from zero to the right, one under the other, each row under its label, with an axis in
// `unit`. Empty without rows.
std::string BarChart(const std::string& title, const std::string& unit,
                     const std::vector<BarRow>& rows);

// A part of a lane.
struct Span {
  double length = 0;
  int colour = 0;
  std::string title{};
};

struct Lane {
  std::string label;
  std::vector<Span> spans;  // one behind the other
};

// Lanes on one axis, whose values are multiplied by `scale` to be in `unit`.
std::string LaneChart(const std::string& title, const std::string& unit, double scale,
                      const std::vector<Lane>& lanes);

// What colours mean.
struct LegendEntry {
  int colour = 0;
  std::string text;
};
std::string Legend(const std::vector<LegendEntry>& entries);

// A square of numbers with the source down and the destination across. `cells[from][to]`, negative
// = none. The depth of a cell's colour follows its value.
struct MatrixCell {
  double value = -1;
  std::string text{};
};
std::string Matrix(const std::string& title, const std::vector<std::vector<MatrixCell>>& cells);

// A map of layers (down) and experts (across); values from 0 to 1 are colours from pale to deep,
// and negative ones are left out. Neighbours of one colour share a rectangle.
std::string HeatMap(const std::string& title, const std::vector<std::vector<double>>& rows);

}  // namespace switchyard::app
