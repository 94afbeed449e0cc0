//! The table of strategies: how the values of an instruction's memory operands are recorded, by
//! instruction class.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::scratch::{is_high_byte, names_high_byte};
use crate::translate::operand::repeats;
use crate::translate::order::is_arithmetic;

/// The way in which the values of an instruction are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueStrategy {
    /// The engine executes the instruction: no translated code sees all values exactly once.
    Emulated,
    /// The value is in this register after the instruction.
    Load(Register),
    /// The value is in this register before the instruction, in as many bytes as the operand has.
    Store(Register),
    /// As `Store`, but all of the register is recorded: the operand may be repeated.
    StoreWhole(Register),
    /// The value is part of the instruction, so its access descriptor has it.
    Constant(u64),
    /// Memory to memory: the value goes through a scratch register.
    PushMemory,
    PopMemory,
    /// A segment register cannot be stored as data; a scratch register can.
    PushSegment(Register),
    /// The flags go through a scratch register, by way of the engine stack.
    PushFlags,
    PopFlags,
    /// The old value is in this register after the instruction, the new one before it.
    Exchange(Register),
    /// The old value is in this register after the instruction; the new one is the sum.
    ExchangeAndAdd(Register),
    /// The old value is in rax after the instruction; the new one is that or this register.
    CompareAndExchange(Register),
    /// As `CompareAndExchange`, but with pairs of registers.
    CompareAndExchangePair,
    /// No register has the old value, so `lock xadd` with a scratch register takes its place.
    LockedArithmetic,
    /// The operand is neither moved to a register nor from one, so the instruction gets another
    /// operand, which depends on the direction of its accesses.
    Computation,
    /// There is no register that can be stored: the value is missing.
    Unrecorded,
}

impl ValueStrategy {
    /// Classifies an instruction.
    pub(super) fn of(instruction: &Instruction) -> Self {
        match instruction.mnemonic() {
            _ if is_emulated(instruction) => Self::Emulated,
            Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => Self::StoreWhole(Register::RAX),
            Mnemonic::Lodsb => Self::Load(Register::AL),
            Mnemonic::Lodsw => Self::Load(Register::AX),
            Mnemonic::Lodsd => Self::Load(Register::EAX),
            Mnemonic::Lodsq => Self::Load(Register::RAX),
            Mnemonic::Enter => Self::StoreWhole(Register::RBP),
            Mnemonic::Leave if instruction.code() == Code::Leavew => Self::Load(Register::BP),
            Mnemonic::Leave => Self::Load(Register::RBP),
            Mnemonic::Push => Self::of_push(instruction),
            Mnemonic::Pop => Self::of_pop(instruction),
            Mnemonic::Pushf | Mnemonic::Pushfq | Mnemonic::Pushfd => Self::PushFlags,
            Mnemonic::Popf | Mnemonic::Popfq | Mnemonic::Popfd => Self::PopFlags,
            Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu | Mnemonic::Maskmovq => {
                Self::Store(instruction.op1_register())
            }
            Mnemonic::Xchg if instruction.op0_kind() == OpKind::Register => Self::Exchange(instruction.op0_register()),
            Mnemonic::Xchg => Self::Exchange(instruction.op1_register()),
            Mnemonic::Xadd => Self::ExchangeAndAdd(instruction.op1_register()),
            Mnemonic::Cmpxchg => Self::CompareAndExchange(instruction.op1_register()),
            Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b => Self::CompareAndExchangePair,
            _ if is_arithmetic(instruction) => Self::LockedArithmetic,
            mnemonic if is_move(mnemonic) || instruction.is_vsib() => Self::of_move(instruction),
            _ => Self::Computation,
        }
    }

    fn of_push(instruction: &Instruction) -> Self {
        match instruction.op0_kind() {
            OpKind::Register if instruction.op0_register().is_gpr() => Self::Store(instruction.op0_register()),
            OpKind::Register => Self::PushSegment(instruction.op0_register()),
            OpKind::Memory => Self::PushMemory,
            _ => Self::Constant(instruction.immediate(0)),
        }
    }

