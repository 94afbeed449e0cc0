//! Seccomp filters of the application. They would apply to the engine's own system calls, too, so
//! the engine puts a prefix in front: calls from the engine's image are allowed, except from the
//! instructions that make the application's calls. The engine keeps the filters, to find out before
//! an exec whether the recorder could inject an engine into the new image.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use wire::{NOTICE_DISPATCH, NOTICE_FILTERED, NOTICE_SECCOMP_EXEC, NOTICE_SECCOMP_LONG, NOTICE_SECCOMP_STRICT};

use crate::lock::Mutex;
use crate::memory::{self, PlainData};
use crate::sys::{self, number};
use crate::tcb::Tcb;
use crate::{clone, signal, syscall};

const PR_SET_SECCOMP: u64 = 22;
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
const MODE_STRICT: u64 = 1;
const MODE_FILTER: u64 = 2;
const SET_MODE_STRICT: u64 = 0;
const SET_MODE_FILTER: u64 = 1;

/// Most instructions of a filter.
const INSTRUCTIONS_MAX: usize = 4096;

const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
/// The action in a filter's answer, without the data in the low half.
const ACTION: u32 = 0xffff_0000;

/// The kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    constant: u32,
}

// SAFETY: integers without padding.
unsafe impl PlainData for Instruction {}

/// The kernel's `struct sock_fprog`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Program {
    length: u16,
    padding: [u16; 3],
    address: u64,
}

// SAFETY: integers without padding.
unsafe impl PlainData for Program {}

/// The kernel's `struct seccomp_data`, which filters look at.
#[repr(C)]
#[derive(Clone, Copy)]
struct SeccompData {
    call: u32,
    architecture: u32,
    instruction_pointer: u64,
    arguments: [u64; 6],
}

const ARCHITECTURE_X86_64: u32 = 0xc000_003e;

/// The filters that were installed since the image was started.
static FILTERS: Mutex<Vec<Vec<Instruction>>> = Mutex::new(Vec::new());

/// See `lock::Mutex::release_for_dead`.
///
/// # Safety
/// As there.
pub unsafe fn release_for_dead(stacks: core::ops::Range<u64>) -> bool {
    // SAFETY: the caller's promise.
    unsafe { FILTERS.release_for_dead(stacks) }
}

/// Whether a prctl changes state that this module keeps.
pub fn is_of_process(option: u64) -> bool {
    matches!(option, PR_SET_SECCOMP | PR_SET_SYSCALL_USER_DISPATCH)
}

/// The application's prctl.
pub fn prctl(tcb: &mut Tcb, arguments: [u64; 6]) -> i64 {
    let [option, mode, program, ..] = arguments;
    match (option, mode) {
        (PR_SET_SECCOMP, MODE_STRICT) => refuse_strict(tcb),
        (PR_SET_SECCOMP, MODE_FILTER) => install(tcb, number::PRCTL, arguments, program),
        // Every system call would become a signal, unless it comes from one range of addresses.
        (PR_SET_SYSCALL_USER_DISPATCH, 1..) => refuse(tcb, NOTICE_DISPATCH),
        _ => syscall::pass_through(tcb),
    }
}

/// The application's seccomp.
pub fn seccomp(tcb: &mut Tcb, arguments: [u64; 6]) -> i64 {
    let [operation, flags, program, ..] = arguments;
    let is_refused_anyway = flags as u32 != 0 || program != 0;
    match operation & 0xffff_ffff {
        // libseccomp asks in this way whether the system call exists.
        SET_MODE_STRICT if is_refused_anyway => syscall::pass_through(tcb),
        SET_MODE_STRICT => refuse_strict(tcb),
        SET_MODE_FILTER => install(tcb, number::SECCOMP, arguments, program),
        _ => syscall::pass_through(tcb),
    }
}

/// Refuses the strict mode. The kernel refuses it to a process with a filter, too.
fn refuse_strict(tcb: &Tcb) -> i64 {
    let has_filter = !FILTERS.lock().is_empty();
    if has_filter { sys::EINVAL } else { refuse(tcb, NOTICE_SECCOMP_STRICT) }
}

/// Refuses like a kernel that does not know the operation.
fn refuse(tcb: &Tcb, notice: u32) -> i64 {
    tcb.control().notices.fetch_or(notice, Ordering::SeqCst);
    sys::EINVAL
}

