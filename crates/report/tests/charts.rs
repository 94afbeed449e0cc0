//! Charts are well-formed XML with finite coordinates inside the picture, whatever they are made
//! of, and contain every name.

use std::collections::HashSet;

use proptest::prelude::*;
use roxmltree::Document;
use trackway_report::Chart;

/// All that is written in the picture.
fn texts(svg: &str) -> Vec<String> {
    let document = Document::parse(svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    texts.map(|node| node.text().unwrap_or_default().to_owned()).collect()
}

#[track_caller]
fn contains(svg: &str, expected: &[&str]) {
    let texts = texts(svg);
    for &name in expected {
        assert!(texts.iter().any(|text| text == name), "{name} is not among {texts:?}");
    }
}

/// Every place is a number, and inside the picture.
fn check_places(svg: &str) {
    let document = Document::parse(svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
    let size = |name| document.root_element().attribute(name).unwrap().parse::<f64>().unwrap();
    let (width, height) = (size("width"), size("height"));
    for node in document.descendants() {
        for (names, end) in [(["x", "x1", "x2", "width"], width), (["y", "y1", "y2", "height"], height)] {
            for text in names.iter().filter_map(|name| node.attribute(*name)).filter(|text| *text != "100%") {
                let place: f64 = text.parse().unwrap();
                assert!((0.0..=end).contains(&place), "{text} of {end} in {}", &svg[node.range()]);
            }
        }
        let path = node.attribute("d").unwrap_or_default();
        assert!(!path.contains("NaN") && !path.contains("inf"), "{path}");
    }
}

fn marks(svg: &str, tag: &str) -> usize {
    // Behind all marks there is a rectangle without coordinates.
    let document = Document::parse(svg).unwrap();
    document.descendants().filter(|node| node.has_tag_name(tag) && node.attribute("width") != Some("100%")).count()
}

#[test]
fn lines_have_names_labels_and_ticks() {
    let chart = Chart::lines("Lengths").x("bits").y("share of messages, %");
    let svg = chart.series("raytrace", [(0.0, 0.0), (64.0, 100.0)]).series("fft", [(8.0, 50.0)]).svg();
    contains(&svg, &["Lengths", "bits", "share of messages, %", "raytrace", "fft", "0", "60", "100"]);
    check_places(&svg);
}

/// A line with two ends over every bar whose range can be shown, inside the picture.
#[test]
fn ranges_are_drawn_over_bars() {
    let values = [(2.0, (1.0, 40.0)), (3.0, (0.0, f64::NAN)), (5.0, (0.0, 5.0))];
    let plain = Chart::bars("Rates").categories(["a", "b", "c"]).series("all", values.map(|(value, _)| value)).svg();
    for (svg, more) in [
        (Chart::bars("Rates").categories(["a", "b", "c"]).ranges("all", values).svg(), 6),
        (Chart::bars("Rates").categories(["a", "b", "c"]).ranges("all", values).log_y().svg(), 6),
    ] {
        check_places(&svg);
        let dark = |svg: &str| svg.matches("stroke=\"#222222\"").count();
        assert_eq!((dark(&plain), dark(&svg)), (0, more), "{svg}");
        contains(&svg, &["all", "a", "b", "c"]);
    }
}

/// Each bar begins where the one below it ends, and a value that cannot be shown is left out.
#[test]
fn stacked_bars_stand_on_each_other() {
    let chart = Chart::bars("Times").categories(["a", "b"]).stacked();
    let svg = chart.series("one", [1.0, f64::NAN]).series("two", [2.0, 4.0]).series("three", [4.0, 1.0]).svg();
    check_places(&svg);
    let document = Document::parse(&svg).unwrap();
    let bar = |hint: &str| {
        let has_hint = |node: &roxmltree::Node| node.children().any(|child| child.text() == Some(hint));
        let node = document.descendants().filter(|node| node.has_tag_name("rect")).find(has_hint).unwrap();
        ["x", "y", "height"].map(|name| node.attribute(name).unwrap().parse::<f64>().unwrap())
    };
    let [[x, y, one], [x_above, y_above, two], [x_top, y_top, three]] =
        ["a, one: 1", "a, two: 2", "a, three: 4"].map(bar);
    assert!(x == x_above && x == x_top && x < bar("b, two: 4")[0], "{svg}");
    let is_near = |a: f64, b: f64| (a - b).abs() < 0.3;
    assert!(is_near(y_above + two, y) && is_near(y_top + three, y_above), "{svg}");
    assert!(is_near(two, 2.0 * one) && is_near(three, 4.0 * one), "{svg}");
    assert!(is_near(bar("b, two: 4")[2], three) && !svg.contains("b, one"), "{svg}");
    contains(&svg, &["one", "two", "three", "a", "b"]);
}

#[test]
fn bars_have_names_and_categories() {
    let chart = Chart::bars("Sizes").categories(["fft", "lu"]).y("bytes");
    let chart = chart.series("raw", [1e6, 2e3]).series("gzip", [1e4, 1.0]).log_y();
    let svg = chart.svg();
    contains(&svg, &["Sizes", "fft", "lu", "raw", "gzip", "bytes", "1 M", "0.1"]);
    assert_eq!(marks(&svg, "rect"), 4 + 2);
    assert_eq!(svg, chart.svg());
}

#[test]
fn text_is_escaped() {
    let name = "a<b> & \"c\" 'd'";
    let svg = Chart::bars(name).categories([name]).x(name).y(name).series(name, [1.0]).svg();
    assert_eq!(texts(&svg).iter().filter(|text| *text == name).count(), 5);
    let svg = Chart::lines("\u{0}\u{ffff}").series("\u{1b}[1m", []).svg();
    contains(&svg, &["\u{fffd}\u{fffd}", "\u{fffd}[1m"]);
}

#[test]
fn no_data_is_a_picture_too() {
    check_places(&Chart::lines("").svg());
    check_places(&Chart::lines("").log_x().log_y().markers().series("nothing", []).svg());
    check_places(&Chart::bars("").svg());
    check_places(&Chart::bars("").categories(["fft"]).log_y().svg());
    check_places(&Chart::bars("").series("nothing", []).svg());
}

#[test]
fn values_that_no_axis_has_are_left_out() {
    let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, 1.0, 0.0, -1.0];
    let svg = Chart::bars("").series("value", values).svg();
    check_places(&svg);
    assert_eq!(marks(&svg, "rect"), 3 + 1);
    let svg = Chart::bars("").series("value", values).log_y().svg();
    check_places(&svg);
    assert_eq!(marks(&svg, "rect"), 1 + 1);
    let points = [(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, 1.0)];
    let svg = Chart::lines("").series("value", points).svg();
    let document = Document::parse(&svg).unwrap();
    let path = document.descendants().find_map(|node| node.attribute("d")).unwrap();
    assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 2), "{path}");
}

