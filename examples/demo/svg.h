// A chart of a few log-log panels side by side, as a static SVG: no scripts, no external fonts.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace runmax::demo {

struct Point {
  double x = 0;
  double y = 0;
};

struct Series {
  std::string label;  // written beside its last point, with its value
  std::string colour;
  std::vector<Point> measured;   // line with dots
  std::vector<Point> continued;  // dashed line with hollow dots: known, but not measured
};

struct Panel {
  std::string title;
  std::function<std::string(double)> y_text;      // tick label
  std::function<std::string(double)> value_text;  // beside the last point of a series
  double y_step = 10;                             // factor from one y tick to the next
  std::vector<Series> series;
  double limit = 0;  // horizontal line, 0 = none
  std::string limit_label;
};

struct Chart {
  std::string title;
  std::string subtitle;
  std::string x_label;
  std::function<std::string(double)> x_text;  // x ticks double from one to the next
  std::vector<Panel> panels;
  std::vector<std::string> notes;  // lines below the panels
};

std::string render_svg(const Chart& chart);

}  // namespace runmax::demo
