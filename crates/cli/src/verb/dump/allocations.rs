//! `trackway dump --kind allocations`: blocks and mappings, with the call stacks that lead there.

use std::io::Write;
use std::ops::Range;

use serde::Serialize;
use trace::{AppPc, Event, MappingCall, RoutineKind, Step, ThreadId, Trace};

use crate::allocations::{Allocation, Change, Ledger, OldBlock};
use crate::output::{LineBuffer, Stopped};
use crate::select::Visitor;
use crate::symbolizer::Symbolizer;

/// Writes a line for each call of an allocation routine and each mapping.
pub struct AllocationWriter<'t> {
    trace: &'t Trace,
    ledger: Ledger,
    symbolizer: Symbolizer<'t>,
    lines: LineBuffer,
    json: bool,
}

/// A line, as JSON.
#[derive(Serialize)]
struct Line<'l> {
    thread: u32,
    routine: &'static str,
    /// Bytes asked for, or the length of the mapping; those of the old block if it is freed.
    size: Option<u64>,
    /// The new block or mapping. Null: none, or the call has not returned.
    result: Option<String>,
    returned: bool,
    /// The block that was freed or resized.
    block: Option<String>,
    block_size: Option<u64>,
    /// The block is older than the recording.
    is_older: bool,
    /// An allocation routine has made the system call.
    nested: bool,
    /// Return addresses, the innermost first, and their names.
    stack: Vec<String>,
    frames: &'l [String],
}

impl<'t> AllocationWriter<'t> {
    pub fn new(trace: &'t Trace, lines: LineBuffer, json: bool) -> Self {
        Self { trace, ledger: Ledger::default(), symbolizer: Symbolizer::new(trace), lines, json }
    }

    /// Writes the calls that have not returned, and writes out everything.
    pub fn finish(mut self) -> Result<(), Stopped> {
        for (thread, change) in self.ledger.unreturned() {
            self.write(thread, &change);
        }
        self.lines.finish()
    }

    fn write(&mut self, thread: ThreadId, change: &Change) {
        let addresses: Vec<AppPc> = self.trace.call_stack(change.stack()).collect();
        let image = self.ledger.image();
        let name = |&address: &AppPc| self.symbolizer.return_address(image, address).to_owned();
        let frames: Vec<String> = addresses.iter().map(name).collect();
        let mut line = match change {
            Change::Allocation(allocation) => Line::of_allocation(allocation, thread, &frames),
            Change::Mapping(call) => Line::of_mapping(call, thread, &frames),
        };
        let written = if self.json {
            line.stack = addresses.iter().map(|address| format!("{address:#x}")).collect();
            let text = serde_json::to_string(&line).expect("a line is JSON");
            writeln!(self.lines.bytes, "{text}")
        } else {
            writeln!(self.lines.bytes, "{}", line.text())
        };
        written.expect("a vector takes everything");
    }
}

impl Visitor for AllocationWriter<'_> {
    fn step(&mut self, _: ThreadId, _: &Step, _: Range<u32>) -> Result<(), Stopped> {
        Ok(())
    }

    fn event(&mut self, thread: ThreadId, event: &Event) -> Result<(), Stopped> {
        if let Some(change) = self.ledger.event(thread, event) {
            self.write(thread, &change);
        }
        self.lines.flush_if_long()
    }
}

impl<'l> Line<'l> {
    fn of_allocation(allocation: &Allocation, thread: ThreadId, frames: &'l [String]) -> Self {
        let Allocation { call, old, result } = *allocation;
        let allocates = !call.routine.only_frees();
        Self {
            thread: thread.get(),
            routine: call.routine.name(),
            size: call.size().or(old.and_then(|old| old.size)),
            result: result.filter(|&result| allocates && result != 0).map(hexadecimal),
            returned: result.is_some(),
            block: old.map(|old| hexadecimal(old.address)),
            block_size: old.and_then(|old| old.size),
            is_older: old.is_some_and(|OldBlock { size, .. }| size.is_none()),
            nested: false,
            stack: Vec::new(),
            frames,
        }
    }

    fn of_mapping(call: &MappingCall, thread: ThreadId, frames: &'l [String]) -> Self {
        let [first, second, third] = call.arguments;
        let (size, block) = match call.name() {
            "mremap" => (Some(third), Some(hexadecimal(first))),
            "munmap" => (Some(second), Some(hexadecimal(first))),
            "brk" => (None, None),
            _ => (Some(second), None),
        };
        let has_result = !call.has_failed() && call.name() != "munmap";
        Self {
            thread: thread.get(),
            routine: call.name(),
            size,
            result: has_result.then(|| hexadecimal(call.result)),
            returned: true,
            block,
            block_size: (call.name() == "mremap").then_some(second),
            is_older: false,
            nested: call.is_nested,
            stack: Vec::new(),
            frames,
        }
    }

    fn text(&self) -> String {
        let size = self.size.map_or_else(|| "-".to_owned(), |size| size.to_string());
        let only_frees = is_release(self.routine);
        let result = match (&self.result, &self.block) {
            (Some(result), _) => result,
            (None, Some(block)) if only_frees => block,
            (None, _) if !self.returned => "no return",
            (None, Some(_)) if self.size == Some(0) && self.routine != "mremap" => "freed",
            (None, None) if only_frees => "0x0",
            (None, _) => "failed",
        };
        let mut text = format!("{}, {}, {size}, {result}", self.thread, self.routine);
        if let Some(block) = self.block.as_ref().filter(|_| !only_frees) {
            text += &format!(", was {block}");
        }
        for (is_set, remark) in [(self.is_older, "allocated before the recording"), (self.nested, "nested")] {
            if is_set {
                text += ", ";
                text += remark;
            }
        }
        text + ", " + &self.frames.join(" < ")
    }
}

/// Whether a routine or system call only gives memory back.
fn is_release(routine: &str) -> bool {
    routine == "munmap"
        || [RoutineKind::Free, RoutineKind::Delete, RoutineKind::DeleteArray].iter().any(|free| free.name() == routine)
}

fn hexadecimal(address: u64) -> String {
    format!("{address:#x}")
}
