//! What is recorded of what is executed.
//!
//! Code that is not selected is translated *silently*: its paths are written to the ring as all
//! others are, because the profile lives on them, but they carry no data and the recorder leaves
//! them out. There are two ways to select.
//!
//! By address: the recorder tells ranges, and each fragment is silent or not. Blocks are cut where
//! a range begins or ends, and superblocks do not go on there.
//!
//! By what calls what, and by time: a thread is in one of several *modes*, each with fragments of
//! its own. In the uninstrumented mode the entry of a selected routine is a gate: nothing is linked
//! to it, so that the dispatcher is asked each time, and lets the thread into the instrumented
//! mode. There, the address that the routine returns to is a gate, until the stack says that the
//! thread has really returned. Skipping (see [`crate::skip`]) is a matter of starting in the
//! uninstrumented mode.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use wire::{Control, RSP, SELECT_CALLEES, SELECT_INSIDE, SELECT_OUTSIDE, word};

use crate::engine::Engine;
use crate::tcb::Tcb;
use crate::{memory, ring, signal, skip};

/// Which translation of the program a thread runs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum TranslationMode {
    /// Recorded, but for what the ranges leave out.
    #[default]
    Instrumented = 0,
    /// Not recorded.
    Uninstrumented = 1,
    /// Not recorded, and the dispatcher is asked after each block.
    SingleBlocks = 2,
}

pub const TRANSLATION_MODE_COUNT: usize = 3;

/// The addresses that matter, as the recorder has told them.
pub struct Selection {
    flags: u32,
    generation: u32,
    /// Ascending and disjoint.
    ranges: Vec<(u64, u64)>,
    /// Where selected routines begin; ascending.
    entries: Vec<u64>,
    /// Where they return to, out of the uninstrumented mode; ascending.
    returns: Vec<u64>,
}

impl Default for Selection {
    fn default() -> Self {
        Self::new()
    }
}

impl Selection {
    pub const fn new() -> Self {
        Self { flags: 0, generation: 0, ranges: Vec::new(), entries: Vec::new(), returns: Vec::new() }
    }

    pub fn set_up(&mut self, control: &Control) {
        self.flags = control.selection.load(Ordering::Relaxed);
        self.refresh(control);
    }

    /// Reads the recorder's tables if they have changed.
    pub fn refresh(&mut self, control: &Control) {
        if self.flags == 0 || control.selection_generation.load(Ordering::Acquire) == self.generation {
            return;
        }
        loop {
            let generation = control.selection_generation.load(Ordering::Acquire);
            let ranges = table::<(u64, u64)>(control, wire::RANGES_OFFSET, &control.range_count, wire::RANGES_MAX);
            let entries = table::<u64>(control, wire::ENTRIES_OFFSET, &control.entry_count, wire::ENTRIES_MAX);
            core::sync::atomic::fence(Ordering::Acquire);
            if generation.is_multiple_of(2) && control.selection_generation.load(Ordering::Relaxed) == generation {
                (self.generation, self.ranges, self.entries) = (generation, ranges, entries);
                return;
            }
            if !ring::is_wanted(control) {
                return;
            }
            core::hint::spin_loop();
        }
    }

    fn has_callees(&self) -> bool {
        self.flags & SELECT_CALLEES != 0
    }

    /// The mode that a thread begins in.
    fn first_mode(&self, control: &Control) -> TranslationMode {
        let uninstrumented = self.has_callees() || skip::is_in_progress(control);
        if uninstrumented { TranslationMode::Uninstrumented } else { TranslationMode::Instrumented }
    }

    /// Whether the code at `address` is left out.
    pub fn is_uninstrumented(&self, mode: TranslationMode, address: u64) -> bool {
        let after = self.ranges.partition_point(|&(start, _)| start <= address);
        let inside = || after.checked_sub(1).is_some_and(|at| address < self.ranges[at].1);
        mode != TranslationMode::Instrumented
            || (self.flags & SELECT_INSIDE != 0 && !inside())
            || (self.flags & SELECT_OUTSIDE != 0 && inside())
    }

    /// Bytes from `address` to where something else begins.
    pub fn room(&self, address: u64) -> u64 {
        let after = self.ranges.partition_point(|&(start, _)| start <= address);
        let begins = self.ranges.get(after).map(|&(start, _)| start);
        let ends = after.checked_sub(1).map(|at| self.ranges[at].1).filter(|&end| end > address);
        let entry = self.entries.get(self.entries.partition_point(|&entry| entry <= address)).copied();
        [begins, ends, entry].into_iter().flatten().min().map_or(u64::MAX, |boundary| boundary - address)
    }

