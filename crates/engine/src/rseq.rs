//! Restartable sequences (rseq(2)): critical sections of the application that restart when they are
//! interrupted.
//!
//! The kernel updates the processor and node numbers in the application's `struct rseq` as usual.
//! It would also move a thread that is interrupted in a section to the section's abort handler. But
//! it compares addresses of application code, which no thread executes, so the engine does that. A
//! section is found when code that names its descriptor is translated. Its blocks are single
//! fragments that exit to the dispatcher ([`update_section`]). One thread at a time is in a
//! section, so that no thread sees an incomplete one. The kernel still clears the field `rseq_cs`
//! when it interrupts the thread. Then, and when a signal is delivered or the thread is detached,
//! the section is *aborted*: the thread continues at the abort handler.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use entity::AppPc;
use iced_x86::{Instruction, Mnemonic, OpKind};
use wire::{Rseq, word};

use crate::change::PAGE;
use crate::engine::{ENGINE, Engine};
use crate::memory::{self, PlainData};
use crate::tcb::Tcb;
use crate::{detach, ring, sys};

/// A critical section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    start: AppPc,
    end: AppPc,
    abort: AppPc,
    /// The address of its descriptor.
    descriptor: u64,
}

/// The kernel's `struct rseq_cs`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Descriptor {
    version: u32,
    flags: u32,
    start: u64,
    length: u64,
    abort: u64,
}

// SAFETY: integers without padding.
unsafe impl PlainData for Descriptor {}

/// Descriptors are aligned to this.
const ALIGNMENT: u64 = 32;
/// Offset of `rseq_cs`, the current section's descriptor, in `struct rseq`.
const FIELD: u64 = 8;
/// Sections are small and near the code that names their descriptors; their abort handlers may be
/// in a part for cold code.
const SECTION_BYTES_MAX: u64 = 4 << 10;
const SECTION_DISTANCE_MAX: u64 = 64 << 10;
const ABORT_DISTANCE_MAX: u64 = 1 << 30;

impl Section {
    fn contains(&self, address: AppPc) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The section with the descriptor at `address`, if there is one.
    fn read(address: u64) -> Option<Self> {
        let descriptor: Descriptor = memory::read(address)?;
        let Descriptor { version, flags, start, length, abort } = descriptor;
        let [start, end, abort] = [start, start.checked_add(length)?, abort].map(AppPc::new);
        let section = Self { start, end, abort, descriptor: address };
        let is_section = version == 0
            && flags < 8
            && (1..=SECTION_BYTES_MAX).contains(&length)
            && start.get().abs_diff(abort.get()) < ABORT_DISTANCE_MAX
            && !section.contains(abort);
        is_section.then_some(section)
    }

    /// Whether the section has not changed, and the application's signature is before its abort
    /// handler.
    fn is_valid(&self, signature: u32) -> bool {
        Self::read(self.descriptor) == Some(*self) && memory::read(self.abort.get().wrapping_sub(4)) == Some(signature)
    }
}

/// The address of a descriptor that an instruction may name.
pub fn candidate(instruction: &Instruction) -> Option<u64> {
    let address = match instruction.mnemonic() {
        Mnemonic::Lea if instruction.is_ip_rel_memory_operand() => instruction.ip_rel_memory_address(),
        Mnemonic::Mov if matches!(instruction.op1_kind(), OpKind::Immediate32to64 | OpKind::Immediate64) => {
            instruction.immediate(1)
        }
        _ => return None,
    };
    (address >= PAGE && address.is_multiple_of(ALIGNMENT)).then_some(address)
}

/// The sections that have been found.
#[derive(Default)]
pub struct Sections {
    sections: Vec<Section>,
}

/// Whether there are any.
static ANY: AtomicBool = AtomicBool::new(false);

impl Sections {
    pub const fn new() -> Self {
        Self { sections: Vec::new() }
    }

    fn find(&self, address: AppPc) -> Option<Section> {
        self.sections.iter().copied().find(|section| section.contains(address))
    }

    /// Whether `address` is in a section, so that its block must be entered and left through the
    /// dispatcher.
    pub fn contains(&self, address: AppPc) -> bool {
        self.find(address).is_some()
    }

