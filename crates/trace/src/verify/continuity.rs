//! A check of a part of a trace: that each step begins where the one before it ends. The full check
//! ([`crate::Trace::verify`]) needs whole chunks.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::HashMap;

use entity::{AppPc, ThreadId};

use crate::block::Blocks;
use crate::model::{Event, Step};

/// Checks for every thread that each step, signal and gap begins at the address that the step or
/// event before it gives.
#[derive(Debug)]
pub struct ContinuityCheck<'t> {
    blocks: &'t Blocks,
    next: HashMap<ThreadId, AppPc>,
    /// For each thread that has just made a system call, its number and the address behind it.
    called: HashMap<ThreadId, (u32, AppPc)>,
    problems: Vec<String>,
}

impl<'t> ContinuityCheck<'t> {
    /// Begins a check of steps of these blocks, anywhere in a trace.
    #[must_use]
    pub fn new(blocks: &'t Blocks) -> Self {
        Self { blocks, next: HashMap::new(), called: HashMap::new(), problems: Vec::new() }
    }

    /// Returns one sentence for each problem, in the order in which they were found.
    #[must_use]
    pub fn into_problems(self) -> Vec<String> {
        self.problems
    }

    /// Checks the next step of a thread.
    pub fn step(&mut self, thread: ThreadId, step: &Step) {
        let Some(first) = self.blocks.instructions(step).next() else {
            self.problems.push(format!("thread {thread}: a step of a block that is not there"));
            return;
        };
        self.arrive(thread, first.address);
        self.called.remove(&thread);
        self.expect(thread, step.next());
    }

    /// Checks the next event of a thread.
    pub fn event(&mut self, thread: ThreadId, event: &Event) {
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
    }

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
