//! The allocations of a trace: events in, finished calls out.
//!
//! A [`Ledger`] joins the entry of an allocation routine with its return, and knows which blocks
//! are live. A block that is given back is gone at the entry of the routine: from then on another
//! thread may get its memory.

use std::collections::{BTreeMap, HashMap};

use trace::{CallStackId, Event, MappingCall, RoutineCall, ThreadId, Trace};

use crate::failure::Failure;

/// A block that a routine gives back or resizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldBlock {
    pub address: u64,
    /// Its size; `None` if its allocation is not in the trace, because it is older.
    pub size: Option<u64>,
}

/// A call of an allocation routine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub call: RoutineCall,
    pub old: Option<OldBlock>,
    /// What the routine has returned; `None` if its return is not in the trace.
    pub result: Option<u64>,
}

impl Allocation {
    /// Whether it has only given a block back, as `realloc` does that is asked for no bytes.
    pub fn is_release(&self) -> bool {
        let is_resized_to_nothing = self.result == Some(0) && self.old.is_some() && self.call.size() == Some(0);
        self.call.routine.only_frees() || is_resized_to_nothing
    }
}

/// What has happened to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Allocation(Allocation),
    Mapping(MappingCall),
}

impl Change {
    pub fn stack(&self) -> CallStackId {
        match self {
            Self::Allocation(allocation) => allocation.call.stack,
            Self::Mapping(call) => call.stack,
        }
    }
}

/// The live blocks of a process, and the calls of its threads that have not returned.
#[derive(Default)]
pub struct Ledger {
    /// Size by address.
    live: HashMap<u64, u64>,
    live_bytes: u64,
    peak_bytes: u64,
    open: BTreeMap<ThreadId, Vec<Allocation>>,
    /// The program of the process; `None` before its first instruction.
    image: Option<u32>,
}

impl Ledger {
    /// Returns the bytes that were live at once at most.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Returns the number of blocks and bytes that are live.
    pub fn live(&self) -> (usize, u64) {
        (self.live.len(), self.live_bytes)
    }

    /// Returns the image that the events are from.
    pub fn image(&self) -> u32 {
        self.image.unwrap_or(0)
    }

    /// Takes an event, in the order of time. Returns what it completes.
    pub fn event(&mut self, thread: ThreadId, event: &Event) -> Option<Change> {
        match *event {
            Event::Start { .. } if thread == ThreadId::FIRST => {
                self.image = Some(self.image.map_or(0, |image| image + 1));
                // Another program has no memory of the one before.
                self.live.clear();
                self.live_bytes = 0;
                None
            }
            Event::RoutineEnter { call, .. } => {
                self.enter(thread, call);
                None
            }
            Event::RoutineReturn { routine, value, .. } => {
                let open = self.open.entry(thread).or_default();
                // Calls above it were left without a return.
                let at = open.iter().rposition(|allocation| allocation.call.routine == routine)?;
                let allocation = Allocation { result: Some(value), ..open[at] };
                open.truncate(at);
                self.finish(&allocation);
                Some(Change::Allocation(allocation))
            }
            Event::Mapping { call, .. } => Some(Change::Mapping(call)),
            _ => None,
        }
    }

    /// Returns the calls that have not returned.
    pub fn unreturned(&mut self) -> Vec<(ThreadId, Change)> {
        let open = std::mem::take(&mut self.open);
        let of_thread = |(thread, calls): (ThreadId, Vec<Allocation>)| {
            calls.into_iter().map(move |call| (thread, Change::Allocation(call)))
        };
        open.into_iter().flat_map(of_thread).collect()
    }

    fn enter(&mut self, thread: ThreadId, call: RoutineCall) {
        let old = call.old_block().map(|address| {
            let size = self.live.remove(&address);
            self.live_bytes -= size.unwrap_or(0);
            OldBlock { address, size }
        });
        self.open.entry(thread).or_default().push(Allocation { call, old, result: None });
    }

    fn finish(&mut self, allocation: &Allocation) {
        let (Some(size), Some(result)) = (allocation.call.size(), allocation.result) else { return };
        if result != 0 {
            self.insert(result, size);
        } else if let Some(OldBlock { address, size: Some(old_size) }) = allocation.old.filter(|_| size != 0) {
            // It could not be resized, and stays.
            self.insert(address, old_size);
        }
    }

