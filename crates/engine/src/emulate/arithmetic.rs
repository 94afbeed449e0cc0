//! Instructions that read and write one operand: locked ones, bit tests, and some with the high
//! byte registers.

use core::arch::asm;

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use wire::RAX;

use super::{load, mask, operand_address, record, register, set_part, sign_extend, store};
use crate::owners;
use crate::tcb::Tcb;

const FLAG_CARRY: u64 = 1;
/// Overflow, sign, zero, adjust, parity and carry.
pub(super) const ARITHMETIC: u64 = 0x8d5;

/// `operation a, b` (or `operation a`) on operands of `bytes` bytes, with these flags before;
/// returns the result and the flags after.
macro_rules! calculate {
    ($operation:literal, $a:expr, $b:expr, $bytes:expr, $flags:expr) => {{
        let (mut a, b, mut flags): (u64, u64, u64) = ($a, $b, $flags & ARITHMETIC | 2);
        // SAFETY: changes the two registers and the arithmetic flags.
        unsafe {
            match $bytes {
                1 => asm!("push {f}", "popfq", concat!($operation, " {a:l}, {b:l}"), "pushfq", "pop {f}",
                    a = inout(reg) a, b = in(reg) b, f = inout(reg) flags),
                2 => asm!("push {f}", "popfq", concat!($operation, " {a:x}, {b:x}"), "pushfq", "pop {f}",
                    a = inout(reg) a, b = in(reg) b, f = inout(reg) flags),
                4 => asm!("push {f}", "popfq", concat!($operation, " {a:e}, {b:e}"), "pushfq", "pop {f}",
                    a = inout(reg) a, b = in(reg) b, f = inout(reg) flags),
                _ => asm!("push {f}", "popfq", concat!($operation, " {a}, {b}"), "pushfq", "pop {f}",
                    a = inout(reg) a, b = in(reg) b, f = inout(reg) flags),
            }
        }
        (a & mask($bytes), flags & ARITHMETIC)
    }};
    ($operation:literal, $a:expr, $bytes:expr, $flags:expr) => {{
        let (mut a, mut flags): (u64, u64) = ($a, $flags & ARITHMETIC | 2);
        // SAFETY: changes the register and the arithmetic flags.
        unsafe {
            match $bytes {
                1 => asm!("push {f}", "popfq", concat!($operation, " {a:l}"), "pushfq", "pop {f}",
                    a = inout(reg) a, f = inout(reg) flags),
                2 => asm!("push {f}", "popfq", concat!($operation, " {a:x}"), "pushfq", "pop {f}",
                    a = inout(reg) a, f = inout(reg) flags),
                4 => asm!("push {f}", "popfq", concat!($operation, " {a:e}"), "pushfq", "pop {f}",
                    a = inout(reg) a, f = inout(reg) flags),
                _ => asm!("push {f}", "popfq", concat!($operation, " {a}"), "pushfq", "pop {f}",
                    a = inout(reg) a, f = inout(reg) flags),
            }
        }
        (a & mask($bytes), flags & ARITHMETIC)
    }};
}

/// Computes the new value of an instruction's memory operand.
pub(super) fn calculate(mnemonic: Mnemonic, old: u64, source: u64, bytes: usize, flags: u64) -> (u64, u64) {
    // A bit's number counts modulo the operand's size, and there are no such instructions for
    // bytes.
    let bit = source % (8 * bytes as u64);
    let flag = |set: u64| flags & !FLAG_CARRY & ARITHMETIC | set;
    match mnemonic {
        Mnemonic::Add => calculate!("add", old, source, bytes, flags),
        Mnemonic::Sub => calculate!("sub", old, source, bytes, flags),
        Mnemonic::And => calculate!("and", old, source, bytes, flags),
        Mnemonic::Or => calculate!("or", old, source, bytes, flags),
        Mnemonic::Xor => calculate!("xor", old, source, bytes, flags),
        Mnemonic::Adc => calculate!("adc", old, source, bytes, flags),
        Mnemonic::Sbb => calculate!("sbb", old, source, bytes, flags),
        Mnemonic::Inc => calculate!("inc", old, bytes, flags),
        Mnemonic::Dec => calculate!("dec", old, bytes, flags),
        Mnemonic::Neg => calculate!("neg", old, bytes, flags),
        Mnemonic::Not => calculate!("not", old, bytes, flags),
        Mnemonic::Bts => (old | 1 << bit, flag(old >> bit & 1)),
        Mnemonic::Btr => (old & !(1 << bit), flag(old >> bit & 1)),
        Mnemonic::Btc => (old ^ 1 << bit, flag(old >> bit & 1)),
        _ => (old, flag(old >> bit & 1)),
    }
}

