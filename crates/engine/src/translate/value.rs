//! Recorded values of memory operands. Each value is taken on its way between memory and the
//! instruction; memory is never read a second time.
//!
//! If the value passes through a register of the instruction, that register is stored. Otherwise
//! the operand is loaded into a scratch register first, which the instruction uses instead; or, if
//! it needs a memory operand, it uses a copy in the thread control block.

use iced_x86::{
    Code, Decoder, EncodingKind, FlowControl, IcedError, Instruction, MemoryOperand, Mnemonic, OpKind, Register,
};
use wire::code;

use super::data::WORD;
use super::operand::{Mask, Operand, general, wide};
use super::order::is_arithmetic;
use super::symbol::Symbol;
use super::{Spill, Translator};
use crate::tcb;

const RAX: u8 = 0;
const RCX: u8 = 1;
const RSP: u8 = 4;
const RBP: u8 = 5;

/// Scratch registers; first those whose low byte needs no REX prefix.
const CANDIDATES: [u8; 11] = [3, 2, 1, 0, 6, 7, 8, 9, 10, 11, 12];
/// As many of them have a low byte that can be encoded together with `ah` and the other high bytes.
const LEGACY: usize = 4;

/// Whether the values of an instruction can be recorded only by emulation.
pub fn is_emulated(instruction: &Instruction) -> bool {
    let is_memory = |operand| instruction.op_kind(operand) == OpKind::Memory;
    let has_high_byte = (0..instruction.op_count())
        .any(|at| instruction.op_kind(at) == OpKind::Register && is_high_byte(instruction.op_register(at)));
    match instruction.mnemonic() {
        Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsq => instruction.is_string_instruction(),
        Mnemonic::Movsd | Mnemonic::Cmpsd => instruction.is_string_instruction(),
        Mnemonic::Cmpsb | Mnemonic::Cmpsw | Mnemonic::Cmpsq => true,
        Mnemonic::Scasb | Mnemonic::Scasw | Mnemonic::Scasd | Mnemonic::Scasq => true,
        Mnemonic::Lodsb | Mnemonic::Lodsw | Mnemonic::Lodsd | Mnemonic::Lodsq => super::operand::repeats(instruction),
        Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts if is_memory(0) => {
            instruction.op1_kind() == OpKind::Register || instruction.has_lock_prefix()
        }
        Mnemonic::Movdir64b | Mnemonic::Fisttp | Mnemonic::Fbstp => true,
        Mnemonic::Fxsave | Mnemonic::Fxsave64 | Mnemonic::Fxrstor | Mnemonic::Fxrstor64 => true,
        Mnemonic::Fistp => instruction.code() == Code::Fistp_m64int,
        Mnemonic::Xadd | Mnemonic::Cmpxchg if is_memory(0) => has_high_byte,
        Mnemonic::Xchg | Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b => false,
        _ => {
            let locks = instruction.has_lock_prefix() && instruction.op_count() > 0 && is_memory(0);
            locks && !is_arithmetic(instruction)
        }
    }
}

pub(super) fn is_high_byte(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

/// The part of a general register that has this many bytes.
fn part(number: u8, bytes: usize) -> Register {
    let first = match bytes {
        1 => return LOW_BYTES[usize::from(number)],
        2 => Register::AX,
        4 => Register::EAX,
        _ => Register::RAX,
    };
    first + u32::from(number)
}

const LOW_BYTES: [Register; 16] = [
    Register::AL,
    Register::CL,
    Register::DL,
    Register::BL,
    Register::SPL,
    Register::BPL,
    Register::SIL,
    Register::DIL,
    Register::R8L,
    Register::R9L,
    Register::R10L,
    Register::R11L,
    Register::R12L,
    Register::R13L,
    Register::R14L,
    Register::R15L,
];

/// The memory operand of an instruction, `offset` bytes further on.
pub(super) fn memory(instruction: &Instruction, offset: i64) -> MemoryOperand {
    let displacement = (instruction.memory_displacement64() as i64).wrapping_add(offset);
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let size = match (base, index) {
        // Four or eight: this also says how long addresses are.
        (Register::None, _) => instruction.memory_displ_size(),
        _ if displacement == 0 => 0,
        _ => 1,
    };
    let scale = instruction.memory_index_scale();
    MemoryOperand::new(base, index, scale, displacement, size, false, instruction.segment_prefix())
}

/// The place for copies of operands in the thread's state.
fn copy(offset: usize) -> MemoryOperand {
    let displacement = i64::from(tcb::OPERAND) + offset as i64;
    MemoryOperand::new(Register::None, Register::None, 1, displacement, 8, false, Register::GS)
}

/// A field of the thread's state.
fn field(offset: u32) -> MemoryOperand {
    MemoryOperand::new(Register::None, Register::None, 1, i64::from(offset), 8, false, Register::GS)
}

/// Sizes of the pieces in which a number of bytes is moved through a general register.
fn pieces(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let size = [8, 4, 2, 1].into_iter().find(|size| at + size <= bytes)?;
        at += size;
        Some((at - size, size))
    })
}

fn load_code(bytes: usize) -> Code {
    match bytes {
        1 => Code::Movzx_r32_rm8,
        2 => Code::Movzx_r32_rm16,
        4 => Code::Mov_r32_rm32,
        _ => Code::Mov_r64_rm64,
    }
}

fn store_code(bytes: usize) -> Code {
    match bytes {
        1 => Code::Mov_rm8_r8,
        2 => Code::Mov_rm16_r16,
        4 => Code::Mov_rm32_r32,
        _ => Code::Mov_rm64_r64,
    }
}

/// How an instruction moves its memory operand.
enum Movement {
    Loaded(Register),
    Stored(Register),
    Constant(u64),
    Neither,
}

