//! The registers of a frame. A register that the frame's callee has saved is known by the address
//! where it is on the stack; it is read when something depends on it.

#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

/// A general register; the numbers are those of call frame information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum FrameRegister {
    Rax,
    Rdx,
    Rcx,
    Rbx,
    Rsi,
    Rdi,
    Rbp,
    Rsp,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

/// How many general registers there are.
pub const COUNT: usize = 16;

/// The number of the return address, which is that of rip.
pub const RETURN_ADDRESS: u16 = 16;

/// The registers that a function preserves for its caller, in order of their numbers.
pub const PRESERVED: [FrameRegister; 6] = [
    FrameRegister::Rbx,
    FrameRegister::Rbp,
    FrameRegister::R12,
    FrameRegister::R13,
    FrameRegister::R14,
    FrameRegister::R15,
];

/// A set of registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Set(u16);

impl Set {
    /// What is known in the caller of a function that says nothing about its registers.
    const IN_CALLER: Self = Self(1 << 3 | 1 << 6 | 0xf << 12);

    const fn has(self, number: u16) -> bool {
        self.0 & Self::bit(number) != 0
    }

    const fn insert(&mut self, number: u16) {
        self.0 |= Self::bit(number);
    }

    const fn remove(&mut self, number: u16) {
        self.0 &= !Self::bit(number);
    }

    const fn bit(number: u16) -> u16 {
        if number < 16 { 1 << number } else { 0 }
    }
}

/// The value of a register of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    Unknown,
    Known(u64),
    /// It is in memory, at this address.
    Saved(u64),
}

/// The registers of a thread, or those of one of its frames. Those that are not given are unknown;
/// the stack needs rip, rsp and the registers that functions preserve for their callers: rbx, rbp,
/// and r12 to r15.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameRegisters {
    pub(crate) rip: u64,
    values: [u64; COUNT],
    known: Set,
    /// Those whose value is the address where they are saved.
    saved: Set,
}

impl FrameRegisters {
    #[must_use]
    pub fn new(rip: u64, rsp: u64) -> Self {
        let none = Self { rip, values: [0; COUNT], known: Set::default(), saved: Set::default() };
        none.with(FrameRegister::Rsp, rsp)
    }

    /// Returns the registers with one more.
    #[must_use]
    pub fn with(mut self, register: FrameRegister, value: u64) -> Self {
        self.set(register as u16, Value::Known(value));
        self
    }

    /// Sets a register; rip is none of them.
    pub(crate) fn set(&mut self, number: u16, value: Value) {
        let Some(place) = self.values.get_mut(usize::from(number)) else { return };
        match value {
            Value::Unknown => self.known.remove(number),
            Value::Known(value) => {
                *place = value;
                self.known.insert(number);
                self.saved.remove(number);
            }
            Value::Saved(address) => {
                *place = address;
                self.known.insert(number);
                self.saved.insert(number);
            }
        }
    }

    /// Returns a register, or rip for the number of the return address.
    pub(crate) fn value(&self, number: u16) -> Value {
        match self.values.get(usize::from(number)) {
            Some(&value) if self.known.has(number) && self.saved.has(number) => Value::Saved(value),
            Some(&value) if self.known.has(number) => Value::Known(value),
            None if number == RETURN_ADDRESS => Value::Known(self.rip),
            _ => Value::Unknown,
        }
    }

    /// Returns the number that a register has, and reads it where it is saved.
    pub(crate) fn read(&self, number: u16, memory: &mut impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        match self.value(number) {
            Value::Unknown => None,
            Value::Known(value) => Some(value),
            Value::Saved(address) => memory(address),
        }
    }

    pub(crate) fn rsp(&self) -> Option<u64> {
        match self.value(FrameRegister::Rsp as u16) {
            Value::Known(rsp) => Some(rsp),
            _ => None,
        }
    }

    /// Forgets the registers that a function may change, and enters its caller.
    pub(crate) fn enter_caller(&mut self, return_address: u64, cfa: u64) {
        self.known.0 &= Set::IN_CALLER.0;
        self.rip = return_address;
        self.set(FrameRegister::Rsp as u16, Value::Known(cfa));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn preserved_registers_stay_known_in_the_caller() {
        let mut registers = FrameRegisters::new(1, 2);
        for number in (0..16).filter(|&number| number != FrameRegister::Rsp as u16) {
            registers.set(number, Value::Known(u64::from(number) + 100));
        }
        registers.enter_caller(7, 8);
        let known = (0..16).filter(|&number| registers.value(number) != Value::Unknown);
        let mut expected: Vec<u16> = PRESERVED.map(|register| register as u16).into();
        expected.push(FrameRegister::Rsp as u16);
        expected.sort_unstable();
        assert_eq!(known.collect::<Vec<_>>(), expected);
        assert_eq!((registers.value(RETURN_ADDRESS), registers.rsp()), (Value::Known(7), Some(8)));
    }

    #[test]
    fn saved_registers_are_read_when_they_are_needed() {
        let mut registers = FrameRegisters::new(1, 2);
        registers.set(FrameRegister::Rbx as u16, Value::Saved(0x50));
        let mut memory = |address| (address == 0x50).then_some(9);
        assert_eq!(registers.read(FrameRegister::Rbx as u16, &mut memory), Some(9));
        assert_eq!(registers.read(FrameRegister::Rbp as u16, &mut memory), None);
        let registers = registers.with(FrameRegister::Rbx, 3);
        assert_eq!(registers.read(FrameRegister::Rbx as u16, &mut |_| None), Some(3));
    }

    #[test]
    fn numbers_beyond_the_general_registers_are_unknown() {
        let mut registers = FrameRegisters::new(1, 2);
        registers.set(17, Value::Known(3));
        assert_eq!((registers.value(17), registers.value(u16::MAX)), (Value::Unknown, Value::Unknown));
    }
}