#[test]
fn a_point_alone_can_be_seen() {
    let line = Chart::lines("").series("alone", [(1.0, 1.0)]).svg();
    assert_eq!(marks(&line, "path"), 2);
    let line = Chart::lines("").series("two", [(1.0, 1.0), (2.0, 2.0)]);
    assert_eq!(marks(&line.svg(), "path"), 1);
    // One of them in the legend.
    assert_eq!(marks(&line.markers().svg(), "path"), 1 + 3);
}

/// How often something is written in the picture.
fn count(svg: &str, text: &str) -> usize {
    texts(svg).iter().filter(|own| *own == text).count()
}

#[test]
fn points_are_marks_without_a_line() {
    let chart = Chart::lines("").points("all", [(1.0, 1.0), (2.0, f64::NAN), (3.0, 2.0), (f64::INFINITY, 1.0)]);
    let svg = chart.svg();
    check_places(&svg);
    // One of them in the legend, where there is no line either.
    assert_eq!(marks(&svg, "path"), 1 + 2);
    assert_eq!((svg.contains("fill=\"none\""), count(&svg, "all")), (false, 1));
    assert_eq!(svg, chart.svg());
}

#[test]
fn dotted_lines_have_no_markers() {
    let svg = Chart::lines("").dotted("front", [(1.0, 1.0), (2.0, 2.0)]).markers().svg();
    contains(&svg, &["front"]);
    assert_eq!((marks(&svg, "path"), svg.matches("stroke-dasharray").count()), (1, 2));
}

#[test]
fn faint_lines_are_behind_the_others_and_not_in_the_legend() {
    let points = [(1.0, 1.0), (2.0, 2.0)];
    let svg = Chart::lines("").series("strong", points).faint("a<b", points).markers().svg();
    assert_eq!((count(&svg, "strong"), count(&svg, "a<b")), (1, 0));
    assert!(svg.contains("<title>a&lt;b</title>"), "{svg}");
    assert!(svg.find("#bbbbbb") < svg.rfind("#0072b2"), "{svg}");
    let alone = Chart::lines("").series("strong", points).markers();
    assert_eq!(marks(&svg, "path"), marks(&alone.svg(), "path") + 1);
}

#[test]
fn kinds_of_series_can_be_mixed() {
    let points = [(1.0, 1.0), (2.0, 4.0), (3.0, 2.0)];
    let chart = Chart::lines("").points("points", points).series("line", points).dotted("dots", points);
    let svg = chart.faint("faint", points).labelled_points("labels", [(2.0, 3.0, "here")]).svg();
    check_places(&svg);
    contains(&svg, &["points", "line", "dots", "labels", "here"]);
    // In the legend two marks, in the picture three lines and four marks.
    assert_eq!(marks(&svg, "path"), 2 + 3 + 4);
}

