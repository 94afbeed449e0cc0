//! Marks inside the axes: lines through points, or groups of bars. The colour palette is here, too.

use crate::axis::{Axis, range};
use crate::labels;
use crate::svg::{coordinate_text, line, rectangle, title};

/// A named series of points. Points of bars are at the middle of their category.
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Labels of the points, in their order; empty strings draw nothing.
    pub labels: Vec<String>,
    /// Ranges drawn as whiskers, in the order of the points.
    pub ranges: Vec<(f64, f64)>,
    pub style: SeriesStyle,
}

impl Series {
    pub fn new(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let (name, points) = (name.to_owned(), points.into_iter().collect());
        Self { name, points, labels: Vec::new(), ranges: Vec::new(), style: SeriesStyle::Plain }
    }

    /// Returns all y values that are drawn.
    pub fn heights(&self) -> impl Iterator<Item = f64> + Clone {
        let ranges = self.ranges.iter().flat_map(|&(low, high)| [low, high]);
        self.points.iter().map(|&(_, y)| y).chain(ranges)
    }
}

/// Style of a series.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SeriesStyle {
    /// A line, or bars.
    Plain,
    /// A line of dots.
    Dotted,
    /// Marks without a line.
    Points,
    /// A thin grey line under all others.
    Faint,
}

/// Returns the series that have a colour and are in the legend.
pub fn in_legend(all: &[Series]) -> Vec<&Series> {
    all.iter().filter(|series| series.style != SeriesStyle::Faint).collect()
}

/// The plot area with its two axes.
pub struct Plot {
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
    pub across: Axis,
    pub up: Axis,
}

impl Plot {
    pub fn x(&self, value: f64) -> Option<f64> {
        self.across.position(value).map(|position| self.left + position * (self.right - self.left))
    }

    pub fn y(&self, value: f64) -> Option<f64> {
        self.up.position(value).map(|position| self.bottom - position * (self.bottom - self.top))
    }

    pub fn point(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        self.x(x).zip(self.y(y))
    }
}

/// Marks of one kind of chart.
pub trait Marks {
    /// Whether marks start at zero, so that the axis has to include it.
    const FROM_ZERO: bool;
    /// Width of a sample in the legend.
    const SAMPLE_WIDTH: f64;
    fn across(&self, series: &[Series], logarithmic: bool) -> Axis;
    /// Returns all y values that the axis has to show.
    fn heights(&self, series: &[Series]) -> Vec<f64> {
        series.iter().flat_map(Series::heights).collect()
    }
    fn min_width(&self, series: &[Series]) -> f64;
    fn svg(&self, plot: &Plot, series: &[Series]) -> String;
    /// Returns the sample beside a name in the legend, from `at` to the right.
    fn sample(&self, at: (f64, f64), style: SeriesStyle, number: usize, count: usize) -> String;
}

/// Okabe and Ito's colours, which are safe for colour blindness, without the yellow that is faint
/// on white.
const FEW_COLORS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#333333"];
/// Tol's muted colours as extended by CARTO, for as many series as colours can distinguish.
const MANY_COLORS: [&str; 12] = [
    "#332288", "#88ccee", "#117733", "#ddcc77", "#cc6677", "#aa4499", "#44aa99", "#999933", "#882255", "#6699cc",
    "#661100", "#888888",
];

fn color(number: usize, count: usize) -> &'static str {
    if count <= FEW_COLORS.len() {
        FEW_COLORS[number % FEW_COLORS.len()]
    } else {
        MANY_COLORS[number % MANY_COLORS.len()]
    }
}

/// Lines through points, in the order of the points.
#[derive(Default)]
pub struct Lines {
    pub(crate) markers: bool,
}

fn coordinates((x, y): (f64, f64)) -> String {
    format!("{} {}", coordinate_text(x), coordinate_text(y))
}

/// Colour, line and marker of a series.
struct Stroke {
    color: &'static str,
    width: f64,
    dashes: &'static str,
    shape: &'static str,
}

