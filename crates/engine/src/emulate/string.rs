//! String instructions, iteration by iteration.

use iced_x86::{Instruction, Mnemonic, OpKind};
use wire::{RAX, RCX, RDI, RSI, word};

use super::arithmetic::{ARITHMETIC, calculate};
use super::{has_values, load, mask, segment_base, store};
use crate::tcb::Tcb;
use crate::{memory, ring};

const FLAG_ZERO: u64 = 1 << 6;
const FLAG_DIRECTION: u64 = 1 << 10;

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

/// Bytes of values that are recorded at once.
const PIECE: usize = 4096;

/// Iterations of a string instruction that were made one after the other and are not recorded yet.
pub struct StringRun {
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
pub(super) fn execute(tcb: &mut Tcb, instruction: &Instruction) {
    let shape = string_shape(instruction);
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let short = instruction.op0_kind() as u32 == OpKind::MemorySegESI as u32
        || (0..instruction.op_count())
            .any(|at| matches!(instruction.op_kind(at), OpKind::MemorySegESI | OpKind::MemoryESEDI));
    let reach = if short { u64::from(u32::MAX) } else { u64::MAX };
    let base = segment_base(tcb, instruction);
    let backwards = tcb.registers.rflags & FLAG_DIRECTION != 0;
    let step = if backwards { (shape.bytes as u64).wrapping_neg() } else { shape.bytes as u64 };
    open_run(tcb, &shape, backwards, base, reach);
    while !repeats || tcb.registers.general[RCX] & reach != 0 {
        let [source, destination] = [RSI, RDI].map(|at| tcb.registers.general[at] & reach);
        let address = base.wrapping_add(source);
        if room(tcb) < shape.bytes {
            flush(tcb);
            open_run(tcb, &shape, backwards, base, reach);
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
                left = load(address, shape.bytes);
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

fn open_run(tcb: &mut Tcb, shape: &StringShape, backwards: bool, base: u64, reach: u64) {
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
    let run = tcb.string_run.get_or_insert_with(|| {
        alloc::boxed::Box::new(StringRun {
            source: 0,
            destination: 0,
            count: 0,
            shape: 0,
            read: [Values { bytes: [0; PIECE], length: 0 }, Values { bytes: [0; PIECE], length: 0 }],
        })
    });
    (run.source, run.destination, run.count, run.shape) = (source, destination, 0, bits);
    for values in &mut run.read {
        values.length = 0;
    }
}

/// Bytes of values for which there is room.
fn room(tcb: &Tcb) -> usize {
    tcb.string_run.as_ref().map_or(0, |run| PIECE - run.read[0].length.max(run.read[1].length))
}

/// Notes an iteration.
fn note(tcb: &mut Tcb, shape: &StringShape, source: u64, destination: u64) {
    let Some(run) = &mut tcb.string_run else { return };
    run.count += 1;
    if shape.reads_source {
        run.read[0].push(source, shape.bytes);
    }
    if shape.reads_destination {
        run.read[1].push(destination, shape.bytes);
    }
}

/// Moves as many elements as there is room for, if source and destination do not overlap. Returns
/// the number of iterations: 0 if the next one overlaps or faults.
fn move_many(tcb: &mut Tcb, shape: &StringShape, source: u64, destination: u64) -> u64 {
    let wanted = (room(tcb) / shape.bytes).min(tcb.registers.general[RCX] as usize) * shape.bytes;
    if destination.wrapping_sub(source) < wanted as u64 {
        return 0;
    }
    let Some(run) = &mut tcb.string_run else { return 0 };
    let values = &mut run.read[0];
    let start = values.length;
    let read = memory::read_bytes(source, &mut values.bytes[start..start + wanted]) / shape.bytes * shape.bytes;
    // SAFETY: the application's own writes; a fault ends the copy.
    let written = unsafe { memory::copy(destination, values.bytes[start..].as_ptr() as u64, read as u64) };
    let count = written / shape.bytes as u64;
    values.length += count as usize * shape.bytes;
    run.count += count as u32;
    let moved = count * shape.bytes as u64;
    tcb.registers.general[RSI] = source.wrapping_add(moved);
    tcb.registers.general[RDI] = destination.wrapping_add(moved);
    tcb.registers.general[RCX] -= count;
    count
}

/// Records the iterations that have been made. The handler of a fault calls this, too.
pub fn flush(tcb: &mut Tcb) {
    let Some(mut run) = tcb.string_run.take() else { return };
    if run.count > 0 && tcb.records {
        let [source, destination] = &run.read;
        let [source, destination] = [source, destination].map(|values| &values.bytes[..values.length]);
        let parts = if has_values(tcb) { [source, destination] } else { [&[][..], &[]] };
        ring::append_string(tcb, run.source, run.destination, run.count, run.shape, parts);
    }
    run.count = 0;
    tcb.string_run = Some(run);
}
