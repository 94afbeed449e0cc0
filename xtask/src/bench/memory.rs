//! The speed of compressing memory accesses, beside its goal: regular programs and irregular ones.
//!
//! `memory compress` measures its parts itself: the detector of regular sections and SEQUITUR work
//! in one thread, and neither reading the trace nor the second stage is in their times.

use std::path::Path;
use std::process::Command;

use serde::Serialize;
use serde_json::Value;

use super::measure;
use super::programs::PROGRAMS;
use super::rounds::span;

/// Accesses of each program that are recorded.
const ACCESSES: f64 = 20e6;
/// Million accesses per second on one core, the detector and SEQUITUR together.
const GOAL: f64 = 20.0;

/// Programs of the benchmark, the regular ones first, and a database.
const NAMES: [&str; 8] = ["matrix", "fft", "hash", "xz", "parser", "perl", "cc1", "sort"];
const SQLITE: &str = "sqlite3";
/// Inserts, an index, a join and a sort.
const SQL: &str = "create table a(x integer, y text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 200000)
insert into a select i * 7919 % 200003, hex(i * i) from n;
create index a_x on a(x);
select count(*), sum(length(p.y)) from a p join a q on q.x = p.x + 1;
select y from a order by y desc limit 3;
";

/// The speeds of one program.
#[derive(Serialize)]
pub struct MemoryRow {
    pub name: &'static str,
    pub accesses: u64,
    /// Accesses in no regular section.
    pub irregular_percent: f64,
    #[serde(flatten)]
    pub best: Speeds,
    pub goal: f64,
    pub rounds: Vec<Speeds>,
}

/// Million accesses per second.
#[derive(Serialize, Clone, Copy)]
pub struct Speeds {
    pub detector: f64,
    pub order: f64,
    /// The detector and SEQUITUR, one after the other.
    pub both: f64,
    /// VPC3, with its second stage.
    pub vpc3: f64,
    /// `memory compress` from its start to its end.
    pub command: f64,
}

/// A column of the table.
type Column = fn(&Speeds) -> f64;
const COLUMNS: [Column; 5] = [
    |speeds| speeds.detector,
    |speeds| speeds.order,
    |speeds| speeds.both,
    |speeds| speeds.vpc3,
    |speeds| speeds.command,
];

pub fn measure(trackway: &Path, directory: &Path, scale: f64, rounds: u32) -> Result<Vec<MemoryRow>, String> {
    let mut commands = vec![(SQLITE, ["sqlite3", "-batch", ":memory:", SQL].map(str::to_owned).to_vec())];
    for program in PROGRAMS.iter().filter(|program| NAMES.contains(&program.name)) {
        commands.push((program.name, program.command(directory, scale)?));
    }
    commands.sort_by_key(|(name, _)| NAMES.iter().position(|own| own == name).unwrap_or(NAMES.len()));
    commands.iter().map(|(name, command)| row(trackway, directory, name, command, scale, rounds)).collect()
}

fn row(
    trackway: &Path,
    directory: &Path,
    name: &'static str,
    command: &[String],
    scale: f64,
    rounds: u32,
) -> Result<MemoryRow, String> {
    let trace = directory.join("memory.trk");
    let (path, program) = (trace.to_string_lossy(), trackway.to_string_lossy());
    let accesses = (ACCESSES * scale).round().to_string();
    let words = ["record", "-q", "--data", "addresses", "--accesses", &accesses, "-o", &path, "--"];
    measure::time(command, &[&[&*program], &words[..]].concat())?;
    let mut all = Vec::new();
    let mut counts = (0, 0.0);
    for _ in 0..rounds {
        let prsd = compress(trackway, &trace, "prsd")?;
        let number = |key: &str| prsd[key].as_f64().ok_or_else(|| format!("`memory compress` reports no {key}"));
        let accesses = number("accesses")?;
        let speed = |seconds: f64| accesses / 1e6 / seconds;
        let (detector, order) = (number("detector_seconds")?, number("order_seconds")?);
        counts = (accesses as u64, 100.0 * number("irregular_accesses")? / accesses);
        let vpc3 = compress(trackway, &trace, "vpc3")?["records_seconds"].as_f64().unwrap_or(f64::NAN);
        all.push(Speeds {
            detector: speed(detector),
            order: speed(order),
            both: speed(detector + order),
            vpc3: speed(vpc3),
            command: speed(number("seconds")?),
        });
    }
    let best = best(&all).ok_or("there are no rounds")?;
    eprintln!("{name}: {:.1} million accesses per second, the whole command {:.1}", best.both, best.command);
    Ok(MemoryRow { name, accesses: counts.0, irregular_percent: counts.1, best, goal: GOAL, rounds: all })
}

/// Returns what the command reports.
fn compress(trackway: &Path, trace: &Path, codec: &str) -> Result<Value, String> {
    let out = trace.with_extension("mem");
    let mut command = Command::new(trackway);
    command.args(["memory", "compress", "--no-scopes", "--json", "--codec", codec, "-o"]).args([&out, trace]);
    let output = command.output().map_err(|error| format!("{}: {error}", trackway.display()))?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("what `memory compress` reports: {error}"))
}

/// The best of the rounds; `None` for no rounds.
fn best(rounds: &[Speeds]) -> Option<Speeds> {
    let best = |column: Column| rounds.iter().map(column).reduce(f64::max);
    let [detector, order, both, vpc3, command] = COLUMNS.map(best);
    Some(Speeds { detector: detector?, order: order?, both: both?, vpc3: vpc3?, command: command? })
}

/// The rows as cells, with a heading.
pub fn cells(rows: &[MemoryRow]) -> Vec<Vec<String>> {
    let heading = [
        "memory accesses compressed",
        "M",
        "irregular %",
        "detector M/s",
        "SEQUITUR M/s",
        "both M/s",
        "goal",
        "VPC3 M/s",
        "command M/s",
    ];
    let cells = rows.iter().map(|row| {
        let [detector, order, both, vpc3, command] =
            COLUMNS.map(|column| span(column(&row.best), row.rounds.iter().map(column), 1));
        let (accesses, irregular) = (row.accesses as f64 / 1e6, format!("{:.1}", row.irregular_percent));
        let goal = format!("{:.0}", row.goal);
        vec![row.name.to_owned(), format!("{accesses:.0}"), irregular, detector, order, both, goal, vpc3, command]
    });
    [heading.map(String::from).into()].into_iter().chain(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_exist() {
        assert!(NAMES.iter().all(|name| PROGRAMS.iter().any(|program| program.name == *name)));
    }

    #[test]
    fn the_best_round_counts() {
        let speeds = |speed: f64| Speeds { detector: speed, order: 20.0 - speed, both: 5.0, vpc3: 1.0, command: 2.0 };
        let (rounds, goal) = (vec![speeds(8.0), speeds(12.0)], GOAL);
        let best = best(&rounds).unwrap();
        let row = MemoryRow { name: "fft", accesses: 50_000_123, irregular_percent: 12.34, best, goal, rounds };
        let cells = cells(&[row]).pop().unwrap();
        assert_eq!(cells, ["fft", "50", "12.3", "12.0–8.0", "12.0–8.0", "5.0", "20", "1.0", "2.0"]);
        assert!(super::best(&[]).is_none());
    }
}