/// Classifies an instruction that only moves its memory operand.
fn movement(instruction: &Instruction) -> Movement {
    use Mnemonic::{
        Kmovb, Kmovd, Kmovq, Kmovw, Lddqu, Mov, Movapd, Movaps, Movd, Movdiri, Movdqa, Movdqu, Movntdq, Movntdqa,
        Movnti, Movntpd, Movntps, Movq, Movsd, Movss, Movsx, Movsxd, Movupd, Movups, Movzx, Vcompresspd, Vcompressps,
        Vexpandpd, Vexpandps, Vlddqu, Vmaskmovpd, Vmaskmovps, Vmovapd, Vmovaps, Vmovd, Vmovdqa, Vmovdqa32, Vmovdqa64,
        Vmovdqu, Vmovdqu8, Vmovdqu16, Vmovdqu32, Vmovdqu64, Vmovntdq, Vmovntdqa, Vmovntpd, Vmovntps, Vmovq, Vmovsd,
        Vmovss, Vmovupd, Vmovups, Vpcompressb, Vpcompressd, Vpcompressq, Vpcompressw, Vpexpandb, Vpexpandd, Vpexpandq,
        Vpexpandw, Vpmaskmovd, Vpmaskmovq,
    };
    let moves = matches!(
        instruction.mnemonic(),
        Mov | Movzx
            | Movsx
            | Movsxd
            | Movaps
            | Movups
            | Movapd
            | Movupd
            | Movdqa
            | Movdqu
            | Movss
            | Movsd
            | Movd
            | Movq
            | Movnti
            | Movdiri
            | Movntdq
            | Movntdqa
            | Movntps
            | Movntpd
            | Lddqu
            | Kmovb
            | Kmovw
            | Kmovd
            | Kmovq
            | Vmovaps
            | Vmovups
            | Vmovapd
            | Vmovupd
            | Vmovdqa
            | Vmovdqu
            | Vmovdqa32
            | Vmovdqa64
            | Vmovdqu8
            | Vmovdqu16
            | Vmovdqu32
            | Vmovdqu64
            | Vmovss
            | Vmovsd
            | Vmovd
            | Vmovq
            | Vmovntdq
            | Vmovntdqa
            | Vmovntps
            | Vmovntpd
            | Vlddqu
            | Vmaskmovps
            | Vmaskmovpd
            | Vpmaskmovd
            | Vpmaskmovq
            | Vpcompressb
            | Vpcompressw
            | Vpcompressd
            | Vpcompressq
            | Vcompressps
            | Vcompresspd
            | Vpexpandb
            | Vpexpandw
            | Vpexpandd
            | Vpexpandq
            | Vexpandps
            | Vexpandpd
    );
    if !moves && !instruction.is_vsib() {
        return Movement::Neither;
    }
    let last = instruction.op_count() - 1;
    if instruction.op0_kind() == OpKind::Register {
        let register = instruction.op0_register();
        if is_plain(register) { Movement::Loaded(register) } else { Movement::Neither }
    } else if instruction.op_kind(last) == OpKind::Register {
        let register = instruction.op_register(last);
        if is_plain(register) { Movement::Stored(register) } else { Movement::Neither }
    } else {
        Movement::Constant(instruction.immediate(last))
    }
}

/// Whether the value of a memory operand relative to rip can be recorded only if the code cache is
/// near it. Reads, moves and transfers can use an address in a register instead.
pub fn needs_near_cache(instruction: &Instruction) -> bool {
    instruction.is_ip_rel_memory_operand()
        && instruction.op0_kind() == OpKind::Memory
        && !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push)
        && instruction.flow_control() == FlowControl::Next
        && matches!(movement(instruction), Movement::Neither)
}

/// Whether a register can be stored as data.
fn is_plain(register: Register) -> bool {
    register.is_gpr() || register.is_vector_register() || register.is_k() || register.is_mm()
}

impl Translator<'_, '_> {
    /// Copies an instruction with memory operands, which have access descriptors, and records the
    /// values. If there is no encoding for that, the instruction is copied unchanged, and its
    /// values are missing.
    pub(super) fn copy_with_values(&mut self, source: &SourceInstruction, operands: &[Operand], first: usize) {
        let position = self.out.position();
        let before = (self.result.map.len(), self.data.length, self.has_app_r15);
        self.failed = false;
        self.take_values(source, operands, first);
        if self.failed {
            self.out.rewind(position);
            self.result.map.truncate(before.0);
            (self.data.length, self.has_app_r15) = (before.1, before.2);
            self.spill = Spill { segment: self.spill.segment, ..Spill::default() };
            for access in &mut self.data.accesses[first..] {
                access.value = code::NO_VALUE;
            }
            self.map_safe_point(self.pc);
            self.copy_source(source);
        }
    }

    fn take_values(&mut self, source: &SourceInstruction, operands: &[Operand], first: usize) {
        let instruction = source.instruction;
        match instruction.mnemonic() {
            Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => {
                self.value_before(first, Register::RAX, 8);
                if super::operand::repeats(instruction) {
                    self.begin_string();
                }
                self.copy_source(source);
            }
            Mnemonic::Lodsb | Mnemonic::Lodsw | Mnemonic::Lodsd | Mnemonic::Lodsq => {
                self.copy_source(source);
                self.value_after(first, part(RAX, usize::from(operands[0].size)));
            }
            Mnemonic::Enter => {
                self.value_before(first, Register::RBP, 8);
                self.copy_source(source);
            }
            Mnemonic::Leave => {
                self.copy_source(source);
                self.value_after(first, part(RBP, usize::from(operands[0].size)));
            }
            Mnemonic::Push => self.push(source, operands, first),
            Mnemonic::Pop => self.pop(source, operands, first),
            Mnemonic::Pushf | Mnemonic::Pushfq | Mnemonic::Pushfd => self.push_flags(source, first),
            Mnemonic::Popf | Mnemonic::Popfq | Mnemonic::Popfd => self.pop_flags(source, operands, first),
            Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu | Mnemonic::Maskmovq => {
                let register = instruction.op1_register();
                self.value_before(first, register, register.size());
                self.copy_source(source);
            }
            Mnemonic::Xchg => self.exchange(source, first),
            Mnemonic::Xadd => self.exchange_and_add(source, first),
            Mnemonic::Cmpxchg => self.compare_and_exchange(source, operands, first),
            Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b => self.compare_and_exchange_pair(source, first),
            _ if is_arithmetic(instruction) => self.locked_arithmetic(source, Some(first)),
            _ => match movement(instruction) {
                Movement::Loaded(register) if !is_high_byte(register) => {
                    self.copy_source(source);
                    self.value_after(first, register);
                }
                Movement::Stored(register) => {
                    self.value_before(first, register, value_bytes(register, &operands[0]));
                    self.copy_source(source);
                }
                Movement::Constant(value) => {
                    self.constant(first, value);
                    self.copy_source(source);
                }
                _ => self.copy_value(source, operands, first),
            },
        }
    }