/// Exchanges atomically; returns what was there.
///
/// # Safety
/// As [`store`].
unsafe fn compare_exchange(address: u64, bytes: usize, old: u64, new: u64) -> u64 {
    let mut found = old;
    // SAFETY: the caller's promise.
    unsafe {
        match bytes {
            1 => asm!("lock cmpxchg [{p}], {n:l}", p = in(reg) address, n = in(reg) new, inout("rax") found),
            2 => asm!("lock cmpxchg [{p}], {n:x}", p = in(reg) address, n = in(reg) new, inout("rax") found),
            4 => asm!("lock cmpxchg [{p}], {n:e}", p = in(reg) address, n = in(reg) new, inout("rax") found),
            _ => asm!("lock cmpxchg [{p}], {n}", p = in(reg) address, n = in(reg) new, inout("rax") found),
        }
    }
    found & mask(bytes)
}

/// An instruction that reads and mostly writes its first operand: locked ones, and bit tests;
/// `xadd` and `cmpxchg` with one of the high byte registers.
pub(super) fn modify(tcb: &mut Tcb, instruction: &Instruction) {
    let bytes = instruction.memory_size().size();
    let mut address = operand_address(tcb, instruction);
    let source = match (instruction.op_count(), instruction.op1_kind()) {
        (1, _) => 0,
        (_, OpKind::Register) => register(tcb, instruction.op1_register()),
        _ => instruction.immediate(1),
    };
    let mnemonic = instruction.mnemonic();
    let is_bit = matches!(mnemonic, Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
    if is_bit && instruction.op1_kind() == OpKind::Register {
        let operands = sign_extend(source, bytes) >> (8 * bytes).trailing_zeros();
        address = address.wrapping_add_signed(operands * bytes as i64);
    }
    if instruction.has_lock_prefix() {
        owners::disown(address, bytes);
    }
    let flags = tcb.registers.rflags;
    // SAFETY: the application's own access.
    let mut old = unsafe { load(address, bytes) };
    let expected = tcb.registers.general[RAX] & mask(bytes);
    let (new, after) = loop {
        let (new, after) = match mnemonic {
            Mnemonic::Xadd => calculate(Mnemonic::Add, old, source, bytes, flags),
            Mnemonic::Cmpxchg => {
                let (_, after) = calculate(Mnemonic::Sub, expected, old, bytes, flags);
                (if expected == old { source } else { old }, after)
            }
            _ => calculate(mnemonic, old, source & mask(bytes), bytes, flags),
        };
        if mnemonic == Mnemonic::Bt {
            break (new, after);
        }
        if !instruction.has_lock_prefix() {
            // SAFETY: the application's own access.
            unsafe { store(address, bytes, new) };
            break (new, after);
        }
        // SAFETY: the application's own access.
        let found = unsafe { compare_exchange(address, bytes, old, new) };
        if found == old {
            break (new, after);
        }
        old = found;
    };
    tcb.registers.rflags = flags & !ARITHMETIC | after;
    match mnemonic {
        Mnemonic::Xadd => set_part(tcb, instruction.op1_register(), old),
        Mnemonic::Cmpxchg if expected != old => set_part(tcb, Register::AL, old),
        _ => {}
    }
    record(tcb, address, false, &old.to_le_bytes()[..bytes]);
    if mnemonic != Mnemonic::Bt {
        record(tcb, address, true, &new.to_le_bytes()[..bytes]);
    }
}
