//! Symbolic values of registers inside of a fragment. A register that has been stored, and only
//! changed by constants since, need not be stored again.

use iced_x86::{Code, Instruction, InstructionInfo, Mnemonic, OpAccess, OpKind, Register};

use super::operand::general;

/// The symbolic value of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    Unknown,
    Constant(u64),
    /// The value in the data at this offset, plus a constant.
    Slot {
        offset: u16,
        add: i64,
    },
    /// The low bytes are in the data at this offset; the others are zero.
    Low {
        offset: u16,
        bytes: u8,
    },
}

impl Symbol {
    fn plus(self, constant: i64) -> Self {
        match self {
            Self::Low { .. } if constant == 0 => self,
            Self::Unknown | Self::Low { .. } => Self::Unknown,
            Self::Constant(value) => Self::Constant(value.wrapping_add_signed(constant)),
            Self::Slot { offset, add } => Self::Slot { offset, add: add.wrapping_add(constant) },
        }
    }
}

/// All general registers.
pub struct Symbols([Symbol; 16]);

const RSP: u8 = 4;
const RBP: u8 = 5;

impl Symbols {
    pub fn new() -> Self {
        Self([Symbol::Unknown; 16])
    }

    pub fn get(&self, register: u8) -> Symbol {
        self.0[usize::from(register)]
    }

    pub fn set(&mut self, register: u8, symbol: Symbol) {
        self.0[usize::from(register)] = symbol;
    }

    /// Adds to the stack pointer.
    pub fn move_stack(&mut self, by: i64) {
        self.set(RSP, self.get(RSP).plus(by));
    }

    /// Updates the registers that an instruction changes.
    pub fn execute(&mut self, instruction: &Instruction, info: &InstructionInfo) {
        let stack = self.get(RSP).plus(i64::from(instruction.stack_pointer_increment()));
        let moves_stack = instruction.is_stack_instruction();
        let result = self.result(instruction);
        let exchanged = self.exchanged(instruction);
        for used in info.used_registers() {
            let writes = matches!(
                used.access(),
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            );
            if writes && let Some(register) = general(used.register()) {
                self.set(register, Symbol::Unknown);
            }
        }
        match instruction.mnemonic() {
            Mnemonic::Enter | Mnemonic::Leave => {}
            _ if moves_stack => self.set(RSP, stack),
            _ => {}
        }
        if let Some((register, symbol)) = result {
            self.set(register, symbol);
        }
        for (register, symbol) in exchanged.into_iter().flatten() {
            self.set(register, symbol);
        }
    }

    /// The register that a simple instruction sets, and its new value.
    fn result(&self, instruction: &Instruction) -> Option<(u8, Symbol)> {
        if instruction.mnemonic() == Mnemonic::Leave {
            return (instruction.code() == Code::Leaveq).then(|| (RSP, self.get(RBP).plus(8)));
        }
        if instruction.op_count() == 0 || instruction.op0_kind() != OpKind::Register {
            return None;
        }
        let target = instruction.op0_register();
        let register = general(target)?;
        let wide = target.size() == 8;
        let (second, count) = (instruction.op_kind(1.min(instruction.op_count() - 1)), instruction.op_count());
        let immediate = || instruction.immediate(1) as i64;
        let is_immediate = count == 2 && second != OpKind::Register && second != OpKind::Memory;
        let own = self.get(register);
        let symbol = match instruction.mnemonic() {
            Mnemonic::Mov if is_immediate && wide => Symbol::Constant(instruction.immediate(1)),
            Mnemonic::Mov if is_immediate && target.size() == 4 => Symbol::Constant(u64::from(immediate() as u32)),
            Mnemonic::Mov if second == OpKind::Register && wide => self.get(general(instruction.op1_register())?),
            Mnemonic::Add if is_immediate && wide => own.plus(immediate()),
            Mnemonic::Sub if is_immediate && wide => own.plus(immediate().wrapping_neg()),
            Mnemonic::Inc if wide => own.plus(1),
            Mnemonic::Dec if wide => own.plus(-1),
            Mnemonic::Xor | Mnemonic::Sub
                if second == OpKind::Register && instruction.op1_register() == target && target.size() >= 4 =>
            {
                Symbol::Constant(0)
            }
            Mnemonic::Lea if wide => self.effective_address(instruction)?,
            // The stack pointer is the loaded value, whatever the instruction did to it before.
            Mnemonic::Pop if register == RSP => Symbol::Unknown,
            _ => return None,
        };
        Some((register, symbol))
    }

    fn effective_address(&self, instruction: &Instruction) -> Option<Symbol> {
        let displacement = instruction.memory_displacement64();
        match (instruction.memory_base(), instruction.memory_index()) {
            (Register::None | Register::RIP, Register::None) => Some(Symbol::Constant(displacement)),
            (base, Register::None) if base.size() == 8 => Some(self.get(general(base)?).plus(displacement as i64)),
            _ => None,
        }
    }

    fn exchanged(&self, instruction: &Instruction) -> [Option<(u8, Symbol)>; 2] {
        let registers = [instruction.op0_register(), instruction.op1_register()];
        if instruction.mnemonic() != Mnemonic::Xchg
            || instruction.op0_kind() != OpKind::Register
            || instruction.op1_kind() != OpKind::Register
            || registers[0].size() != 8
        {
            return [None; 2];
        }
        let [Some(first), Some(second)] = registers.map(general) else { return [None; 2] };
        [Some((first, self.get(second))), Some((second, self.get(first)))]
    }
}