    /// Records an operand that is neither moved to a register nor from one.
    fn copy_value(&mut self, source: &SourceInstruction, operands: &[Operand], first: usize) {
        match operands {
            [read] if !read.writes => self.read(source, read, first),
            [write] => self.write(source, write, first),
            [read, write] if !read.writes && write.writes => self.modify(source, read, first),
            _ => self.copy_source(source),
        }
    }

    /// The instruction as it is.
    fn copy_source(&mut self, source: &SourceInstruction) {
        self.copy_plain(source.instruction, source.decoder, source.bytes);
    }

    /// Records a register that will be written to memory as the value of an access. It is not
    /// stored again if it is in the data.
    fn value_before(&mut self, access: usize, register: Register, bytes: usize) {
        if let Some(number) = general(register).filter(|_| !is_high_byte(register)) {
            match self.data.symbols.get(number) {
                Symbol::Slot { offset, add: 0 } => return self.data.accesses[access].value = offset,
                Symbol::Low { offset, bytes: low } if bytes <= usize::from(low) => {
                    return self.data.accesses[access].value = offset;
                }
                Symbol::Constant(value) => return self.constant(access, value),
                _ => {}
            }
        }
        let offset = self.allocate(stored_bytes(register, bytes));
        self.data.accesses[access].value = offset;
        self.store_value(offset, register, bytes);
    }

    /// Records a register that was loaded from memory as the value of an access.
    fn value_after(&mut self, access: usize, register: Register) {
        let descriptor = &self.data.accesses[access];
        let elements = if descriptor.kind == code::PLAIN { 1 } else { usize::from(descriptor.count.max(1)) };
        let all = usize::from(descriptor.size) * elements;
        let bytes = if descriptor.kind == code::PLAIN { all } else { register.size().max(all) };
        self.map_between_safe_points();
        let offset = self.allocate(stored_bytes(register, bytes));
        self.data.accesses[access].value = offset;
        self.store_value(offset, register, bytes);
    }

    fn constant(&mut self, access: usize, value: u64) {
        self.data.accesses[access].value = code::CONSTANT;
        self.data.accesses[access].constant = value;
    }

    /// Notes that a register which was loaded from memory is equal to the recorded value.
    pub(super) fn learn_loaded(&mut self, instruction: &Instruction, first: usize) {
        let Some(access) = self.data.accesses.get(first) else { return };
        if access.value >= code::CONSTANT || access.flags & code::WRITES != 0 {
            return;
        }
        let offset = access.value;
        let (register, symbol) = match instruction.code() {
            Code::Leaveq => (RBP, Symbol::Slot { offset, add: 0 }),
            Code::Mov_r64_rm64 | Code::Pop_r64 => {
                let Some(register) = general(instruction.op0_register()) else { return };
                (register, Symbol::Slot { offset, add: 0 })
            }
            Code::Mov_r32_rm32 | Code::Movzx_r32_rm16 | Code::Movzx_r32_rm8 => {
                let Some(register) = general(instruction.op0_register()) else { return };
                (register, Symbol::Low { offset, bytes: access.size as u8 })
            }
            _ => return,
        };
        self.data.symbols.set(register, symbol);
    }

    /// Stores a general register, or a part of one.
    pub(super) fn store_general_part(&mut self, offset: u16, register: Register, bytes: usize) {
        let Some(number) = general(register) else { return };
        if number == 15 {
            // All of r15 is stored. Surplus bytes are overwritten or lie in the padding.
            return self.store_app_r15(offset, bytes);
        }
        self.require_cursor_mapped();
        if !is_high_byte(register) {
            return self.out.store_data(u32::from(offset) + WORD, bytes, number);
        }
        // `mov [r15 + …], ah` does not exist, so the value goes through another register.
        let scratch = if number == RCX { 2 } else { RCX };
        self.spill_third(scratch);
        self.encode(Instruction::with2(Code::Mov_r8_rm8, part(scratch, 1), register));
        self.out.store_data(u32::from(offset) + WORD, bytes, scratch);
        self.reload_third();
    }

    /// The application's r15 as a value.
    pub(super) fn store_app_r15(&mut self, offset: u16, bytes: usize) {
        self.require_cursor_mapped();
        self.spill_third(RCX);
        self.out.load_gs(RCX, tcb::APP_R15);
        self.out.store_data(u32::from(offset) + WORD, bytes, RCX);
        self.reload_third();
    }

    pub(super) fn spill_third(&mut self, register: u8) {
        self.out.store_gs(tcb::SCRATCH_THIRD, register);
        self.spill.third = register;
        self.map_again();
    }

    pub(super) fn reload_third(&mut self) {
        self.out.load_gs(self.spill.third, tcb::SCRATCH_THIRD);
        self.spill.third = Spill::NONE;
        self.map_again();
    }

    /// Spills a register that the instruction does not use.
    fn take_scratch(&mut self, source: &SourceInstruction, but: u8) -> u8 {
        let register = self.choose_scratch(source, but);
        self.out.store_gs(tcb::SCRATCH_RCX, register);
        self.spill.general = register;
        self.map_again();
        register
    }