/// Marker shapes around a point.
const SHAPES: [&str; 4] =
    ["m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "m-3.5-3.5h7v7h-7z", "m0-5l4.5 8h-9z", "m0-5l5 5l-5 5l-5-5z"];
const DASHES: [&str; 3] = ["", " stroke-dasharray=\"8 3\"", " stroke-dasharray=\"2.5 2.5\""];
const DOTS: &str = " stroke-dasharray=\"0.1 5.5\" stroke-linecap=\"round\"";

impl Stroke {
    const FAINT: Self = Self { color: "#bbbbbb", width: 1.0, dashes: "", shape: SHAPES[0] };

    fn new(style: SeriesStyle, number: usize, count: usize) -> Self {
        // When colours repeat, dashes and shapes change.
        let round = number / MANY_COLORS.len();
        let (width, dashes) = match style {
            SeriesStyle::Dotted => (3.0, DOTS),
            _ if count <= FEW_COLORS.len() => (2.0, ""),
            // Similar colours get different dashes.
            _ => (2.0, DASHES[(number / 4 + round) % DASHES.len()]),
        };
        Self { color: color(number, count), width, dashes, shape: SHAPES[(number + round) % SHAPES.len()] }
    }

    fn stroke(&self) -> String {
        let Self { color, width, dashes, .. } = self;
        format!("fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{dashes}")
    }

    fn marker(&self, point: &str) -> String {
        format!("<path d=\"M{point}{}\" fill=\"{}\" stroke=\"white\"/>\n", self.shape, self.color)
    }
}

/// Returns segments of consecutive points as SVG coordinates. A point that cannot be shown makes a
/// gap; equal consecutive points are merged.
fn segments(plot: &Plot, points: &[(f64, f64)]) -> Vec<Vec<String>> {
    let positions: Vec<Option<String>> = points.iter().map(|&point| plot.point(point).map(coordinates)).collect();
    let segments = positions.split(Option::is_none).map(|segment| segment.iter().flatten().cloned().collect());
    let mut segments: Vec<Vec<String>> = segments.collect();
    segments.iter_mut().for_each(Vec::dedup);
    segments.retain(|segment| !segment.is_empty());
    segments
}

impl Lines {
    fn has_markers(&self, style: SeriesStyle) -> bool {
        style == SeriesStyle::Points || (style == SeriesStyle::Plain && self.markers)
    }

    fn draw(&self, plot: &Plot, series: &Series, stroke_style: &Stroke) -> String {
        let segments = segments(plot, &series.points);
        let mut svg = String::new();
        if series.style != SeriesStyle::Points {
            let path: String = segments.iter().map(|segment| format!("M{}", segment.join("L"))).collect();
            // A tooltip replaces the legend entry.
            let hint = if series.style == SeriesStyle::Faint { title(&series.name) } else { String::new() };
            svg += &format!("<path d=\"{path}\" {}>{hint}</path>\n", stroke_style.stroke());
        }
        let markers = self.has_markers(series.style);
        // A line through one point is invisible without a marker.
        for point in segments.iter().filter(|segment| markers || segment.len() == 1).flatten() {
            svg += &stroke_style.marker(point);
        }
        svg
    }
}

impl Marks for Lines {
    const FROM_ZERO: bool = false;
    const SAMPLE_WIDTH: f64 = 26.0;

    fn across(&self, series: &[Series], logarithmic: bool) -> Axis {
        let values = series.iter().flat_map(|series| &series.points).map(|&(x, _)| x);
        if logarithmic {
            return Axis::counts(values.clone()).unwrap_or_else(|| Axis::logarithmic(values, false));
        }
        // There are no ticks between whole numbers if there are no values.
        let whole = values.clone().all(|value| value.fract() == 0.0);
        let range = range(values);
        let count = range.filter(|_| whole).map_or(10.0, |(low, high)| (high - low).clamp(1.0, 10.0));
        // A line may begin at the edge of the plot; markers are better visible away from it.
        let marks = series.iter().any(|series| series.style == SeriesStyle::Points);
        Axis::linear(range, count, marks)
    }

    fn min_width(&self, _: &[Series]) -> f64 {
        0.0
    }

    fn svg(&self, plot: &Plot, all: &[Series]) -> String {
        let faint = all.iter().filter(|series| series.style == SeriesStyle::Faint);
        let mut svg: String = faint.map(|series| self.draw(plot, series, &Stroke::FAINT)).collect();
        let named = in_legend(all);
        let mut numbered: Vec<_> = named.iter().enumerate().collect();
        // Markers are drawn over lines.
        numbered.sort_by_key(|(_, series)| series.style == SeriesStyle::Points);
        for (number, series) in numbered {
            svg += &self.draw(plot, series, &Stroke::new(series.style, number, named.len()));
        }
        svg + &labels::svg(plot, all)
    }

    fn sample(&self, (x, y): (f64, f64), style: SeriesStyle, number: usize, count: usize) -> String {
        let stroke_style = Stroke::new(style, number, count);
        let stroke = if style == SeriesStyle::Points {
            String::new()
        } else {
            line((x, y), (x + Self::SAMPLE_WIDTH, y), &stroke_style.stroke())
        };
        let middle = coordinates((x + Self::SAMPLE_WIDTH / 2.0, y));
        stroke + &if self.has_markers(style) { stroke_style.marker(&middle) } else { String::new() }
    }
}

/// Groups of bars: for each category, one bar of each series, side by side or stacked.
#[derive(Default)]
pub struct Bars {
    pub(crate) categories: Vec<String>,
    pub(crate) stacked: bool,
}

impl Bars {
    fn name(&self, category: usize) -> &str {
        self.categories.get(category).map_or("", String::as_str)
    }

    fn count(&self, series: &[Series]) -> usize {
        series.iter().map(|series| series.points.len()).fold(self.categories.len(), usize::max)
    }

    /// Returns the number of bars side by side in a category.
    fn abreast(&self, series: &[Series]) -> usize {
        if self.stacked { 1 } else { series.len().max(1) }
    }
}

/// Returns a value, or nothing in the place of one that cannot be shown.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// Draws a whisker over a range, with ends half as wide as a bar. Draws nothing if the range cannot
/// be shown; on a logarithmic axis it may begin below the axis.
fn whisker(plot: &Plot, x: f64, (low, high): (f64, f64), width: f64) -> String {
    let (Some(top), bottom) = (plot.y(high), plot.y(low).unwrap_or(plot.bottom)) else { return String::new() };
    let (stroke, half) = ("stroke=\"#222222\"", (width / 4.0).min(5.0));
    let end = |y: f64| line((x - half, y), (x + half, y), stroke);
    line((x, top), (x, bottom), stroke) + &end(top) + &end(bottom)
}

/// Share of a category's width that bars fill.
const FILLED_SHARE: f64 = 0.8;
/// Bars are not wider, even if there are few.
const BAR_WIDTH_MAX: f64 = 64.0;

impl Marks for Bars {
    const FROM_ZERO: bool = true;
    const SAMPLE_WIDTH: f64 = 14.0;

    fn across(&self, series: &[Series], _: bool) -> Axis {
        Axis::categories((0..self.count(series)).map(|category| self.name(category).to_owned()))
    }

    /// Of stacked bars, their ends.
    fn heights(&self, series: &[Series]) -> Vec<f64> {
        if !self.stacked {
            return series.iter().flat_map(Series::heights).collect();
        }
        let value = |series: &Series, category: usize| series.points.get(category).map_or(0.0, |&(_, y)| finite(y));
        (0..self.count(series)).map(|category| series.iter().map(|series| value(series, category)).sum()).collect()
    }

    /// Keeps bars visible and labels apart.
    fn min_width(&self, series: &[Series]) -> f64 {
        self.count(series) as f64 * (self.abreast(series) as f64 * 3.0 / FILLED_SHARE).max(24.0)
    }

    fn svg(&self, plot: &Plot, all: &[Series]) -> String {
        let mut svg = String::new();
        let category = (plot.right - plot.left) / self.count(all).max(1) as f64;
        let abreast = self.abreast(all);
        let width = (category * FILLED_SHARE / abreast as f64).min(BAR_WIDTH_MAX);
        // Where the next bar of each category begins.
        let mut bases = vec![0.0; self.count(all)];
        for (number, series) in all.iter().enumerate() {
            for ((category, &(middle, value)), base) in series.points.iter().enumerate().zip(&mut bases) {
                let Some((x, y)) = plot.point((middle, *base + value)) else { continue };
                let x = x + ((number % abreast) as f64 - abreast as f64 / 2.0) * width;
                let hint = format!("{}, {}: {value}", self.name(category), series.name);
                // Logarithmic axes have no zero; there, bars begin at the axis.
                let baseline = plot.y(*base).unwrap_or(plot.bottom);
                let size = (width - (width / 8.0).min(1.0), (baseline - y).abs());
                svg += &rectangle((x, y.min(baseline)), size, color(number, all.len()), &hint);
                *base += if self.stacked { finite(value) } else { 0.0 };
                if let Some(&range) = series.ranges.get(category) {
                    svg += &whisker(plot, x + size.0 / 2.0, range, size.0);
                }
            }
        }
        svg
    }

    fn sample(&self, (x, y): (f64, f64), _: SeriesStyle, number: usize, count: usize) -> String {
        rectangle((x, y - Self::SAMPLE_WIDTH / 2.0), (Self::SAMPLE_WIDTH, Self::SAMPLE_WIDTH), color(number, count), "")
    }
}
