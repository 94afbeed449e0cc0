//! Labels beside points: each on the first side where it covers no mark, no line and no other label.

use crate::marks::{Look, Plot, Series};
use crate::svg::{Text, fitted, width};

const SIZE: f64 = 12.0;
/// Labels that are wider than this are shortened.
const LONGEST: f64 = 160.0;
/// From the middle of a mark to its edge.
const MARK: f64 = 5.0;

/// How far from the point a label is, and which part of it is there; the best first.
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

/// The labels of all series.
pub fn svg(plot: &Plot, all: &[Series]) -> String {
    if all.iter().all(|series| series.labels.is_empty()) {
        return String::new();
    }
    let (mut svg, mut taken) = (String::new(), covered(plot, all));
    for (point, label) in all.iter().flat_map(|series| series.points.iter().zip(&series.labels)) {
        let Some(place) = plot.point(*point).filter(|_| !label.is_empty()) else { continue };
        let label = fitted(label, SIZE, LONGEST);
        let (text, area) = beside(place, &label, plot, &taken);
        svg += &text.svg(&label);
        taken.push(area);
    }
    svg
}

/// What marks and lines cover, except those that are faint.
fn covered(plot: &Plot, all: &[Series]) -> Vec<Area> {
    let mut covered = Vec::new();
    for series in all {
        let places: Vec<_> = series.points.iter().map(|&point| plot.point(point)).collect();
        match series.look {
            Look::Points => covered.extend(places.iter().flatten().map(|&place| Area::around(place, MARK))),
            Look::Faint => {}
            _ => covered.extend(places.windows(2).filter_map(|ends| ends[0].zip(ends[1])).flat_map(along)),
        }
    }
    covered
}

/// Places on a line, so close to each other that no label fits between them.
fn along((from, to): ((f64, f64), (f64, f64))) -> impl Iterator<Item = Area> {
    let (across, down) = (to.0 - from.0, to.1 - from.1);
    let steps = (across.hypot(down) / (SIZE / 3.0)).ceil() as u32;
    (0..=steps).map(move |step| {
        let share = f64::from(step) / f64::from(steps.max(1));
        Area::around((from.0 + share * across, from.1 + share * down), 1.0)
    })
}

/// On the first side that is free, or else the first that is in the picture.
fn beside(place: (f64, f64), label: &str, plot: &Plot, taken: &[Area]) -> (Text<'static>, Area) {
    let on = |side| (text(place, side), area(place, side, width(label, SIZE)));
    let inside = || SIDES.into_iter().map(on).filter(|(_, area)| area.is_inside(plot));
    let free = inside().find(|(_, area)| !taken.iter().any(|other| area.overlaps(other)));
    free.or_else(|| inside().next()).unwrap_or_else(|| on(SIDES[0]))
}

fn text((x, y): (f64, f64), (across, down, anchor): (f64, f64, &'static str)) -> Text<'static> {
    Text { at: (x + across, y + down + SIZE / 3.0), size: SIZE, anchor, bold: false, turned: 0.0 }
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
