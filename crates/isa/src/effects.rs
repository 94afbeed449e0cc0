//! Effects: the registers and memory that an instruction reads and writes.
//!
//! [`Effects`] describe data flow between instructions, so registers are whole: `al`, `ax`, `eax`
//! and `rax` are one, as are `xmm0`, `ymm0` and `zmm0`. An instruction that keeps a part of a
//! register reads it: writes of 8 or 16 bits, conditional moves, merging masks. An instruction
//! whose result does not depend on its operands (`xor eax, eax`) reads nothing.
//!
//! Not included: `rip`, segment registers, the control bits of x87 and SSE (`mxcsr`), and
//! privileged state.

use core::fmt;
use core::num::NonZeroU8;

use iced_x86::{
    self as iced, Instruction, InstructionInfo, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, RflagsBits,
    UsedMemory, UsedRegister,
};

/// Most memory operands in [`Effects`]. Only far calls through memory, `iret` and `enter` with
/// nesting levels have more; the rest is left out.
const OPERANDS_MAX: usize = 2;

/// A register as a whole, or a group of flags that are mostly written together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(NonZeroU8);

impl Register {
    /// How many there are, see [`Self::index`].
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

    /// Below [`Self::COUNT`].
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    const fn at(index: u8) -> Self {
        Self(NonZeroU8::MIN.saturating_add(index))
    }

    /// `None` for registers that [`Effects`] do not include.
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
pub struct Registers(u64);

impl Registers {
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

    /// The set and this register.
    #[must_use]
    #[inline]
    pub const fn with(self, register: Register) -> Self {
        Self(self.0 | 1 << register.index())
    }

    /// The set but this register.
    #[must_use]
    #[inline]
    pub const fn without(self, register: Register) -> Self {
        Self(self.0 & !(1 << register.index()))
    }

    /// The registers in the order of [`Register::index`].
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Register> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let lowest = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (lowest < u64::BITS).then(|| Register::at(lowest as u8))
        })
    }

    fn insert(&mut self, register: Register) {
        *self = self.with(register);
    }
}

impl fmt::Debug for Registers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The kind of an access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    Read,
    Write,
    /// A read and then a write.
    ReadWrite,
}

/// What an address is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// Segments without a base: all but fs and gs in 64-bit code.
    Flat,
    Fs,
    Gs,
}

/// A memory operand at `segment: base + index * scale + displacement`, with the values of the
/// registers before the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Memory {
    /// If there is no base, as with addresses relative to `rip`, this is the address.
    pub displacement: i64,
    /// In bytes; of one element if the instruction repeats or gathers; 0 if it depends on the
    /// processor (`xsave`).
    pub size: u16,
    pub base: Option<Register>,
    /// A vector register if the instruction gathers or scatters.
    pub index: Option<Register>,
    pub scale: u8,
    pub segment: Segment,
    pub access: Access,
    /// Whether the access always happens: it depends on no condition, mask or count.
    pub is_certain: bool,
}

impl Memory {
    #[must_use]
    #[inline]
    pub fn reads(&self) -> bool {
        self.access != Access::Write
    }

    #[must_use]
    #[inline]
    pub fn writes(&self) -> bool {
        self.access != Access::Read
    }

    /// `whole` is the size of the instruction's operand, for operands whose size iced does not
    /// give.
    fn of(used: &UsedMemory, whole: usize) -> Option<Self> {
        let (access, is_certain) = match used.access() {
            OpAccess::Read => (Access::Read, true),
            OpAccess::CondRead => (Access::Read, false),
            OpAccess::Write => (Access::Write, true),
            OpAccess::CondWrite => (Access::Write, false),
            OpAccess::ReadWrite => (Access::ReadWrite, true),
            OpAccess::ReadCondWrite => (Access::ReadWrite, false),
            OpAccess::None | OpAccess::NoMemAccess => return None,
        };
        let segment = match used.segment() {
            iced::Register::FS => Segment::Fs,
            iced::Register::GS => Segment::Gs,
            _ => Segment::Flat,
        };
        let given = used.memory_size().size();
        let size = u16::try_from(if given == 0 { whole } else { given }).unwrap_or(u16::MAX);
        let (base, index) = (Register::of(used.base()), Register::of(used.index()));
        let displacement = used.displacement() as i64;
        Some(Self { displacement, size, base, index, scale: used.scale() as u8, segment, access, is_certain })
    }
}

/// A 64-bit register becomes another register, or itself, plus a constant: `mov`, `lea`, `add`,
/// `sub`, `inc`, `dec`, and the stack pointer in `push`, `pop`, `call`, `ret`, `enter` and `leave`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegisterIncrement {
    pub to: Register,
    pub from: Register,
    pub by: i32,
}

/// Effects: the registers and memory that an instruction reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Effects {
    /// Including registers in addresses.
    pub reads: Registers,
    pub writes: Registers,
    /// The value of one written register, if it is another register plus a constant.
    pub step: Option<RegisterIncrement>,
    operands: [Option<Memory>; OPERANDS_MAX],
}

