//! Memory: the engine's allocator, and copies from and to application memory that may be unmapped.

use core::alloc::{GlobalAlloc, Layout};
use core::arch::naked_asm;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::lock::Mutex;
use crate::{engine_memory, sys};

/// Copies `length` bytes; returns how many were copied before a fault. The signal handler knows the
/// instruction at [`copy_instruction`] and continues at [`copy_recovery`] when it faults.
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

/// Types that can be copied from and to application memory byte by byte. Only this crate can
/// implement it.
///
/// # Safety
/// Every bit pattern must be a valid value of the type, and the type must have no padding.
pub(crate) unsafe trait PlainData: Copy + 'static {}

// SAFETY: integers.
unsafe impl PlainData for u32 {}
// SAFETY: integers.
unsafe impl PlainData for u64 {}
// SAFETY: plain data, one behind the other.
unsafe impl<T: PlainData, const N: usize> PlainData for [T; N] {}

/// Reads a value from application memory. `None` if it is not readable.
pub(crate) fn read<T: PlainData>(address: u64) -> Option<T> {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    // SAFETY: writes to our own value only; a fault while reading is caught.
    let copied = unsafe { copy(value.as_mut_ptr() as u64, address, size_of::<T>() as u64) };
    // SAFETY: all bytes are copied, and every bit pattern is a value of T.
    (copied == size_of::<T>() as u64).then(|| unsafe { value.assume_init() })
}

/// Writes a value to application memory. False if it is not writable.
///
/// # Safety
/// The application has asked the kernel for this write.
#[must_use]
pub(crate) unsafe fn write<T: PlainData>(address: u64, value: &T) -> bool {
    // SAFETY: the caller's promise; a fault is caught.
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
    /// A chunk for when the kernel gives no more; 0 for none.
    reserve: u64,
}

/// The allocator of the injected engine.
pub static ALLOCATOR: Allocator = Allocator::new();

/// See `lock::Mutex::release_for_dead`.
///
/// # Safety
/// As there.
pub unsafe fn release_for_dead(stacks: core::ops::Range<u64>) -> bool {
    // SAFETY: the caller's promise.
    unsafe { ALLOCATOR.state.release_for_dead(stacks) }
}

/// Set when the kernel gives no more memory. The reserve suffices for a thread to reach its next
/// safe point.
static EXHAUSTED: AtomicBool = AtomicBool::new(false);

/// Whether the engine has only the memory left that it needs to detach.
pub fn is_exhausted() -> bool {
    EXHAUSTED.load(Ordering::Relaxed)
}

impl Default for Allocator {
    fn default() -> Self {
        Self::new()
    }
}

impl Allocator {
    pub const fn new() -> Self {
        Self { state: Mutex::new(State { next: 0, end: 0, free: [0; CLASSES], reserve: 0 }) }
    }
}

/// Whether a block comes straight from the kernel.
fn is_large(layout: Layout) -> bool {
    layout.size().max(layout.align()) > LARGE
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
            let Some(chunk) = self.chunk() else {
                return core::ptr::null_mut();
            };
            self.next = chunk;
            self.end = chunk + CHUNK;
            return self.take(class);
        }
        self.next = start + size;
        start as *mut u8
    }

    /// Returns a chunk from the kernel, or the reserve.
    fn chunk(&mut self) -> Option<u64> {
        let chunk = engine_memory::map(CHUNK);
        if chunk.is_some() && self.reserve == 0 && !is_exhausted() {
            self.reserve = engine_memory::map(CHUNK).unwrap_or(0);
        }
        chunk.or_else(|| {
            EXHAUSTED.store(true, Ordering::Relaxed);
            Some(core::mem::take(&mut self.reserve)).filter(|reserve| *reserve != 0)
        })
    }
}

// SAFETY: as of the allocator that it refers to.
unsafe impl GlobalAlloc for &Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { (**self).alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { (**self).dealloc(block, layout) };
    }
}

