//! Memory: the engine's own allocator, and copies from and to application memory that may not be there.

use core::alloc::{GlobalAlloc, Layout};
use core::arch::naked_asm;

use crate::lock::Mutex;
use crate::sys;

/// Copies `length` bytes; returns how many could be copied before a fault. The signal handler knows the instruction at
/// [`copy_instruction`] and goes on at [`copy_recovery`] when it faults.
///
/// # Safety
/// Where both ranges are mapped, copying must be sound.
#[unsafe(naked)]
pub unsafe extern "C" fn copy(destination: u64, source: u64, length: u64) -> u64 {
    naked_asm!(
        "mov rcx, rdx",
        ".globl trackway_copy_instruction",
        "trackway_copy_instruction:",
        "rep movsb",
        ".globl trackway_copy_recovery",
        "trackway_copy_recovery:",
        "mov rax, rdx",
        "sub rax, rcx",
        "ret",
    )
}

unsafe extern "C" {
    fn trackway_copy_instruction();
    fn trackway_copy_recovery();
}

pub fn copy_instruction() -> u64 {
    trackway_copy_instruction as *const () as u64
}

pub fn copy_recovery() -> u64 {
    trackway_copy_recovery as *const () as u64
}

/// Fills `buffer` from application memory; returns the number of readable bytes.
pub fn read_bytes(address: u64, buffer: &mut [u8]) -> usize {
    // SAFETY: writes to our own buffer only; a fault while reading is caught.
    unsafe { copy(buffer.as_mut_ptr() as u64, address, buffer.len() as u64) as usize }
}

/// Reads a plain value from application memory.
pub fn read<T: Copy>(address: u64) -> Option<T> {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    // SAFETY: writes to our own value only; a fault while reading is caught.
    let copied = unsafe { copy(value.as_mut_ptr() as u64, address, size_of::<T>() as u64) };
    // SAFETY: all bytes are copied. T is used for plain integers and structures of those.
    (copied == size_of::<T>() as u64).then(|| unsafe { value.assume_init() })
}

/// Writes a plain value to application memory, on behalf of the application. False if it is not writable.
#[must_use]
pub fn write<T: Copy>(address: u64, value: &T) -> bool {
    // SAFETY: the application (or the kernel for it) asked for this write at this address.
    unsafe { copy(address, core::ptr::from_ref(value) as u64, size_of::<T>() as u64) == size_of::<T>() as u64 }
}

const CHUNK: u64 = 1 << 20;
/// Sizes are rounded up to powers of two; above this they come straight from the kernel.
const LARGE: usize = 128 << 10;
const CLASSES: usize = 18;

/// Power-of-two free lists over chunks from the kernel.
pub struct Allocator {
    state: Mutex<State>,
}

struct State {
    next: u64,
    end: u64,
    free: [u64; CLASSES],
}

impl Default for Allocator {
    fn default() -> Self {
        Self::new()
    }
}

impl Allocator {
    pub const fn new() -> Self {
        Self { state: Mutex::new(State { next: 0, end: 0, free: [0; CLASSES] }) }
    }
}

fn class_of(layout: Layout) -> usize {
    layout.size().max(layout.align()).max(16).next_power_of_two().trailing_zeros() as usize
}

impl State {
    fn take(&mut self, class: usize) -> *mut u8 {
        let first = self.free[class];
        if first != 0 {
            // SAFETY: a block on a free list holds the address of the next one.
            self.free[class] = unsafe { *(first as *const u64) };
            return first as *mut u8;
        }
        let size = 1u64 << class;
        let start = (self.next + size - 1) & !(size - 1);
        if self.next == 0 || start + size > self.end {
            let Some(chunk) = sys::map_own(CHUNK) else {
                return core::ptr::null_mut();
            };
            self.next = chunk;
            self.end = chunk + CHUNK;
            return self.take(class);
        }
        self.next = start + size;
        start as *mut u8
    }
}

// SAFETY: blocks are disjoint, large enough and aligned to their power-of-two size (or to pages).
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LARGE {
            return sys::map_own(layout.size() as u64).map_or(core::ptr::null_mut(), |address| address as *mut u8);
        }
        self.state.lock().take(class_of(layout))
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() > LARGE {
            // SAFETY: the block came from `map_own` with this size and is given back by its owner.
            return unsafe { sys::unmap_own(block as u64, layout.size() as u64) };
        }
        let mut state = self.state.lock();
        let class = class_of(layout);
        // SAFETY: the block is ours again and at least 16 bytes long.
        unsafe { *block.cast::<u64>() = state.free[class] };
        state.free[class] = block as u64;
    }
}
