//! Emulation: instructions that the engine executes for the application. Translated code cannot
//! record the data of some (their accesses depend on more than registers, or go from memory to
//! memory); others use gs.
//!
//! Such an instruction is a block of its own. Its accesses become events, followed by its path. A
//! fault while it accesses memory is the application's (`Signals::accessing`): the application's
//! handler sees the state before the instruction or, for strings, before the iteration.
//!
//! This module chooses what to do, and has what all instructions need: registers, memory and the
//! record of an access. The modules below have the classes of instructions.

use core::sync::atomic::Ordering;

use entity::{FragmentId, PathId};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use wire::{DATA_VALUES, word};

use crate::fragment::Progress;
use crate::tcb::Tcb;
use crate::{gs, memory, ring, sys};

mod arithmetic;
mod moves;
mod save_area;
mod segment;
mod string;

pub use save_area::enabled_components;
pub use string::{StringRun, flush, string_progress};

use save_area::save_area;

/// Whether an instruction is emulated whenever data is recorded, not only if values are.
pub fn is_known(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Wrfsbase | Mnemonic::Xlatb => true,
        // Nested frames copy pointers from frame to frame.
        Mnemonic::Enter => instruction.immediate8_2nd() != 0,
        Mnemonic::Fxsave | Mnemonic::Fxsave64 | Mnemonic::Fxrstor | Mnemonic::Fxrstor64 => false,
        _ => save_area(instruction).is_some(),
    }
}

/// Executes the instruction at `tcb.registers.rip`, which is the only one of the path `path`.
pub fn run(tcb: &mut Tcb, path: PathId) {
    let mut bytes = [0; isa::INSTRUCTION_BYTES_MAX];
    let length = memory::read_bytes(tcb.registers.rip, &mut bytes);
    let instruction = isa::decoder(tcb.pc(), &bytes[..length]).decode();
    tcb.progress = Progress { fragment: FragmentId::new(path), blocks: 0, data: 0 };
    tcb.signals().accessing.set(true);
    execute(tcb, &instruction);
    tcb.signals().accessing.set(false);
    tcb.progress = Progress::default();
    tcb.registers.rip = instruction.next_ip();
    ring::append_path(tcb, path);
    if isa::is_locked(&instruction) && tcb.control().next_thread.load(Ordering::Relaxed) > 1 {
        ring::append_time(tcb, word::TIME);
    }
}

fn execute(tcb: &mut Tcb, instruction: &Instruction) {
    if let Some(area) = save_area(instruction) {
        return save_area::save_or_restore(tcb, instruction, area);
    }
    if instruction.is_string_instruction() {
        return string::execute(tcb, instruction);
    }
    match instruction.mnemonic() {
        Mnemonic::Wrfsbase => segment::set_fs_base(tcb, instruction),
        Mnemonic::Wrgsbase => gs::write_base(tcb, register(tcb, instruction.op0_register())),
        Mnemonic::Rdgsbase => set_register(tcb, instruction.op0_register(), gs::read_base(tcb)),
        Mnemonic::Mov | Mnemonic::Pop | Mnemonic::Lgs => segment::load_gs(tcb, instruction),
        Mnemonic::Movdir64b => moves::move_line(tcb, instruction),
        Mnemonic::Xlatb => moves::translate_byte(tcb, instruction),
        Mnemonic::Enter => moves::enter(tcb, instruction),
        Mnemonic::Fistp | Mnemonic::Fisttp | Mnemonic::Fbstp => moves::pop_integer(tcb, instruction),
        _ => arithmetic::modify(tcb, instruction),
    }
}

/// A general register, or a part of one.
fn register(tcb: &Tcb, register: Register) -> u64 {
    let full = register.full_register();
    let Some(number) = (full as usize).checked_sub(Register::RAX as usize).filter(|number| *number < 16) else {
        return 0;
    };
    let value = tcb.registers.general[number];
    match register {
        Register::AH | Register::BH | Register::CH | Register::DH => value >> 8 & 0xff,
        _ => value & mask(register.size()),
    }
}

/// A number with all bits set in its low `bytes` bytes.
fn mask(bytes: usize) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 }
}

fn sign_extend(value: u64, bytes: usize) -> i64 {
    let unused = 64 - 8 * bytes as u32;
    (value << unused) as i64 >> unused
}

/// Address of the memory operand.
fn operand_address(tcb: &Tcb, instruction: &Instruction) -> u64 {
    let at = (0..instruction.op_count()).find(|&at| instruction.op_kind(at) == OpKind::Memory).unwrap_or(0);
    let value = |name: Register, _, _| match name {
        Register::FS => Some(sys::fs_base()),
        Register::GS => Some(tcb.gs_base),
        name if name.is_segment_register() => Some(0),
        name => Some(register(tcb, name)),
    };
    instruction.virtual_address(at, 0, value).unwrap_or(0)
}

/// # Safety
/// It reads application memory on its behalf. After a fault, the function does not return.
unsafe fn load(address: u64, bytes: usize) -> u64 {
    // SAFETY: the caller's promise; addresses need not be aligned.
    unsafe {
        match bytes {
            1 => u64::from((address as *const u8).read_volatile()),
            2 => u64::from((address as *const Unaligned<u16>).read_volatile().0),
            4 => u64::from((address as *const Unaligned<u32>).read_volatile().0),
            _ => (address as *const Unaligned<u64>).read_volatile().0,
        }
    }
}

/// # Safety
/// It writes application memory on its behalf. After a fault, the function does not return.
unsafe fn store(address: u64, bytes: usize, value: u64) {
    // SAFETY: the caller's promise; addresses need not be aligned.
    unsafe {
        match bytes {
            1 => (address as *mut u8).write_volatile(value as u8),
            2 => (address as *mut Unaligned<u16>).write_volatile(Unaligned(value as u16)),
            4 => (address as *mut Unaligned<u32>).write_volatile(Unaligned(value as u32)),
            _ => (address as *mut Unaligned<u64>).write_volatile(Unaligned(value)),
        }
    }
}

#[repr(C, packed)]
struct Unaligned<T>(T);

fn has_values(tcb: &Tcb) -> bool {
    tcb.control().data.load(Ordering::Relaxed) == DATA_VALUES
}

/// Records one access of the current instruction.
fn record(tcb: &mut Tcb, address: u64, writes: bool, value: &[u8]) {
    if !tcb.records {
        return;
    }
    let size = value.len() as u32 | if writes { word::ACCESS_WRITES } else { 0 };
    let value = if has_values(tcb) { value } else { &[] };
    ring::append_access(tcb, address, size, value);
}

/// Sets a register of one byte.
fn set_part(tcb: &mut Tcb, register: Register, value: u64) {
    let high = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
    let number = register.full_register() as usize - Register::RAX as usize;
    let shift = if high { 8 } else { 0 };
    let general = &mut tcb.registers.general[number & 15];
    *general = *general & !(0xff << shift) | value << shift;
}

/// Sets a register of four or eight bytes.
fn set_register(tcb: &mut Tcb, register: Register, value: u64) {
    tcb.registers.general[number_of(register)] = value & mask(register.size());
}

/// Number of a general register.
fn number_of(register: Register) -> usize {
    (register.full_register() as usize - Register::RAX as usize) & 15
}

/// The segment base of a string's source or of a table.
fn segment_base(tcb: &Tcb, instruction: &Instruction) -> u64 {
    match instruction.segment_prefix() {
        Register::FS => sys::fs_base(),
        Register::GS => tcb.gs_base,
        _ => 0,
    }
}