    /// A register that the instruction does not use, and that is not `but`.
    fn choose_scratch(&self, source: &SourceInstruction, but: u8) -> u8 {
        let names_high = (0..source.instruction.op_count()).any(|at| {
            source.instruction.op_kind(at) == OpKind::Register && is_high_byte(source.instruction.op_register(at))
        });
        let candidates = if names_high { &CANDIDATES[..LEGACY] } else { &CANDIDATES[..] };
        let is_free = |register: u8| {
            register != but && self.data.used.iter().all(|used| general(used.register()) != Some(register))
        };
        candidates.iter().copied().find(|register| is_free(*register)).unwrap_or(CANDIDATES[0])
    }

    fn give_scratch(&mut self) {
        self.out.load_gs(self.spill.general, tcb::SCRATCH_RCX);
        self.spill.general = Spill::NONE;
        self.map_again();
    }

    /// Emits an instruction that may use the application's r15 and memory.
    fn encode_app(&mut self, instruction: Result<Instruction, IcedError>) {
        match instruction {
            Ok(instruction) => {
                self.require_app_r15_for(&instruction);
                self.failed |= !self.try_encode(&instruction);
            }
            Err(_) => self.failed = true,
        }
    }

    /// Emits an instruction that does not use r15.
    pub(super) fn encode(&mut self, instruction: Result<Instruction, IcedError>) {
        self.failed |= !instruction.is_ok_and(|instruction| self.try_encode(&instruction));
    }

    /// Emits an instruction if there is an encoding for it.
    fn try_encode(&mut self, instruction: &Instruction) -> bool {
        let here = self.out.here();
        let encoder = self.data.encoder();
        let encoded = encoder.encode(instruction, here).is_ok();
        let bytes = encoder.take_buffer();
        if encoded {
            self.out.bytes(&bytes);
        }
        encoded
    }

    /// Loads a part of a memory operand into a general register.
    fn load(&mut self, source: &SourceInstruction, register: u8, offset: usize, bytes: usize) {
        let target = part(register, bytes.max(4));
        let mut operand = memory(source.instruction, offset as i64);
        if self.is_far(source.instruction) {
            let address = source.instruction.ip_rel_memory_address();
            self.out.load_constant(register, address.wrapping_add(offset as u64));
            operand = MemoryOperand::with_base(part(register, 8));
        }
        self.encode_app(Instruction::with2(load_code(bytes), target, operand));
    }

    /// Whether the operand of an instruction is relative to rip and out of reach from here.
    fn is_far(&self, instruction: &Instruction) -> bool {
        // Leaves room for the code before the instruction that uses it.
        const REACH: u64 = (1 << 31) - (1 << 16);
        instruction.is_ip_rel_memory_operand() && instruction.ip_rel_memory_address().abs_diff(self.out.here()) > REACH
    }

    fn store_data(&mut self, offset: u16, bytes: usize, register: u8) {
        self.require_cursor_mapped();
        self.out.store_data(u32::from(offset) + WORD, bytes, register);
    }

    fn push(&mut self, source: &SourceInstruction, operands: &[Operand], first: usize) {
        let instruction = source.instruction;
        let bytes = usize::from(operands[operands.len() - 1].size);
        match instruction.op0_kind() {
            OpKind::Register if instruction.op0_register().is_gpr() => {
                self.value_before(first, instruction.op0_register(), bytes);
                self.copy_source(source);
            }
            OpKind::Memory => {
                let scratch = self.take_scratch(source, RSP);
                self.load(source, scratch, 0, bytes);
                let offset = self.allocate(bytes);
                self.store_data(offset, bytes, scratch);
                self.data.accesses[first].value = offset;
                self.data.accesses[first + 1].value = offset;
                let code = if bytes == 8 { Code::Push_r64 } else { Code::Push_r16 };
                self.encode(Instruction::with1(code, part(scratch, bytes)));
                self.map_between_safe_points();
                self.give_scratch();
            }
            OpKind::Register => {
                // A segment register.
                let scratch = self.take_scratch(source, RSP);
                let code = Code::Mov_r32m16_Sreg;
                self.encode(Instruction::with2(code, part(scratch, 4), instruction.op0_register()));
                let offset = self.allocate(bytes);
                self.store_data(offset, bytes, scratch);
                self.data.accesses[first].value = offset;
                self.give_scratch();
                self.copy_source(source);
            }
            _ => {
                self.constant(first, instruction.immediate(0));
                self.copy_source(source);
            }
        }
    }

    fn pop(&mut self, source: &SourceInstruction, operands: &[Operand], first: usize) {
        let instruction = source.instruction;
        let bytes = usize::from(operands[0].size);
        if instruction.op0_kind() == OpKind::Register {
            let register = instruction.op0_register();
            if !register.is_gpr() {
                self.failed = true;
                return;
            }
            self.copy_source(source);
            return self.value_after(first, register);
        }
        let scratch = self.take_scratch(source, RSP);
        self.load_stack(scratch, bytes);
        let offset = self.allocate(bytes);
        self.store_data(offset, bytes, scratch);
        self.data.accesses[first].value = offset;
        self.data.accesses[first + 1].value = offset;
        // The address uses the stack pointer after the pop. rsp changes only when nothing can fault
        // any more.
        let moved = if instruction.memory_base() == Register::RSP { bytes as i64 } else { 0 };
        self.encode_app(Instruction::with2(store_code(bytes), memory(instruction, moved), part(scratch, bytes)));
        self.map_between_safe_points();
        self.move_stack(bytes as i64);
        self.give_scratch();
    }

    fn load_stack(&mut self, register: u8, bytes: usize) {
        let stack = MemoryOperand::new(Register::RSP, Register::None, 1, 0, 0, false, Register::None);
        self.encode(Instruction::with2(load_code(bytes), part(register, bytes.max(4)), stack));
    }

    fn move_stack(&mut self, by: i64) {
        let moved = MemoryOperand::new(Register::RSP, Register::None, 1, by, 1, false, Register::None);
        self.encode(Instruction::with2(Code::Lea_r64_m, Register::RSP, moved));
    }

