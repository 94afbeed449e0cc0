//! Selection: which of the executed code is recorded.
//!
//! Code that is not selected is *uninstrumented*. Threads write its paths to the ring, because the
//! profile needs them, but the paths carry no data and the recorder leaves them out. There are two
//! ways to select.
//!
//! By address: the recorder gives ranges, and each fragment is instrumented or not. Blocks are cut
//! where a range begins or ends, and superblocks end there.
//!
//! By caller and by time: a thread is in one of several translation modes, each with fragments of
//! its own. In the uninstrumented mode the entry of a selected routine is a *gate*: nothing is
//! linked to it, so the dispatcher sees each call and switches the thread to the instrumented mode.
//! There, the routine's return address is a gate, until the stack pointer shows that the thread has
//! returned. Skipping ([`crate::skip`]) starts threads in the uninstrumented mode.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use entity::AppPc;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use wire::{Control, RSP, SELECT_ALLOCATIONS, SELECT_CALLEES, SELECT_INSIDE, SELECT_OUTSIDE, SELECT_SCOPES, word};

use crate::engine::Engine;
use crate::memory::PlainData;
use crate::tcb::Tcb;
use crate::{memory, probe, ring, signal, skip};

/// Which translation of the program a thread executes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum TranslationMode {
    /// Recorded, except for what the ranges leave out.
    #[default]
    Instrumented = 0,
    /// Not recorded.
    Uninstrumented = 1,
    /// Not recorded, and every block exits to the dispatcher.
    SingleBlocks = 2,
}

pub const TRANSLATION_MODE_COUNT: usize = 3;

/// The selected addresses, as the recorder has given them.
pub struct SelectionTable {
    flags: u32,
    generation: u32,
    /// Ascending and disjoint.
    ranges: Vec<(AppPc, AppPc)>,
    /// Entries of selected routines; ascending.
    entries: Vec<AppPc>,
    /// Their return addresses in uninstrumented code; ascending.
    returns: Vec<AppPc>,
    /// Entries of allocation routines, each with its `wire::routine`; ascending.
    probes: Vec<(AppPc, u8)>,
    /// The return addresses of their calls; ascending.
    probed_returns: Vec<AppPc>,
}

impl Default for SelectionTable {
    fn default() -> Self {
        Self::new()
    }
}

