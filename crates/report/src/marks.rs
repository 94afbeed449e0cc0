//! What is drawn inside the axes: lines through points, or bars side by side. The palette is here, too.

use crate::axis::{Axis, range};
use crate::labels;
use crate::svg::{line, rectangle, tenth, title};

/// Points with a name. Those of bars are at the middle of their category.
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// What stands beside the points, in their order; nothing where it is empty.
    pub labels: Vec<String>,
    /// From where to where a line goes at each point, in their order.
    pub ranges: Vec<(f64, f64)>,
    pub look: Look,
}

impl Series {
    pub fn new(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let (name, points) = (name.to_owned(), points.into_iter().collect());
        Self { name, points, labels: Vec::new(), ranges: Vec::new(), look: Look::Plain }
    }

    /// All heights that are drawn.
    pub fn heights(&self) -> impl Iterator<Item = f64> + Clone {
        let ranges = self.ranges.iter().flat_map(|&(low, high)| [low, high]);
        self.points.iter().map(|&(_, y)| y).chain(ranges)
    }
}

/// How a series is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// A line, or bars.
    Plain,
    /// A line of dots.
    Dotted,
    /// Marks without a line.
    Points,
    /// A thin grey line behind all others.
    Faint,
}

/// The series that have a colour of their own and are in the legend.
pub fn in_legend(all: &[Series]) -> Vec<&Series> {
    all.iter().filter(|series| series.look != Look::Faint).collect()
}

/// A place in the picture with axes along two of its sides.
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
        self.across.place(value).map(|place| self.left + place * (self.right - self.left))
    }

    pub fn y(&self, value: f64) -> Option<f64> {
        self.up.place(value).map(|place| self.bottom - place * (self.bottom - self.top))
    }

    pub fn point(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        self.x(x).zip(self.y(y))
    }
}

/// What charts of one kind have of their own.
pub trait Marks {
    /// Whether marks stand on the axis, so that it has to begin at zero.
    const STANDING: bool;
    /// How wide a sample in the legend is.
    const SAMPLE: f64;
    fn across(&self, series: &[Series], logarithmic: bool) -> Axis;
    fn narrowest(&self, series: &[Series]) -> f64;
    fn svg(&self, plot: &Plot, series: &[Series]) -> String;
    /// What stands beside the name in the legend, from `at` to the right.
    fn sample(&self, at: (f64, f64), look: Look, number: usize, count: usize) -> String;
}

/// Okabe and Ito's colours, which everybody can tell apart, without the yellow that is faint on white.
const FEW: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#333333"];
/// Tol's muted colours as CARTO extended them, for as many as colours can tell apart.
const MANY: [&str; 12] = [
    "#332288", "#88ccee", "#117733", "#ddcc77", "#cc6677", "#aa4499", "#44aa99", "#999933", "#882255", "#6699cc",
    "#661100", "#888888",
];

fn color(number: usize, count: usize) -> &'static str {
    if count <= FEW.len() { FEW[number % FEW.len()] } else { MANY[number % MANY.len()] }
}

/// Lines through points, in the order of the points.
#[derive(Default)]
pub struct Lines {
    pub(crate) markers: bool,
}

fn written((x, y): (f64, f64)) -> String {
    format!("{} {}", tenth(x), tenth(y))
}

/// What tells a series from the others.
struct Paint {
    color: &'static str,
    width: f64,
    dashes: &'static str,
    shape: &'static str,
}