/// Installs the application's filter with the prefix in front. The program is the third argument of
/// either system call.
fn install(tcb: &mut Tcb, call: u64, mut arguments: [u64; 6], program: u64) -> i64 {
    let Some(filter) = read(program) else {
        // The kernel returns the right error.
        return syscall::pass_through(tcb);
    };
    let mut extended = prefix(signal::image(), application_call_ends());
    extended.extend_from_slice(&filter);
    if extended.len() > INSTRUCTIONS_MAX {
        return refuse(tcb, NOTICE_SECCOMP_LONG);
    }
    let program = Program { length: extended.len() as u16, padding: [0; 3], address: extended.as_ptr() as u64 };
    arguments[2] = &raw const program as u64;
    // Before the call, because another thread may exec as soon as the filter is installed.
    tcb.control().engine_start.store(signal::image().start, Ordering::SeqCst);
    tcb.control().notices.fetch_or(NOTICE_FILTERED, Ordering::SeqCst);
    // SAFETY: the application's own call, with a filter that begins with the engine's prefix.
    let result = unsafe { syscall::call_now(call, arguments) };
    if result >= 0 {
        FILTERS.lock().push(filter);
    }
    result
}

fn read(program: u64) -> Option<Vec<Instruction>> {
    let Program { length, address, .. } = memory::read(program)?;
    if length == 0 || usize::from(length) > INSTRUCTIONS_MAX {
        return None;
    }
    let instruction = |index: u64| memory::read(address.wrapping_add(index * size_of::<Instruction>() as u64));
    (0..u64::from(length)).map(instruction).collect()
}

/// The instruction pointers, as filters see them, of system calls that the engine makes for the
/// application.
fn application_call_ends() -> [u32; 3] {
    [syscall::instruction_end(), syscall::call_end(), clone::call_end()].map(|address| address as u32)
}

const LOAD_WORD: u16 = 0x20;
const LOAD_CONSTANT: u16 = 0x00;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN_CONSTANT: u16 = 0x06;
const INSTRUCTION_POINTER_LOW: u32 = core::mem::offset_of!(SeccompData, instruction_pointer) as u32;
const INSTRUCTION_POINTER_HIGH: u32 = INSTRUCTION_POINTER_LOW + 4;

/// The prefix: allows calls from `image` (which does not cross a multiple of 4 GiB), except those
/// with the low halves `application_calls` of instruction pointers.
fn prefix(image: core::ops::Range<u64>, application_calls: [u32; 3]) -> Vec<Instruction> {
    let plain = |code, constant| Instruction { code, if_true: 0, if_false: 0, constant };
    // Jumps skip this many instructions, to the last one before the application's filter.
    let jump = |code, constant, if_true, if_false| Instruction { code, if_true, if_false, constant };
    let [a, b, c] = application_calls;
    alloc::vec![
        plain(LOAD_WORD, INSTRUCTION_POINTER_HIGH),
        jump(JUMP_IF_EQUAL, (image.start >> 32) as u32, 0, 7),
        plain(LOAD_WORD, INSTRUCTION_POINTER_LOW),
        jump(JUMP_IF_AT_LEAST, image.start as u32, 0, 5),
        jump(JUMP_IF_AT_LEAST, image.end as u32, 4, 0),
        jump(JUMP_IF_EQUAL, a, 3, 0),
        jump(JUMP_IF_EQUAL, b, 2, 0),
        jump(JUMP_IF_EQUAL, c, 1, 0),
        plain(RETURN_CONSTANT, ALLOW),
        // Filters begin with an accumulator of zero.
        plain(LOAD_CONSTANT, 0),
    ]
}

/// Whether a filter applies to the application's system calls.
pub fn is_filtered(tcb: &Tcb) -> bool {
    tcb.control().notices.load(Ordering::Relaxed) & NOTICE_FILTERED != 0
}

/// Asks the filters about a system call that the engine answers itself, by a call with these
/// arguments. `None` if they have no objection.
///
/// # Safety
/// With these arguments, the call must do nothing.
pub unsafe fn objection(tcb: &Tcb, call: u64, arguments: [u64; 6]) -> Option<i64> {
    if !is_filtered(tcb) {
        return None;
    }
    // SAFETY: the caller's promise.
    let result = unsafe { syscall::call_now(call, arguments) };
    (result < 0).then_some(result)
}

/// Notifies the recorder before an exec whether a filter forbids the injection into the new image.
pub fn prepare_exec(tcb: &Tcb) {
    let filters = FILTERS.lock();
    let allowed = filters.iter().all(|filter| injection().iter().all(|data| is_allowed(filter, data)));
    if !allowed {
        tcb.control().notices.fetch_or(NOTICE_SECCOMP_EXEC, Ordering::SeqCst);
    }
}

/// Undoes [`prepare_exec`] after a failed exec.
pub fn forget_exec(tcb: &Tcb) {
    tcb.control().notices.fetch_and(!NOTICE_SECCOMP_EXEC, Ordering::SeqCst);
}