impl SelectionTable {
    pub const fn new() -> Self {
        Self {
            flags: 0,
            generation: 0,
            ranges: Vec::new(),
            entries: Vec::new(),
            returns: Vec::new(),
            probes: Vec::new(),
            probed_returns: Vec::new(),
        }
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
            let ranges = table::<[u64; 2]>(control, wire::RANGES_OFFSET, &control.range_count, wire::RANGES_MAX);
            let entries = table::<u64>(control, wire::ENTRIES_OFFSET, &control.entry_count, wire::ENTRIES_MAX);
            let probes = table::<[u64; 2]>(control, wire::PROBES_OFFSET, &control.probe_count, wire::PROBES_MAX);
            let ranges = ranges.map(|[start, end]| (AppPc::new(start), AppPc::new(end))).collect();
            let entries = entries.map(AppPc::new).collect();
            let probes = probes.map(|[address, routine]| (AppPc::new(address), routine as u8)).collect();
            core::sync::atomic::fence(Ordering::Acquire);
            if generation.is_multiple_of(2) && control.selection_generation.load(Ordering::Relaxed) == generation {
                (self.generation, self.ranges, self.entries, self.probes) = (generation, ranges, entries, probes);
                return;
            }
            if !ring::has_recorder(control) {
                return;
            }
            core::hint::spin_loop();
        }
    }

    fn has_callees(&self) -> bool {
        self.flags & SELECT_CALLEES != 0
    }

    pub fn has_allocations(&self) -> bool {
        self.flags & SELECT_ALLOCATIONS != 0
    }

    /// The allocation routine whose entry is at `address`: one of `wire::routine`.
    pub fn probe(&self, address: AppPc) -> Option<u8> {
        let at = self.probes.binary_search_by_key(&address, |&(probe, _)| probe).ok()?;
        Some(self.probes[at].1)
    }

    /// Whether an allocation routine may return to `address`.
    pub fn is_probed_return(&self, address: AppPc) -> bool {
        self.probed_returns.binary_search(&address).is_ok()
    }

    /// The mode that a new thread begins in.
    fn first_mode(&self, control: &Control) -> TranslationMode {
        let uninstrumented = self.has_callees() || skip::is_in_progress(control);
        if uninstrumented { TranslationMode::Uninstrumented } else { TranslationMode::Instrumented }
    }

    /// Whether the code at `address` is not recorded.
    pub fn is_uninstrumented(&self, mode: TranslationMode, address: AppPc) -> bool {
        let after = self.ranges.partition_point(|&(start, _)| start <= address);
        let inside = || after.checked_sub(1).is_some_and(|at| address < self.ranges[at].1);
        mode != TranslationMode::Instrumented
            || (self.flags & SELECT_INSIDE != 0 && !inside())
            || (self.flags & SELECT_OUTSIDE != 0 && inside())
    }

    /// Bytes from `address` to the next boundary of a range, entry of a routine or probe.
    pub fn room(&self, address: AppPc) -> u64 {
        let after = self.ranges.partition_point(|&(start, _)| start <= address);
        let begins = self.ranges.get(after).map(|&(start, _)| start);
        let ends = after.checked_sub(1).map(|at| self.ranges[at].1).filter(|&end| end > address);
        let entry = self.entries.get(self.entries.partition_point(|&entry| entry <= address)).copied();
        let probe = self.probes.get(self.probes.partition_point(|&(probe, _)| probe <= address));
        let probe = probe.map(|&(probe, _)| probe);
        [begins, ends, entry, probe].into_iter().flatten().min().map_or(u64::MAX, |boundary| boundary - address)
    }

    /// Whether the stack pointer is recorded at `address`.
    pub fn records_stack_pointer(&self, address: AppPc) -> bool {
        self.flags & SELECT_SCOPES != 0 && self.entries.binary_search(&address).is_ok()
    }

    fn is_entry(&self, address: AppPc) -> bool {
        self.has_callees() && self.entries.binary_search(&address).is_ok()
    }

    /// Whether threads of this mode must enter `address` through the dispatcher.
    pub fn is_gate(&self, mode: TranslationMode, address: AppPc) -> bool {
        if self.has_allocations() && (self.probe(address).is_some() || self.is_probed_return(address)) {
            return true;
        }
        match mode {
            TranslationMode::Instrumented => self.has_callees() && self.returns.binary_search(&address).is_ok(),
            TranslationMode::Uninstrumented => self.is_entry(address),
            TranslationMode::SingleBlocks => true,
        }
    }

    /// Whether threads of this mode must leave a block through the dispatcher, because its code
    /// replaces the stack pointer, as longjmp and unwinders do.
    pub fn is_unlinkable(&self, mode: TranslationMode, address: AppPc, code: &[u8]) -> bool {
        if self.has_allocations() && isa::stack::loses_stack(address, code) {
            return true;
        }
        match mode {
            TranslationMode::Instrumented if self.has_callees() => {
                isa::decoder(address, code).iter().any(|instruction| moves_stack(&instruction))
            }
            TranslationMode::Instrumented | TranslationMode::Uninstrumented => false,
            TranslationMode::SingleBlocks => true,
        }
    }
}

/// Iterates over a table that the recorder writes.
fn table<T: PlainData>(control: &Control, offset: usize, count: &AtomicU32, most: usize) -> impl Iterator<Item = T> {
    let count = (count.load(Ordering::Relaxed) as usize).min(most);
    let start = (core::ptr::from_ref(control) as usize + offset) as *const T;
    // SAFETY: the table lies behind the control page, in the same mapping, and has room for `most`
    // entries of plain data. What is read while the recorder writes is thrown away.
    (0..count).map(move |index| unsafe { start.add(index).read_volatile() })
}

/// Whether an instruction sets rsp to a value outside of the current stack frame.
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

/// The selection's state of one thread.
#[derive(Default)]
pub struct SelectionState {
    pub mode: TranslationMode,
    /// The mode in which the thread has entered the dispatcher, if the mode has changed since.
    pub previous_mode: Option<TranslationMode>,
    /// The stack pointer at the entry of the outermost selected routine, and whether it was on the
    /// alternate stack.
    entry_rsp: u64,
    on_alternate: bool,
    /// Behind `reuse_start`, the segment has uninstrumented words only.
    pub is_uninstrumented: bool,
    /// Words behind `reuse_start` have been overwritten or skipped: the recorder must not read
    /// them.
    is_overwritten: bool,
    pub reuse_start: u64,
    /// The first word of the segment for the profile, and the first that skipping has not counted.
    pub profile_start: u64,
    pub uncounted_start: u64,
    /// The thread executes instructions that are to be skipped.
    pub skipping: bool,
    /// How many of them it has taken from `wire::Control::skip`, and whether it is counted in
    /// `wire::Control::skippers`.
    pub quota: i64,
    pub holds_quota: bool,
}

