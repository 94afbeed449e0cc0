//! Labels of points: each goes to the first side where it covers no marker, line or other label.

use crate::marks::{Plot, Series, SeriesStyle};
use crate::svg::{Text, fit, width};

const SIZE: f64 = 12.0;
/// Labels wider than this are shortened.
const LABEL_WIDTH_MAX: f64 = 160.0;
/// Radius of a marker.
const MARK_RADIUS: f64 = 5.0;

/// Offsets of a label from its point, and its anchor; best first.
const SIDES: [(f64, f64, &str); 8] = [
    (6.0, -9.0, "start"),
    (8.0, 0.0, "start"),
    (-6.0, -9.0, "end"),
    (-8.0, 0.0, "end"),
    (6.0, 9.0, "start"),
    (-6.0, 9.0, "end"),
    (0.0, -13.0, "middle"),
    (0.0, 13.0, "middle"),
];

struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Area {
    fn around((x, y): (f64, f64), reach: f64) -> Self {
        Self { left: x - reach, right: x + reach, top: y - reach, bottom: y + reach }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let across = self.left < other.right && other.left < self.right;
        across && self.top < other.bottom && other.top < self.bottom
    }

    fn is_inside(&self, plot: &Plot) -> bool {
        let across = self.left >= plot.left && self.right <= plot.right;
        across && self.top >= plot.top - SIZE && self.bottom <= plot.bottom + SIZE
    }
}

/// Returns the labels of all series.
pub fn svg(plot: &Plot, all: &[Series]) -> String {
    if all.iter().all(|series| series.labels.is_empty()) {
        return String::new();
    }
    let (mut svg, mut occupied) = (String::new(), occupied_areas(plot, all));
    for (point, label) in all.iter().flat_map(|series| series.points.iter().zip(&series.labels)) {
        let Some(position) = plot.point(*point).filter(|_| !label.is_empty()) else { continue };
        let label = fit(label, SIZE, LABEL_WIDTH_MAX);
        let (text, area) = beside(position, &label, plot, &occupied);
        svg += &text.svg(&label);
        occupied.push(area);
    }
    svg
}

/// Returns the areas of markers and lines, except faint ones.
fn occupied_areas(plot: &Plot, all: &[Series]) -> Vec<Area> {
    let mut areas = Vec::new();
    for series in all {
        let positions: Vec<_> = series.points.iter().map(|&point| plot.point(point)).collect();
        match series.style {
            SeriesStyle::Points => {
                areas.extend(positions.iter().flatten().map(|&position| Area::around(position, MARK_RADIUS)))
            }
            SeriesStyle::Faint => {}
            _ => areas.extend(positions.windows(2).filter_map(|ends| ends[0].zip(ends[1])).flat_map(along)),
        }
    }
    areas
}

/// Returns areas along a line, so close that no label fits between them.
fn along((from, to): ((f64, f64), (f64, f64))) -> impl Iterator<Item = Area> {
    let (across, down) = (to.0 - from.0, to.1 - from.1);
    let steps = (across.hypot(down) / (SIZE / 3.0)).ceil() as u32;
    (0..=steps).map(move |step| {
        let share = f64::from(step) / f64::from(steps.max(1));
        Area::around((from.0 + share * across, from.1 + share * down), 1.0)
    })
}

/// Puts a label on the first free side, else on the first side inside the plot.
fn beside(position: (f64, f64), label: &str, plot: &Plot, occupied: &[Area]) -> (Text<'static>, Area) {
    let on = |side| (text(position, side), area(position, side, width(label, SIZE)));
    let inside = || SIDES.into_iter().map(on).filter(|(_, area)| area.is_inside(plot));
    let free = inside().find(|(_, area)| !occupied.iter().any(|other| area.overlaps(other)));
    free.or_else(|| inside().next()).unwrap_or_else(|| on(SIDES[0]))
}

fn text((x, y): (f64, f64), (across, down, anchor): (f64, f64, &'static str)) -> Text<'static> {
    Text { at: (x + across, y + down + SIZE / 3.0), size: SIZE, anchor, bold: false, rotation: 0.0 }
}

fn area((x, y): (f64, f64), (across, down, anchor): (f64, f64, &str), width: f64) -> Area {
    let left = x + across
        - match anchor {
            "start" => 0.0,
            "middle" => width / 2.0,
            _ => width,
        };
    let middle = y + down;
    Area { left, right: left + width, top: middle - SIZE / 2.0, bottom: middle + SIZE / 2.0 }
}