/// The system calls that the recorder makes in the new image.
fn injection() -> [SeccompData; 8] {
    const MFD_CLOEXEC: u64 = 1;
    const ADDRESS: u64 = 0x6000_0000;
    const OWN_FLAGS: u64 = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE | sys::MAP_FIXED_NOREPLACE;
    const SHARED_FLAGS: u64 = 1 | sys::MAP_NORESERVE | sys::MAP_FIXED_NOREPLACE;
    let [readable, writable, executable] = [sys::PROT_READ, sys::PROT_WRITE, sys::PROT_EXEC];
    let length = sys::PAGE;
    let data = |call: u64, arguments: [u64; 6]| SeccompData {
        call: call as u32,
        architecture: ARCHITECTURE_X86_64,
        instruction_pointer: 0,
        arguments,
    };
    [
        data(number::MMAP, [ADDRESS, length, readable | writable, OWN_FLAGS, u64::MAX, 0]),
        data(number::MPROTECT, [ADDRESS, length, readable | executable, 0, 0, 0]),
        data(number::MPROTECT, [ADDRESS, length, 0, 0, 0, 0]),
        data(number::MEMFD_CREATE, [ADDRESS, MFD_CLOEXEC, 0, 0, 0, 0]),
        data(number::MMAP, [ADDRESS, length, readable | writable, SHARED_FLAGS, 3, 0]),
        data(number::CLOSE, [3, 0, 0, 0, 0, 0]),
        data(number::MADVISE, [ADDRESS, length, 10, 0, 0, 0]),
        data(number::MUNMAP, [ADDRESS, length, 0, 0, 0, 0]),
    ]
}

fn is_allowed(filter: &[Instruction], data: &SeccompData) -> bool {
    matches!(evaluate(filter, data).map(|answer| answer & ACTION), Some(ALLOW | LOG))
}

/// Evaluates a filter. `None` if it is invalid; the kernel would not have accepted it.
fn evaluate(filter: &[Instruction], data: &SeccompData) -> Option<u32> {
    let (mut accumulator, mut index) = (0u32, 0u32);
    let mut scratch = [0u32; 16];
    let mut at = 0;
    loop {
        let Instruction { code, if_true, if_false, constant } = *filter.get(at)?;
        at += 1;
        let source = if code & 8 == 0 { constant } else { index };
        match (code & 7, code & 0xf0) {
            // ld and ldx: a constant, a word of the question, of the scratch memory, or the
            // question's length
            (kind @ (0 | 1), _) => {
                let value = match code & 0xe0 {
                    0x00 => constant,
                    0x20 => word(data, constant)?,
                    0x60 => *scratch.get(constant as usize)?,
                    0x80 => size_of::<SeccompData>() as u32,
                    _ => return None,
                };
                *if kind == 0 { &mut accumulator } else { &mut index } = value;
            }
            (2, _) => *scratch.get_mut(constant as usize)? = accumulator,
            (3, _) => *scratch.get_mut(constant as usize)? = index,
            (4, operation) => accumulator = compute(operation, accumulator, source)?,
            (5, 0x00) => at += constant as usize,
            (5, condition) => {
                let holds = match condition {
                    0x10 => accumulator == source,
                    0x20 => accumulator > source,
                    0x30 => accumulator >= source,
                    0x40 => accumulator & source != 0,
                    _ => return None,
                };
                at += usize::from(if holds { if_true } else { if_false });
            }
            (6, _) => return Some(if code & 0x18 == 0x10 { accumulator } else { constant }),
            (_, 0x00) => index = accumulator,
            _ => accumulator = index,
        }
    }
}

/// The word at an offset; `None` where none begins.
fn word(data: &SeccompData, offset: u32) -> Option<u32> {
    let mut bytes = [0; size_of::<SeccompData>()];
    bytes[..4].copy_from_slice(&data.call.to_le_bytes());
    bytes[4..8].copy_from_slice(&data.architecture.to_le_bytes());
    let numbers = core::iter::once(data.instruction_pointer).chain(data.arguments);
    for (field, number) in bytes[8..].chunks_exact_mut(8).zip(numbers) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    let (words, _) = bytes.as_chunks::<4>();
    if offset.is_multiple_of(4) { words.get(offset as usize / 4).map(|word| u32::from_le_bytes(*word)) } else { None }
}