/// Whether the uninstrumented mode is used: code is selected by caller or by time.
pub fn has_uninstrumented_mode(control: &Control) -> bool {
    control.selection.load(Ordering::Relaxed) & SELECT_CALLEES != 0 || control.skip.load(Ordering::Relaxed) != 0
}

/// Sets the mode of a new thread.
pub fn start(tcb: &mut Tcb, engine: &Engine) {
    let control = tcb.control();
    tcb.selection = SelectionState::default();
    restart_words(tcb);
    tcb.selection.mode = engine.selection.first_mode(control);
    if tcb.selection.mode == TranslationMode::Instrumented {
        return;
    }
    tcb.selection.skipping = skip::is_in_progress(control);
    let pc = tcb.pc();
    ring::append_gap(tcb, pc);
    tcb.selection.is_uninstrumented = true;
    tcb.selection.reuse_start = tcb.cursor;
    restart_words(tcb);
}

/// Begins the words that the profile and skipping have not seen at the cursor.
pub fn restart_words(tcb: &mut Tcb) {
    tcb.selection.profile_start = tcb.cursor;
    tcb.selection.uncounted_start = tcb.cursor;
}

/// Chooses the mode in which the thread continues at `tcb.registers.rip`. True if the way there
/// must not be linked.
pub fn choose_mode(tcb: &mut Tcb, engine: &mut Engine) -> bool {
    let before = tcb.selection.previous_mode.take().unwrap_or(tcb.selection.mode);
    if tcb.selection.mode == TranslationMode::Instrumented && engine.selection.has_callees() && has_returned(tcb) {
        tcb.selection.mode = TranslationMode::Uninstrumented;
    }
    let pc = tcb.pc();
    if tcb.selection.mode == TranslationMode::Uninstrumented && !tcb.selection.skipping && engine.selection.is_entry(pc)
    {
        enter(tcb, engine);
    }
    tcb.selection.mode != before || engine.selection.is_gate(before, pc)
}

/// Whether the thread has left its selected routine, by a return or a jump. A signal handler on
/// another stack has not.
fn has_returned(tcb: &Tcb) -> bool {
    let rsp = tcb.registers.general[RSP];
    match (tcb.selection.on_alternate, signal::is_on_alternate_stack(&tcb.alternate_stack, rsp)) {
        (false, true) => false,
        (true, false) => true,
        _ => rsp > tcb.selection.entry_rsp,
    }
}

/// Enters a selected routine from the uninstrumented mode.
fn enter(tcb: &mut Tcb, engine: &mut Engine) {
    let rsp = tcb.registers.general[RSP];
    tcb.selection.entry_rsp = rsp;
    tcb.selection.on_alternate = signal::is_on_alternate_stack(&tcb.alternate_stack, rsp);
    if let Some(target) = memory::read::<u64>(rsp) {
        engine.watch_return(AppPc::new(target));
    }
    begin_recording(tcb);
}

/// Switches the thread to the instrumented mode.
pub fn begin_recording(tcb: &mut Tcb) {
    discard_overwritten_words(tcb);
    tcb.selection.mode = TranslationMode::Instrumented;
    ring::append_time(tcb, word::TIME);
    ring::append_fs_base(tcb);
}

/// Clears the overwritten part of the segment, so that the recorder can read it.
pub fn discard_overwritten_words(tcb: &mut Tcb) {
    tcb.selection.is_uninstrumented = false;
    if core::mem::take(&mut tcb.selection.is_overwritten) {
        tcb.cursor = tcb.selection.reuse_start;
        // SAFETY: the rest of this thread's segment, of which the recorder knows that it does not
        // matter.
        unsafe { (tcb.cursor as *mut u8).write_bytes(0, (tcb.limit - tcb.cursor) as usize) };
        tcb.slot().uninstrumented_from.store(0, Ordering::SeqCst);
        // The words may begin behind the cursor: skipping uses only the end of a segment.
        restart_words(tcb);
    }
}

/// Starts a full segment of uninstrumented words again, instead of handing it over. False if it has
/// instrumented words, or if the recorder wants all of them for its call stacks.
pub fn reuse_segment(tcb: &mut Tcb) -> bool {
    if !tcb.selection.is_uninstrumented || probe::is_enabled(tcb) {
        return false;
    }
    if tcb.selection.skipping {
        skip::count_executed(tcb);
    }
    invalidate_words(tcb);
    tcb.cursor = tcb.selection.reuse_start;
    restart_words(tcb);
    if !ring::has_recorder(tcb.control()) {
        tcb.detaching = true;
    }
    true
}