// SAFETY: blocks are disjoint and large enough. They are aligned to their power-of-two size, large
// ones to pages: a larger alignment of a large block is refused.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            let is_possible = layout.align() as u64 <= sys::PAGE;
            let address = is_possible.then(|| engine_memory::map(layout.size() as u64)).flatten();
            return address.map_or(core::ptr::null_mut(), |address| address as *mut u8);
        }
        self.state.lock().take(class_of(layout))
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: the block came from `engine_memory::map` with this size and is given back by
            // its owner.
            return unsafe { engine_memory::unmap(block as u64, layout.size() as u64) };
        }
        let mut state = self.state.lock();
        let class = class_of(layout);
        // SAFETY: the block is ours again and at least 16 bytes long.
        unsafe { *block.cast::<u64>() = state.free[class] };
        state.free[class] = block as u64;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    extern "C" fn on_fault(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel's context.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let pc = &mut registers[libc::REG_RIP as usize];
        if *pc as u64 != copy_instruction() {
            // SAFETY: not one of ours: back to the default, and it happens again.
            unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
            return;
        }
        *pc = copy_recovery() as i64;
    }

    /// Makes copies end at memory that is not there, as the engine's own handler does.
    pub(crate) fn catch_faults() {
        // SAFETY: the handler only changes where a copy continues.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, core::ptr::null_mut()), 0);
        }
    }

    /// Shared memory as the recorder makes it, far from everything else.
    pub(crate) fn shared() -> u64 {
        use core::sync::atomic::{AtomicU64, Ordering};
        const DISTANCE: u64 = 16 << 30;
        static NEXT: AtomicU64 = AtomicU64::new(0x3000_0000_0000);
        let address = NEXT.fetch_add(DISTANCE, Ordering::Relaxed);
        let flags = sys::MAP_FIXED_NOREPLACE | sys::MAP_NORESERVE;
        sys::map(address, wire::SHARED_BYTES as u64, sys::PROT_READ | sys::PROT_WRITE, flags).unwrap()
    }

    #[test]
    fn copies_end_where_memory_does() {
        catch_faults();
        let start = sys::map(0, 8192, sys::PROT_READ | sys::PROT_WRITE, 0).unwrap();
        // SAFETY: nothing else uses the page.
        unsafe { sys::protect(start + 4096, 4096, 0) };
        let mut bytes = [1; 100];
        assert_eq!(read_bytes(start + 4000, &mut bytes), 96);
        assert_eq!((bytes[95], bytes[96]), (0, 1));
        assert_eq!(read_bytes(start + 4096, &mut bytes), 0);
        assert_eq!(read::<u64>(start + 4089), None);
        // SAFETY: nothing else uses the pages.
        let written = [4092, 4088].map(|offset| unsafe { write(start + offset, &0u64) });
        assert_eq!(written, [false, true]);
    }

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// Allocates and fills with `value`.
    fn filled(allocator: &Allocator, layout: Layout, value: u8) -> *mut u8 {
        // SAFETY: the size is not zero; the block is as large as asked for.
        unsafe {
            let block = allocator.alloc(layout);
            assert!(!block.is_null());
            assert!((block as usize).is_multiple_of(layout.align()));
            block.write_bytes(value, layout.size());
            block
        }
    }

    fn is_filled(block: *const u8, layout: Layout, value: u8) -> bool {
        // SAFETY: a live block of this size.
        unsafe { core::slice::from_raw_parts(block, layout.size()) }.iter().all(|byte| *byte == value)
    }

    #[test]
    fn blocks_are_aligned_and_disjoint() {
        let allocator = Allocator::new();
        let sizes = [1, 8, 16, 17, 100, 1000, 4096, 5000, LARGE, LARGE + 1, 1 << 20];
        let aligns = [1, 8, 16, 64, 4096];
        let mut blocks = Vec::new();
        for round in 0..6u8 {
            for (size, align) in sizes.iter().flat_map(|size| aligns.map(|align| (*size, align))) {
                let layout = layout(size, align);
                let value = (blocks.len() % 251) as u8 ^ round;
                blocks.push((filled(&allocator, layout, value), layout, value));
            }
        }
        for (block, layout, value) in &blocks {
            assert!(is_filled(*block, *layout, *value));
        }
        for (block, layout, _) in blocks {
            // SAFETY: allocated above with this layout.
            unsafe { allocator.dealloc(block, layout) };
        }
    }

    #[test]
    fn an_alignment_beyond_pages_is_for_small_blocks() {
        let allocator = Allocator::new();
        filled(&allocator, layout(100, LARGE), 1);
        for (size, align) in [(LARGE + 1, 8192), (100, 2 * LARGE)] {
            // SAFETY: the size is not zero.
            assert!(unsafe { allocator.alloc(layout(size, align)) }.is_null());
        }
    }

    #[test]
    fn a_block_that_was_given_back_is_used_again() {
        let allocator = Allocator::new();
        let layout = layout(100, 8);
        let first = filled(&allocator, layout, 1);
        let other = filled(&allocator, layout, 2);
        // SAFETY: allocated above with this layout.
        unsafe { allocator.dealloc(first, layout) };
        assert_eq!(filled(&allocator, self::layout(128, 8), 3), first);
        assert!(is_filled(other, layout, 2));
        assert_ne!(filled(&allocator, layout, 4), first);
    }

    #[test]
    fn growing_keeps_what_is_there() {
        let allocator = Allocator::new();
        let mut layout = layout(10, 8);
        let mut block = filled(&allocator, layout, 7);
        for size in [20, 4000, 200_000, 3 << 20, 50] {
            let kept = layout.size().min(size);
            // SAFETY: allocated with this layout; the new size is not zero.
            block = unsafe { allocator.realloc(block, layout, size) };
            layout = Layout::from_size_align(size, 8).unwrap();
            assert!(is_filled(block, Layout::from_size_align(kept, 8).unwrap(), 7));
            // SAFETY: as large as asked for.
            unsafe { block.write_bytes(7, size) };
        }
    }

    #[test]
    fn copies_from_and_to_memory_that_is_there() {
        let source = [1u64, 2, 3];
        assert_eq!(read::<[u64; 3]>(source.as_ptr() as u64), Some(source));
        let mut target = 0u32;
        // SAFETY: `target` is alive; it is written to and read through its address.
        let value = unsafe {
            assert!(write(&raw mut target as u64, &5u32));
            (&raw const target).read_volatile()
        };
        assert_eq!(value, 5);
        let mut bytes = [0u8; 8];
        assert_eq!(read_bytes(&raw const source[1] as u64, &mut bytes), 8);
        assert_eq!(u64::from_le_bytes(bytes), 2);
    }
}