#[test]
fn many_lines_and_marks_are_distinct() {
    let chart = (0..32).fold(Chart::lines("").markers(), |chart, number| chart.series(&number.to_string(), []));
    let svg = chart.svg();
    let document = Document::parse(&svg).unwrap();
    let dashes = |node: &roxmltree::Node| node.attribute("stroke-dasharray").unwrap_or_default().to_owned();
    let lines = document.descendants().filter(|node| node.has_tag_name("line"));
    let lines: HashSet<_> = lines.map(|node| (node.attribute("stroke").unwrap(), dashes(&node))).collect();
    let shape = |path: &str| path.split_once('m').map(|(_, shape)| shape.to_owned());
    let samples = document.descendants().filter(|node| node.attribute("stroke") == Some("white"));
    let samples: HashSet<_> =
        samples.map(|node| (node.attribute("fill"), shape(node.attribute("d").unwrap()))).collect();
    // There are lines of the axes, too.
    assert!(lines.len() >= 32, "{}", lines.len());
    assert_eq!(samples.len(), 32);
}

#[test]
fn labels_are_beside_points_that_have_one_and_not_above_each_other() {
    let points =
        [(1.0, 1.0, ""), (1.5, 1.5, "first"), (1.5, 1.501, "second"), (2.0, 2.0, ""), (f64::NAN, 1.0, "nowhere")];
    let svg = Chart::lines("").labelled_points("few", points).svg();
    check_places(&svg);
    assert_eq!((count(&svg, "first"), count(&svg, "second"), count(&svg, "nowhere"), count(&svg, "")), (1, 1, 0, 0));
    let document = Document::parse(&svg).unwrap();
    let place = |text: &str| {
        let node = document.descendants().find(|node| node.text() == Some(text)).unwrap();
        ["x", "y"].map(|name| node.attribute(name).unwrap().parse::<f64>().unwrap())
    };
    let ([x, y], [other_x, other_y]) = (place("first"), place("second"));
    assert!((x - other_x).abs() >= 12.0 || (y - other_y).abs() >= 12.0, "{x} {y} {other_x} {other_y}");
}

#[test]
fn long_text_stays_inside() {
    let long = "a rather long name ".repeat(20);
    let chart = Chart::bars(&long).categories(vec![&long; 14]).x(&long).y(&long);
    let svg = (0..12).fold(chart, |chart, number| chart.series(&format!("{number} {long}"), vec![1.0; 14])).svg();
    check_places(&svg);
    let texts = texts(&svg);
    assert!(texts.iter().all(|text| text.len() < 130), "{texts:?}");
}

#[test]
fn points_in_one_place_are_one() {
    let points = (0..1_000_000).map(|number| (f64::from(number), f64::from(number)));
    let svg = Chart::lines("Many").series("all", points).svg();
    assert!(svg.len() < 200_000, "{}", svg.len());
}

proptest! {
    #[test]
    fn anything_is_well_formed(
        title in ".*", name in ".*", points in prop::collection::vec(any::<(f64, f64)>(), 0..20),
        flags in any::<[bool; 3]>(),
    ) {
        let lines = Chart::lines(&title).x(&name).series(&name, points.clone()).series("", []);
        let lines = if flags[0] { lines.log_x() } else { lines };
        let lines = if flags[1] { lines.log_y() } else { lines };
        check_places(&if flags[2] { lines.markers() } else { lines }.svg());
        let labelled = points.iter().map(|&(x, y)| (x, y, name.as_str()));
        let mixed = Chart::lines(&title).labelled_points(&name, labelled).dotted(&name, points.clone());
        let mixed = mixed.faint(&name, points.clone()).points(&name, points.clone());
        check_places(&if flags[0] { mixed.log_x().log_y() } else { mixed }.svg());
        let bars = Chart::bars(&title).categories([&name]).series(&name, points.iter().map(|&(_, y)| y));
        check_places(&if flags[1] { bars.log_y() } else { bars }.svg());
    }

    #[test]
    fn values_of_usual_size_are_inside(
        points in prop::collection::vec((-1e6..1e6, -1e-3..1e3), 1..20), log in any::<bool>(),
    ) {
        let lines = Chart::lines("").series("x", points.clone());
        check_places(&if log { lines.log_x().log_y() } else { lines }.svg());
        let bars = Chart::bars("").series("x", points.iter().map(|&(x, _)| x));
        let bars = bars.series("y", points.iter().map(|&(_, y)| y));
        check_places(&if log { bars.log_y() } else { bars }.svg());
    }
}
