//! Charts: layout of title, legend, axes and marks. [`crate::axis`] makes the axes,
//! [`crate::marks`] draws inside them.

use crate::axis::{Axis, range};
use crate::marks::{Bars, Lines, Marks, Plot, Series, SeriesStyle, in_legend};
use crate::svg::{Text, coordinate_text, escape, fit, line, width, wrap};

/// A picture of several series, [`Lines`] or [`Bars`], with one axis across and one up.
///
/// ```
/// use trackway_report::Chart;
/// let svg = Chart::lines("Lengths").x("bits").y("share, %").series("fft", [(1.0, 20.0), (2.0, 100.0)]).svg();
/// assert!(svg.starts_with("<svg"));
/// let svg = Chart::bars("Sizes").categories(["fft", "lu"]).y("bytes").series("raw", [1e6, 2e3]).log_y().svg();
/// assert!(svg.starts_with("<svg"));
/// ```
pub struct Chart<Kind> {
    title: String,
    x: String,
    y: String,
    log_x: bool,
    log_y: bool,
    series: Vec<Series>,
    kind: Kind,
}

impl Chart<Lines> {
    pub fn lines(title: &str) -> Self {
        Self::new(title)
    }

    /// Adds a line through points, in their order. A point that cannot be shown makes a gap.
    pub fn series(mut self, name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        self.series.push(Series::new(name, points));
        self
    }

    /// Adds a dotted line without markers, such as a bound or a front.
    pub fn dotted(mut self, name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        self.series.push(Series { style: SeriesStyle::Dotted, ..Series::new(name, points) });
        self
    }

    /// Adds a thin grey line under all others, for many lines that need not be distinguished; it is
    /// not in the legend.
    pub fn faint(mut self, name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        self.series.push(Series { style: SeriesStyle::Faint, ..Series::new(name, points) });
        self
    }

    /// Adds markers without a line.
    pub fn points(mut self, name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        self.series.push(Series { style: SeriesStyle::Points, ..Series::new(name, points) });
        self
    }

    /// Adds markers without a line, with labels; an empty label draws nothing.
    pub fn labelled_points<L: Into<String>>(
        mut self,
        name: &str,
        points: impl IntoIterator<Item = (f64, f64, L)>,
    ) -> Self {
        let (points, labels): (Vec<_>, _) = points.into_iter().map(|(x, y, label)| ((x, y), label.into())).unzip();
        self.series.push(Series { style: SeriesStyle::Points, labels, ..Series::new(name, points) });
        self
    }

    /// Draws a marker at every point of lines that are not dotted or faint.
    pub fn markers(mut self) -> Self {
        self.kind.markers = true;
        self
    }

    /// Makes the x axis logarithmic; values that are not positive are skipped.
    pub fn log_x(mut self) -> Self {
        self.log_x = true;
        self
    }
}

impl Chart<Bars> {
    pub fn bars(title: &str) -> Self {
        Self::new(title)
    }

    pub fn categories(mut self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.kind.categories = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        self
    }

    /// Adds a value for each category, in their order; a value that cannot be shown has no bar.
    pub fn series(mut self, name: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let points = values.into_iter().enumerate().map(|(category, value)| (category as f64 + 0.5, value));
        self.series.push(Series::new(name, points));
        self
    }

    /// Adds a value for each category, with the range of its whisker.
    pub fn ranges(mut self, name: &str, values: impl IntoIterator<Item = (f64, (f64, f64))>) -> Self {
        let (values, ranges): (Vec<f64>, Vec<(f64, f64)>) = values.into_iter().unzip();
        self = self.series(name, values);
        self.series.last_mut().expect("it was just added").ranges = ranges;
        self
    }

    /// Draws the bars of a category on top of each other, the first series at the bottom, instead
    /// of side by side. For values above zero without ranges, on a linear axis.
    pub fn stacked(mut self) -> Self {
        self.kind.stacked = true;
        self
    }
}

const WIDTH: f64 = 900.0;
/// Height of the plot area.
const HEIGHT: f64 = 380.0;
const MARGIN: f64 = 20.0;
const RIGHT_MARGIN: f64 = 32.0;
const TITLE_SIZE: f64 = 18.0;
const LABEL_SIZE: f64 = 14.0;
const TICK_SIZE: f64 = 13.0;
/// Tick labels wider than this are shortened.
const LABEL_WIDTH_MAX: f64 = 240.0;

impl<Kind: Marks + Default> Chart<Kind> {
    fn new(title: &str) -> Self {
        let (title, x, y) = (title.to_owned(), String::new(), String::new());
        Self { title, x, y, log_x: false, log_y: false, series: Vec::new(), kind: Kind::default() }
    }

