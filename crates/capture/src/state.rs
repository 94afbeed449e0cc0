//! The state that the engine keeps for a thread, read from outside, and the native registers in it.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::user_regs_struct;
use wire::{Control, EngineLayout, Registers};

use crate::inject::{Context, Result};
use crate::ptrace::Tracee;

/// Returns the ranges of memory that the engine has made for itself.
pub fn engine_ranges(control: &Control) -> impl Iterator<Item = Range<u64>> + '_ {
    let load = |end: &AtomicU64| end.load(Ordering::SeqCst);
    control.engine_ranges.iter().map(move |[start, end]| load(start)..load(end)).filter(|range| range.end != 0)
}

pub struct ThreadState {
    pub address: u64,
    pub registers: Registers,
    vectors: [u8; 256],
    mxcsr: u32,
    gs_base: u64,
    pub mask: u64,
    pub engine_stack: u64,
    pub slot: u32,
    /// Bytes written to the current segment.
    pub used: u64,
}

impl ThreadState {
    /// Reads the state at `address`.
    pub fn read(tracee: Tracee, address: u64, layout: &EngineLayout) -> Result<Self> {
        let [cursor, segment] =
            [field::<u64>(tracee, address, &layout.cursor)?, field(tracee, address, &layout.segment)?];
        Ok(Self {
            address,
            registers: field(tracee, address, &layout.registers)?,
            vectors: field(tracee, address, &layout.vectors)?,
            mxcsr: field(tracee, address, &layout.mxcsr)?,
            gs_base: field(tracee, address, &layout.gs_base)?,
            mask: field(tracee, address, &layout.mask)?,
            engine_stack: field(tracee, address, &layout.engine_stack)?,
            slot: field(tracee, address, &layout.slot)?,
            used: cursor.wrapping_sub(segment),
        })
    }

    /// Gives the thread the application's vector registers.
    pub fn restore_vectors(&self, tracee: Tracee) -> Result<()> {
        let mut vectors = tracee.vectors().context("reading registers")?;
        vectors.mxcsr = self.mxcsr;
        for (to, from) in vectors.xmm_space.iter_mut().zip(self.vectors.as_chunks::<4>().0) {
            *to = u32::from_le_bytes(*from);
        }
        tracee.set_vectors(&vectors).context("setting registers")
    }

    /// Returns the application's registers in ptrace's form. Segments are the thread's own, except
    /// for the base of gs, which the engine has used.
    pub fn native_registers(&self, stopped: &user_regs_struct) -> user_regs_struct {
        let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = self.registers.general;
        user_regs_struct {
            rax,
            rcx,
            rdx,
            rbx,
            rsp,
            rbp,
            rsi,
            rdi,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            rip: self.registers.rip,
            eflags: self.registers.rflags,
            orig_rax: u64::MAX,
            gs_base: self.gs_base,
            ..*stopped
        }
    }
}

/// Types for which every pattern of bits is a value.
///
/// # Safety
/// The type consists of integers, without padding.
pub unsafe trait PlainData: Copy {}

// SAFETY: an integer.
unsafe impl PlainData for u32 {}
// SAFETY: an integer.
unsafe impl PlainData for u64 {}
// SAFETY: an array of integers.
unsafe impl<const N: usize> PlainData for [u8; N] {}
// SAFETY: a `repr(C)` structure of 64-bit integers.
unsafe impl PlainData for Registers {}

/// Reads a field of the thread state at `state` from the target.
pub fn field<T: PlainData>(tracee: Tracee, state: u64, offset: &AtomicU32) -> Result<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: all bytes of the value are initialised, and nothing else refers to them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    let address = state + u64::from(offset.load(Ordering::SeqCst));
    tracee.read(address, bytes).context("reading from the target")?;
    // SAFETY: initialised, and every pattern of bits is a value of `T`.
    Ok(unsafe { value.assume_init() })
}