impl Effects {
    /// Those of a `nop`.
    pub const NONE: Self =
        Self { reads: Registers::NONE, writes: Registers::NONE, step: None, operands: [None; OPERANDS_MAX] };

    /// The memory operands, in no order. All reads happen before any write.
    #[inline]
    pub fn memory(&self) -> impl Iterator<Item = &Memory> {
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
        let memory = info.used_memory().iter().filter_map(|used| Memory::of(used, whole));
        for (operand, memory) in self.operands.iter_mut().zip(memory) {
            *operand = Some(memory);
        }
    }

    fn add_flags(&mut self, instruction: &Instruction) {
        // Only defined flags are results; undefined ones need not be kept. C1 is left out, as every
        // x87 instruction writes it.
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

/// Computes the effects of instructions. It allocates only until its buffers have grown.
#[derive(Debug)]
pub struct Reader {
    factory: InstructionInfoFactory,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    #[must_use]
    pub fn new() -> Self {
        Self { factory: InstructionInfoFactory::new() }
    }

    /// What `instruction` reads and writes; nothing if it is not valid.
    #[must_use]
    pub fn effects(&mut self, instruction: &Instruction) -> Effects {
        let mut effects = Effects::NONE;
        match instruction.mnemonic() {
            // `vzeroupper` keeps the lower halves, so nothing depends on it.
            Mnemonic::Vzeroupper | Mnemonic::Nop => return effects,
            // The processor does not know the number and the result of a system call.
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
        effects.step = step(instruction);
        effects
    }
}

/// The vector register that is compared with itself, so that the result is constant. `iced_x86`
/// knows other such instructions.
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

/// Whether a write of this register keeps the rest of the whole register.
fn is_part(register: iced::Register) -> bool {
    register.is_gpr8() || register.is_gpr16()
}

fn step(instruction: &Instruction) -> Option<RegisterIncrement> {
    let to = instruction.op0_register();
    let own = |by| step_of(to, to, by);
    match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushf | Mnemonic::Pushfq | Mnemonic::Call | Mnemonic::Enter => stack(instruction),
        Mnemonic::Pop if to != iced::Register::RSP => stack(instruction),
        Mnemonic::Popf | Mnemonic::Popfq | Mnemonic::Ret => stack(instruction),
        Mnemonic::Leave => step_of(iced::Register::RSP, iced::Register::RBP, 8),
        Mnemonic::Inc => own(1),
        Mnemonic::Dec => own(-1),
        Mnemonic::Add => own(immediate(instruction)?),
        Mnemonic::Sub => own(immediate(instruction)?.checked_neg()?),
        Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => step_of(to, instruction.op1_register(), 0),
        Mnemonic::Lea if instruction.memory_index() == iced::Register::None => {
            step_of(to, instruction.memory_base(), instruction.memory_displacement64() as i64)
        }
        _ => None,
    }
}

fn stack(instruction: &Instruction) -> Option<RegisterIncrement> {
    step_of(iced::Register::RSP, iced::Register::RSP, instruction.stack_pointer_increment().into())
}

fn immediate(instruction: &Instruction) -> Option<i64> {
    instruction.try_immediate(1).ok().map(|immediate| immediate as i64)
}

fn step_of(to: iced::Register, from: iced::Register, by: i64) -> Option<RegisterIncrement> {
    if !to.is_gpr64() || !from.is_gpr64() {
        return None;
    }
    Some(RegisterIncrement { to: Register::of(to)?, from: Register::of(from)?, by: i32::try_from(by).ok()? })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;

    fn effects(bytes: &[u8]) -> Effects {
        Reader::new().effects(&crate::decoder(0x1000, bytes).decode())
    }

    #[track_caller]
    fn check(bytes: &[u8], reads: &str, writes: &str) {
        let names = |registers: Registers| registers.iter().map(|register| register.to_string()).collect::<Vec<_>>();
        let effects = effects(bytes);
        assert_eq!((names(effects.reads).join(" "), names(effects.writes).join(" ")), (reads.into(), writes.into()));
    }

    #[track_caller]
    fn check_step(bytes: &[u8], expected: Option<(Register, Register, i32)>) {
        let expected = expected.map(|(to, from, by)| RegisterIncrement { to, from, by });
        assert_eq!(effects(bytes).step, expected);
    }

    #[track_caller]
    fn check_memory(bytes: &[u8], expected: &[Memory]) {
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
        check_step(&[0x6a, 5], Some((RSP, RSP, -8))); // push 5
        check_step(&[0xe8, 0, 0, 0, 0], Some((RSP, RSP, -8))); // call
        check_step(&[0x5b], Some((RSP, RSP, 8))); // pop rbx
        check_step(&[0x8f, 0x44, 0x24, 8], Some((RSP, RSP, 8))); // pop qword ptr [rsp+8]
        check_step(&[0x5c], None); // pop rsp
        check_step(&[0xc2, 0x10, 0], Some((RSP, RSP, 24))); // ret 16
        check_step(&[0xc8, 0x20, 0, 0], Some((RSP, RSP, -40))); // enter 32, 0
        check_step(&[0xc9], Some((RSP, RBP, 8))); // leave
        check_step(&[0x48, 0x83, 0xc4, 0x28], Some((RSP, RSP, 40))); // add rsp, 40
        check_step(&[0x48, 0x81, 0xec, 0x80, 0, 0, 0], Some((RSP, RSP, -128))); // sub rsp, 128
        check_step(&[0x48, 0x8d, 0x64, 0x24, 0xf8], Some((RSP, RSP, -8))); // lea rsp, [rsp-8]
        check_step(&[0x4c, 0x8d, 0x45, 0xf0], Some((r8, RBP, -16))); // lea r8, [rbp-16]
        check_step(&[0x48, 0x89, 0xe5], Some((RBP, RSP, 0))); // mov rbp, rsp
        check_step(&[0x49, 0xff, 0xc9], Some((r9, r9, -1))); // dec r9
        check_step(&[0x48, 0xff, 0xc0], Some((rax, rax, 1))); // inc rax
        check_step(&[0x89, 0xe5], None); // mov ebp, esp
        check_step(&[0x83, 0xc0, 1], None); // add eax, 1
        check_step(&[0x48, 1, 0xd8], None); // add rax, rbx
        check_step(&[0x48, 1, 0x18], None); // add [rax], rbx
        check_step(&[0x48, 0xff, 0], None); // inc qword ptr [rax]
        check_step(&[0x48, 0x8d, 4, 0x0b], None); // lea rax, [rbx+rcx]
        check_step(&[0x67, 0x48, 0x8d, 0x43, 8], None); // lea rax, [ebx+8]
        check_step(&[0x48, 0x8d, 5, 0, 0, 0, 0], None); // lea rax, [rip]
    }

    #[test]
    fn memory() {
        const AT_RDI: Memory = Memory {
            displacement: 0,
            size: 8,
            base: Some(Register::general(7)),
            index: None,
            scale: 1,
            segment: Segment::Flat,
            access: Access::Write,
            is_certain: true,
        };
        const AT_RSP: Memory = Memory { base: Some(Register::RSP), ..AT_RDI };
        let (rcx, rsi) = (Some(Register::general(1)), Some(Register::general(6)));
        // dec dword ptr [rsi+rcx*4+16]
        let counter = Memory { displacement: 16, size: 4, base: rsi, index: rcx, scale: 4, ..AT_RDI };
        check_memory(&[0xff, 0x4c, 0x8e, 0x10], &[Memory { access: Access::ReadWrite, ..counter }]);
        // mov rax, fs:[0x28]
        let canary = Memory { displacement: 0x28, base: None, segment: Segment::Fs, access: Access::Read, ..AT_RDI };
        check_memory(&[0x64, 0x48, 0x8b, 4, 0x25, 0x28, 0, 0, 0], &[canary]);
        // mov al, [rip+16]
        let global = Memory { displacement: 0x1016, size: 1, base: None, access: Access::Read, ..AT_RDI };
        check_memory(&[0x8a, 5, 0x10, 0, 0, 0], &[global]);
        // vmovups [rdi] {k2}, zmm1
        check_memory(&[0x62, 0xf1, 0x7c, 0x4a, 0x11, 0x0f], &[Memory { size: 64, is_certain: false, ..AT_RDI }]);
        // rep movsq
        let from = Memory { base: rsi, access: Access::Read, is_certain: false, ..AT_RDI };
        check_memory(&[0xf3, 0x48, 0xa5], &[Memory { is_certain: false, ..AT_RDI }, from]);
        // push qword ptr [rsp+8]
        let operand = Memory { displacement: 8, access: Access::Read, ..AT_RSP };
        check_memory(&[0xff, 0x74, 0x24, 8], &[operand, Memory { displacement: -8, ..AT_RSP }]);
        // pop qword ptr [rsp+8], where the address is that behind the pop
        let top = Memory { access: Access::Read, ..AT_RSP };
        check_memory(&[0x8f, 0x44, 0x24, 8], &[Memory { displacement: 16, ..AT_RSP }, top]);
        // lock cmpxchg [rdi], ecx
        let exchanged = Memory { size: 4, access: Access::ReadWrite, is_certain: false, ..AT_RDI };
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
        let mut reader = Reader::new();
        let mut crowded = BTreeSet::new();
        for _ in 0..1_000_000 {
            let bytes: [u8; 16] = core::array::from_fn(|_| random() as u8);
            let instruction = crate::decoder(0, &bytes).decode();
            let effects = reader.effects(&instruction);
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
