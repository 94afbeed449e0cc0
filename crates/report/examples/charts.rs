//! Writes charts of invented numbers to a directory, to be looked at after a change:
//! `cargo run -p trackway-report --example charts -- DIRECTORY`.

use trackway_report::Chart;

const PROGRAMS: [&str; 14] = [
    "fft",
    "radix",
    "cholesky",
    "radiosity",
    "raytrace",
    "lu-contiguous",
    "lu-noncontiguous",
    "ocean-contiguous",
    "ocean-noncontiguous",
    "water-nsquared",
    "water-spatial",
    "nbody",
    "matmul",
    "geometric mean of all programs",
];

fn main() -> std::io::Result<()> {
    std::env::set_current_dir(std::env::args().nth(1).unwrap_or("target".to_owned()))?;
    std::fs::write("distribution.svg", distribution(4))?;
    std::fs::write("distribution-12.svg", distribution(12))?;
    std::fs::write("distribution-32.svg", distribution(32))?;
    std::fs::write("faint.svg", faint())?;
    std::fs::write("scatter.svg", scatter())?;
    std::fs::write("crowded.svg", crowded())?;
    std::fs::write("markers.svg", markers())?;
    for (categories, series) in [(4, 1), (4, 3), (14, 3), (14, 12), (40, 3)] {
        std::fs::write(format!("bars-{categories}x{series}.svg"), bars(categories, series).svg())?;
    }
    std::fs::write("bars-log.svg", bars(14, 4).log_y().svg())?;
    std::fs::write("bars-signed.svg", signed())?;
    std::fs::write("long.svg", long())?;
    std::fs::write("empty.svg", Chart::lines("Nothing yet").x("bits").y("share of messages, %").svg())
}

fn distribution(count: usize) -> String {
    let chart = Chart::lines("Cumulative distribution of message lengths, mcfTRaptor with private structures");
    let chart = chart.x("bits").y("share of messages, %");
    (0..count)
        .fold(chart, |chart, number| {
            let rate = 0.03 + 0.015 * number as f64;
            let points = (0..=64).map(|bits| (f64::from(bits), 100.0 * (1.0 - (-rate * f64::from(bits)).exp())));
            chart.series(PROGRAMS.get(number).unwrap_or(&format!("configuration {number}").as_str()), points)
        })
        .svg()
}

/// The coverage after each number of instructions.
fn coverage(number: u32) -> impl Iterator<Item = (f64, f64)> {
    let rate = 0.02 + 0.004 * f64::from(number * 7 % 32);
    (0..=100).map(move |share| (f64::from(share), 100.0 * (1.0 - (-rate * f64::from(share)).exp())))
}

fn faint() -> String {
    let chart = Chart::lines("Coverage of 32 configurations").x("instructions, %").y("covered, %");
    let chart = (0..32).fold(chart, |chart, number| chart.faint(&format!("configuration {number}"), coverage(number)));
    let chart = chart.series("configuration 9", coverage(9)).series("configuration 14", coverage(14));
    chart.dotted("all alike", [(0.0, 0.0), (100.0, 100.0)]).svg()
}

/// Few of many points are labelled, those that no other is better than.
fn scatter() -> String {
    let all: Vec<(f64, f64, usize)> = (0..32)
        .map(|number| {
            let size = 1.0 + (number * 13 % 32) as f64;
            (size, 2.0 + 40.0 / size + (number * 11 % 17) as f64 / 2.0, number)
        })
        .collect();
    let is_best = |&&(x, y, _): &&(f64, f64, usize)| !all.iter().any(|other| other.0 < x && other.1 < y);
    let mut best: Vec<_> = all.iter().filter(is_best).copied().collect();
    best.sort_by(|one, other| one.0.total_cmp(&other.0));
    Chart::lines("Size and error of 32 configurations")
        .x("kilobytes")
        .y("error, %")
        .points("configuration", all.iter().map(|&(x, y, _)| (x, y)))
        .labelled_points(
            "nothing is smaller and better",
            best.iter().map(|&(x, y, number)| (x, y, format!("t{number}"))),
        )
        .dotted("front", best.iter().map(|&(x, y, _)| (x, y)))
        .svg()
}

/// Labels that are wide, close to each other and at the edges.
fn crowded() -> String {
    let label = |number: u32| format!("mcfTRaptor {number}");
    let ring = |number: u32| (f64::from(number) * 0.6).sin_cos();
    let points = (0..10).map(|number| (100.0 + 9.0 * ring(number).0, 100.0 + ring(number).1, label(number)));
    let edges = [(0.0, 98.0), (200.0, 98.0), (0.0, 102.0), (200.0, 102.0)];
    let edges = edges.into_iter().zip(20..).map(|((x, y), number)| (x, y, label(number)));
    Chart::lines("Labels").labelled_points("ring", points).labelled_points("edges", edges).svg()
}

fn markers() -> String {
    let chart =
        Chart::lines("Port bandwidth by number of cores").x("cores").y("bits per instruction").markers().log_y();
    ["private mcfTRaptor", "shared mcfTRaptor", "private mlvCFiat", "shared mlvCFiat"]
        .into_iter()
        .enumerate()
        .fold(chart, |chart, (number, name)| {
            let value = |cores: f64| 0.08 * 4f64.powi(number as i32) * cores.powf(0.3);
            chart.series(
                name,
                [1.0, 2.0, 4.0, 8.0, 16.0]
                    .map(|cores| (cores, if cores == 4.0 && number == 3 { f64::NAN } else { value(cores) })),
            )
        })
        .log_x()
        .svg()
}

fn bars(categories: usize, count: usize) -> Chart<trackway_report::Bars> {
    let names = (0..categories).map(|number| PROGRAMS[number % PROGRAMS.len()]);
    let chart =
        Chart::bars(&format!("Size of the trace: {categories} programs, {count} ways")).y("bytes").categories(names);
    (0..count).fold(chart, |chart, number| {
        let size = |category: usize| {
            4.7e6 * 0.8f64.powi(number as i32)
                / (1.0 + (category * 7 % 5) as f64 + (category * 11 * number % 13) as f64 / 4.0)
        };
        chart.series(
            &format!("mcfTRaptor, private structures, {}", ["raw", "gzip", "bzip2", "zstd"][number % 4]),
            (0..categories).map(size),
        )
    })
}

fn signed() -> String {
    Chart::bars("Change <against> the last release & before")
        .y("change, %")
        .x("program")
        .categories(&PROGRAMS[..6])
        .series("size", [1.5, -2.0, 0.0, 4.0, f64::NAN, 0.3])
        .series("time", [-7.5, 2.0, 1.0, -4.0, 2.0])
        .svg()
}

fn long() -> String {
    let title = "A title that is far too long for one line because it says what was measured, how, \
                 with which programs, and why";
    let names = PROGRAMS.iter().rev().take(9);
    let chart = Chart::bars(title)
        .y("bits per executed instruction of all threads, including handlers of signals")
        .x("program");
    let chart = chart.categories(names).series("short", (1..=9).map(|value| f64::from(value) * 1e-3));
    chart.series("a name that is much longer than the other one", (1..=9).map(|value| 9e-3 / f64::from(value))).svg()
}
