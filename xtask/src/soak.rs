//! `cargo xtask soak`: tests that take longer than those of `cargo xtask test`. Repeats the tests
//! that depend on timing, records and verifies long runs, and keeps a dated result under
//! docs/soak/.
//!
//! A new long test is a line in [`STAGES`].

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::machine::{self, Machine};
use crate::{packages, root};

mod bare;

/// Run the long tests and keep the result under docs/soak/.
#[derive(clap::Args)]
pub struct Arguments {
    /// Minutes to spend on the stage `together`, and again as many, shared by the other stages.
    #[arg(long, value_name = "M", default_value_t = 60)]
    minutes: u64,
    /// Only stages whose name contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    stage: String,
    /// Print the result, but do not keep it.
    #[arg(long)]
    dry: bool,
    #[command(flatten)]
    packages: packages::Arguments,
}

/// A test that is repeated until its share of the time is used up.
struct Stage {
    name: &'static str,
    /// What a passed stage shows.
    shows: &'static str,
    turn: StageKind,
}

enum StageKind {
    /// Tests of a package, by a part of their names; environment variables for larger inputs.
    Tests { package: &'static str, filter: &'static str, variables: &'static [(&'static str, &'static str)] },
    /// Acceptance tests by parts of their names, all at once, each again and again until the time
    /// is over.
    Together { filters: &'static [&'static str] },
    /// A workload recorded and verified: program and arguments.
    Record { program: &'static str, arguments: &'static [&'static str] },
    /// The two commands of the README in a system that has only Rust and gcc.
    Bare,
}

const STAGES: &[Stage] = &[
    Stage {
        name: "together",
        shows: "generated code, signals, locks, short threads, attaching and detaching, all at the same time",
        turn: StageKind::Together {
            filters: &[
                "generated_functions_never_fill_the_cache",
                "no_signal_is_lost_doubled_or_overtaken",
                "locks_stacks_queues_and_lists_are_in_order",
                "slots_of_short_threads_are_reused",
                "sixty_four_threads_run_on_through_attaching_and_detaching",
            ],
        },
    },
    Stage {
        name: "command",
        shows: "recording from the command line works every time",
        turn: StageKind::Tests { package: "trackway", filter: "", variables: &[] },
    },
    Stage {
        name: "capture",
        shows: "launching, injecting, draining and ends of all kinds work every time",
        turn: StageKind::Tests { package: "trackway-capture", filter: "", variables: &[] },
    },
    Stage {
        name: "acceptance",
        shows: "recorded equals single-stepped, and real programs behave as without us, every time",
        turn: StageKind::Tests { package: "acceptance", filter: "", variables: &[] },
    },
    Stage {
        name: "stress",
        shows: "threads, signals, forks, execs and changing code, twenty times as long as in the tests",
        turn: StageKind::Tests { package: "acceptance", filter: "", variables: &[("TRACKWAY_SOAK", "1")] },
    },
    Stage {
        name: "locks",
        shows: "100 million synchronising operations of eight threads are in order",
        turn: StageKind::Tests {
            package: "acceptance",
            filter: "locks_stacks_queues_and_lists_are_in_order",
            variables: &[("TRACKWAY_SOAK", "1")],
        },
    },
    Stage {
        name: "signal storm",
        shows: "all signals, sent and raised in every way for ten minutes: none is lost, doubled or overtaken",
        turn: StageKind::Tests {
            package: "acceptance",
            filter: "no_signal_is_lost_doubled_or_overtaken",
            variables: &[("TRACKWAY_SOAK", "1")],
        },
    },
    Stage {
        name: "codecs",
        shows: "codecs hold against many more generated and damaged inputs",
        turn: StageKind::Tests { package: "trackway-codec", filter: "", variables: &[("PROPTEST_CASES", "5000")] },
    },
    Stage {
        name: "container",
        shows: "the reader holds against many more generated and mutated traces",
        turn: StageKind::Tests { package: "trackway-trace", filter: "", variables: &[("PROPTEST_CASES", "5000")] },
    },
    Stage {
        name: "fuzzing",
        shows: "readers of traces, rings and port bits hold against mutated inputs, five minutes for each target",
        turn: StageKind::Tests {
            package: "fuzzing",
            filter: "takes_anything",
            variables: &[("TRACKWAY_FUZZ_SECONDS", "300")],
        },
    },
    Stage {
        name: "many threads",
        shows: "hundreds of threads are recorded, and the trace is sound",
        turn: StageKind::Record { program: "radix", arguments: &["300", "3000"] },
    },
    Stage {
        name: "work stealing",
        shows: "threads that contend are recorded, and the trace is sound",
        turn: StageKind::Record { program: "radiosity", arguments: &["16"] },
    },
    Stage {
        name: "long",
        shows: "a trace of billions of instructions is sound",
        turn: StageKind::Record { program: "matmul", arguments: &["2", "1500"] },
    },
    Stage {
        name: "bare machine",
        shows: "both commands of the README work on a fresh Debian with Rust and gcc; what is missing is installed",
        turn: StageKind::Bare,
    },
];

pub fn run(arguments: &Arguments) -> Result<(), String> {
    let stages: Vec<&Stage> = STAGES.iter().filter(|stage| stage.name.contains(&arguments.stage)).collect();
    if stages.is_empty() {
        return Err(format!("no stage has '{}' in its name", arguments.stage));
    }
    packages::require(&["test", "soak"], &arguments.packages)?;
    // Describes the tree as it is now, whatever is committed meanwhile.
    let machine = machine::describe();
    let trackway = crate::build_trackway()?;
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let minutes = Duration::from_secs(60 * arguments.minutes);
    let is_together = |stage: &Stage| matches!(stage.turn, StageKind::Together { .. });
    let others = stages.iter().filter(|stage| !is_together(stage)).count().max(1) as u32;
    let share = |stage: &Stage| if is_together(stage) { minutes } else { minutes / others };
    let results: Vec<StageOutcome> =
        stages.iter().map(|stage| repeat(stage, &trackway, directory.path(), share(stage))).collect();
    let page = page(arguments, &machine, &stages, &results);
    print!("{page}");
    if !arguments.dry {
        keep(&page)?;
    }
    match results.iter().filter(|outcome| outcome.problem.is_some()).count() {
        0 => Ok(()),
        count => Err(format!("{count} of {} stages failed", stages.len())),
    }
}

struct StageOutcome {
    turns: u32,
    time: Duration,
    problem: Option<String>,
}

/// Runs a stage until the time is over or a turn fails; at least once.
fn repeat(stage: &Stage, trackway: &Path, directory: &Path, share: Duration) -> StageOutcome {
    let start = Instant::now();
    let mut turns = 0;
    loop {
        eprintln!("{}: turn {}", stage.name, turns + 1);
        let result = match stage.turn {
            StageKind::Tests { package, filter, variables } => run_tests(package, filter, variables),
            StageKind::Together { filters } => run_together(filters, share),
            StageKind::Record { program, arguments } => record_and_verify(trackway, directory, program, arguments),
            StageKind::Bare => bare::run(),
        };
        turns += 1;
        let time = start.elapsed();
        if result.is_err() || time >= share {
            return StageOutcome { turns, time, problem: result.err() };
        }
    }
}

fn run_tests(package: &str, filter: &str, variables: &[(&str, &str)]) -> Result<(), String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--quiet", "--release", "--package", package]).current_dir(root());
    if !filter.is_empty() {
        command.args(["--", filter]);
    }
    run_to_success(command.envs(variables.iter().copied()))
}

/// Repeats each of the tests until the time is over, all at the same time.
fn run_together(filters: &[&str], time: Duration) -> Result<(), String> {
    let end = Instant::now() + time;
    let again = |filter: &str| -> Result<(), String> {
        loop {
            // Reported at once: the other tests continue until the time is over.
            run_tests("acceptance", filter, &[]).inspect_err(|problem| eprintln!("{filter} failed: {problem}"))?;
            if Instant::now() >= end {
                return Ok(());
            }
        }
    };
    let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = filters.iter().map(|filter| scope.spawn(|| again(filter))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
    });
    results.into_iter().collect()
}