fn compute(operation: u16, a: u32, b: u32) -> Option<u32> {
    Some(match operation {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b)?,
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.checked_shl(b)?,
        0x70 => a.checked_shr(b)?,
        0x80 => a.wrapping_neg(),
        0xa0 => a ^ b,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERRNO: u32 = 0x0005_0000;
    const IMAGE: core::ops::Range<u64> = 0x6000_0000..0x6010_0000;
    const JUDGED: [u32; 3] = [0x6000_1002, 0x6000_2002, 0x6000_3002];

    fn data(call: u64, instruction_pointer: u64) -> SeccompData {
        SeccompData {
            call: call as u32,
            architecture: ARCHITECTURE_X86_64,
            instruction_pointer,
            arguments: [7 << 32 | 5; 6],
        }
    }

    fn instruction(code: u16, if_true: u8, if_false: u8, constant: u32) -> Instruction {
        Instruction { code, if_true, if_false, constant }
    }

    /// Forbids one system call, if the accumulator is zero at first.
    fn forbids(call: u64) -> Vec<Instruction> {
        vec![
            instruction(JUMP_IF_EQUAL, 0, 3, 0),
            instruction(LOAD_WORD, 0, 0, 0),
            instruction(JUMP_IF_EQUAL, 0, 1, call as u32),
            instruction(RETURN_CONSTANT, 0, 0, ERRNO | 1),
            instruction(RETURN_CONSTANT, 0, 0, ALLOW),
        ]
    }

    #[test]
    fn only_the_engines_own_calls_pass_the_prefix_of_a_high_image() {
        const HIGH: u64 = 0x5500_0000_0000;
        let mut filter = prefix(HIGH + IMAGE.start..HIGH + IMAGE.end, JUDGED);
        filter.extend(forbids(number::MMAP));
        let answer = |address| evaluate(&filter, &data(number::MMAP, address)).unwrap();
        for outside in [0, IMAGE.start, HIGH, HIGH + IMAGE.end, HIGH + (1 << 32) + IMAGE.start] {
            assert_eq!(answer(outside), ERRNO | 1, "{outside:#x}");
        }
        assert_eq!(answer(HIGH + u64::from(JUDGED[1])), ERRNO | 1);
        assert_eq!(answer(HIGH + IMAGE.start + 5), ALLOW);
    }

    #[test]
    fn only_the_engines_own_calls_pass_the_prefix() {
        let mut filter = prefix(IMAGE, JUDGED);
        filter.extend(forbids(number::MMAP));
        let answer = |call, address| evaluate(&filter, &data(call, address)).unwrap();
        for outside in [0, 5, 0x5fff_ffff, 0x6010_0000, 0x1_6000_5000, 0x7fff_6000_5000, u64::MAX] {
            assert_eq!(answer(number::MMAP, outside), ERRNO | 1, "{outside:#x}");
            assert_eq!(answer(number::MUNMAP, outside), ALLOW);
        }
        for application_calls in JUDGED {
            assert_eq!(answer(number::MMAP, u64::from(application_calls)), ERRNO | 1);
        }
        for own in [0x6000_0000, 0x6000_1001, 0x6000_1003, 0x600f_ffff] {
            assert_eq!(answer(number::MMAP, own), ALLOW, "{own:#x}");
        }
    }

    #[test]
    fn instructions_compute() {
        let run = |code: &[(u16, u32)]| {
            let filter: Vec<_> = code.iter().map(|&(code, constant)| instruction(code, 0, 0, constant)).collect();
            evaluate(&filter, &data(9, 0))
        };
        assert_eq!(run(&[(0x00, 5), (0x04, 3), (0x16, 0)]), Some(8));
        assert_eq!(run(&[(0x20, 16), (0x07, 0), (0x20, 20), (0x0c, 0), (0x16, 0)]), Some(12), "an argument's halves");
        assert_eq!(run(&[(0x00, 6), (0x02, 3), (0x00, 0), (0x61, 3), (0x87, 0), (0x16, 0)]), Some(6), "scratch memory");
        assert_eq!(
            run(&[(0x80, 0), (0x34, 4), (0x64, 1), (0xa4, 1), (0x84, 0), (0x16, 0)]),
            Some(33u32.wrapping_neg())
        );
        assert_eq!(run(&[(0x05, 1), (0x06, 1), (0x06, 2)]), Some(2), "a jump");
        assert_eq!(run(&[(0x20, 64)]), None, "beyond the data");
        assert_eq!(run(&[(0x00, 1), (0x34, 0)]), None);
        assert_eq!(run(&[(0x00, 1)]), None, "no answer");
    }

    #[test]
    fn filters_that_forbid_the_injection_are_found() {
        let allowed = |filter: &[Instruction]| injection().iter().all(|data| is_allowed(filter, data));
        assert!(allowed(&forbids(number::EXECVE)));
        for call in [number::MMAP, number::MPROTECT, number::MEMFD_CREATE, number::MADVISE, number::CLOSE] {
            assert!(!allowed(&forbids(call)));
        }
        assert!(!allowed(&[instruction(RETURN_CONSTANT, 0, 0, 0)]));
    }
}
