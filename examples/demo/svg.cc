#include "svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace runmax::demo {
namespace {

constexpr double kPanelWidth = 400;  // of the plotting area
constexpr double kPanelHeight = 300;
constexpr double kLeft = 80;    // room for y labels
constexpr double kRight = 70;   // room for the labels of the series
constexpr double kTop = 110;    // room for the titles
constexpr double kBottom = 64;  // room for x labels
constexpr double kNoteHeight = 18;

const char* const kInk = "#1f2933";
const char* const kMuted = "#616e7c";
const char* const kGrid = "#e4e7eb";

std::string escape(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else {
      result += c;
    }
  }
  return result;
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// Maps values to pixels, logarithmically.
struct Axis {
  Range range;
  double begin = 0;
  double end = 0;
  double operator()(double value) const {
    return begin + (end - begin) * std::log(value / range.low) / std::log(range.high / range.low);
  }
};

class Writer {
 public:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  // The white rim keeps text readable where it crosses a line.
  void label(double x, double y, const char* anchor, double size, const std::string& colour,
             const char* weight, const std::string& text) {
    line(
        R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}" fill="{}" font-weight="{}" )"
        R"(stroke="#ffffff" stroke-width="4" paint-order="stroke">{}</text>)",
        x, y, anchor, size, colour, weight, escape(text));
  }
  void polyline(const Axis& x, const Axis& y, const std::vector<Point>& points,
                const std::string& colour, const char* dash) {
    std::string path;
    for (const Point& p : points) {
      fmt::format_to(std::back_inserter(path), "{:.1f},{:.1f} ", x(p.x), y(p.y));
    }
    line(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2.5" )"
         R"(stroke-linejoin="round" stroke-dasharray="{}"/>)",
         path, colour, dash);
  }
  void dots(const Axis& x, const Axis& y, const std::vector<Point>& points,
            const std::string& colour, const std::string& fill) {
    for (const Point& p : points) {
      line(R"(<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="{}" stroke="{}" stroke-width="2"/>)",
           x(p.x), y(p.y), fill, colour);
    }
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// The range of all points, widened to whole ticks.
Axis y_axis(const Panel& panel, double begin, double end) {
  Range range;
  for (const Series& series : panel.series) {
    for (const Point& p : series.measured) range.add(p.y);
    for (const Point& p : series.continued) range.add(p.y);
  }
  if (panel.limit > 0) range.add(panel.limit);
  const double step = std::log(panel.y_step);
  range.low = std::exp(std::floor(std::log(range.low) / step + 1e-9) * step);
  range.high = std::exp(std::ceil(std::log(range.high) / step - 1e-9) * step);
  if (!(range.high > range.low)) range.high = range.low * panel.y_step;
  return {range, begin, end};
}

void draw_grid(Writer& out, const Chart& chart, const Panel& panel, const Axis& x, const Axis& y) {
  const double ticks = std::log(y.range.high / y.range.low) / std::log(panel.y_step);
  for (int i = 0; i <= static_cast<int>(std::lround(ticks)); ++i) {
    const double value = y.range.low * std::pow(panel.y_step, i);
    out.line(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}"/>)", x.begin,
             y(value), x.end, y(value), kGrid);
    out.label(x.begin - 10, y(value) + 4, "end", 12, kMuted, "400", panel.y_text(value));
  }
  for (double value = x.range.low; value <= x.range.high * 1.001; value *= 2) {
    out.line(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}"/>)", x(value),
             y.begin, x(value), y.end, kGrid);
    out.label(x(value), y.begin + 20, "middle", 12, kMuted, "400", chart.x_text(value));
  }
  out.label((x.begin + x.end) / 2, y.begin + 44, "middle", 13, kInk, "400", chart.x_label);
  if (panel.limit > 0) {
    out.line(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" )"
             R"(stroke-dasharray="2 3"/>)",
             x.begin, y(panel.limit), x.end, y(panel.limit), kInk);
    out.label(x.begin + 6, y(panel.limit) - 6, "start", 12, kInk, "400", panel.limit_label);
  }
}

void draw_series(Writer& out, const Panel& panel, const Axis& x, const Axis& y) {
  double previous = -1e9;  // where the last label stands, so that two do not overlap
  std::vector<const Series*> order;
  for (const Series& series : panel.series) order.push_back(&series);
  const auto last = [](const Series& s) {
    return s.continued.empty() ? s.measured.back() : s.continued.back();
  };
  std::erase_if(order, [](const Series* s) { return s->measured.empty() && s->continued.empty(); });
  std::sort(order.begin(), order.end(),
            [&](const Series* a, const Series* b) { return last(*a).y > last(*b).y; });
  for (const Series* series : order) {
    if (!series->continued.empty()) {
      std::vector<Point> dashed = series->continued;
      if (!series->measured.empty()) dashed.insert(dashed.begin(), series->measured.back());
      out.polyline(x, y, dashed, series->colour, "5 5");
      out.dots(x, y, series->continued, series->colour, "#ffffff");
    }
    out.polyline(x, y, series->measured, series->colour, "none");
    out.dots(x, y, series->measured, series->colour, series->colour);
    const Point end = last(*series);
    if (end.x < x.range.high) {  // ends inside the panel: above its last point
      out.label(x(end.x) - 6, y(end.y) - 12, "end", 14, series->colour, "600",
                series->label + " " + panel.value_text(end.y));
      continue;
    }
    const double at = std::max(y(end.y) + 2, previous + 34);
    out.label(x(end.x) + 11, at, "start", 14, series->colour, "600", series->label);
    out.label(x(end.x) + 11, at + 16, "start", 13, series->colour, "400", panel.value_text(end.y));
    previous = at;
  }
}

}  // namespace

std::string render_svg(const Chart& chart) {
  const double stride = kLeft + kPanelWidth + kRight;
  const double width = stride * static_cast<double>(chart.panels.size()) + 10;
  const double notes_at = kTop + kPanelHeight + kBottom;
  const double height = notes_at + kNoteHeight * static_cast<double>(chart.notes.size()) + 14;

  Writer out;
  out.line(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" )"
      R"(height="{1:.0f}" font-family="Helvetica, Arial, 'Liberation Sans', sans-serif">)",
      width, height);
  out.line(R"(<title>{}</title>)", escape(chart.title));
  out.line(R"(<rect width="100%" height="100%" fill="#ffffff"/>)");
  out.label(24, 34, "start", 19, kInk, "600", chart.title);
  out.label(24, 56, "start", 13, kMuted, "400", chart.subtitle);

  Range x_range;
  for (const Panel& panel : chart.panels) {
    for (const Series& series : panel.series) {
      for (const Point& p : series.measured) x_range.add(p.x);
      for (const Point& p : series.continued) x_range.add(p.x);
    }
  }
  if (!(x_range.high > x_range.low)) x_range.high = x_range.low * 2;
  double left = kLeft;
  for (const Panel& panel : chart.panels) {
    const Axis x{x_range, left, left + kPanelWidth};
    const Axis y = y_axis(panel, kTop + kPanelHeight, kTop);
    out.label(left, kTop - 16, "start", 15, kInk, "600", panel.title);
    draw_grid(out, chart, panel, x, y);
    draw_series(out, panel, x, y);
    left += stride;
  }
  double at = notes_at + 10;
  for (const std::string& note : chart.notes) {
    out.label(24, at, "start", 12, kMuted, "400", note);
    at += kNoteHeight;
  }
  out.line("</svg>");
  return out.take();
}

}  // namespace runmax::demo
