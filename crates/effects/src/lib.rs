//! What an instruction reads and writes: registers, flags and memory.
//!
//! An [`Analyser`] takes a decoded instruction and returns its [`Effects`]. These describe the
//! values that one instruction passes to another, for data dependences. So registers are whole:
//! `al`, `ax`, `eax` and `rax` are one [`Register`], as are `xmm0`, `ymm0` and `zmm0`.
//!
//! - An instruction that keeps a part of a register also reads the register: writes of 8 or 16
//!   bits, conditional moves, merging masks.
//! - An instruction whose result does not depend on a register (`xor eax, eax`) does not read it.
//! - Left out are `rip`, segment registers, the control bits of x87 and SSE (`mxcsr`), and state
//!   that only an operating system sees.
//!
//! `segment` uses this crate for chains of dependences. The engine does not, so that an edit here
//! does not rebuild the engine image. Knows nothing of blocks, processes and files.

use std::fmt;
use std::num::NonZeroU8;

use iced_x86::{
    self as iced, Instruction, InstructionInfo, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, RflagsBits,
    UsedMemory, UsedRegister,
};

/// Most memory operands that [`Effects`] hold. Only far calls through memory, `iret` and `enter`
/// with nesting levels have more; the others are left out.
const OPERANDS_MAX: usize = 2;

/// A register as a whole, or a group of flags that are mostly written together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(NonZeroU8);

impl Register {
    /// The number of registers: [`Self::index`] is below it.
    pub const COUNT: usize = 61;

    pub const RAX: Self = Self::general(0);
    pub const RSP: Self = Self::general(4);
    pub const RBP: Self = Self::general(5);
    /// The carry flag, which `inc` and `dec` keep.
    pub const CARRY: Self = Self::at(56);
    /// The overflow flag, which `adcx` and rotations keep or write without the others.
    pub const OVERFLOW: Self = Self::at(57);
    /// The sign, zero, adjust and parity flags.
    pub const STATUS: Self = Self::at(58);
    /// The direction flag.
    pub const DIRECTION: Self = Self::at(59);
    /// All of x87 and MMX, with the condition codes.
    pub const X87: Self = Self::at(60);

    /// One of the 16 general purpose registers by its number in machine code.
    #[must_use]
    pub const fn general(number: u8) -> Self {
        Self::at(number & 15)
    }

    /// One of the 32 vector registers.
    #[must_use]
    pub const fn vector(number: u8) -> Self {
        Self::at(16 + (number & 31))
    }

    /// One of the 8 mask registers of AVX-512.
    #[must_use]
    pub const fn mask(number: u8) -> Self {
        Self::at(48 + (number & 7))
    }

    /// The position of the register in a table of [`Self::COUNT`] entries.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    const fn at(index: u8) -> Self {
        Self(NonZeroU8::MIN.saturating_add(index))
    }

    /// Returns the whole register, or `None` for those that [`Effects`] leave out.
    fn of(register: iced::Register) -> Option<Self> {
        let full = register.full_register();
        let number = full.number() as u8;
        match full {
            _ if full.is_gpr64() => Some(Self::general(number)),
            _ if full.is_vector_register() => Some(Self::vector(number)),
            _ if full.is_k() => Some(Self::mask(number)),
            _ if full.is_st() || full.is_mm() => Some(Self::X87),
            _ => None,
        }
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GENERAL: [&str; 16] = [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
            "r15",
        ];
        const OTHERS: [&str; 5] = ["carry", "overflow", "status", "direction", "x87"];
        match self.index() {
            index @ 0..16 => f.write_str(GENERAL[index]),
            index @ 16..48 => write!(f, "zmm{}", index - 16),
            index @ 48..56 => write!(f, "k{}", index - 48),
            index => f.write_str(OTHERS[index - 56]),
        }
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A set of registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegisterSet(u64);

impl RegisterSet {
    pub const NONE: Self = Self(0);

    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    #[inline]
    pub const fn contains(self, register: Register) -> bool {
        self.0 >> register.index() & 1 != 0
    }

    /// Returns the set with this register added.
    #[must_use]
    #[inline]
    pub const fn with(self, register: Register) -> Self {
        Self(self.0 | 1 << register.index())
    }

    /// Returns the set with this register removed.
    #[must_use]
    #[inline]
    pub const fn without(self, register: Register) -> Self {
        Self(self.0 & !(1 << register.index()))
    }

    /// Iterates the registers in the order of [`Register::index`].
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Register> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let lowest = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (lowest < u64::BITS).then(|| Register::at(lowest as u8))
        })
    }

    fn insert(&mut self, register: Register) {
        *self = self.with(register);
    }
}