    fn is_entry(&self, address: u64) -> bool {
        self.has_callees() && self.entries.binary_search(&address).is_ok()
    }

    /// Whether threads of this mode must ask the dispatcher before they go to `address`.
    pub fn is_gate(&self, mode: TranslationMode, address: u64) -> bool {
        match mode {
            TranslationMode::Instrumented => self.has_callees() && self.returns.binary_search(&address).is_ok(),
            TranslationMode::Uninstrumented => self.is_entry(address),
            TranslationMode::SingleBlocks => true,
        }
    }

    /// Whether threads of this mode must ask the dispatcher where to go on behind a block, given
    /// its code: it gives the stack pointer a new value, as longjmp and the unwinder do.
    pub fn is_unlinkable(&self, mode: TranslationMode, address: u64, code: &[u8]) -> bool {
        match mode {
            TranslationMode::Instrumented if self.has_callees() => {
                isa::decoder(address, code).iter().any(|instruction| moves_stack(&instruction))
            }
            TranslationMode::Instrumented | TranslationMode::Uninstrumented => false,
            TranslationMode::SingleBlocks => true,
        }
    }
}

/// A table of the recorder's.
fn table<T: Copy>(control: &Control, offset: usize, count: &core::sync::atomic::AtomicU32, most: usize) -> Vec<T> {
    let count = (count.load(Ordering::Relaxed) as usize).min(most);
    let start = (core::ptr::from_ref(control) as usize + offset) as *const T;
    // SAFETY: the table lies behind the control page, in the same mapping, and has room for `most`
    // entries of integers. What is read while the recorder writes is thrown away.
    (0..count).map(|index| unsafe { start.add(index).read_volatile() }).collect()
}

/// Whether an instruction sets rsp to something that has nothing to do with the frame it is in.
fn moves_stack(instruction: &Instruction) -> bool {
    if instruction.op_count() == 0 || instruction.op_kind(0) != OpKind::Register {
        return false;
    }
    let is_operand =
        |operand| instruction.op_kind(operand) == OpKind::Register && instruction.op_register(operand) == Register::RSP;
    match instruction.mnemonic() {
        Mnemonic::Mov => {
            is_operand(0)
                && !(instruction.op_kind(1) == OpKind::Register && instruction.op_register(1) == Register::RBP)
        }
        Mnemonic::Lea => is_operand(0) && !matches!(instruction.memory_base(), Register::RSP | Register::RBP),
        Mnemonic::Xchg => is_operand(0) || is_operand(1),
        Mnemonic::Pop => is_operand(0),
        _ => false,
    }
}

/// A thread's part in the selection.
#[derive(Default)]
pub struct SelectionState {
    pub mode: TranslationMode,
    /// The mode that the thread was in when it came to the dispatcher, if it has been sent to
    /// another one since.
    pub previous_mode: Option<TranslationMode>,
    /// The stack pointer at the entry of the outermost selected routine, and whether that was on
    /// the alternate stack.
    entry_rsp: u64,
    on_alternate: bool,
    /// Behind `floor`, nothing in the segment is of the instrumented mode.
    pub is_uninstrumented: bool,
    /// Words behind `floor` have been written over or left out: the segment is of no use from there
    /// to its end.
    is_overwritten: bool,
    pub reuse_start: u64,
    /// Where the words of the segment that are worth a look begin, and where those that have not
    /// been counted do.
    pub profile_start: u64,
    pub uncounted_start: u64,
    /// The thread executes instructions that are to be skipped.
    pub skipping: bool,
    /// How many of them it has taken upon itself, and whether it is one of
    /// `wire::Control::skippers` because of that.
    pub quota: i64,
    pub holds_quota: bool,
}

/// Whether threads execute some code without being recorded, by what calls what or by time, not by
/// address.
pub fn has_uninstrumented_mode(control: &Control) -> bool {
    control.selection.load(Ordering::Relaxed) & SELECT_CALLEES != 0 || control.skip.load(Ordering::Relaxed) != 0
}

/// A thread begins, in the mode that it has to begin in.
pub fn start(tcb: &mut Tcb, engine: &Engine) {
    let control = tcb.control();
    tcb.selection = SelectionState::default();
    restart_words(tcb);
    tcb.selection.mode = engine.selection.first_mode(control);
    if tcb.selection.mode == TranslationMode::Instrumented {
        return;
    }
    tcb.selection.skipping = skip::is_in_progress(control);
    let pc = tcb.registers.rip;
    ring::append_gap(tcb, pc);
    tcb.selection.is_uninstrumented = true;
    tcb.selection.reuse_start = tcb.cursor;
    restart_words(tcb);
}