    /// Switches to the engine stack for `function`, in which nothing may fault.
    fn on_engine_stack(&mut self, function: impl FnOnce(&mut Self)) {
        self.map_between_safe_points();
        self.out.store_gs(tcb::SCRATCH_THIRD, RSP);
        self.out.load_gs(RSP, tcb::ENGINE_STACK);
        function(self);
        self.out.load_gs(RSP, tcb::SCRATCH_THIRD);
    }

    fn push_flags(&mut self, source: &SourceInstruction, first: usize) {
        let bytes = usize::from(self.data.accesses[first].size);
        let scratch = self.take_scratch(source, RSP);
        self.on_engine_stack(|this| {
            this.encode(Ok(Instruction::with(Code::Pushfq)));
            this.encode(Instruction::with1(Code::Pop_r64, wide(scratch)));
        });
        let offset = self.allocate(bytes);
        self.store_data(offset, bytes, scratch);
        self.data.accesses[first].value = offset;
        self.give_scratch();
        self.map_safe_point(self.pc);
        self.copy_source(source);
    }

    fn pop_flags(&mut self, source: &SourceInstruction, operands: &[Operand], first: usize) {
        let bytes = usize::from(operands[0].size);
        let scratch = self.take_scratch(source, RSP);
        self.load_stack(scratch, bytes);
        let offset = self.allocate(bytes);
        self.store_data(offset, bytes, scratch);
        self.data.accesses[first].value = offset;
        let (push, code) = match bytes {
            8 => (Code::Push_r64, Code::Popfq),
            _ => (Code::Push_r16, Code::Popfw),
        };
        self.on_engine_stack(|this| {
            this.encode(Instruction::with1(push, part(scratch, bytes)));
            this.encode(Ok(Instruction::with(code)));
        });
        self.move_stack(bytes as i64);
        self.give_scratch();
    }

    fn exchange(&mut self, source: &SourceInstruction, first: usize) {
        let instruction = source.instruction;
        let at = if instruction.op0_kind() == OpKind::Register { 0 } else { 1 };
        let register = instruction.op_register(at);
        self.value_before(first + 1, register, register.size());
        self.copy_source(source);
        self.value_after(first, register);
    }

    fn exchange_and_add(&mut self, source: &SourceInstruction, first: usize) {
        let register = source.instruction.op1_register();
        let Some(number) = general(register) else { return };
        let bytes = register.size();
        let scratch = self.take_scratch(source, number);
        self.encode_app(Instruction::with2(Code::Mov_r64_rm64, wide(scratch), wide(number)));
        self.copy_source(source);
        self.value_after(first, register);
        self.add_to(scratch, Addend::Register(number));
        let offset = self.allocate(bytes);
        self.store_data(offset, bytes, scratch);
        self.data.accesses[first + 1].value = offset;
        self.give_scratch();
    }

    /// Adds to a scratch register without a change of flags.
    fn add_to(&mut self, scratch: u8, addend: Addend) {
        let (index, displacement) = match addend {
            Addend::Register(register) => (wide(register), 0),
            Addend::Constant(value) => (Register::None, value),
        };
        let size = if displacement == 0 { 0 } else { 1 };
        let sum = MemoryOperand::new(wide(scratch), index, 1, displacement, size, false, Register::None);
        self.encode_app(Instruction::with2(Code::Lea_r64_m, wide(scratch), sum));
    }

    /// Replaces a locked `add`, `sub`, `inc`, `dec` or `or` with 0 by `lock xadd` with a scratch
    /// register, followed by the same arithmetic on that register for the flags. With `first`,
    /// values are recorded for the accesses from there on.
    pub(super) fn locked_arithmetic(&mut self, source: &SourceInstruction, first: Option<usize>) {
        let instruction = source.instruction;
        let bytes = instruction.memory_size().size();
        let keeps_carry = matches!(instruction.mnemonic(), Mnemonic::Inc | Mnemonic::Dec);
        let scratch = self.take_scratch(source, RSP);
        self.load_addend(instruction, scratch);
        if keeps_carry {
            self.encode(Instruction::with1(Code::Setb_rm8, field(tcb::ORDER_CARRY)));
        }
        self.locked_exchange_and_add(source, scratch, bytes);
        self.map_between_safe_points();
        self.out.store_gs(tcb::ORDER_OLD, scratch);
        let values = first.map(|first| (first, [bytes, bytes].map(|bytes| self.allocate(bytes))));
        if let Some((first, [old, new])) = values {
            self.store_data(old, bytes, scratch);
            self.data.accesses[first].value = old;
            self.data.accesses[first + 1].value = new;
        }
        if keeps_carry {
            self.encode(Instruction::with2(Code::Bt_rm32_imm8, field(tcb::ORDER_CARRY), 0));
        }
        let changed = with_register(instruction, part(scratch, bytes)).map(|mut changed| {
            changed.set_has_lock_prefix(false);
            changed
        });
        match changed {
            Some(changed) => self.encode_app(Ok(changed)),
            None => self.failed = true,
        }
        self.out.store_gs(tcb::ORDER_LEFT, scratch);
        if let Some((_, [_, new])) = values {
            self.store_data(new, bytes, scratch);
        }
        self.give_scratch();
    }

    /// Loads what a locked instruction adds into a scratch register.
    fn load_addend(&mut self, instruction: &Instruction, scratch: u8) {
        let negative = matches!(instruction.mnemonic(), Mnemonic::Sub | Mnemonic::Dec);
        let constant = match (instruction.op_count(), instruction.op1_kind()) {
            (1, _) => 1,
            (_, OpKind::Register) => {
                let Some(number) = general(instruction.op1_register()) else { return self.failed = true };
                self.encode_app(Instruction::with2(Code::Mov_r64_rm64, wide(scratch), wide(number)));
                if negative {
                    self.encode(Instruction::with1(Code::Not_rm64, wide(scratch)));
                    self.add_to(scratch, Addend::Constant(1));
                }
                return;
            }
            _ => instruction.immediate(1) as i64,
        };
        let constant = if negative { constant.wrapping_neg() } else { constant };
        self.encode(Instruction::with2(Code::Mov_r64_imm64, wide(scratch), constant));
    }

