//! `trackway verify`: checks that a trace is whole, and that every step begins where the one before
//! it ends.

mod filter;

use std::collections::HashMap;
use std::ops::Range;

use serde::Serialize;
use trace::{AppPc, Counts, Event, Step, ThreadId, Trace};

use crate::arguments::Verify;
use crate::digits::grouped;
use crate::failure::FAILED;
use crate::output::{Output, Stopped};
use crate::select::{self, Visitor};
use crate::verb::info::{count_event, count_step};

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
    let mut continuity = Continuity {
        trace,
        next: HashMap::new(),
        called: HashMap::new(),
        counts: Counts::default(),
        problems: Vec::new(),
    };
    let damaged = select::walk(trace, &arguments.input, &mut continuity)?;
    if damaged > 0 {
        continuity.problems.push(format!("{damaged} damaged places were left out"));
    }
    Ok((continuity.counts, continuity.problems))
}

/// Checks for every thread that each step, signal and gap begins at the address that the step or
/// event before it gives.
struct Continuity<'t> {
    trace: &'t Trace,
    next: HashMap<ThreadId, AppPc>,
    /// For each thread that has just made a system call, its number and the address behind it.
    called: HashMap<ThreadId, (u32, AppPc)>,
    counts: Counts,
    problems: Vec<String>,
}

impl Continuity<'_> {
    fn expect(&mut self, thread: ThreadId, address: AppPc) {
        if address.is_none() {
            self.next.remove(&thread);
        } else {
            self.next.insert(thread, address);
        }
    }

    /// Reports a problem if the thread is not expected at `address`.
    fn arrive(&mut self, thread: ThreadId, address: AppPc) {
        if let Some(&expected) = self.next.get(&thread)
            && address != expected
        {
            self.problems.push(format!("thread {thread}: goes on at {address:#x} although {expected:#x} comes next"));
        }
    }

    /// Checks a signal: it comes before an instruction, or in a system call, which is restarted or
    /// not.
    fn interrupt(&mut self, thread: ThreadId, pc: AppPc) {
        const SYSCALL_BYTES: u64 = 2;
        const RT_SIGRETURN: u32 = 15;
        // An rt_sigreturn that finds no frame continues at 0.
        let is_in_call =
            |&(number, after): &(u32, AppPc)| pc.is_none() && number == RT_SIGRETURN || pc + SYSCALL_BYTES == after;
        if !self.called.get(&thread).is_some_and(is_in_call) {
            self.arrive(thread, pc);
        }
    }
}

impl Visitor for Continuity<'_> {
    fn step(&mut self, thread: ThreadId, step: &Step, part: Range<u32>) -> Result<(), Stopped> {
        let Some(first) = self.trace.blocks().instructions(step).next() else {
            self.problems.push(format!("thread {}: a step of a block that is not there", thread));
            return Ok(());
        };
        self.arrive(thread, first.address);
        self.called.remove(&thread);
        count_step(&mut self.counts, step, part);
        self.expect(thread, step.next());
        Ok(())
    }

    fn event(&mut self, thread: ThreadId, event: &Event) -> Result<(), Stopped> {
        count_event(&mut self.counts, event);
        match *event {
            Event::Start { pc, .. } | Event::Resume { pc, .. } => self.expect(thread, pc),
            Event::Signal { pc, handler, .. } => {
                self.interrupt(thread, pc);
                self.called.remove(&thread);
                self.expect(thread, handler);
            }
            Event::Gap { pc } => {
                self.arrive(thread, pc);
                self.expect(thread, AppPc::NONE);
            }
            Event::Syscall { number, .. } => {
                if let Some(&after) = self.next.get(&thread) {
                    self.called.insert(thread, (number, after));
                }
            }
            Event::End { .. } | Event::Detach { .. } | Event::Lost => self.expect(thread, AppPc::NONE),
            Event::Time { .. }
            | Event::Child { .. }
            | Event::FsBase { .. }
            | Event::RoutineEnter { .. }
            | Event::RoutineReturn { .. }
            | Event::Mapping { .. }
            | Event::Unfinished { .. } => {}
        }
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
