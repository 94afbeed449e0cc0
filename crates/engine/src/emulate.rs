//! Emulation: instructions that the engine executes for the application. Translated code cannot
//! record the data of some (their accesses depend on more than registers, or go from memory to
//! memory); others use gs.
//!
//! Such an instruction is a block of its own. Its accesses become events, followed by its path. A
//! fault while it accesses memory is the application's (`Signals::accessing`): the application's
//! handler sees the state before the instruction or, for strings, before the iteration.

use alloc::alloc::{Layout, alloc, dealloc};
use core::arch::asm;
use core::sync::atomic::Ordering;

use entity::{FragmentId, PathId};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use wire::{DATA_VALUES, RAX, RCX, RDI, RDX, RSI, word};

use crate::fragment::Progress;
use crate::tcb::Tcb;
use crate::{gs, memory, owners, ring};

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

/// The progress of an interrupted repeated string instruction in translated code: rcx and the
/// address register of each operand.
pub fn string_progress(tcb: &Tcb) -> ([u8; 32], usize) {
    let mut bytes = [0; isa::INSTRUCTION_BYTES_MAX];
    let length = memory::read_bytes(tcb.registers.rip, &mut bytes);
    let shape = string_shape(&isa::decoder(tcb.pc(), &bytes[..length]).decode());
    let general = &tcb.registers.general;
    let (mut pairs, mut count) = ([0; 32], 0);
    let operands = [(shape.reads_source, RSI), (shape.reads_destination || shape.writes_destination, RDI)];
    for (_, register) in operands.into_iter().filter(|(has, _)| *has) {
        for value in [general[RCX], general[register]] {
            pairs[count..count + 8].copy_from_slice(&value.to_le_bytes());
            count += 8;
        }
    }
    (pairs, count)
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
        return save_or_restore(tcb, instruction, area);
    }
    if instruction.is_string_instruction() {
        return string(tcb, instruction);
    }
    match instruction.mnemonic() {
        Mnemonic::Wrfsbase => set_fs_base(tcb, instruction),
        Mnemonic::Wrgsbase => gs::write_base(tcb, register(tcb, instruction.op0_register())),
        Mnemonic::Rdgsbase => set_register(tcb, instruction.op0_register(), gs::read_base(tcb)),
        Mnemonic::Mov | Mnemonic::Pop | Mnemonic::Lgs => load_gs(tcb, instruction),
        Mnemonic::Movdir64b => move_line(tcb, instruction),
        Mnemonic::Xlatb => translate_byte(tcb, instruction),
        Mnemonic::Enter => enter(tcb, instruction),
        Mnemonic::Fistp | Mnemonic::Fisttp | Mnemonic::Fbstp => pop_integer(tcb, instruction),
        _ => modify(tcb, instruction),
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
fn address(tcb: &Tcb, instruction: &Instruction) -> u64 {
    let at = (0..instruction.op_count()).find(|&at| instruction.op_kind(at) == OpKind::Memory).unwrap_or(0);
    let value = |name: Register, _, _| match name {
        Register::FS => Some(ring::fs_base()),
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

const FLAG_CARRY: u64 = 1;
/// Overflow, sign, zero, adjust, parity and carry.
const ARITHMETIC: u64 = 0x8d5;
const FLAG_ZERO: u64 = 1 << 6;
const FLAG_DIRECTION: u64 = 1 << 10;

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
fn calculate(mnemonic: Mnemonic, old: u64, source: u64, bytes: usize, flags: u64) -> (u64, u64) {
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
fn modify(tcb: &mut Tcb, instruction: &Instruction) {
    let bytes = instruction.memory_size().size();
    let mut place = address(tcb, instruction);
    let source = match (instruction.op_count(), instruction.op1_kind()) {
        (1, _) => 0,
        (_, OpKind::Register) => register(tcb, instruction.op1_register()),
        _ => instruction.immediate(1),
    };
    let mnemonic = instruction.mnemonic();
    let is_bit = matches!(mnemonic, Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
    if is_bit && instruction.op1_kind() == OpKind::Register {
        let operands = sign_extend(source, bytes) >> (8 * bytes).trailing_zeros();
        place = place.wrapping_add_signed(operands * bytes as i64);
    }
    if instruction.has_lock_prefix() {
        owners::disown(place, bytes);
    }
    let flags = tcb.registers.rflags;
    // SAFETY: the application's own access.
    let mut old = unsafe { load(place, bytes) };
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
            unsafe { store(place, bytes, new) };
            break (new, after);
        }
        // SAFETY: the application's own access.
        let found = unsafe { compare_exchange(place, bytes, old, new) };
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
    record(tcb, place, false, &old.to_le_bytes()[..bytes]);
    if mnemonic != Mnemonic::Bt {
        record(tcb, place, true, &new.to_le_bytes()[..bytes]);
    }
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

/// `mov gs`, `pop gs` and `lgs`. An invalid selector faults, so other registers change after it is
/// loaded.
fn load_gs(tcb: &mut Tcb, instruction: &Instruction) {
    const RSP: usize = 4;
    match instruction.mnemonic() {
        Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => {
            gs::load_selector(tcb, register(tcb, instruction.op1_register()) as u16);
        }
        Mnemonic::Mov => {
            let place = address(tcb, instruction);
            // SAFETY: the application's own access.
            let selector = unsafe { load(place, 2) } as u16;
            gs::load_selector(tcb, selector);
            record(tcb, place, false, &selector.to_le_bytes());
        }
        Mnemonic::Pop => {
            let (place, bytes) = (tcb.registers.general[RSP], instruction.stack_pointer_increment() as usize);
            // SAFETY: the application's own access.
            let value = unsafe { load(place, bytes) };
            gs::load_selector(tcb, value as u16);
            tcb.registers.general[RSP] = place.wrapping_add(bytes as u64);
            record(tcb, place, false, &value.to_le_bytes()[..bytes]);
        }
        _ => load_far_pointer(tcb, instruction),
    }
}

/// `lgs`: an offset, then the selector.
fn load_far_pointer(tcb: &mut Tcb, instruction: &Instruction) {
    let (place, target) = (address(tcb, instruction), instruction.op0_register());
    let bytes = target.size();
    // SAFETY: the application's own accesses.
    let (offset, selector) = unsafe { (load(place, bytes), load(place.wrapping_add(bytes as u64), 2) as u16) };
    gs::load_selector(tcb, selector);
    let kept = if bytes == 2 { tcb.registers.general[number_of(target)] & !0xffff } else { 0 };
    tcb.registers.general[number_of(target)] = kept | offset;
    let mut value = [0; 10];
    value[..bytes].copy_from_slice(&offset.to_le_bytes()[..bytes]);
    value[bytes..bytes + 2].copy_from_slice(&selector.to_le_bytes());
    record(tcb, place, false, &value[..bytes + 2]);
}

/// Number of a general register.
fn number_of(register: Register) -> usize {
    (register.full_register() as usize - Register::RAX as usize) & 15
}

/// The segment base of a string's source or of a table.
fn segment_base(tcb: &Tcb, instruction: &Instruction) -> u64 {
    match instruction.segment_prefix() {
        Register::FS => ring::fs_base(),
        Register::GS => tcb.gs_base,
        _ => 0,
    }
}

fn set_fs_base(tcb: &mut Tcb, instruction: &Instruction) {
    let base = register(tcb, instruction.op0_register());
    // SAFETY: the application's own instruction; the engine does not use fs.
    unsafe { asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags)) };
    ring::append_fs_base(tcb);
}

/// `xlat`: the byte at rbx plus al.
fn translate_byte(tcb: &mut Tcb, instruction: &Instruction) {
    const RBX: usize = 3;
    let reach = if instruction.memory_base() == Register::EBX { u64::from(u32::MAX) } else { u64::MAX };
    let base = segment_base(tcb, instruction);
    let offset = tcb.registers.general[RBX].wrapping_add(tcb.registers.general[RAX] & 0xff) & reach;
    let place = base.wrapping_add(offset);
    // SAFETY: the application's own access.
    let value = unsafe { load(place, 1) };
    set_part(tcb, Register::AL, value);
    record(tcb, place, false, &[value as u8]);
}

/// `enter` with nesting levels.
fn enter(tcb: &mut Tcb, instruction: &Instruction) {
    const RSP: usize = 4;
    const RBP: usize = 5;
    let level = u64::from(instruction.immediate8_2nd() & 31);
    let (frame, pointer) = (tcb.registers.general[RBP], tcb.registers.general[RSP]);
    let new_frame = pointer.wrapping_sub(8);
    let mut values = [0; 33];
    values[0] = frame;
    for index in 1..level {
        // SAFETY: the application's own access.
        values[index as usize] = unsafe { load(frame.wrapping_sub(8 * index), 8) };
    }
    let count = if level == 0 { 1 } else { level + 1 };
    if level > 0 {
        values[level as usize] = new_frame;
    }
    for (index, value) in (1..=count).zip(values) {
        // SAFETY: the application's own access.
        unsafe { store(pointer.wrapping_sub(8 * index), 8, value) };
    }
    for index in 1..level {
        record(tcb, frame.wrapping_sub(8 * index), false, &values[index as usize].to_le_bytes());
    }
    for (index, value) in (1..=count).zip(values) {
        record(tcb, pointer.wrapping_sub(8 * index), true, &value.to_le_bytes());
    }
    tcb.registers.general[RBP] = new_frame;
    tcb.registers.general[RSP] = pointer.wrapping_sub(8 * count).wrapping_sub(u64::from(instruction.immediate16()));
}

/// `fistp` and others that pop what they store. The first pass restores the state, so that the
/// store to application memory happens, or faults, before anything changes.
fn pop_integer(tcb: &mut Tcb, instruction: &Instruction) {
    let place = address(tcb, instruction);
    let bytes = instruction.memory_size().size();
    let mut state = FloatState([0; 512]);
    let mut value = [0u8; 16];
    for finally in [false, true] {
        macro_rules! pop {
            ($operation:literal) => {
                // SAFETY: the floating-point unit is the application's, and the engine does not use
                // it; the vector registers that come back with its state are those that were saved
                // with it.
                unsafe {
                    let (state, value) = (&raw mut state, &raw mut value);
                    asm!("fxsave64 [{s}]", concat!($operation, " [{v}]"),
                        s = in(reg) state, v = in(reg) value, options(nostack));
                    if !finally {
                        asm!("fxrstor64 [{s}]", s = in(reg) state, options(nostack));
                    }
                }
            };
        }
        match (instruction.mnemonic(), bytes) {
            (Mnemonic::Fistp, _) => pop!("fistp qword ptr"),
            (Mnemonic::Fisttp, 2) => pop!("fisttp word ptr"),
            (Mnemonic::Fisttp, 4) => pop!("fisttp dword ptr"),
            (Mnemonic::Fisttp, _) => pop!("fisttp qword ptr"),
            _ => pop!("fbstp tbyte ptr"),
        }
        if !finally {
            for (index, byte) in value[..bytes].iter().enumerate() {
                // SAFETY: the application's own write.
                unsafe { store(place.wrapping_add(index as u64), 1, u64::from(*byte)) };
            }
        }
    }
    record(tcb, place, true, &value[..bytes]);
}

#[repr(C, align(16))]
struct FloatState([u8; 512]);

/// `movdir64b`: 64 bytes from memory to memory.
fn move_line(tcb: &mut Tcb, instruction: &Instruction) {
    let source = address(tcb, instruction);
    let destination = register(tcb, instruction.op0_register());
    let mut line = Line([0; 64]);
    for (index, piece) in line.0.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: the application's own access.
        *piece = unsafe { load(source.wrapping_add(8 * index as u64), 8) }.to_le_bytes();
    }
    // SAFETY: the application's own instruction, from a copy of its source: movdir64b rax, [rsi].
    unsafe {
        asm!(".byte 0x66, 0x0f, 0x38, 0xf8, 0x06", in("rax") destination, in("rsi") line.0.as_ptr(), options(nostack));
    }
    record(tcb, source, false, &line.0);
    record(tcb, destination, true, &line.0);
}

#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes of values that are recorded at once.
const PIECE: usize = 4096;

/// Iterations of a string instruction that have been made but not recorded.
pub struct Strings {
    source: u64,
    destination: u64,
    count: u32,
    shape: u32,
    /// Values read at the source and at the destination.
    read: [Values; 2],
}

struct Values {
    bytes: [u8; PIECE],
    length: usize,
}

impl Values {
    fn push(&mut self, value: u64, bytes: usize) {
        self.bytes[self.length..self.length + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        self.length += bytes;
    }
}

/// The parts of a string instruction.
#[derive(Clone, Copy)]
struct StringShape {
    bytes: usize,
    reads_source: bool,
    reads_destination: bool,
    writes_destination: bool,
    compares: bool,
}

fn string_shape(instruction: &Instruction) -> StringShape {
    use Mnemonic::{
        Cmpsb, Cmpsd, Cmpsq, Cmpsw, Lodsb, Lodsd, Lodsq, Lodsw, Movsb, Movsd, Movsq, Movsw, Scasb, Scasd, Scasq, Scasw,
        Stosb, Stosd, Stosq, Stosw,
    };
    let bytes = instruction.memory_size().size();
    let mnemonic = instruction.mnemonic();
    let moves = matches!(mnemonic, Movsb | Movsw | Movsd | Movsq);
    let stores = matches!(mnemonic, Stosb | Stosw | Stosd | Stosq);
    let compares = matches!(mnemonic, Cmpsb | Cmpsw | Cmpsd | Cmpsq);
    let scans = matches!(mnemonic, Scasb | Scasw | Scasd | Scasq);
    let loads = matches!(mnemonic, Lodsb | Lodsw | Lodsd | Lodsq);
    StringShape {
        bytes,
        reads_source: moves || compares || loads,
        reads_destination: compares || scans,
        writes_destination: moves || stores,
        compares: compares || scans,
    }
}

/// Executes a string instruction iteration by iteration, or many iterations at once where the
/// result is the same.
fn string(tcb: &mut Tcb, instruction: &Instruction) {
    let shape = string_shape(instruction);
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let short = instruction.op0_kind() as u32 == OpKind::MemorySegESI as u32
        || (0..instruction.op_count())
            .any(|at| matches!(instruction.op_kind(at), OpKind::MemorySegESI | OpKind::MemoryESEDI));
    let reach = if short { u64::from(u32::MAX) } else { u64::MAX };
    let base = segment_base(tcb, instruction);
    let backwards = tcb.registers.rflags & FLAG_DIRECTION != 0;
    let step = if backwards { (shape.bytes as u64).wrapping_neg() } else { shape.bytes as u64 };
    open_strings(tcb, &shape, backwards, base, reach);
    while !repeats || tcb.registers.general[RCX] & reach != 0 {
        let [source, destination] = [RSI, RDI].map(|at| tcb.registers.general[at] & reach);
        let place = base.wrapping_add(source);
        if room(tcb) < shape.bytes {
            flush(tcb);
            open_strings(tcb, &shape, backwards, base, reach);
        }
        if repeats && shape.writes_destination && !backwards && !short && base == 0 {
            let moved = move_many(tcb, &shape, source, destination);
            if moved > 0 {
                continue;
            }
        }
        let (mut left, mut right) = (tcb.registers.general[RAX] & mask(shape.bytes), 0);
        // SAFETY: the application's own accesses.
        unsafe {
            if shape.reads_source {
                left = load(place, shape.bytes);
            }
            if shape.reads_destination {
                right = load(destination, shape.bytes);
            }
            if shape.writes_destination {
                store(destination, shape.bytes, left);
            }
        }
        note(tcb, &shape, left, right);
        let general = &mut tcb.registers.general;
        if shape.reads_source {
            general[RSI] = source.wrapping_add(step) & reach;
        }
        if shape.reads_destination || shape.writes_destination {
            general[RDI] = destination.wrapping_add(step) & reach;
        }
        if repeats {
            general[RCX] = general[RCX].wrapping_sub(1) & reach;
        }
        if !shape.compares && !shape.writes_destination {
            load_accumulator(tcb, left, shape.bytes);
        }
        if shape.compares {
            let (_, flags) = calculate(Mnemonic::Sub, left, right, shape.bytes, 0);
            tcb.registers.rflags = tcb.registers.rflags & !ARITHMETIC | flags;
            let equal = flags & FLAG_ZERO != 0;
            if (instruction.has_rep_prefix() && !equal) || (instruction.has_repne_prefix() && equal) {
                break;
            }
        }
        if !repeats {
            break;
        }
    }
    flush(tcb);
}

fn load_accumulator(tcb: &mut Tcb, value: u64, bytes: usize) {
    let kept = match bytes {
        1 | 2 => !mask(bytes),
        _ => 0,
    };
    tcb.registers.general[RAX] = tcb.registers.general[RAX] & kept | value;
}

fn open_strings(tcb: &mut Tcb, shape: &StringShape, backwards: bool, base: u64, reach: u64) {
    let flags = [
        (shape.reads_source, word::STRING_READS_SOURCE),
        (shape.reads_destination, word::STRING_READS_DESTINATION),
        (shape.writes_destination, word::STRING_WRITES_DESTINATION),
        (backwards, word::STRING_BACKWARDS),
    ];
    let mut bits = shape.bytes as u32;
    for (_, flag) in flags.into_iter().filter(|(set, _)| *set) {
        bits |= flag;
    }
    let [source, destination] = [RSI, RDI].map(|at| tcb.registers.general[at] & reach);
    let source = base.wrapping_add(source);
    let strings = tcb.strings.get_or_insert_with(|| {
        alloc::boxed::Box::new(Strings {
            source: 0,
            destination: 0,
            count: 0,
            shape: 0,
            read: [Values { bytes: [0; PIECE], length: 0 }, Values { bytes: [0; PIECE], length: 0 }],
        })
    });
    (strings.source, strings.destination, strings.count, strings.shape) = (source, destination, 0, bits);
    for values in &mut strings.read {
        values.length = 0;
    }
}

/// Bytes of values for which there is room.
fn room(tcb: &Tcb) -> usize {
    tcb.strings.as_ref().map_or(0, |strings| PIECE - strings.read[0].length.max(strings.read[1].length))
}

/// Notes an iteration.
fn note(tcb: &mut Tcb, shape: &StringShape, source: u64, destination: u64) {
    let Some(strings) = &mut tcb.strings else { return };
    strings.count += 1;
    if shape.reads_source {
        strings.read[0].push(source, shape.bytes);
    }
    if shape.reads_destination {
        strings.read[1].push(destination, shape.bytes);
    }
}

/// Moves as many elements as there is room for, if source and destination do not overlap. Returns
/// the number of iterations: 0 if the next one overlaps or faults.
fn move_many(tcb: &mut Tcb, shape: &StringShape, source: u64, destination: u64) -> u64 {
    let wanted = (room(tcb) / shape.bytes).min(tcb.registers.general[RCX] as usize) * shape.bytes;
    if destination.wrapping_sub(source) < wanted as u64 {
        return 0;
    }
    let Some(strings) = &mut tcb.strings else { return 0 };
    let values = &mut strings.read[0];
    let start = values.length;
    let read = memory::read_bytes(source, &mut values.bytes[start..start + wanted]) / shape.bytes * shape.bytes;
    // SAFETY: the application's own writes; a fault ends the copy.
    let written = unsafe { memory::copy(destination, values.bytes[start..].as_ptr() as u64, read as u64) };
    let count = written / shape.bytes as u64;
    values.length += count as usize * shape.bytes;
    strings.count += count as u32;
    let moved = count * shape.bytes as u64;
    tcb.registers.general[RSI] = source.wrapping_add(moved);
    tcb.registers.general[RDI] = destination.wrapping_add(moved);
    tcb.registers.general[RCX] -= count;
    count
}

/// Records the iterations that have been made. The handler of a fault calls this, too.
pub fn flush(tcb: &mut Tcb) {
    let Some(mut strings) = tcb.strings.take() else { return };
    if strings.count > 0 && tcb.records {
        let [source, destination] = &strings.read;
        let [source, destination] = [source, destination].map(|values| &values.bytes[..values.length]);
        let parts = if has_values(tcb) { [source, destination] } else { [&[][..], &[]] };
        ring::append_string(tcb, strings.source, strings.destination, strings.count, strings.shape, parts);
    }
    strings.count = 0;
    tcb.strings = Some(strings);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SaveArea {
    Save,
    SaveCompact,
    Restore,
    /// Of 512 bytes, without a header.
    OldSave,
    OldRestore,
}

fn save_area(instruction: &Instruction) -> Option<SaveArea> {
    match instruction.mnemonic() {
        Mnemonic::Xsave | Mnemonic::Xsave64 | Mnemonic::Xsaveopt | Mnemonic::Xsaveopt64 => Some(SaveArea::Save),
        Mnemonic::Xsavec | Mnemonic::Xsavec64 => Some(SaveArea::SaveCompact),
        Mnemonic::Xrstor | Mnemonic::Xrstor64 => Some(SaveArea::Restore),
        Mnemonic::Fxsave | Mnemonic::Fxsave64 => Some(SaveArea::OldSave),
        Mnemonic::Fxrstor | Mnemonic::Fxrstor64 => Some(SaveArea::OldRestore),
        _ => None,
    }
}

const SAVE_HEADER_END: usize = 576;

/// Bytes that an area for these components takes.
fn area_bytes(components: u64, compact: bool) -> usize {
    let mut end = SAVE_HEADER_END;
    for component in (2..63).filter(|component| components >> component & 1 != 0) {
        let leaf = core::arch::x86_64::__cpuid_count(0xd, component);
        let (size, offset) = (leaf.eax as usize, leaf.ebx as usize);
        if compact {
            let start = if leaf.ecx & 2 != 0 { end.next_multiple_of(64) } else { end };
            end = start + size;
        } else {
            end = end.max(offset + size);
        }
    }
    end
}

/// What the operating system lets programs use of the extended state (XCR0).
pub fn enabled_components() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: an application that uses xsave runs where the operating system has enabled it; others
    // ask CPUID first.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nostack, nomem)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Bytes of the area that an instruction reads or writes at `place`.
fn bytes_of_area(tcb: &Tcb, area: SaveArea, place: u64) -> usize {
    /// Where a compact area says what is in it.
    const COMPACT: u64 = 520;
    let [low, high] = [RAX, RDX].map(|at| tcb.registers.general[at] as u32);
    let requested = enabled_components() & (u64::from(high) << 32 | u64::from(low));
    match area {
        SaveArea::OldSave | SaveArea::OldRestore => 512,
        SaveArea::Save => area_bytes(requested, false),
        SaveArea::SaveCompact => area_bytes(requested, true),
        SaveArea::Restore => match memory::read::<u64>(place + COMPACT) {
            Some(components) if components >> 63 != 0 => area_bytes(components, true),
            _ => area_bytes(requested, false),
        },
    }
}

/// `xsave`, `xrstor` and their variants, through a copy of the area.
fn save_or_restore(tcb: &mut Tcb, instruction: &Instruction, area: SaveArea) {
    let place = address(tcb, instruction);
    let restores = matches!(area, SaveArea::Restore | SaveArea::OldRestore);
    let bytes = bytes_of_area(tcb, area, place);
    // Room for whatever the processor may write.
    let Ok(layout) = Layout::from_size_align(area_bytes(enabled_components(), false).max(bytes) + 64, 64) else {
        return;
    };
    // SAFETY: the size is not zero.
    let buffer = unsafe { alloc(layout) };
    if buffer.is_null() {
        return;
    }
    // SAFETY: the buffer is ours and large enough; the application's own accesses at `place`.
    unsafe {
        let whole = |copied: u64| copied == bytes as u64;
        let aligned = place.is_multiple_of(if bytes == 512 { 16 } else { 64 });
        if !aligned || !whole(memory::copy(buffer as u64, place, bytes as u64)) {
            // It faults, as the application's instruction would.
            transfer_state(tcb, instruction, place as *mut u8);
        }
        transfer_state(tcb, instruction, buffer);
        if !restores && !whole(memory::copy(place, buffer as u64, bytes as u64)) {
            transfer_state(tcb, instruction, place as *mut u8);
        }
        record(tcb, place, !restores, core::slice::from_raw_parts(buffer, bytes));
        dealloc(buffer, layout);
    }
}

/// Executes xsave or xrstor on `area` with the application's vector registers, whose low halves are
/// in the saved state.
///
/// # Safety
/// `area` must be large enough, aligned and, for xrstor, hold what the application wants to
/// restore.
unsafe fn transfer_state(tcb: &mut Tcb, instruction: &Instruction, area: *mut u8) {
    let [low, high] = [RAX, RDX].map(|at| tcb.registers.general[at] as u32);
    macro_rules! transfer {
        ($operation:literal) => {
            // SAFETY: the caller's promise; the vector registers are those of the application until
            // they are saved again, and the compiler knows that they change.
            unsafe {
                asm!(
                    "ldmxcsr [{m}]",
                    "movaps xmm0, [{x}]", "movaps xmm1, [{x} + 16]",
                    "movaps xmm2, [{x} + 32]", "movaps xmm3, [{x} + 48]",
                    "movaps xmm4, [{x} + 64]", "movaps xmm5, [{x} + 80]",
                    "movaps xmm6, [{x} + 96]", "movaps xmm7, [{x} + 112]",
                    "movaps xmm8, [{x} + 128]", "movaps xmm9, [{x} + 144]",
                    "movaps xmm10, [{x} + 160]", "movaps xmm11, [{x} + 176]",
                    "movaps xmm12, [{x} + 192]", "movaps xmm13, [{x} + 208]",
                    "movaps xmm14, [{x} + 224]", "movaps xmm15, [{x} + 240]",
                    concat!($operation, " [{area}]"),
                    "movaps [{x}], xmm0", "movaps [{x} + 16], xmm1",
                    "movaps [{x} + 32], xmm2", "movaps [{x} + 48], xmm3",
                    "movaps [{x} + 64], xmm4", "movaps [{x} + 80], xmm5",
                    "movaps [{x} + 96], xmm6", "movaps [{x} + 112], xmm7",
                    "movaps [{x} + 128], xmm8", "movaps [{x} + 144], xmm9",
                    "movaps [{x} + 160], xmm10", "movaps [{x} + 176], xmm11",
                    "movaps [{x} + 192], xmm12", "movaps [{x} + 208], xmm13",
                    "movaps [{x} + 224], xmm14", "movaps [{x} + 240], xmm15",
                    "stmxcsr [{m}]",
                    m = in(reg) &raw mut tcb.mxcsr, x = in(reg) &raw mut tcb.xmm, area = in(reg) area,
                    in("eax") low, in("edx") high,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                    out("xmm5") _, out("xmm6") _,
                    out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _,
                    out("xmm14") _, out("xmm15") _, options(nostack),
                );
            }
        };
    }
    match instruction.mnemonic() {
        Mnemonic::Xsave => transfer!("xsave"),
        Mnemonic::Xsave64 => transfer!("xsave64"),
        Mnemonic::Xsaveopt => transfer!("xsaveopt"),
        Mnemonic::Xsaveopt64 => transfer!("xsaveopt64"),
        Mnemonic::Xsavec => transfer!("xsavec"),
        Mnemonic::Xsavec64 => transfer!("xsavec64"),
        Mnemonic::Fxsave => transfer!("fxsave"),
        Mnemonic::Fxsave64 => transfer!("fxsave64"),
        Mnemonic::Fxrstor => transfer!("fxrstor"),
        Mnemonic::Fxrstor64 => transfer!("fxrstor64"),
        Mnemonic::Xrstor => transfer!("xrstor"),
        _ => transfer!("xrstor64"),
    }
}