/// Notifies the recorder that the words behind `reuse_start` are no longer a sequence.
pub fn invalidate_words(tcb: &mut Tcb) {
    let bytes = (tcb.selection.reuse_start - tcb.segment) as u32;
    tcb.slot().uninstrumented_from.store(bytes + 1, Ordering::SeqCst);
    tcb.selection.is_overwritten = true;
}

/// Waits until the recorder has read the announcement of a module. It then selects code of the
/// module, or looks up a missing path.
pub fn await_recorder(control: &Control, has_path: bool) {
    if control.selection.load(Ordering::Relaxed) == 0 && has_path {
        return;
    }
    let head = control.code_head.load(Ordering::SeqCst);
    ring::wait_for_code(control, head);
}

impl Engine {
    /// Makes `address` a gate of the instrumented mode.
    fn watch_return(&mut self, address: AppPc) {
        let Err(at) = self.selection.returns.binary_search(&address) else { return };
        self.selection.returns.insert(at, address);
        for fragment in self.fragments_through(address, Some(TranslationMode::Instrumented)) {
            self.drop_by_id(fragment);
        }
    }

    /// Makes `address`, to which an allocation routine returns, a gate of all modes.
    pub fn watch_probed_return(&mut self, address: AppPc) {
        let Err(at) = self.selection.probed_returns.binary_search(&address) else { return };
        self.selection.probed_returns.insert(at, address);
        for fragment in self.fragments_through(address, None) {
            self.drop_by_id(fragment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(flags: u32, ranges: &[(u64, u64)], entries: &[u64]) -> SelectionTable {
        let ranges = ranges.iter().map(|&(start, end)| (AppPc::new(start), AppPc::new(end))).collect();
        let entries = entries.iter().copied().map(AppPc::new).collect();
        SelectionTable { flags, ranges, entries, ..SelectionTable::new() }
    }

    #[test]
    fn ranges_inside_and_outside() {
        let ranges = [(10, 20), (20, 25), (40, 41)];
        let inside = selection(SELECT_INSIDE, &ranges, &[]);
        let outside = selection(SELECT_OUTSIDE, &ranges, &[]);
        for address in 0..50 {
            let is_in = (10..25).contains(&address) || address == 40;
            let address = AppPc::new(address);
            assert_eq!(inside.is_uninstrumented(TranslationMode::Instrumented, address), !is_in, "{address:#x}");
            assert_eq!(outside.is_uninstrumented(TranslationMode::Instrumented, address), is_in, "{address:#x}");
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
            assert_eq!(selection.room(AppPc::new(address)), next - address, "{address}");
        }
        assert_eq!(selection.room(AppPc::new(41)), u64::MAX);
        assert_eq!(SelectionTable::new().room(AppPc::NONE), u64::MAX);
    }

    #[test]
    fn gates_of_each_mode() {
        let mut selection = selection(SELECT_CALLEES, &[], &[5, 22]);
        let [target, entry] = [7, 22].map(AppPc::new);
        selection.returns = Vec::from([target]);
        assert!(
            selection.is_gate(TranslationMode::Uninstrumented, entry)
                && !selection.is_gate(TranslationMode::Uninstrumented, target)
        );
        assert!(
            selection.is_gate(TranslationMode::Instrumented, target)
                && !selection.is_gate(TranslationMode::Instrumented, entry)
        );
        assert!(selection.is_gate(TranslationMode::SingleBlocks, AppPc::new(1)));
        selection.flags = 0;
        assert!(
            !selection.is_gate(TranslationMode::Uninstrumented, entry)
                && !selection.is_gate(TranslationMode::Instrumented, target)
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
        let mut selection = SelectionTable::new();
        selection.set_up(control);
        assert!(selection.ranges.is_empty(), "the generation has not changed");
        control.selection_generation.store(2, Ordering::Release);
        selection.refresh(control);
        let [start, end] = [3, 9].map(AppPc::new);
        assert_eq!((&selection.ranges[..], &selection.entries[..]), (&[(start, end)][..], &[start][..]));
    }

    #[test]
    fn blocks_that_move_the_stack_are_unlinkable() {
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
            let is_unlinkable = selection.is_unlinkable(TranslationMode::Instrumented, AppPc::new(0x1000), code);
            assert_eq!(is_unlinkable, expected, "{code:x?}");
        }
    }
}