    /// Sets the label of the x axis.
    pub fn x(mut self, label: &str) -> Self {
        self.x = label.to_owned();
        self
    }

    /// Sets the label of the y axis.
    pub fn y(mut self, label: &str) -> Self {
        self.y = label.to_owned();
        self
    }

    /// Makes the y axis logarithmic; values that are not positive are skipped.
    pub fn log_y(mut self) -> Self {
        self.log_y = true;
        self
    }

    /// Returns the chart as SVG, for a file or an HTML page.
    pub fn svg(&self) -> String {
        let mut across = self.kind.across(&self.series, self.log_x);
        across.ticks.iter_mut().for_each(|(_, label)| *label = fit(label, TICK_SIZE, LABEL_WIDTH_MAX));
        let up = self.up();
        let beside = MARGIN + line_height(&self.y, LABEL_SIZE) + 8.0 + widest_tick(&up);
        let room = |left: f64| (WIDTH - left - RIGHT_MARGIN).max(self.kind.min_width(&self.series));
        let tick_labels = TickLabels::new(&across, room(beside));
        let left = beside.max(tick_labels.overhang + MARGIN);
        let right = left + room(left);
        let (heading, top) = self.heading(left, right);
        let plot = Plot { left, right, top, bottom: top + HEIGHT, across, up };
        let foot = plot.bottom + tick_labels.depth + line_height(&self.x, LABEL_SIZE);
        let parts = [heading, grid(&plot), self.kind.svg(&plot, &self.series), frame(&plot, &tick_labels)];
        self.document((right + RIGHT_MARGIN, foot + MARGIN), &(parts.concat() + &self.labels(&plot, foot)))
    }

    fn up(&self) -> Axis {
        let values = self.kind.heights(&self.series).into_iter();
        if self.log_y {
            return Axis::logarithmic(values, Kind::FROM_ZERO);
        }
        // Bars can only be compared if they begin at zero; for lines far from zero, it would hide
        // differences.
        let zero = |low: f64, high: f64| Kind::FROM_ZERO || (low > 0.0 && low < high / 2.0);
        let with_zero = |(low, high)| if zero(low, high) { (low.min(0.0), high.max(0.0)) } else { (low, high) };
        Axis::linear(range(values).map(with_zero), 6.0, true)
    }

    fn document(&self, (width, height): (f64, f64), content: &str) -> String {
        let (width, height, title) = (coordinate_text(width), coordinate_text(height), escape(&self.title));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" \
             font-family=\"Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif\" \
             fill=\"#222222\" role=\"img\">\n\
             <title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{content}</svg>\n"
        )
    }

    /// Returns title and legend, and the y coordinate of their end.
    fn heading(&self, left: f64, right: f64) -> (String, f64) {
        let (mut svg, mut y) = (String::new(), MARGIN);
        for line in wrap(&self.title, TITLE_SIZE, right - left) {
            y += TITLE_SIZE * 1.3;
            svg += &Text { size: TITLE_SIZE, bold: true, ..text((left, y - 6.0), "start") }.svg(&line);
        }
        let (legend, height) = self.legend((left, y + 16.0), right - left);
        (svg + &legend, y + height + 20.0)
    }

    /// Returns the legend in rows and columns, and its height.
    fn legend(&self, (left, top): (f64, f64), room: f64) -> (String, f64) {
        const ROW: f64 = 22.0;
        /// Space between a sample and its name, and after the name.
        const GAP: f64 = 7.0 + 21.0;
        let mut svg = String::new();
        let all = in_legend(&self.series);
        let names: Vec<_> =
            all.iter().map(|series| fit(&series.name, LABEL_SIZE, room - Kind::SAMPLE_WIDTH - GAP)).collect();
        let widths = columns(&names, Kind::SAMPLE_WIDTH + GAP, room);
        for (number, (series, name)) in all.iter().zip(&names).enumerate() {
            let (column, row) = (number % widths.len(), number / widths.len());
            let (x, y) = (left + widths[..column].iter().sum::<f64>(), top + row as f64 * ROW);
            svg += &self.kind.sample((x, y), series.style, number, names.len());
            svg += &text((x + Kind::SAMPLE_WIDTH + 7.0, y + 5.0), "start").svg(name);
        }
        (svg, names.len().div_ceil(widths.len()) as f64 * ROW)
    }

    /// Returns the labels of the axes.
    fn labels(&self, plot: &Plot, foot: f64) -> String {
        let across = text(((plot.left + plot.right) / 2.0, foot), "middle");
        let beside = plot.left - 20.0 - widest_tick(&plot.up);
        let up = Text { rotation: -90.0, ..text((beside, (plot.top + plot.bottom) / 2.0), "middle") };
        across.svg(&fit(&self.x, LABEL_SIZE, plot.right - plot.left)) + &up.svg(&fit(&self.y, LABEL_SIZE, HEIGHT))
    }
}

