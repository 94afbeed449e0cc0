//! How often functions and loops were entered.

use std::collections::BTreeMap;
use std::fmt::Write;

use scope::{FunctionId, ScopeEvent, Scopes, Tracker};
use serde::Serialize;
use std::ops::Range;
use trace::{Event, Step, ThreadId, Trace};

use crate::arguments::Stat;
use crate::digits::grouped;
use crate::output::Stopped;
use crate::{scopes, select};

#[derive(Serialize)]
pub struct FunctionJson {
    name: String,
    address: String,
    image: u32,
    activations: u64,
    /// The most activations of the function at once, one inside of the other.
    most_active: u64,
    loops: Vec<LoopJson>,
}

#[derive(Serialize)]
struct LoopJson {
    address: String,
    depth: u32,
    /// Whether control can enter it at several addresses.
    irreducible: bool,
    entered: u64,
    iterations: u64,
}

/// What is counted of a function.
#[derive(Default)]
struct FunctionCounts {
    activations: u64,
    most_active: u64,
    /// By index of the loop: how often it was entered, and its iterations.
    loops: BTreeMap<u32, (u64, u64)>,
}

/// Counts the scopes of the routines that the user names or that were recorded; `None` if there are
/// no such routines.
pub fn count(trace: &Trace, arguments: &Stat) -> Result<Option<Vec<FunctionJson>>, Stopped> {
    if arguments.routines.is_empty() && scopes::recorded_routines(trace).next().is_none() {
        return Ok(None);
    }
    let scopes = match scopes::select(trace, &arguments.routines) {
        // The statistics of the rest are worth printing.
        Err(failure) if arguments.routines.is_empty() => {
            eprintln!("{failure}");
            return Ok(None);
        }
        scopes => scopes?,
    };
    let mut counter = Counter { trace, scopes: &scopes, trackers: BTreeMap::new(), counts: BTreeMap::new() };
    select::walk(trace, &arguments.input, &mut counter)?;
    for tracker in counter.trackers.values_mut() {
        tracker.end_all(&mut |event| add(&mut counter.counts, event));
    }
    Ok(Some(counter.counts.into_iter().map(|(function, counts)| counts.describe(&scopes, function)).collect()))
}

struct Counter<'s> {
    trace: &'s Trace,
    scopes: &'s Scopes,
    trackers: BTreeMap<ThreadId, Tracker<'s>>,
    counts: BTreeMap<FunctionId, FunctionCounts>,
}

impl select::Visitor for Counter<'_> {
    fn step(&mut self, thread: ThreadId, step: &Step, _: Range<u32>) -> Result<(), Stopped> {
        let tracker = self.trackers.entry(thread).or_insert_with(|| Tracker::new(self.scopes));
        tracker.step(step, self.trace.blocks(), |event| add(&mut self.counts, event));
        Ok(())
    }

    fn event(&mut self, thread: ThreadId, event: &Event) -> Result<(), Stopped> {
        let tracker = self.trackers.entry(thread).or_insert_with(|| Tracker::new(self.scopes));
        tracker.event(event, |event| add(&mut self.counts, event));
        Ok(())
    }
}

fn add(counts: &mut BTreeMap<FunctionId, FunctionCounts>, event: ScopeEvent) {
    match event {
        ScopeEvent::Enter { function, recursion } => {
            let counts = counts.entry(function).or_default();
            counts.activations += 1;
            counts.most_active = counts.most_active.max(u64::from(recursion) + 1);
        }
        ScopeEvent::ExitLoop { function, index, trips } => {
            let (entered, iterations) = counts.entry(function).or_default().loops.entry(index).or_default();
            *entered += 1;
            *iterations += trips;
        }
        ScopeEvent::Exit { .. } | ScopeEvent::EnterLoop { .. } | ScopeEvent::Iterate { .. } => {}
    }
}

impl FunctionCounts {
    fn describe(self, scopes: &Scopes, id: FunctionId) -> FunctionJson {
        let (name, entry) = scopes::function(scopes, id);
        let describe = |(index, (entered, iterations)): (u32, (u64, u64))| {
            let found = scopes.flow(id).and_then(|flow| flow.forest.loops().get(index as usize));
            LoopJson {
                address: format!("{:#x}", scopes::loop_entry(scopes, id, index)),
                depth: found.map_or(1, |found| found.depth),
                irreducible: found.is_some_and(|found| found.is_irreducible()),
                entered,
                iterations,
            }
        };
        FunctionJson {
            name: name.to_owned(),
            address: format!("{entry:#x}"),
            image: scopes.function(id).map_or(0, |function| function.image),
            activations: self.activations,
            most_active: self.most_active,
            loops: self.loops.into_iter().map(describe).collect(),
        }
    }
}

/// Appends a table of functions, each with its loops.
pub fn table(text: &mut String, functions: &[FunctionJson]) {
    if functions.is_empty() {
        return;
    }
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes everything");
    line(format!("\n{:>20}{:>20}{:>14}  function or loop", "entered", "iterations", "mean trips"));
    for function in functions {
        line(format!(
            "{:>20}{:>20}{:>14}  {} {}",
            grouped(function.activations),
            "",
            "",
            function.address,
            function.name
        ));
        for found in &function.loops {
            let mean = found.iterations as f64 / found.entered as f64;
            let kind = if found.irreducible { "irreducible loop" } else { "loop" };
            line(format!(
                "{:>20}{:>20}{mean:>14.1}  {:indent$}{} {kind} of {}",
                grouped(found.entered),
                grouped(found.iterations),
                "",
                found.address,
                function.name,
                indent = 2 * found.depth as usize,
            ));
        }
        if function.loops.is_empty() {
            line(format!("{:54}    no loops", ""));
        }
    }
}