    /// `lock xadd` of a scratch register and the memory operand of an instruction.
    fn locked_exchange_and_add(&mut self, source: &SourceInstruction, scratch: u8, bytes: usize) {
        let code = match bytes {
            1 => Code::Xadd_rm8_r8,
            2 => Code::Xadd_rm16_r16,
            4 => Code::Xadd_rm32_r32,
            _ => Code::Xadd_rm64_r64,
        };
        let is_far = self.is_far(source.instruction);
        let mut place = memory(source.instruction, 0);
        if is_far {
            let register = super::free_register(source.instruction, scratch);
            self.spill_third(register);
            self.out.load_constant(register, source.instruction.ip_rel_memory_address());
            place = MemoryOperand::with_base(wide(register));
        }
        let exchanged = Instruction::with2(code, place, part(scratch, bytes));
        self.encode_app(exchanged.map(|mut exchanged| {
            exchanged.set_has_lock_prefix(true);
            exchanged
        }));
        if is_far {
            self.map_between_safe_points();
            self.reload_third();
        }
    }

    fn compare_and_exchange(&mut self, source: &SourceInstruction, operands: &[Operand], first: usize) {
        let bytes = usize::from(operands[0].size);
        let Some(number) = general(source.instruction.op1_register()) else { return };
        let scratch = self.take_scratch(source, number);
        self.copy_source(source);
        self.value_after(first, part(RAX, bytes));
        // A failed `cmpxchg` writes the value that it has read.
        self.encode_app(Instruction::with2(Code::Mov_r64_rm64, wide(scratch), wide(number)));
        self.encode(Instruction::with2(Code::Cmovne_r64_rm64, wide(scratch), Register::RAX));
        let offset = self.allocate(bytes);
        self.store_data(offset, bytes, scratch);
        self.data.accesses[first + 1].value = offset;
        self.give_scratch();
    }

    fn compare_and_exchange_pair(&mut self, source: &SourceInstruction, first: usize) {
        const RDX: u8 = 2;
        const RBX: u8 = 3;
        let half = usize::from(self.data.accesses[first].size) / 2;
        let scratch = self.take_scratch(source, RSP);
        self.copy_source(source);
        self.map_between_safe_points();
        let [old, new] = [2 * half, 2 * half].map(|bytes| self.allocate(bytes));
        for (index, (was, wanted)) in [(RAX, RBX), (RDX, RCX)].into_iter().enumerate() {
            let offset = (index * half) as u16;
            self.store_data(old + offset, half, was);
            self.encode(Instruction::with2(Code::Mov_r64_rm64, wide(scratch), wide(wanted)));
            self.encode(Instruction::with2(Code::Cmovne_r64_rm64, wide(scratch), wide(was)));
            self.store_data(new + offset, half, scratch);
        }
        self.data.accesses[first].value = old;
        self.data.accesses[first + 1].value = new;
        self.give_scratch();
    }

    /// Records an operand that is only read: through a general register, a vector register, or a
    /// copy.
    fn read(&mut self, source: &SourceInstruction, operand: &Operand, first: usize) {
        let bytes = usize::from(operand.size);
        let is_single = matches!(operand.kind, code::PLAIN | code::ANY);
        if is_single && bytes <= 8 {
            for width in [bytes, 4, 8] {
                if let Some(scratch) = self.replaced(source, |scratch| part(scratch, width)) {
                    return self.read_general(source, scratch, bytes, first);
                }
            }
        }
        let all = if is_single { bytes } else { usize::from(operand.bytes()) };
        let register = vector_of(self.free_vector(source), all);
        let masked = operand.mask != Mask::None && !is_single;
        let loads = matches!(all, 4 | 8 | 16 | 32 | 64) && !source.instruction.is_broadcast();
        if loads
            && !self.is_far(source.instruction)
            && let Some(replaced) = with_register(source.instruction, register)
            && self.encodes(&replaced)
        {
            return self.read_vector(source, operand, register, replaced, first);
        }
        if masked {
            self.failed = true;
            return;
        }
        self.read_copy(source, bytes, first);
    }

    /// The instruction with its memory operand replaced by the register that `name` makes of the
    /// scratch register, if that exists.
    fn replaced(&mut self, source: &SourceInstruction, name: impl Fn(u8) -> Register) -> Option<Instruction> {
        let scratch = self.choose_scratch(source, RSP);
        let replaced = with_register(source.instruction, name(scratch))?;
        self.encodes(&replaced).then_some(replaced)
    }

    fn encodes(&mut self, instruction: &Instruction) -> bool {
        let here = self.out.here();
        let encoder = self.data.encoder();
        let encoded = encoder.encode(instruction, here).is_ok();
        drop(encoder.take_buffer());
        encoded
    }

    fn read_general(&mut self, source: &SourceInstruction, replaced: Instruction, bytes: usize, first: usize) {
        let scratch = self.take_scratch(source, RSP);
        self.load(source, scratch, 0, bytes);
        let offset = self.allocate(bytes);
        self.store_data(offset, bytes, scratch);
        self.data.accesses[first].value = offset;
        self.encode_app(Ok(replaced));
        self.map_between_safe_points();
        self.give_scratch();
    }

    /// A vector register that the instruction does not use, by number.
    fn free_vector(&self, _source: &SourceInstruction) -> u8 {
        let is_free = |number: u8| {
            let full = Register::ZMM0 + u32::from(number);
            self.data.used.iter().all(|used| used.register().full_register() != full)
        };
        (0..16).rev().find(|number| is_free(*number)).unwrap_or(15)
    }