/// Of marks around a place.
const SHAPES: [&str; 4] =
    ["m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "m-3.5-3.5h7v7h-7z", "m0-5l4.5 8h-9z", "m0-5l5 5l-5 5l-5-5z"];
const DASHES: [&str; 3] = ["", " stroke-dasharray=\"8 3\"", " stroke-dasharray=\"2.5 2.5\""];
const DOTS: &str = " stroke-dasharray=\"0.1 5.5\" stroke-linecap=\"round\"";

impl Paint {
    const FAINT: Self = Self { color: "#bbbbbb", width: 1.0, dashes: "", shape: SHAPES[0] };

    fn new(look: Look, number: usize, count: usize) -> Self {
        // Where colours begin again, dashes and shapes are others.
        let round = number / MANY.len();
        let (width, dashes) = match look {
            Look::Dotted => (3.0, DOTS),
            _ if count <= FEW.len() => (2.0, ""),
            // Colours that are alike are not drawn alike.
            _ => (2.0, DASHES[(number / 4 + round) % DASHES.len()]),
        };
        Self { color: color(number, count), width, dashes, shape: SHAPES[(number + round) % SHAPES.len()] }
    }

    fn stroke(&self) -> String {
        let Self { color, width, dashes, .. } = self;
        format!("fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{dashes}")
    }

    fn marker(&self, place: &str) -> String {
        format!("<path d=\"M{place}{}\" fill=\"{}\" stroke=\"white\"/>\n", self.shape, self.color)
    }
}

/// Stretches of points, written as SVG has them. A point that cannot be shown is a gap, points in one place are one.
fn stretches(plot: &Plot, points: &[(f64, f64)]) -> Vec<Vec<String>> {
    let places: Vec<Option<String>> = points.iter().map(|&point| plot.point(point).map(written)).collect();
    let stretches = places.split(Option::is_none).map(|stretch| stretch.iter().flatten().cloned().collect());
    let mut stretches: Vec<Vec<String>> = stretches.collect();
    stretches.iter_mut().for_each(Vec::dedup);
    stretches.retain(|stretch| !stretch.is_empty());
    stretches
}

impl Lines {
    fn has_markers(&self, look: Look) -> bool {
        look == Look::Points || (look == Look::Plain && self.markers)
    }

    fn draw(&self, plot: &Plot, series: &Series, paint: &Paint) -> String {
        let stretches = stretches(plot, &series.points);
        let mut svg = String::new();
        if series.look != Look::Points {
            let path: String = stretches.iter().map(|stretch| format!("M{}", stretch.join("L"))).collect();
            // What the legend does not tell is told to whoever points at it.
            let hint = if series.look == Look::Faint { title(&series.name) } else { String::new() };
            svg += &format!("<path d=\"{path}\" {}>{hint}</path>\n", paint.stroke());
        }
        let markers = self.has_markers(series.look);
        // Without a marker, nobody sees a line through one point.
        for place in stretches.iter().filter(|stretch| markers || stretch.len() == 1).flatten() {
            svg += &paint.marker(place);
        }
        svg
    }
}

impl Marks for Lines {
    const STANDING: bool = false;
    const SAMPLE: f64 = 26.0;

    fn across(&self, series: &[Series], logarithmic: bool) -> Axis {
        let values = series.iter().flat_map(|series| &series.points).map(|&(x, _)| x);
        if logarithmic {
            return Axis::counts(values.clone()).unwrap_or_else(|| Axis::logarithmic(values, false));
        }
        // There are no ticks between whole numbers if there are no values, either.
        let whole = values.clone().all(|value| value.fract() == 0.0);
        let range = range(values);
        let count = range.filter(|_| whole).map_or(10.0, |(low, high)| (high - low).clamp(1.0, 10.0));
        // A line may begin at the edge of the picture; marks are seen better away from it.
        let marks = series.iter().any(|series| series.look == Look::Points);
        Axis::linear(range, count, marks)
    }

    fn narrowest(&self, _: &[Series]) -> f64 {
        0.0
    }

    fn svg(&self, plot: &Plot, all: &[Series]) -> String {
        let faint = all.iter().filter(|series| series.look == Look::Faint);
        let mut svg: String = faint.map(|series| self.draw(plot, series, &Paint::FAINT)).collect();
        let named = in_legend(all);
        let mut numbered: Vec<_> = named.iter().enumerate().collect();
        // No line hides a mark.
        numbered.sort_by_key(|(_, series)| series.look == Look::Points);
        for (number, series) in numbered {
            svg += &self.draw(plot, series, &Paint::new(series.look, number, named.len()));
        }
        svg + &labels::svg(plot, all)
    }

    fn sample(&self, (x, y): (f64, f64), look: Look, number: usize, count: usize) -> String {
        let paint = Paint::new(look, number, count);
        let stroke =
            if look == Look::Points { String::new() } else { line((x, y), (x + Self::SAMPLE, y), &paint.stroke()) };
        let middle = written((x + Self::SAMPLE / 2.0, y));
        stroke + &if self.has_markers(look) { paint.marker(&middle) } else { String::new() }
    }
}

/// For each category a group of bars, one of each series.
#[derive(Default)]
pub struct Bars {
    pub(crate) categories: Vec<String>,
}

impl Bars {
    fn name(&self, category: usize) -> &str {
        self.categories.get(category).map_or("", String::as_str)
    }

    fn count(&self, series: &[Series]) -> usize {
        series.iter().map(|series| series.points.len()).fold(self.categories.len(), usize::max)
    }
}

/// An upright line over a range, with ends that are half as wide as a bar. Nothing if the range cannot be shown; on a logarithmic axis it may begin below the axis.
fn whisker(plot: &Plot, x: f64, (low, high): (f64, f64), width: f64) -> String {
    let (Some(top), bottom) = (plot.y(high), plot.y(low).unwrap_or(plot.bottom)) else { return String::new() };
    let (stroke, half) = ("stroke=\"#222222\"", (width / 4.0).min(5.0));
    let end = |y: f64| line((x - half, y), (x + half, y), stroke);
    line((x, top), (x, bottom), stroke) + &end(top) + &end(bottom)
}

/// How much of the width of a category is for bars.
const FILLED: f64 = 0.8;
/// A few wide bars look like something else.
const WIDEST: f64 = 64.0;

impl Marks for Bars {
    const STANDING: bool = true;
    const SAMPLE: f64 = 14.0;

    fn across(&self, series: &[Series], _: bool) -> Axis {
        Axis::categories((0..self.count(series)).map(|category| self.name(category).to_owned()))
    }

    /// Bars that can be seen, labels that are not above each other.
    fn narrowest(&self, series: &[Series]) -> f64 {
        self.count(series) as f64 * (series.len() as f64 * 3.0 / FILLED).max(24.0)
    }

    fn svg(&self, plot: &Plot, all: &[Series]) -> String {
        let mut svg = String::new();
        let category = (plot.right - plot.left) / self.count(all).max(1) as f64;
        let width = (category * FILLED / all.len().max(1) as f64).min(WIDEST);
        // Logarithms have no zero; there bars begin where the axis does.
        let ground = plot.y(0.0).unwrap_or(plot.bottom);
        for (number, series) in all.iter().enumerate() {
            for (category, &(middle, value)) in series.points.iter().enumerate() {
                let Some((x, y)) = plot.point((middle, value)) else { continue };
                let x = x + (number as f64 - all.len() as f64 / 2.0) * width;
                let hint = format!("{}, {}: {value}", self.name(category), series.name);
                let size = (width - (width / 8.0).min(1.0), (ground - y).abs());
                svg += &rectangle((x, y.min(ground)), size, color(number, all.len()), &hint);
                if let Some(&range) = series.ranges.get(category) {
                    svg += &whisker(plot, x + size.0 / 2.0, range, size.0);
                }
            }
        }
        svg
    }

    fn sample(&self, (x, y): (f64, f64), _: Look, number: usize, count: usize) -> String {
        rectangle((x, y - Self::SAMPLE / 2.0), (Self::SAMPLE, Self::SAMPLE), color(number, count), "")
    }
}
