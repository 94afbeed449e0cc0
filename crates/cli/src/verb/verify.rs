//! `trackway verify`: checks that a trace is whole, and that every step begins where the one before
//! it ends.

mod filter;

use std::ops::Range;

use serde::Serialize;
use trace::{ContinuityCheck, Counts, Event, Step, ThreadId, Trace};

use crate::arguments::Verify;
use crate::digits::grouped;
use crate::failure::FAILED;
use crate::output::{Output, Stopped};
use crate::select::{self, Visitor};

/// The number of problems that are listed; further ones are only counted.
const LISTED_MAX: usize = 100;

#[derive(Serialize)]
struct VerifyReport {
    file: String,
    sound: bool,
    instructions: u64,
    steps: u64,
    chunks: u64,
    /// Absent for a part of a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    unchecked_transfers: Option<u64>,
    problem_count: usize,
    problems: Vec<String>,
}

pub fn run(arguments: &Verify) -> Result<u8, Stopped> {
    let input = &arguments.input;
    let trace = select::open(input)?;
    let output = Output::open_apart_from(&arguments.input.file, arguments.output.file.as_deref())?;
    if let Some(filter) = arguments.filter {
        let report = filter::check(&trace, filter, arguments)?;
        return write_report(output, arguments, &report, report.sound, filter::text);
    }
    let (counts, unchecked_transfers, problems) = if input.is_partial() {
        let (counts, problems) = check_part(&trace, arguments)?;
        (counts, None, problems)
    } else {
        let report = trace.verify();
        (report.counts, Some(report.unchecked_transfers), report.problems)
    };
    let report = VerifyReport {
        file: input.file.display().to_string(),
        sound: problems.is_empty(),
        instructions: counts.instructions,
        steps: counts.steps,
        chunks: trace.summary().chunks,
        unchecked_transfers,
        problem_count: problems.len(),
        problems: problems.into_iter().take(LISTED_MAX).collect(),
    };
    write_report(output, arguments, &report, report.sound, text)
}

/// Writes the report and returns the exit status.
fn write_report<F: Serialize>(
    mut output: Output,
    arguments: &Verify,
    report: &F,
    sound: bool,
    text: impl FnOnce(&F) -> String,
) -> Result<u8, Stopped> {
    if arguments.json {
        output.json(report)?;
    } else {
        output.write(text(report).as_bytes())?;
    }
    output.finish()?;
    Ok(if sound { 0 } else { FAILED })
}

fn text(report: &VerifyReport) -> String {
    let mut text: String = report.problems.iter().map(|problem| format!("{problem}\n")).collect();
    if report.problem_count > report.problems.len() {
        text.push_str(&format!("… and {} more problems\n", report.problem_count - report.problems.len()));
    }
    let verdict = match report.problem_count {
        0 => "sound".to_owned(),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    let unchecked = match report.unchecked_transfers {
        Some(0) | None => "",
        Some(_) => "; some indirect targets could not be checked",
    };
    text.push_str(&format!(
        "{}: {verdict}; {} instructions in {} steps could be read{unchecked}\n",
        report.file,
        grouped(report.instructions),
        grouped(report.steps)
    ));
    text
}

fn check_part(trace: &Trace, arguments: &Verify) -> Result<(Counts, Vec<String>), Stopped> {
    let mut part = PartVerifier { check: ContinuityCheck::new(trace.blocks()), counts: Counts::default() };
    let damaged = select::walk(trace, &arguments.input, &mut part)?;
    let mut problems = part.check.into_problems();
    if damaged > 0 {
        problems.push(format!("{damaged} damaged places were left out"));
    }
    Ok((part.counts, problems))
}

/// Checks and counts the steps and events of a part.
struct PartVerifier<'t> {
    check: ContinuityCheck<'t>,
    counts: Counts,
}

impl Visitor for PartVerifier<'_> {
    fn step(&mut self, thread: ThreadId, step: &Step, part: Range<u32>) -> Result<(), Stopped> {
        self.check.step(thread, step);
        self.counts.add_step(step, part);
        Ok(())
    }

    fn event(&mut self, thread: ThreadId, event: &Event) -> Result<(), Stopped> {
        self.check.event(thread, event);
        self.counts.add_event(event);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(problems: &[&str], count: usize) -> VerifyReport {
        VerifyReport {
            file: "t.trk".into(),
            sound: count == 0,
            instructions: 1000,
            steps: 10,
            chunks: 3,
            unchecked_transfers: Some(2),
            problem_count: count,
            problems: problems.iter().map(|&problem| problem.to_owned()).collect(),
        }
    }

    #[test]
    fn problems_are_counted_in_the_verdict() {
        let sound = report(&[], 0);
        let checked = "t.trk: sound; 1 000 instructions in 10 steps could be read";
        assert_eq!(text(&sound), format!("{checked}; some indirect targets could not be checked\n"));
        assert_eq!(text(&VerifyReport { unchecked_transfers: Some(0), ..sound }), format!("{checked}\n"));
        assert_eq!(
            text(&VerifyReport { unchecked_transfers: None, ..report(&["a", "b"], 5) }),
            "a\nb\n… and 3 more problems\nt.trk: 5 problems; 1 000 instructions in 10 steps could be read\n"
        );
    }
}