impl fmt::Debug for RegisterSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// How an instruction accesses a memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperandAccess {
    Read,
    Write,
    /// A read and then a write.
    ReadWrite,
}

/// The segment base that an address is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentBase {
    /// Any segment but fs and gs: its base is 0 in 64-bit code.
    Flat,
    Fs,
    Gs,
}

/// A memory operand and how it is accessed. Its address is `segment: base + index * scale +
/// displacement`, with the values that the registers have before the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryOperand {
    /// The address itself if there is no base, as with addresses relative to `rip`.
    pub displacement: i64,
    /// Size in bytes; that of one element if the instruction repeats or gathers; 0 if it depends on
    /// the processor (`xsave`).
    pub size: u16,
    pub base: Option<Register>,
    /// A vector register if the instruction gathers or scatters.
    pub index: Option<Register>,
    pub scale: u8,
    pub segment: SegmentBase,
    pub access: OperandAccess,
    /// Whether the access always takes place: no condition, no mask, no count that may be 0.
    pub is_certain: bool,
}

impl MemoryOperand {
    #[must_use]
    #[inline]
    pub fn reads(&self) -> bool {
        self.access != OperandAccess::Write
    }

    #[must_use]
    #[inline]
    pub fn writes(&self) -> bool {
        self.access != OperandAccess::Read
    }

    /// `whole` is the operand size of the instruction, for operands whose own size is not known.
    fn of(used: &UsedMemory, whole: usize) -> Option<Self> {
        let (access, is_certain) = match used.access() {
            OpAccess::Read => (OperandAccess::Read, true),
            OpAccess::CondRead => (OperandAccess::Read, false),
            OpAccess::Write => (OperandAccess::Write, true),
            OpAccess::CondWrite => (OperandAccess::Write, false),
            OpAccess::ReadWrite => (OperandAccess::ReadWrite, true),
            OpAccess::ReadCondWrite => (OperandAccess::ReadWrite, false),
            OpAccess::None | OpAccess::NoMemAccess => return None,
        };
        let segment = match used.segment() {
            iced::Register::FS => SegmentBase::Fs,
            iced::Register::GS => SegmentBase::Gs,
            _ => SegmentBase::Flat,
        };
        let size = used.memory_size().size();
        let size = u16::try_from(if size == 0 { whole } else { size }).unwrap_or(u16::MAX);
        let (base, index) = (Register::of(used.base()), Register::of(used.index()));
        let displacement = used.displacement() as i64;
        Some(Self { displacement, size, base, index, scale: used.scale() as u8, segment, access, is_certain })
    }
}

/// An instruction that sets a 64-bit register to another one, or to itself, plus a constant: `mov`,
/// `lea`, `add`, `sub`, `inc`, `dec`, and the stack pointer in `push`, `pop`, `call`, `ret`,
/// `enter` and `leave`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Increment {
    pub to: Register,
    pub from: Register,
    pub by: i32,
}

/// What an instruction reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Effects {
    /// Registers that are read, those in addresses included.
    pub reads: RegisterSet,
    pub writes: RegisterSet,
    /// The constant by which one of the written registers differs from a register before.
    pub increment: Option<Increment>,
    operands: [Option<MemoryOperand>; OPERANDS_MAX],
}

impl Effects {
    /// The effects of a `nop`.
    pub const NONE: Self =
        Self { reads: RegisterSet::NONE, writes: RegisterSet::NONE, increment: None, operands: [None; OPERANDS_MAX] };

