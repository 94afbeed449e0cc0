//! `trackway dump --kind scopes`: when threads enter and leave functions and loops.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;

use scope::{ScopeEvent, Scopes, Tracker};
use trace::{Event, Step, ThreadId, Trace};

use crate::output::{LineBuffer, Stopped};
use crate::scopes;
use crate::select::Visitor;

/// Writes a line for each function and loop that is entered or left.
pub struct ScopeWriter<'s> {
    pub trace: &'s Trace,
    pub scopes: &'s Scopes,
    pub trackers: BTreeMap<ThreadId, Tracker<'s>>,
    pub lines: LineBuffer,
    pub json: bool,
}

impl<'s> ScopeWriter<'s> {
    pub fn new(trace: &'s Trace, scopes: &'s Scopes, lines: LineBuffer, json: bool) -> Self {
        Self { trace, scopes, trackers: BTreeMap::new(), lines, json }
    }

    /// Ends the scopes that have not ended where the selection ends, and writes out everything.
    pub fn finish(mut self) -> Result<(), Stopped> {
        let (scopes, json) = (self.scopes, self.json);
        for (thread, mut tracker) in self.trackers {
            tracker.end_all(&mut |event| write(scopes, thread, event, json, &mut self.lines.bytes));
        }
        self.lines.finish()
    }
}

impl Visitor for ScopeWriter<'_> {
    fn step(&mut self, thread: ThreadId, step: &Step, _: Range<u32>) -> Result<(), Stopped> {
        let Self { trace, scopes, trackers, lines, json } = self;
        let tracker = trackers.entry(thread).or_insert_with(|| Tracker::new(scopes));
        tracker.step(step, trace.blocks(), |event| write(scopes, thread, event, *json, &mut lines.bytes));
        self.lines.flush_if_long()
    }

    fn event(&mut self, thread: ThreadId, event: &Event) -> Result<(), Stopped> {
        let Self { scopes, trackers, lines, json, .. } = self;
        let tracker = trackers.entry(thread).or_insert_with(|| Tracker::new(scopes));
        tracker.event(event, |event| write(scopes, thread, event, *json, &mut lines.bytes));
        Ok(())
    }
}

/// Appends the line of a change of scope. Iterations have none; where a loop is left, they are
/// counted.
fn write(scopes: &Scopes, thread: ThreadId, event: ScopeEvent, json: bool, lines: &mut Vec<u8>) {
    let (change, function, index, count) = match event {
        ScopeEvent::Enter { function, recursion } => ("enter", function, None, ("recursion", u64::from(recursion))),
        ScopeEvent::Exit { function, recursion } => ("exit", function, None, ("recursion", u64::from(recursion))),
        ScopeEvent::EnterLoop { function, index } => ("enter loop", function, Some(index), ("trips", 0)),
        ScopeEvent::ExitLoop { function, index, trips } => ("exit loop", function, Some(index), ("trips", trips)),
        ScopeEvent::Iterate { .. } => return,
    };
    let (name, entry) = scopes::function(scopes, function);
    let address = index.map_or(entry, |index| scopes::loop_entry(scopes, function, index));
    let (unit, count) = count;
    let written = if json {
        let line = serde_json::json!({
            "thread": thread.get(), "scope": change, "function": name, "address": format!("{address:#x}"), unit: count,
        });
        writeln!(lines, "{line}")
    } else {
        match count {
            0 => writeln!(lines, "{thread}, {change}, {name}, {address:#x}"),
            _ => writeln!(lines, "{thread}, {change}, {name}, {address:#x}, {unit} {count}"),
        }
    };
    written.expect("a vector takes everything");
}