    /// Bytes from `address` to where a section begins or ends.
    pub fn room(&self, address: AppPc) -> u64 {
        let boundaries = self.sections.iter().flat_map(|section| [section.start, section.end]);
        boundaries.filter(|&boundary| boundary > address).min().map_or(u64::MAX, |boundary| boundary - address)
    }

    /// Adds the section with this descriptor, which code at `pc` names, if it is a new one.
    fn discover(&mut self, pc: AppPc, descriptor: u64) -> Option<Section> {
        let is_near = |section: &Section| section.start.get().abs_diff(pc.get()) < SECTION_DISTANCE_MAX;
        let section = Section::read(descriptor).filter(is_near)?;
        if self.sections.contains(&section) || self.sections.try_reserve(1).is_err() {
            return None;
        }
        self.sections.push(section);
        ANY.store(true, Ordering::SeqCst);
        Some(section)
    }
}

impl Engine {
    /// Adds the sections that a new block names, and drops fragments of their code. Returns whether
    /// there were any.
    pub fn discover_sections(&mut self, pc: AppPc, candidates: &[u64]) -> bool {
        let found: Vec<Section> =
            candidates.iter().filter_map(|&descriptor| self.sections.discover(pc, descriptor)).collect();
        for section in &found {
            self.drop_range(section.start.get(), section.end.get());
        }
        !found.is_empty()
    }
}

/// Whether a thread is in a section, and whether others wait for it.
static OCCUPIED: AtomicU32 = AtomicU32::new(FREE);
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const WAITED_FOR: u32 = 2;

/// How long a thread waits for another one to leave a section.
const SPINS: usize = 100;
const WAITS: usize = 10;
const MILLISECONDS: u64 = 2;

/// Enters a section. False if another thread stays in one for long.
fn enter_section() -> bool {
    for _ in 0..SPINS {
        if OCCUPIED.compare_exchange_weak(FREE, TAKEN, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            return true;
        }
        core::hint::spin_loop();
    }
    for _ in 0..WAITS {
        if OCCUPIED.swap(WAITED_FOR, Ordering::SeqCst) == FREE {
            return true;
        }
        sys::futex_wait(&OCCUPIED, WAITED_FOR, MILLISECONDS);
    }
    false
}

fn vacate() {
    if OCCUPIED.swap(FREE, Ordering::SeqCst) == WAITED_FOR {
        sys::futex_wake(&OCCUPIED);
    }
}

/// Leaves the section that the thread is in, if any.
pub fn leave_section(tcb: &mut Tcb) {
    if tcb.section.take().is_some() {
        vacate();
    }
}

/// Reads the thread's `rseq_cs`.
fn field(tcb: &Tcb) -> Option<u64> {
    memory::read(tcb.rseq.address.wrapping_add(FIELD))
}

/// Whether [`update_section`] has anything to do.
pub fn concerns(tcb: &Tcb, sections: &Sections) -> bool {
    tcb.section.is_some() || sections.contains(tcb.pc())
}

/// Enters, leaves or aborts a section, when the thread is about to continue at `tcb.registers.rip`.
pub fn update_section(tcb: &mut Tcb) {
    if !ANY.load(Ordering::Relaxed) || tcb.rseq.address == 0 {
        return;
    }
    let pc = tcb.pc();
    if let Some(section) = tcb.section
        && section.contains(pc)
    {
        if field(tcb) != Some(section.descriptor) {
            abort(tcb, &section);
        }
        return;
    }
    leave_section(tcb);
    let Some(section) = ENGINE.lock().sections.find(pc).filter(|section| section.is_valid(tcb.rseq.signature)) else {
        return;
    };
    match field(tcb) {
        Some(descriptor) if descriptor == section.descriptor => {
            if !enter_section() {
                return abort(tcb, &section);
            }
            tcb.section = Some(section);
            // It may have been interrupted while it waited.
            if field(tcb) != Some(descriptor) {
                abort(tcb, &section);
            }
        }
        // It was interrupted on the way here.
        Some(0) => abort(tcb, &section),
        // The thread has not announced this section.
        _ => {}
    }
}