fn text(at: (f64, f64), anchor: &str) -> Text<'_> {
    Text { at, size: LABEL_SIZE, anchor, bold: false, rotation: 0.0 }
}

fn line_height(text: &str, size: f64) -> f64 {
    if text.is_empty() { 0.0 } else { size * 1.8 }
}

fn widest<'a>(texts: impl Iterator<Item = &'a String>, size: f64) -> f64 {
    texts.map(|text| width(text, size)).fold(0.0, f64::max)
}

fn widest_tick(axis: &Axis) -> f64 {
    widest(axis.ticks.iter().map(|(_, label)| label), TICK_SIZE)
}

/// Returns the widths of as many columns as fit, with rows as equal as possible.
fn columns(names: &[String], more: f64, room: f64) -> Vec<f64> {
    let widths = |count: usize| -> Vec<f64> {
        (0..count).map(|column| more + widest(names.iter().skip(column).step_by(count), LABEL_SIZE)).collect()
    };
    let fits = |count: &usize| widths(*count).iter().sum::<f64>() <= room;
    let most = (1..=names.len()).rev().find(fits).unwrap_or(1);
    widths(names.len().div_ceil(names.len().div_ceil(most).max(1)).max(1))
}

/// Layout of tick labels below the x axis: slanted if they would overlap.
struct TickLabels {
    slanted: bool,
    depth: f64,
    /// How far they extend beyond the left end of the axis.
    overhang: f64,
}

/// Degrees.
const SLANT: f64 = 40.0;

impl TickLabels {
    fn new(across: &Axis, room: f64) -> Self {
        let positions: Vec<f64> = across.ticks.iter().filter_map(|&(value, _)| across.position(value)).collect();
        let closest = positions.windows(2).map(|pair| pair[1] - pair[0]).fold(1.0, f64::min);
        let widest = widest_tick(across);
        if widest + 8.0 <= closest * room {
            return Self { slanted: false, depth: 10.0 + TICK_SIZE, overhang: 0.0 };
        }
        let (sine, cosine) = SLANT.to_radians().sin_cos();
        let labels = positions.iter().zip(&across.ticks);
        let overhang =
            labels.map(|(position, (_, label))| width(label, TICK_SIZE) * cosine - position * room).fold(0.0, f64::max);
        Self { slanted: true, depth: 14.0 + widest * sine, overhang }
    }

    fn text(&self, x: f64, axis: f64) -> Text<'static> {
        let text = Text { size: TICK_SIZE, ..text((x, axis + 20.0), "middle") };
        if self.slanted { Text { at: (x + 5.0, axis + 15.0), anchor: "end", rotation: -SLANT, ..text } } else { text }
    }
}

/// Returns the grid lines under the marks.
fn grid(plot: &Plot) -> String {
    let upright = |(value, stroke)| plot.x(value).map(|x| line((x, plot.top), (x, plot.bottom), stroke));
    let level = |(value, stroke)| plot.y(value).map(|y| line((plot.left, y), (plot.right, y), stroke));
    rules(&plot.across).filter_map(upright).chain(rules(&plot.up).filter_map(level)).collect()
}

fn rules(axis: &Axis) -> impl Iterator<Item = (f64, &'static str)> {
    let minor = axis.minor.iter().map(|&value| (value, "stroke=\"#f1f1f1\""));
    let major = axis.ticks.iter().map(|&(value, _)| (value, "stroke=\"#dddddd\""));
    minor.chain(major).filter(|_| axis.grid)
}

/// Returns the x axis, drawn over the marks, and the tick labels of both axes.
fn frame(plot: &Plot, tick_labels: &TickLabels) -> String {
    let baseline = plot.y(0.0).unwrap_or(plot.bottom);
    let mut svg = line((plot.left, baseline), (plot.right, baseline), "stroke=\"#555555\"");
    for (value, label) in &plot.across.ticks {
        svg += &plot.x(*value).map_or(String::new(), |x| tick_labels.text(x, plot.bottom).svg(label));
    }
    for (value, label) in &plot.up.ticks {
        let text = |y| Text { size: TICK_SIZE, ..text((plot.left - 8.0, y + 4.5), "end") };
        svg += &plot.y(*value).map_or(String::new(), |y| text(y).svg(label));
    }
    svg
}