    /// The memory operands, in no order: the instruction reads all of them before it writes any.
    #[inline]
    pub fn memory(&self) -> impl Iterator<Item = &MemoryOperand> {
        self.operands.iter().flatten()
    }

    fn add_register(&mut self, used: &UsedRegister) {
        let Some(register) = Register::of(used.register()) else { return };
        let (reads, writes) = match used.access() {
            OpAccess::None | OpAccess::NoMemAccess => (false, false),
            OpAccess::Read | OpAccess::CondRead => (true, false),
            OpAccess::Write => (is_part(used.register()), true),
            OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
        };
        if reads {
            self.reads.insert(register);
        }
        if writes {
            self.writes.insert(register);
        }
    }

    fn add_memory(&mut self, instruction: &Instruction, info: &InstructionInfo) {
        let whole = instruction.memory_size().size();
        let memory = info.used_memory().iter().filter_map(|used| MemoryOperand::of(used, whole));
        for (operand, memory) in self.operands.iter_mut().zip(memory) {
            *operand = Some(memory);
        }
    }

    fn add_flags(&mut self, instruction: &Instruction) {
        // Undefined flags are not results. C1 is left out, because every x87 instruction writes it.
        const GROUPS: [(u32, Register); 5] = [
            (RflagsBits::CF, Register::CARRY),
            (RflagsBits::OF, Register::OVERFLOW),
            (RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF, Register::STATUS),
            (RflagsBits::DF, Register::DIRECTION),
            (RflagsBits::C0 | RflagsBits::C2 | RflagsBits::C3, Register::X87),
        ];
        let (read, modified) = (instruction.rflags_read(), instruction.rflags_modified());
        let defined = modified & !instruction.rflags_undefined();
        for (flags, register) in GROUPS {
            let is_written = defined & flags != 0;
            if is_written {
                self.writes.insert(register);
            }
            if read & flags != 0 || is_written && modified & flags != flags {
                self.reads.insert(register);
            }
        }
    }

    fn add_x87(&mut self, instruction: &Instruction) {
        if instruction.fpu_stack_increment_info().writes_top() {
            self.writes.insert(Register::X87);
        }
        if self.writes.contains(Register::X87) {
            self.reads.insert(Register::X87);
        }
    }
}

/// Returns the effects of one instruction after the other. It keeps its memory between them.
#[derive(Debug)]
pub struct Analyser {
    factory: InstructionInfoFactory,
}

impl Default for Analyser {
    fn default() -> Self {
        Self::new()
    }
}

impl Analyser {
    #[must_use]
    pub fn new() -> Self {
        Self { factory: InstructionInfoFactory::new() }
    }

    /// Returns what `instruction` reads and writes: nothing if it is not valid.
    #[must_use]
    pub fn analyse(&mut self, instruction: &Instruction) -> Effects {
        let mut effects = Effects::NONE;
        match instruction.mnemonic() {
            // `vzeroupper` keeps the lower halves, so no later instruction waits for it.
            Mnemonic::Vzeroupper | Mnemonic::Nop => return effects,
            // The number and the result of the system call: the kernel uses them, not the
            // processor.
            Mnemonic::Syscall => {
                effects.reads.insert(Register::RAX);
                effects.writes.insert(Register::RAX);
            }
            _ => {}
        }
        let info = self.factory.info(instruction);
        info.used_registers().iter().for_each(|used| effects.add_register(used));
        effects.add_memory(instruction, info);
        effects.add_flags(instruction);
        effects.add_x87(instruction);
        if let Some(register) = compared_with_itself(instruction) {
            effects.reads = effects.reads.without(register);
        }
        effects.increment = increment(instruction);
        effects
    }
}