/// Aborts a section: the thread continues at the abort handler.
fn abort(tcb: &mut Tcb, section: &Section) {
    // SAFETY: the application has registered the structure, in which the kernel clears this field.
    let _ = unsafe { memory::write(tcb.rseq.address.wrapping_add(FIELD), &0u64) };
    leave_section(tcb);
    tcb.set_pc(section.abort);
    ring::append_timed(tcb, word::RESUME, section.abort);
}

/// Aborts the section of a thread that is to be detached. True if it was in one.
pub fn abort_before_detach(tcb: &mut Tcb) -> bool {
    let Some(section) = tcb.section else { return false };
    abort(tcb, &section);
    true
}

/// The address where the thread continues after a signal handler: the abort handler, if it is in a
/// section.
pub fn after_signal(tcb: &mut Tcb) -> AppPc {
    let pc = tcb.pc();
    let abort = tcb.section.filter(|section| section.contains(pc)).map_or(pc, |section| section.abort);
    leave_section(tcb);
    abort
}

const UNREGISTER: u32 = 1;

/// Notes a registration by rseq(2) that the kernel has accepted.
pub fn register(tcb: &mut Tcb, rseq: Rseq, flags: u32) {
    tcb.rseq = if flags & UNREGISTER == 0 { rseq } else { Rseq::default() };
}

/// membarrier(2) has interrupted the threads that were in sections: waits until none is.
pub fn await_sections(tcb: &Tcb) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    let control = tcb.control();
    while !enter_section() {
        if detach::is_parking(control) || !ring::has_recorder(control) {
            return;
        }
    }
    vacate();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections(ranges: &[(u64, u64)]) -> Sections {
        let section = |&(start, end): &(u64, u64)| {
            let [start, end, abort] = [start, end, 0x9000].map(AppPc::new);
            Section { start, end, abort, descriptor: 0x8000 }
        };
        Sections { sections: ranges.iter().map(section).collect() }
    }

    #[test]
    fn blocks_are_cut_where_sections_begin_and_end() {
        let sections = sections(&[(0x1010, 0x1020), (0x1018, 0x1040)]);
        let rooms = [0x1000, 0x1010, 0x1018, 0x101f, 0x1020, 0x1040].map(|address| sections.room(AppPc::new(address)));
        assert_eq!(rooms, [0x10, 8, 8, 1, 0x20, u64::MAX]);
        let contained = [0x100f, 0x1010, 0x1040].map(|address| sections.contains(AppPc::new(address)));
        assert_eq!(contained, [false, true, false]);
    }

    #[test]
    fn descriptors_are_distinguished_from_other_data() {
        #[repr(align(32))]
        struct Aligned(Descriptor);
        let good = Descriptor { version: 0, flags: 0, start: 0x5000, length: 0x10, abort: 0x6000 };
        let read = |descriptor: Descriptor| {
            let aligned = Aligned(descriptor);
            Section::read(&raw const aligned.0 as u64)
        };
        let bounds = |section: Section| [section.start, section.end, section.abort];
        assert_eq!(read(good).map(bounds), Some([0x5000, 0x5010, 0x6000].map(AppPc::new)));
        let bad = [
            Descriptor { version: 1, ..good },
            Descriptor { flags: 8, ..good },
            Descriptor { length: 0, ..good },
            Descriptor { length: u64::MAX, ..good },
            Descriptor { abort: 0x5008, ..good },
            Descriptor { abort: 1 << 40, ..good },
        ];
        assert!(bad.into_iter().all(|descriptor| read(descriptor).is_none()));
        assert_eq!(Section::read(16), None);
    }

    #[test]
    fn candidates_are_aligned_addresses() {
        let of = |code: &[u8]| candidate(&isa::decoder(AppPc::new(0x40_0000), code).decode());
        // lea rax, [rip + 0x19] and [rip + 0x18]
        assert_eq!(of(&[0x48, 0x8d, 0x05, 0x19, 0, 0, 0]), Some(0x40_0020));
        assert_eq!(of(&[0x48, 0x8d, 0x05, 0x18, 0, 0, 0]), None);
        // mov qword ptr [rdi + 8], 0x404040
        assert_eq!(of(&[0x48, 0xc7, 0x47, 8, 0x40, 0x40, 0x40, 0]), Some(0x40_4040));
        // mov rax, rbx
        assert_eq!(of(&[0x48, 0x89, 0xd8]), None);
    }
}