fn record_and_verify(trackway: &Path, directory: &Path, program: &str, arguments: &[&str]) -> Result<(), String> {
    let program = workloads::build(program, workloads::Variant::Pie).map_err(|error| error.to_string())?;
    let trace = directory.join("soak.trk");
    run_to_success(Command::new(trackway).arg("record").arg("-o").arg(&trace).arg("--").arg(program).args(arguments))?;
    run_to_success(Command::new(trackway).arg("verify").arg(&trace))
}

fn run_to_success(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(40)..].join("\n");
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
            Err(format!("`{}` ended with {}:\n{tail}", words.join(" "), output.status))
        }
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

fn page(arguments: &Arguments, machine: &Machine, stages: &[&Stage], results: &[StageOutcome]) -> String {
    let mut text = format!("# Soak test of {}\n\n", machine::today());
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes everything");
    let stage = if arguments.stage.is_empty() { String::new() } else { format!(" --stage '{}'", arguments.stage) };
    line(format!("`cargo xtask soak{stage} --minutes {}` on {}\n", arguments.minutes, machine));
    line("| stage | turns | minutes | result | what it shows |\n| --- | ---: | ---: | --- | --- |".into());
    for (stage, outcome) in stages.iter().zip(results) {
        let (minutes, verdict) =
            (outcome.time.as_secs_f64() / 60.0, if outcome.problem.is_some() { "FAILED" } else { "passed" });
        line(format!("| {} | {} | {minutes:.1} | {verdict} | {} |", stage.name, outcome.turns, stage.shows));
    }
    for (stage, outcome) in stages.iter().zip(results) {
        if let Some(problem) = &outcome.problem {
            line(format!("\n## {} failed in turn {}\n\n```\n{problem}\n```", stage.name, outcome.turns));
        }
    }
    text
}