    fn read_vector(
        &mut self,
        source: &SourceInstruction,
        operand: &Operand,
        register: Register,
        replaced: Instruction,
        first: usize,
    ) {
        let bytes = if operand.kind == code::ANY { usize::from(operand.size) } else { usize::from(operand.bytes()) };
        let number = register.number() as u8;
        self.spill_vector(number, bytes);
        self.encode_app(load_vector(source.instruction, operand, register));
        let offset = self.allocate(bytes);
        self.store_value(offset, register, bytes);
        self.data.accesses[first].value = offset;
        self.encode_app(Ok(replaced));
        self.map_between_safe_points();
        self.reload_vector(number, bytes);
    }

    /// Bytes to save of a vector register whose low bytes are used. VEX and EVEX instructions clear
    /// the bytes above.
    fn saved_bytes(&self, bytes: usize) -> usize {
        match bytes {
            ..=16 => 16,
            _ if self.options.has_avx512 => 64,
            _ => 32,
        }
    }

    fn spill_vector(&mut self, number: u8, bytes: usize) {
        let saved = self.saved_bytes(bytes);
        self.encode(move_vector(vector_of(number, saved), saved, true));
        self.spill.vector = number;
        self.map_again();
    }

    fn reload_vector(&mut self, number: u8, bytes: usize) {
        let saved = self.saved_bytes(bytes);
        self.encode(move_vector(vector_of(number, saved), saved, false));
        self.spill.vector = Spill::NONE;
        self.map_again();
    }

    /// Lets the instruction use a copy of its operand.
    fn read_copy(&mut self, source: &SourceInstruction, bytes: usize, first: usize) {
        if bytes > tcb::OPERAND_BYTES {
            self.failed = true;
            return;
        }
        let scratch = self.take_scratch(source, RSP);
        let offset = self.allocate(bytes);
        for (at, size) in pieces(bytes) {
            self.load(source, scratch, at, size);
            self.store_data(offset + at as u16, size, scratch);
            self.encode_app(Instruction::with2(store_code(size), copy(at), part(scratch, size)));
        }
        self.data.accesses[first].value = offset;
        self.give_scratch();
        self.encode_app(Ok(with_copy(source.instruction)));
        self.map_between_safe_points();
    }

    /// Records an operand that an instruction computes and writes: it is executed twice, first into
    /// a copy.
    fn write(&mut self, source: &SourceInstruction, operand: &Operand, first: usize) {
        let instruction = source.instruction;
        let bytes = usize::from(operand.bytes());
        if bytes > tcb::OPERAND_BYTES || !matches!(operand.kind, code::PLAIN | code::MASKED) {
            self.failed = true;
            return;
        }
        self.map_between_safe_points();
        let mut first_time = with_copy(instruction);
        let (store_without_pop, undo) = store_without_pop(instruction.code());
        first_time.set_code(store_without_pop);
        self.encode_app(Ok(first_time));
        if let Some(code) = undo {
            let mut undo = with_copy(instruction);
            undo.set_code(code);
            self.encode(Ok(undo));
        }
        let scratch = self.take_scratch(source, RSP);
        let offset = self.allocate(bytes);
        for (at, size) in pieces(bytes) {
            let target = part(scratch, size.max(4));
            self.encode(Instruction::with2(load_code(size), target, copy(at)));
            self.store_data(offset + at as u16, size, scratch);
        }
        self.data.accesses[first].value = offset;
        self.give_scratch();
        self.map_safe_point(self.pc);
        self.copy_source(source);
    }

    /// Records an operand that is read, modified and written without a lock, in a register.
    fn modify(&mut self, source: &SourceInstruction, operand: &Operand, first: usize) {
        let instruction = source.instruction;
        let bytes = usize::from(operand.size);
        if bytes > 8 || operand.kind != code::PLAIN {
            self.failed = true;
            return;
        }
        let scratch = self.choose_scratch(source, RAX);
        let Some(changed) = with_register(instruction, part(scratch, bytes)) else {
            self.failed = true;
            return;
        };
        let scratch = self.take_scratch(source, RAX);
        self.load(source, scratch, 0, bytes);
        let [old, new] = [bytes, bytes].map(|bytes| self.allocate(bytes));
        self.store_data(old, bytes, scratch);
        if instruction.rflags_modified() != 0 {
            self.save_flags();
        }
        self.encode_app(Ok(changed));
        self.store_data(new, bytes, scratch);
        self.encode_app(Instruction::with2(store_code(bytes), memory(instruction, 0), part(scratch, bytes)));
        self.spill.flags = false;
        self.map_between_safe_points();
        self.data.accesses[first].value = old;
        self.data.accesses[first + 1].value = new;
        self.give_scratch();
    }

    /// Saves the flags before the instruction, in case its store faults.
    fn save_flags(&mut self) {
        self.map_between_safe_points();
        self.out.store_gs(tcb::SCRATCH_THIRD, RAX);
        self.out.bytes(&[0x9f]); // lahf
        self.out.bytes(&[0x0f, 0x90, 0xc0]); // seto al
        self.out.store_gs(tcb::FLAGS, RAX);
        self.out.load_gs(RAX, tcb::SCRATCH_THIRD);
        self.spill.flags = true;
        self.map_safe_point(self.pc);
    }
}

/// An instruction of the application, with its decoder and bytes.
pub(super) struct SourceInstruction<'a, 'd> {
    pub instruction: &'a Instruction,
    pub decoder: &'a Decoder<'d>,
    pub bytes: &'a [u8],
}

enum Addend {
    Register(u8),
    Constant(i64),
}

/// An instruction that stores the same value without a pop, or with an instruction that undoes the
/// pop.
fn store_without_pop(code: Code) -> (Code, Option<Code>) {
    match code {
        Code::Fstp_m32fp => (Code::Fst_m32fp, None),
        Code::Fstp_m64fp => (Code::Fst_m64fp, None),
        Code::Fstp_m80fp => (code, Some(Code::Fld_m80fp)),
        Code::Fistp_m16int => (Code::Fist_m16int, None),
        Code::Fistp_m32int => (Code::Fist_m32int, None),
        Code::Fnstenv_m14byte => (code, Some(Code::Fldenv_m14byte)),
        Code::Fnstenv_m28byte => (code, Some(Code::Fldenv_m28byte)),
        Code::Fnsave_m94byte => (code, Some(Code::Frstor_m94byte)),
        Code::Fnsave_m108byte => (code, Some(Code::Frstor_m108byte)),
        _ => (code, None),
    }
}