    fn of_pop(instruction: &Instruction) -> Self {
        match instruction.op0_kind() {
            OpKind::Register if instruction.op0_register().is_gpr() => Self::Load(instruction.op0_register()),
            OpKind::Register => Self::Unrecorded,
            _ => Self::PopMemory,
        }
    }

    /// Classifies an instruction that only moves its memory operand.
    fn of_move(instruction: &Instruction) -> Self {
        let last = instruction.op_count() - 1;
        let register = |at| Some(instruction.op_register(at)).filter(|register| is_plain(*register));
        match (instruction.op0_kind(), instruction.op_kind(last)) {
            // A high byte cannot be stored directly, so its load goes through a scratch register.
            (OpKind::Register, _) => {
                register(0).filter(|register| !is_high_byte(*register)).map_or(Self::Computation, Self::Load)
            }
            (_, OpKind::Register) => register(last).map_or(Self::Computation, Self::Store),
            _ => Self::Constant(instruction.immediate(last)),
        }
    }
}

/// Whether the values of an instruction can be recorded only by emulation.
pub(in crate::translate) fn is_emulated(instruction: &Instruction) -> bool {
    let is_memory = |operand| instruction.op_kind(operand) == OpKind::Memory;
    match instruction.mnemonic() {
        // The elements pass through no register, or through the same one over and over.
        Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsq => instruction.is_string_instruction(),
        Mnemonic::Movsd | Mnemonic::Cmpsd => instruction.is_string_instruction(),
        Mnemonic::Cmpsb | Mnemonic::Cmpsw | Mnemonic::Cmpsq => true,
        Mnemonic::Scasb | Mnemonic::Scasw | Mnemonic::Scasd | Mnemonic::Scasq => true,
        Mnemonic::Lodsb | Mnemonic::Lodsw | Mnemonic::Lodsd | Mnemonic::Lodsq => repeats(instruction),
        // A register chooses a word far from the operand; a locked bit test gives one bit only.
        Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts if is_memory(0) => {
            instruction.op1_kind() == OpKind::Register || instruction.has_lock_prefix()
        }
        Mnemonic::Movdir64b => true,
        // No other instruction stores the same without a pop, so these cannot be executed twice.
        Mnemonic::Fisttp | Mnemonic::Fbstp => true,
        Mnemonic::Fistp => instruction.code() == Code::Fistp_m64int,
        // Parts of the operand are neither read nor written.
        Mnemonic::Fxsave | Mnemonic::Fxsave64 | Mnemonic::Fxrstor | Mnemonic::Fxrstor64 => true,
        Mnemonic::Xadd | Mnemonic::Cmpxchg if is_memory(0) => names_high_byte(instruction),
        Mnemonic::Xchg | Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b => false,
        // No register has the old value, and `lock xadd` does not compute the new one.
        _ => {
            let locks = instruction.has_lock_prefix() && instruction.op_count() > 0 && is_memory(0);
            locks && !is_arithmetic(instruction)
        }
    }
}

/// Whether the value of a memory operand relative to rip can be recorded only if the code cache is
/// near it. Reads, moves and transfers can use an address in a register instead.
pub fn needs_near_cache(instruction: &Instruction) -> bool {
    use ValueStrategy::{Constant, PushMemory, Store};
    instruction.is_ip_rel_memory_operand()
        && instruction.op0_kind() == OpKind::Memory
        && !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test)
        && instruction.flow_control() == FlowControl::Next
        && !matches!(ValueStrategy::of(instruction), Store(_) | Constant(_) | PushMemory)
}

/// Whether a register can be stored as data.
fn is_plain(register: Register) -> bool {
    register.is_gpr() || register.is_vector_register() || register.is_k() || register.is_mm()
}

