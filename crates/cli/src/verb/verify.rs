//! `trackway verify`: is the trace whole, and does every step go to where the next one begins?

mod filter;

use std::collections::HashMap;
use std::ops::Range;

use serde::Serialize;
use trace::{Counts, Event, Step, Trace};

use crate::arguments::Verify;
use crate::digits::grouped;
use crate::failure::FAILED;
use crate::output::{Output, Stopped};
use crate::select::{self, Visitor};
use crate::verb::info::{count_event, count_step};

/// More problems than this are only counted.
const LISTED_MAX: usize = 100;

#[derive(Serialize)]
struct Findings {
    file: String,
    sound: bool,
    instructions: u64,
    steps: u64,
    chunks: u64,
    problem_count: usize,
    problems: Vec<String>,
}

pub fn run(arguments: &Verify) -> Result<u8, Stopped> {
    let input = &arguments.input;
    let trace = select::open(input)?;
    let output = Output::beside(&arguments.input.file, arguments.output.file.as_deref())?;
    if let Some(filter) = arguments.filter {
        let findings = filter::check(&trace, filter, arguments)?;
        return tell(output, arguments, &findings, findings.sound, filter::text);
    }
    let (counts, problems) = if input.is_partial() {
        check_part(&trace, arguments)?
    } else {
        let report = trace.verify();
        (report.counts, report.problems)
    };
    let findings = Findings {
        file: input.file.display().to_string(),
        sound: problems.is_empty(),
        instructions: counts.instructions,
        steps: counts.steps,
        chunks: trace.summary().chunks,
        problem_count: problems.len(),
        problems: problems.into_iter().take(LISTED_MAX).collect(),
    };
    tell(output, arguments, &findings, findings.sound, text)
}

/// Writes what was found and gives the exit status.
fn tell<F: Serialize>(
    mut output: Output,
    arguments: &Verify,
    findings: &F,
    sound: bool,
    text: impl FnOnce(&F) -> String,
) -> Result<u8, Stopped> {
    if arguments.json {
        output.json(findings)?;
    } else {
        output.write(text(findings).as_bytes())?;
    }
    output.finish()?;
    Ok(if sound { 0 } else { FAILED })
}

fn text(findings: &Findings) -> String {
    let mut text: String = findings.problems.iter().map(|problem| format!("{problem}\n")).collect();
    if findings.problem_count > findings.problems.len() {
        text.push_str(&format!("… and {} more problems\n", findings.problem_count - findings.problems.len()));
    }
    let verdict = match findings.problem_count {
        0 => "sound".to_owned(),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    text.push_str(&format!(
        "{}: {verdict}; {} instructions in {} steps could be read\n",
        findings.file,
        grouped(findings.instructions),
        grouped(findings.steps)
    ));
    text
}

fn check_part(trace: &Trace, arguments: &Verify) -> Result<(Counts, Vec<String>), Stopped> {
    let mut continuity = Continuity { trace, next: HashMap::new(), counts: Counts::default(), problems: Vec::new() };
    let damaged = select::walk(trace, &arguments.input, &mut continuity)?;
    if damaged > 0 {
        continuity.problems.push(format!("{damaged} damaged places were left out"));
    }
    Ok((continuity.counts, continuity.problems))
}

/// Checks of every thread that each step begins where the one before it, or an event, said.
struct Continuity<'t> {
    trace: &'t Trace,
    next: HashMap<u32, u64>,
    counts: Counts,
    problems: Vec<String>,
}

impl Continuity<'_> {
    fn expect(&mut self, thread: u32, address: u64) {
        if address == 0 {
            self.next.remove(&thread);
        } else {
            self.next.insert(thread, address);
        }
    }
}

impl Visitor for Continuity<'_> {
    fn step(&mut self, thread: u32, step: &Step, part: Range<u32>) -> Result<(), Stopped> {
        let Some(first) = self.trace.blocks().instructions(step).next() else {
            self.problems.push(format!("thread {}: a step of a block that is not there", thread));
            return Ok(());
        };
        if let Some(&expected) = self.next.get(&thread)
            && first.address != expected
        {
            self.problems
                .push(format!("thread {}: goes on at {:#x} although {expected:#x} comes next", thread, first.address));
        }
        count_step(&mut self.counts, step, part);
        self.expect(thread, step.next());
        Ok(())
    }

    fn event(&mut self, thread: u32, event: &Event) -> Result<(), Stopped> {
        count_event(&mut self.counts, event);
        match *event {
            Event::Start { pc, .. } | Event::Resume { pc, .. } => self.expect(thread, pc),
            Event::Signal { handler, .. } => self.expect(thread, handler),
            Event::End { .. } | Event::Leave { .. } | Event::Gap { .. } | Event::Lost => self.expect(thread, 0),
            Event::Time { .. }
            | Event::Syscall { .. }
            | Event::Child { .. }
            | Event::FsBase { .. }
            | Event::Unfinished { .. } => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(problems: &[&str], count: usize) -> Findings {
        Findings {
            file: "t.trk".into(),
            sound: count == 0,
            instructions: 1000,
            steps: 10,
            chunks: 3,
            problem_count: count,
            problems: problems.iter().map(|&problem| problem.to_owned()).collect(),
        }
    }

    #[test]
    fn the_verdict() {
        assert_eq!(text(&findings(&[], 0)), "t.trk: sound; 1 000 instructions in 10 steps could be read\n");
        assert_eq!(
            text(&findings(&["a", "b"], 5)),
            "a\nb\n… and 3 more problems\nt.trk: 5 problems; 1 000 instructions in 10 steps could be read\n"
        );
    }
}