/// Returns the vector register that an instruction compares with itself, so that the result is
/// constant. `iced_x86` knows the other instructions of this kind, which are no comparisons.
fn compared_with_itself(instruction: &Instruction) -> Option<Register> {
    let (one, other) = match instruction.mnemonic() {
        Mnemonic::Pcmpeqb | Mnemonic::Pcmpeqw | Mnemonic::Pcmpeqd | Mnemonic::Pcmpeqq => (0, 1),
        Mnemonic::Pcmpgtb | Mnemonic::Pcmpgtw | Mnemonic::Pcmpgtd | Mnemonic::Pcmpgtq => (0, 1),
        Mnemonic::Vpcmpeqb | Mnemonic::Vpcmpeqw | Mnemonic::Vpcmpeqd | Mnemonic::Vpcmpeqq => (1, 2),
        Mnemonic::Vpcmpgtb | Mnemonic::Vpcmpgtw | Mnemonic::Vpcmpgtd | Mnemonic::Vpcmpgtq => (1, 2),
        _ => return None,
    };
    let (one, other) = (instruction.op_register(one), instruction.op_register(other));
    if one == other && one.is_vector_register() { Register::of(one) } else { None }
}

/// Whether a write to `register` keeps the rest of the whole register.
fn is_part(register: iced::Register) -> bool {
    register.is_gpr8() || register.is_gpr16()
}

fn increment(instruction: &Instruction) -> Option<Increment> {
    let to = instruction.op0_register();
    let own = |by| increment_of(to, to, by);
    match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushf | Mnemonic::Pushfq | Mnemonic::Call | Mnemonic::Enter => {
            stack_increment(instruction)
        }
        Mnemonic::Pop if to != iced::Register::RSP => stack_increment(instruction),
        Mnemonic::Popf | Mnemonic::Popfq | Mnemonic::Ret => stack_increment(instruction),
        Mnemonic::Leave => increment_of(iced::Register::RSP, iced::Register::RBP, 8),
        Mnemonic::Inc => own(1),
        Mnemonic::Dec => own(-1),
        Mnemonic::Add => own(immediate(instruction)?),
        Mnemonic::Sub => own(immediate(instruction)?.checked_neg()?),
        Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => increment_of(to, instruction.op1_register(), 0),
        Mnemonic::Lea if instruction.memory_index() == iced::Register::None => {
            increment_of(to, instruction.memory_base(), instruction.memory_displacement64() as i64)
        }
        _ => None,
    }
}

fn stack_increment(instruction: &Instruction) -> Option<Increment> {
    increment_of(iced::Register::RSP, iced::Register::RSP, instruction.stack_pointer_increment().into())
}

fn immediate(instruction: &Instruction) -> Option<i64> {
    instruction.try_immediate(1).ok().map(|immediate| immediate as i64)
}