/// Bytes that are stored of a register for an operand.
fn value_bytes(register: Register, operand: &Operand) -> usize {
    match operand.kind {
        code::PLAIN => usize::from(operand.size),
        _ => register.size().max(usize::from(operand.bytes())),
    }
}

/// Bytes that storing so many bytes of a register takes: mask registers are stored whole.
fn stored_bytes(register: Register, bytes: usize) -> usize {
    if register.is_k() { 8 } else { bytes }
}

/// The vector register with this number that has at least so many bytes.
fn vector_of(number: u8, bytes: usize) -> Register {
    let first = match bytes {
        ..=16 => Register::XMM0,
        32 => Register::YMM0,
        _ => Register::ZMM0,
    };
    first + u32::from(number)
}

/// The instruction with a register in place of its memory operand.
fn with_register(instruction: &Instruction, register: Register) -> Option<Instruction> {
    let mut changed = *instruction;
    let at = (0..instruction.op_count()).find(|&at| instruction.op_kind(at) == OpKind::Memory)?;
    changed.set_op_kind(at, OpKind::Register);
    changed.set_op_register(at, register);
    changed.set_segment_prefix(Register::None);
    if matches!(instruction.mnemonic(), Mnemonic::Insertps | Mnemonic::Vinsertps) {
        // With a register, the top bits choose one of its elements.
        changed.set_immediate8(instruction.immediate8() & 0x3f);
    }
    Some(changed)
}

/// The instruction with the copy in the thread's state as its memory operand.
fn with_copy(instruction: &Instruction) -> Instruction {
    let mut changed = *instruction;
    changed.set_memory_base(Register::None);
    changed.set_memory_index(Register::None);
    changed.set_memory_index_scale(1);
    changed.set_memory_displacement64(u64::from(tcb::OPERAND));
    changed.set_memory_displ_size(8);
    changed.set_segment_prefix(Register::GS);
    changed
}

/// Saves a vector register in the thread's state, or restores it.
fn move_vector(register: Register, bytes: usize, save: bool) -> Result<Instruction, IcedError> {
    let place =
        MemoryOperand::new(Register::None, Register::None, 1, i64::from(tcb::SCRATCH_VECTOR), 4, false, Register::GS);
    let (store, load) = match bytes {
        16 => (Code::Movups_xmmm128_xmm, Code::Movups_xmm_xmmm128),
        32 => (Code::VEX_Vmovups_ymmm256_ymm, Code::VEX_Vmovups_ymm_ymmm256),
        _ => (Code::EVEX_Vmovups_zmmm512_k1z_zmm, Code::EVEX_Vmovups_zmm_k1z_zmmm512),
    };
    if save { Instruction::with2(store, place, register) } else { Instruction::with2(load, register, place) }
}

/// Loads the memory operand of an instruction into a vector register, with the faults that the
/// instruction would have.
fn load_vector(instruction: &Instruction, operand: &Operand, register: Register) -> Result<Instruction, IcedError> {
    let bytes = if operand.kind == code::ANY { usize::from(operand.size) } else { usize::from(operand.bytes()) };
    let place = memory(instruction, 0);
    if let Mask::Bits(mask) = operand.mask
        && operand.kind != code::ANY
    {
        let mut load = Instruction::with2(masked_load(operand, bytes), register, place)?;
        load.set_op_mask(mask);
        load.set_zeroing_masking(true);
        return Ok(load);
    }
    let is_legacy = instruction.encoding() == EncodingKind::Legacy;
    let tolerates = matches!(
        instruction.mnemonic(),
        Mnemonic::Pcmpestri | Mnemonic::Pcmpestrm | Mnemonic::Pcmpistri | Mnemonic::Pcmpistrm
    );
    let code = match bytes {
        4 => Code::Movss_xmm_xmmm32,
        8 => Code::Movsd_xmm_xmmm64,
        16 if is_legacy && !tolerates => Code::Movaps_xmm_xmmm128,
        16 => Code::Movups_xmm_xmmm128,
        32 => Code::VEX_Vmovups_ymm_ymmm256,
        _ => Code::EVEX_Vmovups_zmm_k1z_zmmm512,
    };
    Instruction::with2(code, register, place)
}

fn masked_load(operand: &Operand, bytes: usize) -> Code {
    match (operand.size, bytes, operand.count) {
        (4, _, 1) => Code::EVEX_Vmovss_xmm_k1z_m32,
        (8, _, 1) => Code::EVEX_Vmovsd_xmm_k1z_m64,
        (1, ..=16, _) => Code::EVEX_Vmovdqu8_xmm_k1z_xmmm128,
        (1, 32, _) => Code::EVEX_Vmovdqu8_ymm_k1z_ymmm256,
        (1, ..) => Code::EVEX_Vmovdqu8_zmm_k1z_zmmm512,
        (2, ..=16, _) => Code::EVEX_Vmovdqu16_xmm_k1z_xmmm128,
        (2, 32, _) => Code::EVEX_Vmovdqu16_ymm_k1z_ymmm256,
        (2, ..) => Code::EVEX_Vmovdqu16_zmm_k1z_zmmm512,
        (4, ..=16, _) => Code::EVEX_Vmovdqu32_xmm_k1z_xmmm128,
        (4, 32, _) => Code::EVEX_Vmovdqu32_ymm_k1z_ymmm256,
        (4, ..) => Code::EVEX_Vmovdqu32_zmm_k1z_zmmm512,
        (_, ..=16, _) => Code::EVEX_Vmovdqu64_xmm_k1z_xmmm128,
        (_, 32, _) => Code::EVEX_Vmovdqu64_ymm_k1z_ymmm256,
        _ => Code::EVEX_Vmovdqu64_zmm_k1z_zmmm512,
    }
}