fn restart_words(tcb: &mut Tcb) {
    tcb.selection.profile_start = tcb.cursor;
    tcb.selection.uncounted_start = tcb.cursor;
}

/// The thread is about to go on at `tcb.registers.rip`: finds out in which mode. True if nothing
/// may lead there without asking again.
pub fn choose_mode(tcb: &mut Tcb, engine: &mut Engine) -> bool {
    let before = tcb.selection.previous_mode.take().unwrap_or(tcb.selection.mode);
    if tcb.selection.mode == TranslationMode::Instrumented && engine.selection.has_callees() && has_returned(tcb) {
        tcb.selection.mode = TranslationMode::Uninstrumented;
    }
    let pc = tcb.registers.rip;
    if tcb.selection.mode == TranslationMode::Uninstrumented && !tcb.selection.skipping && engine.selection.is_entry(pc)
    {
        enter(tcb, engine);
    }
    tcb.selection.mode != before || engine.selection.is_gate(before, pc)
}

/// Whether the thread has left the selected routine that it was in, by returning or otherwise.
/// While a signal is handled on another stack it has not.
fn has_returned(tcb: &Tcb) -> bool {
    let rsp = tcb.registers.general[RSP];
    match (tcb.selection.on_alternate, signal::is_on_alternate_stack(&tcb.alternate_stack, rsp)) {
        (false, true) => false,
        (true, false) => true,
        _ => rsp > tcb.selection.entry_rsp,
    }
}

/// The thread enters a selected routine out of the uninstrumented mode.
fn enter(tcb: &mut Tcb, engine: &mut Engine) {
    let rsp = tcb.registers.general[RSP];
    tcb.selection.entry_rsp = rsp;
    tcb.selection.on_alternate = signal::is_on_alternate_stack(&tcb.alternate_stack, rsp);
    if let Some(target) = memory::read::<u64>(rsp) {
        engine.watch_return(target);
    }
    begin_recording(tcb);
}

/// From here on the thread is recorded.
pub fn begin_recording(tcb: &mut Tcb) {
    discard_overwritten_words(tcb);
    tcb.selection.mode = TranslationMode::Instrumented;
    ring::append_time(tcb, word::TIME);
    ring::append_fs_base(tcb);
}

/// Makes the segment one that the recorder can read: what was written over is zero again.
pub fn discard_overwritten_words(tcb: &mut Tcb) {
    tcb.selection.is_uninstrumented = false;
    if core::mem::take(&mut tcb.selection.is_overwritten) {
        tcb.cursor = tcb.selection.reuse_start;
        // SAFETY: the rest of this thread's segment, of which the recorder knows that it does not
        // matter.
        unsafe { (tcb.cursor as *mut u8).write_bytes(0, (tcb.limit - tcb.cursor) as usize) };
        tcb.slot().uninstrumented_from.store(0, Ordering::SeqCst);
        // They may begin behind the cursor: skipping leaves only the end of a segment.
        restart_words(tcb);
    }
}

/// The segment is full of words of the uninstrumented mode: writes over them instead of handing it
/// over. False if there are others.
pub fn reuse_segment(tcb: &mut Tcb) -> bool {
    if !tcb.selection.is_uninstrumented {
        return false;
    }
    if tcb.selection.skipping {
        skip::count_executed(tcb);
    }
    invalidate_words(tcb);
    tcb.cursor = tcb.selection.reuse_start;
    restart_words(tcb);
    if !ring::is_wanted(tcb.control()) {
        tcb.detaching = true;
    }
    true
}

/// What stands behind the floor of the segment is no longer one word after the other.
pub fn invalidate_words(tcb: &mut Tcb) {
    let bytes = (tcb.selection.reuse_start - tcb.segment) as u32;
    tcb.slot().uninstrumented_from.store(bytes + 1, Ordering::SeqCst);
    tcb.selection.is_overwritten = true;
}

/// Waits until the recorder has seen a module that was announced just now: it says what is selected
/// of it, and looks up the path if the module has none.
pub fn await_recorder(control: &Control, has_path: bool) {
    if control.selection.load(Ordering::Relaxed) == 0 && has_path {
        return;
    }
    let head = control.code_head.load(Ordering::SeqCst);
    ring::wait_for_code(control, head);
}