/// Appends to the result of the same day.
fn keep(page: &str) -> Result<(), String> {
    let name = format!("docs/soak/{}.md", machine::today());
    std::fs::create_dir_all(root().join("docs/soak")).map_err(|error| error.to_string())?;
    let before = std::fs::read_to_string(root().join(&name)).map_or_else(|_| String::new(), |before| before + "\n");
    std::fs::write(root().join(&name), before + page).map_err(|error| format!("{name}: {error}"))?;
    eprintln!("kept as {name}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_name_programs_that_exist() {
        for stage in STAGES {
            if let StageKind::Record { program, .. } = stage.turn {
                assert!(workloads::find(program).is_some(), "{program}");
            }
        }
    }

    /// A filter that fits no test would pass.
    #[test]
    fn stages_filter_acceptance_tests_that_exist() {
        let directory = std::fs::read_dir(root().join("crates/acceptance/tests")).unwrap();
        let files = directory.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
        let tests: String = files.collect();
        for stage in STAGES {
            let filters = match stage.turn {
                StageKind::Tests { package: "acceptance", ref filter, .. } => std::slice::from_ref(filter),
                StageKind::Together { filters } => filters,
                _ => continue,
            };
            for filter in filters.iter().filter(|filter| !filter.is_empty()) {
                assert!(tests.contains(&format!("fn {filter}()")), "{}: {filter}", stage.name);
            }
        }
    }

    #[test]
    fn a_failure_is_on_the_page() {
        let arguments = Arguments { minutes: 1, stage: "get".into(), dry: true, packages: Default::default() };
        let failed = StageOutcome { turns: 3, time: Duration::from_secs(30), problem: Some("it rains".into()) };
        let stage = &STAGES[0];
        let page = page(&arguments, &machine::describe(), &[stage], &[failed]);
        assert!(page.contains(&format!("| {} | 3 | 0.5 | FAILED |", stage.name)), "{page}");
        assert!(page.contains("it rains"));
        assert!(page.contains("`cargo xtask soak --stage 'get' --minutes 1`"), "{page}");
    }
}