    fn insert(&mut self, address: u64, size: u64) {
        let before = self.live.insert(address, size).unwrap_or(0);
        self.live_bytes = self.live_bytes.saturating_sub(before).saturating_add(size);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }
}

/// Returns whether allocations were recorded.
pub fn are_in(trace: &Trace) -> bool {
    trace.recording().options.iter().any(|option| option == "--allocations")
}

/// Fails if allocations were not recorded.
pub fn require(trace: &Trace) -> Result<(), Failure> {
    if are_in(trace) {
        return Ok(());
    }
    Err(Failure::new("allocations were not recorded in this trace").hint("record with --allocations to have them"))
}

#[cfg(test)]
mod tests {
    use trace::{AppPc, RoutineKind, Tsc};

    use super::*;

    fn enter(ledger: &mut Ledger, thread: u32, routine: RoutineKind, arguments: [u64; 3]) {
        let (pc, caller, stack) = (AppPc::NONE, AppPc::NONE, CallStackId::EMPTY);
        let call = RoutineCall { routine, pc, stack_pointer: 0, arguments, caller, stack };
        assert_eq!(ledger.event(ThreadId::new(thread), &Event::RoutineEnter { call, tsc: Tsc::NONE }), None);
    }

    fn leave(ledger: &mut Ledger, thread: u32, routine: RoutineKind, value: u64) -> Allocation {
        let event = Event::RoutineReturn { routine, value, tsc: Tsc::NONE };
        match ledger.event(ThreadId::new(thread), &event) {
            Some(Change::Allocation(allocation)) => allocation,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn blocks_are_live_between_allocation_and_release() {
        let mut ledger = Ledger::default();
        enter(&mut ledger, 0, RoutineKind::Malloc, [10, 0, 0]);
        leave(&mut ledger, 0, RoutineKind::Malloc, 0x1000);
        enter(&mut ledger, 0, RoutineKind::Realloc, [0x1000, 30, 0]);
        let resized = leave(&mut ledger, 0, RoutineKind::Realloc, 0x2000);
        assert_eq!(resized.old, Some(OldBlock { address: 0x1000, size: Some(10) }));
        assert_eq!((ledger.live(), ledger.peak_bytes()), ((1, 30), 30));
        enter(&mut ledger, 0, RoutineKind::Free, [0x2000, 0, 0]);
        // Another thread gets the memory before the routine returns.
        enter(&mut ledger, 1, RoutineKind::Malloc, [20, 0, 0]);
        leave(&mut ledger, 1, RoutineKind::Malloc, 0x2000);
        leave(&mut ledger, 0, RoutineKind::Free, 0);
        assert_eq!((ledger.live(), ledger.peak_bytes()), ((1, 20), 30));
    }

    #[test]
    fn older_blocks_and_failures() {
        let mut ledger = Ledger::default();
        enter(&mut ledger, 0, RoutineKind::Free, [0x500, 0, 0]);
        assert_eq!(leave(&mut ledger, 0, RoutineKind::Free, 0).old, Some(OldBlock { address: 0x500, size: None }));
        enter(&mut ledger, 0, RoutineKind::Malloc, [10, 0, 0]);
        leave(&mut ledger, 0, RoutineKind::Malloc, 0x1000);
        enter(&mut ledger, 0, RoutineKind::Realloc, [0x1000, u64::MAX, 0]);
        leave(&mut ledger, 0, RoutineKind::Realloc, 0);
        assert_eq!(ledger.live(), (1, 10), "it stays");
        enter(&mut ledger, 0, RoutineKind::Free, [0, 0, 0]);
        assert_eq!(leave(&mut ledger, 0, RoutineKind::Free, 0).old, None);
        enter(&mut ledger, 0, RoutineKind::Realloc, [0x1000, 0, 0]);
        assert!(leave(&mut ledger, 0, RoutineKind::Realloc, 0).is_release());
        assert_eq!(ledger.live(), (0, 0), "it is gone");
    }

    #[test]
    fn calls_that_do_not_return() {
        let mut ledger = Ledger::default();
        enter(&mut ledger, 0, RoutineKind::New, [10, 0, 0]);
        enter(&mut ledger, 0, RoutineKind::Malloc, [10, 0, 0]);
        enter(&mut ledger, 0, RoutineKind::New, [20, 0, 0]);
        assert_eq!(leave(&mut ledger, 0, RoutineKind::New, 0x1000).call.arguments[0], 20);
        assert_eq!(ledger.unreturned().len(), 2);
    }
}