impl Engine {
    /// From now on threads of the instrumented mode ask before they go to `address`.
    fn watch_return(&mut self, address: u64) {
        let Err(at) = self.selection.returns.binary_search(&address) else { return };
        self.selection.returns.insert(at, address);
        for fragment in self.fragments_through(address) {
            self.drop_path(fragment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(flags: u32, ranges: &[(u64, u64)], entries: &[u64]) -> Selection {
        Selection { flags, ranges: ranges.to_vec(), entries: entries.to_vec(), ..Selection::new() }
    }

    #[test]
    fn ranges_inside_and_outside() {
        let ranges = [(10, 20), (20, 25), (40, 41)];
        let inside = selection(SELECT_INSIDE, &ranges, &[]);
        let outside = selection(SELECT_OUTSIDE, &ranges, &[]);
        for address in 0..50 {
            let is_in = (10..25).contains(&address) || address == 40;
            assert_eq!(inside.is_uninstrumented(TranslationMode::Instrumented, address), !is_in, "{address}");
            assert_eq!(outside.is_uninstrumented(TranslationMode::Instrumented, address), is_in, "{address}");
            assert!(
                inside.is_uninstrumented(TranslationMode::Uninstrumented, address)
                    && inside.is_uninstrumented(TranslationMode::SingleBlocks, address)
            );
            assert!(!selection(0, &[], &[]).is_uninstrumented(TranslationMode::Instrumented, address));
        }
    }

    #[test]
    fn the_room_ends_where_something_begins() {
        let selection = selection(SELECT_INSIDE | SELECT_CALLEES, &[(10, 20), (20, 25), (40, 41)], &[5, 22]);
        let boundaries = [5, 10, 20, 22, 25, 40, 41];
        for address in 0..41 {
            let next = boundaries.into_iter().find(|boundary| *boundary > address).unwrap();
            assert_eq!(selection.room(address), next - address, "{address}");
        }
        assert_eq!(selection.room(41), u64::MAX);
        assert_eq!(Selection::new().room(0), u64::MAX);
    }

    #[test]
    fn gates_of_each_world() {
        let mut selection = selection(SELECT_CALLEES, &[], &[5, 22]);
        selection.returns = Vec::from([7]);
        assert!(
            selection.is_gate(TranslationMode::Uninstrumented, 22)
                && !selection.is_gate(TranslationMode::Uninstrumented, 7)
        );
        assert!(
            selection.is_gate(TranslationMode::Instrumented, 7)
                && !selection.is_gate(TranslationMode::Instrumented, 22)
        );
        assert!(selection.is_gate(TranslationMode::SingleBlocks, 1));
        selection.flags = 0;
        assert!(
            !selection.is_gate(TranslationMode::Uninstrumented, 22)
                && !selection.is_gate(TranslationMode::Instrumented, 7)
        );
    }

    #[test]
    fn the_recorders_tables_are_read_when_they_change() {
        let shared = memory::tests::shared();
        // SAFETY: zeroed memory of the right size is a control page.
        let control = unsafe { &*(shared as *const Control) };
        control.selection.store(SELECT_INSIDE | SELECT_CALLEES, Ordering::Relaxed);
        // SAFETY: the tables of this test's own mapping.
        unsafe {
            ((shared as usize + wire::RANGES_OFFSET) as *mut [u64; 2]).write([3, 9]);
            ((shared as usize + wire::ENTRIES_OFFSET) as *mut u64).write(3);
        }
        control.range_count.store(1, Ordering::Relaxed);
        control.entry_count.store(1, Ordering::Relaxed);
        let mut selection = Selection::new();
        selection.set_up(control);
        assert!(selection.ranges.is_empty(), "nobody has said that they have changed");
        control.selection_generation.store(2, Ordering::Release);
        selection.refresh(control);
        assert_eq!((selection.ranges.as_slice(), selection.entries.as_slice()), ([(3, 9)].as_slice(), [3].as_slice()));
    }

    #[test]
    fn what_moves_the_stack() {
        let cases: [(&[u8], bool); 9] = [
            (&[0x4c, 0x89, 0xc4], true),             // mov rsp, r8
            (&[0x48, 0x8b, 0xa7, 0, 1, 0, 0], true), // mov rsp, [rdi + 256]
            (&[0x48, 0x94], true),                   // xchg rsp, rax
            (&[0x5c], true),                         // pop rsp
            (&[0x49, 0x8d, 0x62, 0xf8], true),       // lea rsp, [r10 - 8]
            (&[0x48, 0x89, 0xec], false),            // mov rsp, rbp
            (&[0x48, 0x8d, 0x65, 0xd8], false),      // lea rsp, [rbp - 40]
            (&[0x48, 0x83, 0xc4, 0x08], false),      // add rsp, 8
            (&[0x48, 0x89, 0xe0], false),            // mov rax, rsp
        ];
        let selection = selection(SELECT_CALLEES, &[], &[]);
        for (code, expected) in cases {
            assert_eq!(selection.is_unlinkable(TranslationMode::Instrumented, 0x1000, code), expected, "{code:x?}");
        }
    }
}
