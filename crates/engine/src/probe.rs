//! Probes: the entries of allocation routines, whose calls are recorded wherever they happen.
//!
//! The recorder finds the routines and publishes their addresses (see [`crate::select`]). In every
//! translation mode such an address is a gate: nothing is linked to it, so the dispatcher sees each
//! call ([`visit`]) and appends an event. The return address becomes a gate, too. When the thread
//! is there with the stack pointer above, the dispatcher appends the result.
//!
//! Of calls inside of each other only the outermost is recorded: `calloc` may call `malloc`. Calls
//! that a signal handler makes are not inside of what the signal has interrupted. Whatever leaves a
//! routine without a return (longjmp, an exception that `operator new` throws) moves the stack
//! pointer above its frame. The next visit sees that, or finds another call's return address where
//! the routine's was.
//!
//! The recorder keeps a call stack for each thread. It follows the stack pointer through the code
//! that the thread executes. Where the code does not say what becomes of it, an event does
//! ([`append_stack_pointer`]).

use entity::AppPc;
use wire::{RDI, RDX, RSI, RSP, routine};

use crate::engine::Engine;
use crate::tcb::Tcb;
use crate::{memory, ring, signal};

/// Calls, and handlers that interrupt them, that can be inside of each other.
const CALLS_MAX: usize = 8;

/// In [`Call::routine`]: a signal handler.
const HANDLER: u8 = 0;

/// A call of an allocation routine that has not returned, or a signal handler.
#[derive(Clone, Copy, Default)]
struct Call {
    /// One of [`routine`], or [`HANDLER`].
    routine: u8,
    on_alternate: bool,
    entry: AppPc,
    /// The stack pointer at the entry, and the return address there.
    rsp: u64,
    caller: u64,
    /// Where `posix_memalign` stores its result.
    result_at: u64,
}

/// The calls of one thread, the innermost last.
#[derive(Default)]
pub struct Calls {
    list: [Call; CALLS_MAX],
    count: usize,
}

impl Calls {
    fn as_slice(&self) -> &[Call] {
        &self.list[..self.count]
    }

    /// False if there is no room.
    fn push(&mut self, call: Call) -> bool {
        let Some(place) = self.list.get_mut(self.count) else { return false };
        *place = call;
        self.count += 1;
        true
    }

    /// Removes the calls that the thread has left, given where it is now and what its stack holds.
    fn forget_left(&mut self, rsp: u64, on_alternate: bool, stack: impl Fn(u64) -> Option<u64>) {
        let is_replaced = |call: &Call| call.routine != HANDLER && stack(call.rsp) != Some(call.caller);
        let is_left = |call: &Call| match (call.on_alternate, on_alternate) {
            (false, true) => false,
            (true, false) => true,
            _ => rsp > call.rsp || is_replaced(call),
        };
        while self.as_slice().last().is_some_and(is_left) {
            self.count -= 1;
        }
    }

    /// Removes the innermost call if the thread is at its entry again, on the same stack: it was
    /// left, and the same instruction calls again.
    fn forget_repeated(&mut self, entry: AppPc, rsp: u64) {
        if self.as_slice().last().is_some_and(|call| call.routine != HANDLER && (call.entry, call.rsp) == (entry, rsp))
        {
            self.count -= 1;
        }
    }

    /// Removes the call that returns to `pc`, and those inside of it.
    fn take_returned(&mut self, pc: AppPc, rsp: u64) -> Option<Call> {
        let returns = |call: &Call| call.routine != HANDLER && call.caller == pc.get() && call.rsp + 8 == rsp;
        self.count = self.as_slice().iter().rposition(returns)?;
        Some(self.list[self.count])
    }

    /// Whether the thread is in an allocation routine, and not in a handler that has interrupted
    /// it.
    fn is_in_routine(&self) -> bool {
        self.as_slice().last().is_some_and(|call| call.routine != HANDLER)
    }
}

/// Notes a call or a return of an allocation routine, if the thread has come to one. True if the
/// way there must not be linked.
pub fn visit(tcb: &mut Tcb, engine: &mut Engine) -> bool {
    let pc = tcb.pc();
    if !engine.selection.has_allocations() {
        return false;
    }
    let is_return = engine.selection.is_probed_return(pc);
    if is_return && let Some(call) = tcb.calls.take_returned(pc, tcb.registers.general[RSP]) {
        append_return(tcb, call);
    }
    let Some(routine) = engine.selection.probe(pc) else { return is_return };
    enter(tcb, engine, routine);
    true
}

fn enter(tcb: &mut Tcb, engine: &mut Engine, routine: u8) {
    let [rsp, first, second, third] = [RSP, RDI, RSI, RDX].map(|register| tcb.registers.general[register]);
    let entry = tcb.pc();
    forget_left(tcb);
    tcb.calls.forget_repeated(entry, rsp);
    let Some(caller) = memory::read::<u64>(rsp) else { return };
    let result_at = if routine == routine::POSIX_MEMALIGN { first } else { 0 };
    let call = Call { routine, on_alternate: is_on_alternate(tcb), entry, rsp, caller, result_at };
    if tcb.calls.is_in_routine() || !tcb.calls.push(call) {
        return;
    }
    engine.watch_probed_return(AppPc::new(caller));
    ring::append_enter(tcb, routine, [first, second, third], caller);
}