/// Whether an instruction only moves data between registers and memory.
fn is_move(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{
        Kmovb, Kmovd, Kmovq, Kmovw, Lddqu, Mov, Movapd, Movaps, Movd, Movdiri, Movdqa, Movdqu, Movntdq, Movntdqa,
        Movnti, Movntpd, Movntps, Movq, Movsd, Movss, Movsx, Movsxd, Movupd, Movups, Movzx, Vcompresspd, Vcompressps,
        Vexpandpd, Vexpandps, Vlddqu, Vmaskmovpd, Vmaskmovps, Vmovapd, Vmovaps, Vmovd, Vmovdqa, Vmovdqa32, Vmovdqa64,
        Vmovdqu, Vmovdqu8, Vmovdqu16, Vmovdqu32, Vmovdqu64, Vmovntdq, Vmovntdqa, Vmovntpd, Vmovntps, Vmovq, Vmovsd,
        Vmovss, Vmovupd, Vmovups, Vpcompressb, Vpcompressd, Vpcompressq, Vpcompressw, Vpexpandb, Vpexpandd, Vpexpandq,
        Vpexpandw, Vpmaskmovd, Vpmaskmovq,
    };
    matches!(
        mnemonic,
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
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: ValueStrategy) {
        let instruction = isa::decoder(entity::AppPc::new(0x1000), bytes).decode();
        assert_eq!(ValueStrategy::of(&instruction), expected, "{bytes:02x?}");
    }

    #[test]
    fn moves_use_the_register_of_the_instruction() {
        check(&[0x48, 0x8b, 0x07], ValueStrategy::Load(Register::RAX)); // mov rax, [rdi]
        check(&[0x88, 0x27], ValueStrategy::Store(Register::AH)); // mov [rdi], ah
        check(&[0x8a, 0x27], ValueStrategy::Computation); // mov ah, [rdi]
        check(&[0xc7, 0x07, 5, 0, 0, 0], ValueStrategy::Constant(5)); // mov dword [rdi], 5
        check(&[0x0f, 0x11, 0x07], ValueStrategy::Store(Register::XMM0)); // movups [rdi], xmm0
    }

    #[test]
    fn strings_to_or_from_rax_are_moves() {
        check(&[0xac], ValueStrategy::Load(Register::AL)); // lodsb
        check(&[0xf3, 0xac], ValueStrategy::Emulated); // rep lodsb
        check(&[0xf3, 0xab], ValueStrategy::StoreWhole(Register::RAX)); // rep stosd
        check(&[0xa4], ValueStrategy::Emulated); // movsb
    }

    #[test]
    fn stack_instructions_depend_on_their_operand() {
        check(&[0x55], ValueStrategy::Store(Register::RBP)); // push rbp
        check(&[0x5d], ValueStrategy::Load(Register::RBP)); // pop rbp
        check(&[0xc9], ValueStrategy::Load(Register::RBP)); // leave
        check(&[0x6a, 0xff], ValueStrategy::Constant(u64::MAX)); // push -1
        check(&[0xff, 0x37], ValueStrategy::PushMemory); // push [rdi]
        check(&[0x8f, 0x07], ValueStrategy::PopMemory); // pop [rdi]
        check(&[0x0f, 0xa0], ValueStrategy::PushSegment(Register::FS)); // push fs
        check(&[0x0f, 0xa1], ValueStrategy::Unrecorded); // pop fs
    }

    #[test]
    fn locked_instructions_depend_on_where_the_old_value_is() {
        check(&[0x87, 0x0f], ValueStrategy::Exchange(Register::ECX)); // xchg [rdi], ecx
        check(&[0xf0, 0x0f, 0xc1, 0x0f], ValueStrategy::ExchangeAndAdd(Register::ECX)); // lock xadd [rdi], ecx
        check(&[0xf0, 0x0f, 0xb1, 0x0f], ValueStrategy::CompareAndExchange(Register::ECX)); // lock cmpxchg [rdi], ecx
        check(&[0x48, 0x0f, 0xc7, 0x0f], ValueStrategy::CompareAndExchangePair); // cmpxchg16b [rdi]
        check(&[0xf0, 0x01, 0x07], ValueStrategy::LockedArithmetic); // lock add [rdi], eax
        check(&[0xf0, 0x21, 0x07], ValueStrategy::Emulated); // lock and [rdi], eax
        check(&[0x01, 0x07], ValueStrategy::Computation); // add [rdi], eax
    }
}