fn increment_of(to: iced::Register, from: iced::Register, by: i64) -> Option<Increment> {
    if !to.is_gpr64() || !from.is_gpr64() {
        return None;
    }
    Some(Increment { to: Register::of(to)?, from: Register::of(from)?, by: i32::try_from(by).ok()? })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn decode(bytes: &[u8]) -> Instruction {
        let mut decoder = isa::decoder(Default::default(), bytes);
        decoder.set_ip(0x1000);
        decoder.decode()
    }

    fn effects(bytes: &[u8]) -> Effects {
        Analyser::new().analyse(&decode(bytes))
    }

    #[track_caller]
    fn check(bytes: &[u8], reads: &str, writes: &str) {
        let names = |registers: RegisterSet| registers.iter().map(|register| register.to_string()).collect::<Vec<_>>();
        let effects = effects(bytes);
        assert_eq!((names(effects.reads).join(" "), names(effects.writes).join(" ")), (reads.into(), writes.into()));
    }

    #[track_caller]
    fn check_increment(bytes: &[u8], expected: Option<(Register, Register, i32)>) {
        let expected = expected.map(|(to, from, by)| Increment { to, from, by });
        assert_eq!(effects(bytes).increment, expected);
    }

    #[track_caller]
    fn check_memory(bytes: &[u8], expected: &[MemoryOperand]) {
        assert_eq!(effects(bytes).memory().copied().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn whole_registers() {
        check(&[0x89, 0xd8], "rbx", "rax"); // mov eax, ebx
        check(&[0x66, 0x89, 0xd8], "rax rbx", "rax"); // mov ax, bx
        check(&[0x88, 0xf8], "rax rbx", "rax"); // mov al, bh
        check(&[0x0f, 0xb6, 0xc3], "rbx", "rax"); // movzx eax, bl
        check(&[0x4e, 0x8b, 0x3c, 0xc0], "rax r8", "r15"); // mov r15, [rax+r8*8]
        check(&[0x0f, 0x28, 0xc1], "zmm1", "zmm0"); // movaps xmm0, xmm1
        check(&[0xc4, 0xc1, 0x6d, 0x58, 0xcf], "zmm2 zmm15", "zmm1"); // vaddpd ymm1, ymm2, ymm15
        check(&[0x62, 0x91, 0x6c, 0x49, 0x58, 0xcf], "zmm1 zmm2 zmm31 k1", "zmm1"); // vaddps zmm1 {k1}, zmm2, zmm31
        check(&[0x62, 0xf1, 0x6c, 0xc9, 0x58, 0xcb], "zmm2 zmm3 k1", "zmm1"); // vaddps zmm1 {k1}{z}, zmm2, zmm3
        check(&[0xf3, 0x0f, 0x10, 0xc1], "zmm0 zmm1", "zmm0"); // movss xmm0, xmm1
        check(&[0xf3, 0x0f, 0x10, 0], "rax", "zmm0"); // movss xmm0, [rax]
        check(&[0xf2, 0x0f, 0x51, 0xc1], "zmm0 zmm1", "zmm0"); // sqrtsd xmm0, xmm1
        check(&[0xf2, 0x0f, 0x2a, 0xc0], "rax zmm0", "zmm0"); // cvtsi2sd xmm0, eax
        check(&[0xc5, 0xec, 0x41, 0xcf], "k2 k7", "k1"); // kandw k1, k2, k7
        check(&[0x48, 0x93], "rax rbx", "rax rbx"); // xchg rax, rbx
        check(&[0x99], "rax", "rdx"); // cdq
        check(&[0xc5, 0xf8, 0x77], "", ""); // vzeroupper
    }

    #[test]
    fn values_out_of_nothing() {
        check(&[0x31, 0xc0], "", "rax carry overflow status"); // xor eax, eax
        check(&[0x4d, 0x29, 0xc9], "", "r9 carry overflow status"); // sub r9, r9
        check(&[0x66, 0x31, 0xc0], "rax", "rax carry overflow status"); // xor ax, ax
        check(&[0x19, 0xc0], "rax carry", "rax carry overflow status"); // sbb eax, eax
        check(&[0x31, 0xd8], "rax rbx", "rax carry overflow status"); // xor eax, ebx
        check(&[0x66, 0x0f, 0xef, 0xdb], "", "zmm3"); // pxor xmm3, xmm3
        check(&[0x0f, 0x57, 0xc9], "", "zmm1"); // xorps xmm1, xmm1
        check(&[0x66, 0x0f, 0xf8, 0xd2], "", "zmm2"); // psubb xmm2, xmm2
        check(&[0xc5, 0xe9, 0xef, 0xca], "", "zmm1"); // vpxor xmm1, xmm2, xmm2
        check(&[0x62, 0xa1, 0x6d, 0x40, 0xef, 0xca], "", "zmm17"); // vpxord zmm17, zmm18, zmm18
        check(&[0xc5, 0xf5, 0x57, 0xc9], "", "zmm1"); // vxorpd ymm1, ymm1, ymm1
        check(&[0x66, 0x0f, 0x76, 0xc9], "", "zmm1"); // pcmpeqd xmm1, xmm1
        check(&[0xc5, 0xed, 0x64, 0xca], "", "zmm1"); // vpcmpgtb ymm1, ymm2, ymm2
        check(&[0x66, 0x0f, 0x76, 0xca], "zmm1 zmm2", "zmm1"); // pcmpeqd xmm1, xmm2
        check(
            &[0xc5, 0xfc, 0x77],
            "",
            "zmm0 zmm1 zmm2 zmm3 zmm4 zmm5 zmm6 zmm7 zmm8 zmm9 zmm10 zmm11 zmm12 zmm13 zmm14 zmm15",
        ); // vzeroall
    }

    #[test]
    fn conditions_keep_what_was() {
        check(&[0x0f, 0x44, 0xc3], "rax rbx status", "rax"); // cmove eax, ebx
        check(&[0x48, 0x0f, 0x4f, 3], "rax rbx overflow status", "rax"); // cmovg rax, [rbx]
        check(&[0x0f, 0x94, 0xc0], "rax status", "rax"); // sete al
        check(&[0x0f, 0xbc, 0xc3], "rax rbx", "rax status"); // bsf eax, ebx
        check(&[0x0f, 0xb1, 0xd9], "rax rcx rbx", "rax rcx carry overflow status"); // cmpxchg ecx, ebx
        // vgatherdps ymm0, [rax+ymm1*4], ymm2
        check(&[0xc4, 0xe2, 0x6d, 0x92, 4, 0x88], "rax zmm0 zmm1 zmm2", "zmm0 zmm2");
    }

    #[test]
    fn flags() {
        check(&[1, 0xd8], "rax rbx", "rax carry overflow status"); // add eax, ebx
        check(&[0x48, 0x11, 0xd8], "rax rbx carry", "rax carry overflow status"); // adc rax, rbx
        check(&[0x48, 0xff, 0xc0], "rax", "rax overflow status"); // inc rax
        check(&[0x0f, 0xba, 0xe0, 3], "rax", "carry"); // bt eax, 3
        check(&[0xd1, 0xc0], "rax", "rax carry overflow"); // rol eax, 1
        check(&[0xc1, 0xc0, 5], "rax", "rax carry"); // rol eax, 5
        check(&[0xc1, 0xd0, 5], "rax carry", "rax carry"); // rcl eax, 5
        check(&[0xd3, 0xe0], "rax rcx", "rax carry status"); // shl eax, cl
        check(&[0xc1, 0xe0, 0], "rax", "rax"); // shl eax, 0
        check(&[0xc4, 0xe2, 0x71, 0xf7, 0xc3], "rcx rbx", "rax"); // shlx eax, ebx, ecx
        check(&[0x48, 0xf7, 0xe3], "rax rbx", "rax rdx carry overflow"); // mul rbx
        check(&[0x85, 0xd8], "rax rbx", "carry overflow status"); // test eax, ebx
        check(&[0x66, 0x48, 0x0f, 0x38, 0xf6, 0xc3], "rax rbx carry", "rax carry"); // adcx rax, rbx
        check(&[0xf3, 0x48, 0x0f, 0x38, 0xf6, 0xc3], "rax rbx overflow", "rax overflow"); // adox rax, rbx
        check(&[0x48, 0x0f, 0xc7, 0x0f], "rax rcx rdx rbx rdi status", "rax rdx status"); // cmpxchg16b [rdi]
        check(&[0x72, 0xfe], "carry", ""); // jc .
        check(&[0x75, 0xfe], "status", ""); // jne .
        check(&[0x7c, 0xfe], "overflow status", ""); // jl .
        check(&[0x77, 0xfe], "carry status", ""); // ja .
        check(&[0x9f], "rax carry status", "rax"); // lahf
        check(&[0x9e], "rax", "carry status"); // sahf
        check(&[0xfc], "", "direction"); // cld
        check(&[0xf3, 0x0f, 0xb8, 0xc3], "rbx", "rax carry overflow status"); // popcnt eax, ebx
    }

    #[test]
    fn x87_is_one() {
        check(&[0xd9, 0xe8], "x87", "x87"); // fld1
        check(&[0xde, 0xc1], "x87", "x87"); // faddp
        check(&[0xdd, 0x10], "rax x87", ""); // fst qword ptr [rax]
        check(&[0xdd, 0x18], "rax x87", "x87"); // fstp qword ptr [rax]
        check(&[0xd8, 0xd1], "x87", "x87"); // fcom st(1)
        check(&[0xdf, 0xe0], "rax x87", "rax"); // fnstsw ax
        check(&[0xdb, 0xf1], "x87", "carry overflow status"); // fcomi st, st(1)
        check(&[0xd9, 0x28], "rax", ""); // fldcw [rax]
        check(&[0x0f, 0xfc, 0xc1], "x87", "x87"); // paddb mm0, mm1
        check(&[0x0f, 0xae, 0x10], "rax", ""); // ldmxcsr [rax]
    }

    #[test]
    fn strings_and_system_calls() {
        check(&[0xa4], "rsi rdi direction", "rsi rdi"); // movsb
        check(&[0xf3, 0x48, 0xa5], "rcx rsi rdi direction", "rcx rsi rdi"); // rep movsq
        check(&[0xf3, 0xab], "rax rcx rdi direction", "rcx rdi"); // rep stosd
        check(&[0xac], "rax rsi direction", "rax rsi"); // lodsb
        // syscall
        check(&[0x0f, 5], "rax carry overflow status direction", "rax rcx r11 carry overflow status direction");
        check(&[0x0f, 0xa2], "rax rcx", "rax rcx rdx rbx"); // cpuid
    }

    #[test]
    fn no_effects() {
        check(&[0x90], "", ""); // nop
        check(&[0x66, 0x0f, 0x1f, 4, 0], "", ""); // nop word ptr [rax+rax]
        check(&[0xf3, 0x0f, 0x1e, 0xfa], "", ""); // endbr64
        check(&[0xf3, 0x90], "", ""); // pause
        check(&[0x0f, 0xae, 0xf0], "", ""); // mfence
        check(&[0xeb, 0xfe], "", ""); // jmp .
        check(&[0x48, 0x8d, 5, 0x10, 0, 0, 0], "", "rax"); // lea rax, [rip+16]
    }

    #[test]
    fn steps() {
        const RSP: Register = Register::RSP;
        const RBP: Register = Register::RBP;
        let (rax, r8, r9) = (Register::RAX, Register::general(8), Register::general(9));
        check_increment(&[0x6a, 5], Some((RSP, RSP, -8))); // push 5
        check_increment(&[0xe8, 0, 0, 0, 0], Some((RSP, RSP, -8))); // call
        check_increment(&[0x5b], Some((RSP, RSP, 8))); // pop rbx
        check_increment(&[0x8f, 0x44, 0x24, 8], Some((RSP, RSP, 8))); // pop qword ptr [rsp+8]
        check_increment(&[0x5c], None); // pop rsp
        check_increment(&[0xc2, 0x10, 0], Some((RSP, RSP, 24))); // ret 16
        check_increment(&[0xc8, 0x20, 0, 0], Some((RSP, RSP, -40))); // enter 32, 0
        check_increment(&[0xc9], Some((RSP, RBP, 8))); // leave
        check_increment(&[0x48, 0x83, 0xc4, 0x28], Some((RSP, RSP, 40))); // add rsp, 40
        check_increment(&[0x48, 0x81, 0xec, 0x80, 0, 0, 0], Some((RSP, RSP, -128))); // sub rsp, 128
        check_increment(&[0x48, 0x8d, 0x64, 0x24, 0xf8], Some((RSP, RSP, -8))); // lea rsp, [rsp-8]
        check_increment(&[0x4c, 0x8d, 0x45, 0xf0], Some((r8, RBP, -16))); // lea r8, [rbp-16]
        check_increment(&[0x48, 0x89, 0xe5], Some((RBP, RSP, 0))); // mov rbp, rsp
        check_increment(&[0x49, 0xff, 0xc9], Some((r9, r9, -1))); // dec r9
        check_increment(&[0x48, 0xff, 0xc0], Some((rax, rax, 1))); // inc rax
        check_increment(&[0x89, 0xe5], None); // mov ebp, esp
        check_increment(&[0x83, 0xc0, 1], None); // add eax, 1
        check_increment(&[0x48, 1, 0xd8], None); // add rax, rbx
        check_increment(&[0x48, 1, 0x18], None); // add [rax], rbx
        check_increment(&[0x48, 0xff, 0], None); // inc qword ptr [rax]
        check_increment(&[0x48, 0x8d, 4, 0x0b], None); // lea rax, [rbx+rcx]
        check_increment(&[0x67, 0x48, 0x8d, 0x43, 8], None); // lea rax, [ebx+8]
        check_increment(&[0x48, 0x8d, 5, 0, 0, 0, 0], None); // lea rax, [rip]
    }

    #[test]
    fn memory() {
        const AT_RDI: MemoryOperand = MemoryOperand {
            displacement: 0,
            size: 8,
            base: Some(Register::general(7)),
            index: None,
            scale: 1,
            segment: SegmentBase::Flat,
            access: OperandAccess::Write,
            is_certain: true,
        };
        const AT_RSP: MemoryOperand = MemoryOperand { base: Some(Register::RSP), ..AT_RDI };
        let (rcx, rsi) = (Some(Register::general(1)), Some(Register::general(6)));
        // dec dword ptr [rsi+rcx*4+16]
        let counter = MemoryOperand { displacement: 16, size: 4, base: rsi, index: rcx, scale: 4, ..AT_RDI };
        check_memory(&[0xff, 0x4c, 0x8e, 0x10], &[MemoryOperand { access: OperandAccess::ReadWrite, ..counter }]);
        // mov rax, fs:[0x28]
        let canary = MemoryOperand {
            displacement: 0x28,
            base: None,
            segment: SegmentBase::Fs,
            access: OperandAccess::Read,
            ..AT_RDI
        };
        check_memory(&[0x64, 0x48, 0x8b, 4, 0x25, 0x28, 0, 0, 0], &[canary]);
        // mov al, [rip+16]
        let global = MemoryOperand { displacement: 0x1016, size: 1, base: None, access: OperandAccess::Read, ..AT_RDI };
        check_memory(&[0x8a, 5, 0x10, 0, 0, 0], &[global]);
        // vmovups [rdi] {k2}, zmm1
        check_memory(&[0x62, 0xf1, 0x7c, 0x4a, 0x11, 0x0f], &[MemoryOperand { size: 64, is_certain: false, ..AT_RDI }]);
        // rep movsq
        let from = MemoryOperand { base: rsi, access: OperandAccess::Read, is_certain: false, ..AT_RDI };
        check_memory(&[0xf3, 0x48, 0xa5], &[MemoryOperand { is_certain: false, ..AT_RDI }, from]);
        // push qword ptr [rsp+8]
        let operand = MemoryOperand { displacement: 8, access: OperandAccess::Read, ..AT_RSP };
        check_memory(&[0xff, 0x74, 0x24, 8], &[operand, MemoryOperand { displacement: -8, ..AT_RSP }]);
        // pop qword ptr [rsp+8], where the address is that behind the pop
        let top = MemoryOperand { access: OperandAccess::Read, ..AT_RSP };
        check_memory(&[0x8f, 0x44, 0x24, 8], &[MemoryOperand { displacement: 16, ..AT_RSP }, top]);
        // lock cmpxchg [rdi], ecx
        let exchanged = MemoryOperand { size: 4, access: OperandAccess::ReadWrite, is_certain: false, ..AT_RDI };
        check_memory(&[0xf0, 0x0f, 0xb1, 0x0f], &[exchanged]);
        // prefetcht0 [rdi]; nop word ptr [rax+rax]
        check_memory(&[0x0f, 0x18, 0x0f], &[]);
        check_memory(&[0x66, 0x0f, 0x1f, 4, 0], &[]);
    }

    /// Random bytes do not panic, and what has more operands than there is room for is known.
    #[test]
    fn operands_fit() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 32
        };
        let mut analyser = Analyser::new();
        let mut crowded = BTreeSet::new();
        for _ in 0..1_000_000 {
            let bytes: [u8; 16] = std::array::from_fn(|_| random() as u8);
            let instruction = decode(&bytes);
            let effects = analyser.analyse(&instruction);
            let used = InstructionInfoFactory::new().info(&instruction).used_memory().len();
            if used > effects.memory().count() {
                crowded.insert(instruction.mnemonic() as u32);
            }
        }
        // Of calls, the far ones.
        let expected = [Mnemonic::Call, Mnemonic::Enter, Mnemonic::Iret, Mnemonic::Iretd, Mnemonic::Iretq];
        assert_eq!(crowded, expected.map(|mnemonic| mnemonic as u32).into());
    }
}