fn append_return(tcb: &mut Tcb, call: Call) {
    let result = tcb.registers.general[wire::RAX];
    let value = match call.routine {
        // The result is a number of an error.
        routine::POSIX_MEMALIGN if result as u32 != 0 => 0,
        routine::POSIX_MEMALIGN => memory::read::<u64>(call.result_at).unwrap_or(0),
        _ => result,
    };
    ring::append_return(tcb, call.routine, value);
}

/// Notes that the thread is about to enter a signal handler, with this stack pointer.
pub fn enter_handler(tcb: &mut Tcb) {
    if tcb.calls.count == 0 {
        return;
    }
    let (rsp, on_alternate) = (tcb.registers.general[RSP], is_on_alternate(tcb));
    // Without room, what the handler calls counts as inside of what it has interrupted.
    tcb.calls.push(Call { rsp, on_alternate, ..Call::default() });
}

/// Whether an allocation routine makes the system call that the thread is in.
pub fn is_nested_call(tcb: &mut Tcb) -> bool {
    forget_left(tcb);
    tcb.calls.is_in_routine()
}

fn forget_left(tcb: &mut Tcb) {
    let (rsp, on_alternate) = (tcb.registers.general[RSP], is_on_alternate(tcb));
    tcb.calls.forget_left(rsp, on_alternate, memory::read::<u64>);
}

fn is_on_alternate(tcb: &Tcb) -> bool {
    signal::is_on_alternate_stack(&tcb.alternate_stack, tcb.registers.general[RSP])
}

/// Appends the stack pointer, if the recorder keeps call stacks.
pub fn append_stack_pointer(tcb: &mut Tcb) {
    if is_enabled(tcb) {
        ring::append_stack_pointer(tcb);
    }
}

/// Whether allocations are recorded.
pub fn is_enabled(tcb: &Tcb) -> bool {
    let selection = tcb.control().selection.load(core::sync::atomic::Ordering::Relaxed);
    selection & wire::SELECT_ALLOCATIONS != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(routine: u8, rsp: u64, on_alternate: bool) -> Call {
        Call { routine, on_alternate, entry: AppPc::new(0x9000), rsp, caller: 0x4000, result_at: 0 }
    }

    /// A stack on which no return address was replaced.
    fn stack(_: u64) -> Option<u64> {
        Some(0x4000)
    }

    #[test]
    fn the_outermost_call_counts() {
        let mut calls = Calls::default();
        assert!(!calls.is_in_routine());
        assert!(calls.push(call(routine::CALLOC, 0x1000, false)));
        calls.forget_left(0x1000, false, stack);
        assert!(calls.is_in_routine(), "a tail call");
        calls.forget_left(0xff0, false, stack);
        assert!(calls.is_in_routine());
        assert!(calls.take_returned(AppPc::new(0x4000), 0x1000).is_none(), "not yet");
        assert!(calls.take_returned(AppPc::new(0x4001), 0x1008).is_none());
        let returned = calls.take_returned(AppPc::new(0x4000), 0x1008).unwrap();
        assert_eq!((returned.routine, calls.is_in_routine()), (routine::CALLOC, false));
    }

    #[test]
    fn a_jump_out_of_a_routine() {
        let mut calls = Calls::default();
        calls.push(call(routine::NEW, 0x1000, false));
        calls.forget_left(0x1008, false, stack);
        assert!(!calls.is_in_routine());
    }

    #[test]
    fn a_call_in_the_place_of_one_that_was_left() {
        let mut calls = Calls::default();
        calls.push(call(routine::NEW, 0x1000, false));
        calls.forget_left(0xe00, false, |address| Some(if address == 0x1000 { 0x5000 } else { 0x4000 }));
        assert!(!calls.is_in_routine(), "another call has its return address there");
        calls.push(call(routine::NEW, 0x1000, false));
        calls.forget_repeated(AppPc::new(0x9010), 0x1000);
        assert!(calls.is_in_routine(), "a tail call");
        calls.forget_repeated(AppPc::new(0x9000), 0x1000);
        assert!(!calls.is_in_routine(), "the same call again");
    }

    #[test]
    fn handlers_are_not_inside_of_what_they_interrupt() {
        for (handler_rsp, on_alternate) in [(0x800, false), (0x9000, true)] {
            let mut calls = Calls::default();
            calls.push(call(routine::MALLOC, 0x1000, false));
            calls.push(call(HANDLER, handler_rsp, on_alternate));
            calls.forget_left(handler_rsp - 0x100, on_alternate, stack);
            assert!(!calls.is_in_routine());
            calls.push(call(routine::FREE, handler_rsp - 0x100, on_alternate));
            assert!(calls.take_returned(AppPc::new(0x4000), handler_rsp - 0xf8).is_some());
            calls.forget_left(0xf00, false, stack);
            assert!(calls.is_in_routine(), "back in malloc");
        }
    }

    #[test]
    fn a_full_list_takes_no_more() {
        let mut calls = Calls::default();
        for _ in 0..CALLS_MAX {
            assert!(calls.push(call(HANDLER, 0x1000, false)));
        }
        assert!(!calls.push(call(routine::MALLOC, 0x900, false)));
    }
}
