//! The image that is injected: the engine, an allocator, a panic handler and the memory functions
//! that rustc calls.
#![no_std]
#![no_main]

use core::arch::{asm, naked_asm};

use engine::memory::Allocator;
use trackway_engine as engine;

#[global_allocator]
static ALLOCATOR: &Allocator = &engine::memory::ALLOCATOR;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    struct Stderr;
    impl core::fmt::Write for Stderr {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            engine::sys::complain(text);
            Ok(())
        }
    }
    let _ = core::fmt::write(&mut Stderr, format_args!("trackway: engine: {info}\n"));
    engine::failure::on_panic()
}

/// Called by the injector: rdi = `wire::Init`, rsp = the stack it made.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    naked_asm!("and rsp, -16", "xor ebp, ebp", "call {start}", "ud2", start = sym engine::start::start)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(destination: *mut u8, source: *const u8, length: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear.
    unsafe {
        asm!("rep movsb", inout("rdi") destination => _, inout("rsi") source => _, inout("rcx") length => _,
            options(nostack, preserves_flags));
    }
    destination
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(destination: *mut u8, source: *const u8, length: usize) -> *mut u8 {
    if (destination as usize).wrapping_sub(source as usize) >= length {
        // SAFETY: a forward copy does not overwrite what it has still to read.
        return unsafe { memcpy(destination, source, length) };
    }
    // SAFETY: a backward copy does not either; the direction flag is clear again afterwards.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rdi") destination.wrapping_add(length).wrapping_sub(1) => _,
            inout("rsi") source.wrapping_add(length).wrapping_sub(1) => _, inout("rcx") length => _, options(nostack));
    }
    destination
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(destination: *mut u8, value: i32, length: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear.
    unsafe {
        asm!("rep stosb", inout("rdi") destination => _, in("al") value as u8, inout("rcx") length => _,
            options(nostack, preserves_flags));
    }
    destination
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
    for index in 0..length {
        // SAFETY: the caller's promise: both have `length` bytes. Volatile, so that this does not
        // become memcmp.
        let (a, b) = unsafe { (left.add(index).read_volatile(), right.add(index).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, length: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(left, right, length) }
}

/// The precompiled `alloc` crate refers to this, but with `panic = "abort"` nothing calls it.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// See [`rust_eh_personality`].
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    engine::sys::abort()
}
