//! Classes of control-flow instructions (Hadjipavlou 2025, Table 2.1, and the flags of its tool).

use isa::Transfer;
use trace::{AppPc, Terminator};

/// Class of the instruction that ends a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// No control-flow instruction: the block was split or interrupted.
    None,
    Syscall,
    /// A trap.
    Interrupt,
    Return,
    DirectCall,
    IndirectCall,
    /// Direct conditional jumps by direction and outcome.
    ForwardTaken,
    ForwardNotTaken,
    BackwardTaken,
    BackwardNotTaken,
    DirectJump,
    /// x86-64 has none.
    IndirectConditionalJump,
    IndirectJump,
}

impl Class {
    pub const COUNT: usize = 13;

    pub const ALL: [Self; Self::COUNT] = [
        Self::None,
        Self::Syscall,
        Self::Interrupt,
        Self::Return,
        Self::DirectCall,
        Self::IndirectCall,
        Self::ForwardTaken,
        Self::ForwardNotTaken,
        Self::BackwardTaken,
        Self::BackwardNotTaken,
        Self::DirectJump,
        Self::IndirectConditionalJump,
        Self::IndirectJump,
    ];

    pub const CONDITIONAL: [Self; 4] =
        [Self::ForwardTaken, Self::ForwardNotTaken, Self::BackwardTaken, Self::BackwardNotTaken];

    /// Returns the name that the thesis's tool prints.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "Not CFI",
            Self::Syscall => "Syscall",
            Self::Interrupt => "Interrupt",
            Self::Return => "Return",
            Self::DirectCall => "Direct Call",
            Self::IndirectCall => "Indirect Call",
            Self::ForwardTaken => "Direct Conditional Jump Forward Taken",
            Self::ForwardNotTaken => "Direct Conditional Jump Forward Not Taken",
            Self::BackwardTaken => "Direct Conditional Jump Backward Taken",
            Self::BackwardNotTaken => "Direct Conditional Jump Backward Not Taken",
            Self::DirectJump => "Direct Unconditional Jump",
            Self::IndirectConditionalJump => "Indirect Conditional Jump",
            Self::IndirectJump => "Indirect Unconditional Jump",
        }
    }

    /// Returns whether an instruction of this class can have several targets.
    #[must_use]
    pub fn is_choice(self) -> bool {
        !matches!(self, Self::None | Self::DirectJump | Self::DirectCall | Self::Syscall | Self::Interrupt)
    }

    #[must_use]
    pub fn is_call(self) -> bool {
        matches!(self, Self::DirectCall | Self::IndirectCall)
    }

    /// Returns the class of a step that executes its block to the end, where an instruction at
    /// `last` does `transfer`.
    #[must_use]
    pub fn of(terminator: Terminator, transfer: Transfer, last: AppPc) -> Self {
        match (terminator, transfer) {
            (Terminator::Interrupted, Transfer::Trap) => Self::Interrupt,
            (Terminator::Syscall, _) => Self::Syscall,
            (Terminator::Taken, Transfer::Conditional { target }) if target > last => Self::ForwardTaken,
            (Terminator::Taken, _) => Self::BackwardTaken,
            (Terminator::NotTaken, Transfer::Conditional { target }) if target > last => Self::ForwardNotTaken,
            (Terminator::NotTaken, _) => Self::BackwardNotTaken,
            (Terminator::Direct, Transfer::Call { .. }) => Self::DirectCall,
            (Terminator::Direct, _) => Self::DirectJump,
            (Terminator::Indirect, Transfer::IndirectCall) => Self::IndirectCall,
            (Terminator::Indirect, Transfer::Return) => Self::Return,
            (Terminator::Indirect, _) => Self::IndirectJump,
            (Terminator::Next | Terminator::Interrupted, _) => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_indices() {
        for (index, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, index);
        }
    }
}
