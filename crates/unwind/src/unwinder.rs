//! Walks a stack from frame to frame.
//!
//! [`Unwinder::unwind`] is the loop: it records a frame and enters its caller, by the row of the
//! frame's address ([`crate::row`]) or, without one, by the code there ([`crate::code`]).

#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use gimli::{CfaRule, RegisterRule, UnwindContext, UnwindExpression};
use symbols::FrameTable;

use crate::cache::RowCache;
use crate::code::{ReturnPlace, ends_with_call, is_signal_return, return_place};
use crate::expression::evaluate;
use crate::modules::Modules;
use crate::registers::{FrameRegister, FrameRegisters, PRESERVED, Value};
use crate::row::{self, GeneralRow, RETURN_OFFSET, Row, SimpleRow, UNCHANGED};

/// A function that has been called and has not returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The next instruction of the function: for the innermost frame that of the thread, for others
    /// the one behind the call.
    pub address: u64,
    /// The canonical frame address: the stack pointer before the call of the function. `None` for
    /// an outermost frame whose function is not understood, or that is damaged.
    pub cfa: Option<u64>,
    /// Whether the instruction at the address comes next without a call returning to it: in the
    /// innermost frame, and where a signal has interrupted the function.
    pub is_exact: bool,
}

impl Frame {
    /// Returns an address of the instruction that the function is at. A call may be the last
    /// instruction of its function, so that the return address is in another one.
    #[must_use]
    pub fn lookup_address(&self) -> u64 {
        self.address.wrapping_sub(u64::from(!self.is_exact))
    }
}

/// Why there are no more frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnwindEnd {
    /// The last frame is the thread's or the program's first.
    Outermost,
    /// There are as many frames as were asked for.
    Limit,
    /// Memory that the last frame's rules refer to cannot be read.
    Unreadable,
    /// The last frame's function has no call frame information, and its code and the frame pointer
    /// do not lead to a caller.
    Unknown,
    /// The caller's frame would lie below the last one: the stack is damaged.
    Corrupt,
}

/// Finds call stacks of one process.
pub struct Unwinder {
    modules: Modules,
    rows: RowCache,
    context: UnwindContext<usize>,
}

impl fmt::Debug for Unwinder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Unwinder").field("modules", &self.modules).finish_non_exhaustive()
    }
}

impl Default for Unwinder {
    fn default() -> Self {
        Self::new()
    }
}

impl Unwinder {
    #[must_use]
    pub fn new() -> Self {
        Self { modules: Modules::default(), rows: RowCache::new(), context: UnwindContext::new() }
    }

    /// Adds a mapping of a file, which replaces what was there: `range` holds what is in the file
    /// from `file_offset` on. Mappings without code need not be added.
    pub fn map(&mut self, range: Range<u64>, file_offset: u64, table: Arc<FrameTable>) {
        self.rows.clear();
        self.modules.map(range, file_offset, table);
    }

    /// Removes all mappings in a range.
    pub fn unmap(&mut self, range: &Range<u64>) {
        self.rows.clear();
        self.modules.unmap(range);
    }

    /// Appends the frames of a thread, from the innermost one outwards, but at most `limit` of
    /// them. `memory` returns the eight bytes at an address, as they are while the thread has the
    /// registers. Some may be below the stack pointer: at the end of a function, its frame has been
    /// removed and is still described.
    pub fn unwind(
        &mut self,
        registers: &FrameRegisters,
        limit: usize,
        memory: &mut impl FnMut(u64) -> Option<u64>,
        frames: &mut Vec<Frame>,
    ) -> UnwindEnd {
        let mut registers = *registers;
        let mut is_exact = true;
        for _ in 0..limit {
            let mut frame = Frame { address: registers.rip, cfa: None, is_exact };
            let row = self.row(registers.rip, is_exact);
            let entered = match row {
                Row::Simple(row) => enter_simple(row, &mut registers, &mut frame, memory),
                Row::General(row) => enter_general(&row, &mut registers, &mut frame, memory),
                Row::Missing => enter_without_row(&self.modules, &mut registers, &mut frame, memory),
            };
            frames.push(frame);
            is_exact = match entered {
                Ok(is_interrupted) => is_interrupted,
                Err(end) => return end,
            };
        }
        UnwindEnd::Limit
    }

    /// Returns the row of an instruction or, if a call returns there, of the call.
    fn row(&mut self, address: u64, is_exact: bool) -> Row {
        let key = address << 1 | u64::from(is_exact);
        if let Some(row) = self.rows.get(key) {
            return row.clone();
        }
        let row = self.read_row(address, is_exact);
        self.rows.insert(key, row.clone());
        row
    }

    fn read_row(&mut self, address: u64, is_exact: bool) -> Row {
        let instruction = address.wrapping_sub(u64::from(!is_exact));
        let Some(module) = self.modules.at(instruction) else { return Row::Missing };
        row::read(&module.table, &mut self.context, module.linked(address), !is_exact)
    }
}

/// Whether the caller that was entered is interrupted code; or why there is none.
type EnterResult = Result<bool, UnwindEnd>;

fn enter_simple(
    row: SimpleRow,
    registers: &mut FrameRegisters,
    frame: &mut Frame,
    memory: &mut impl FnMut(u64) -> Option<u64>,
) -> EnterResult {
    let base = registers.read(u16::from(row.cfa_register), memory).ok_or(UnwindEnd::Unreadable)?;
    let cfa = base.wrapping_add_signed(row.cfa_offset.into());
    check_above(cfa, registers)?;
    frame.cfa = Some(cfa);
    let return_address = memory(cfa.wrapping_add_signed(RETURN_OFFSET)).ok_or(UnwindEnd::Unreadable)?;
    for (register, words) in PRESERVED.into_iter().zip(row.saved).filter(|&(_, words)| words != UNCHANGED) {
        registers.set(register as u16, Value::Saved(cfa.wrapping_add_signed(i64::from(words) * 8)));
    }
    enter(registers, return_address, cfa)?;
    Ok(false)
}

/// Returns whether a frame lies above the stack pointer, and so above the frame that it called.
fn is_above(cfa: u64, registers: &FrameRegisters) -> bool {
    registers.rsp().is_some_and(|rsp| rsp < cfa)
}

fn check_above(cfa: u64, registers: &FrameRegisters) -> Result<(), UnwindEnd> {
    if is_above(cfa, registers) { Ok(()) } else { Err(UnwindEnd::Corrupt) }
}

/// Enters a caller. Without a return address there is none: so the stacks of threads begin that no
/// call frame information describes.
fn enter(registers: &mut FrameRegisters, return_address: u64, cfa: u64) -> Result<(), UnwindEnd> {
    if return_address == 0 {
        return Err(UnwindEnd::Outermost);
    }
    registers.enter_caller(return_address, cfa);
    Ok(())
}

fn enter_general(
    row: &GeneralRow,
    registers: &mut FrameRegisters,
    frame: &mut Frame,
    memory: &mut impl FnMut(u64) -> Option<u64>,
) -> EnterResult {
    let cfa = cfa(row, registers, memory).ok_or(UnwindEnd::Unreadable)?;
    frame.cfa = is_above(cfa, registers).then_some(cfa);
    if row.return_address == RegisterRule::Undefined {
        return Err(UnwindEnd::Outermost);
    }
    let callee = *registers;
    let mut apply = |rule: &RegisterRule<usize>, own: Value| caller_value(row, rule, own, cfa, &callee, memory);
    let return_address = apply(&row.return_address, Value::Known(callee.rip));
    // Registers without a rule are known in the caller only if functions preserve them.
    registers.enter_caller(callee.rip, cfa);
    for (number, rule) in &row.rules {
        registers.set(*number, apply(rule, callee.value(*number)));
    }
    registers.rip = read_value(return_address, memory)?;
    // longjmp has a rule for rsp: it says that the caller is where setjmp returned to.
    let rsp = read_value(registers.value(FrameRegister::Rsp as u16), memory)?;
    registers.set(FrameRegister::Rsp as u16, Value::Known(rsp));
    if row.is_signal {
        frame.cfa = Some(rsp);
        return Ok(true);
    }
    // Its last instructions have the caller's rsp already.
    if !(frame.is_exact && callee.rsp() == Some(rsp)) {
        check_above(rsp, &callee)?;
    }
    frame.cfa = Some(rsp);
    if registers.rip == 0 { Err(UnwindEnd::Outermost) } else { Ok(false) }
}

/// Returns a value, and reads it where it is saved.
fn read_value(value: Value, memory: &mut impl FnMut(u64) -> Option<u64>) -> Result<u64, UnwindEnd> {
    let number = match value {
        Value::Known(value) => Some(value),
        Value::Saved(address) => memory(address),
        Value::Unknown => None,
    };
    number.ok_or(UnwindEnd::Unreadable)
}

fn cfa(row: &GeneralRow, registers: &FrameRegisters, memory: &mut impl FnMut(u64) -> Option<u64>) -> Option<u64> {
    match &row.cfa {
        CfaRule::RegisterAndOffset { register, offset } => {
            registers.read(register.0, memory).map(|base| base.wrapping_add_signed(*offset))
        }
        CfaRule::Expression(expression) => value_of(row, expression, None, registers, memory),
    }
}

/// Returns a register of the caller by its rule, given its value in the callee.
fn caller_value(
    row: &GeneralRow,
    rule: &RegisterRule<usize>,
    own: Value,
    cfa: u64,
    callee: &FrameRegisters,
    memory: &mut impl FnMut(u64) -> Option<u64>,
) -> Value {
    let mut result = |expression| value_of(row, expression, Some(cfa), callee, memory);
    match rule {
        RegisterRule::SameValue => own,
        RegisterRule::Offset(offset) => Value::Saved(cfa.wrapping_add_signed(*offset)),
        RegisterRule::ValOffset(offset) => Value::Known(cfa.wrapping_add_signed(*offset)),
        RegisterRule::Register(register) => callee.value(register.0),
        RegisterRule::Expression(expression) => result(expression).map_or(Value::Unknown, Value::Saved),
        RegisterRule::ValExpression(expression) => result(expression).map_or(Value::Unknown, Value::Known),
        RegisterRule::Constant(value) => Value::Known(*value),
        _ => Value::Unknown,
    }
}

fn value_of(
    row: &GeneralRow,
    expression: &UnwindExpression<usize>,
    initial: Option<u64>,
    registers: &FrameRegisters,
    memory: &mut impl FnMut(u64) -> Option<u64>,
) -> Option<u64> {
    let section = row.table.section();
    evaluate(expression.get(&section).ok()?, row.encoding, initial, registers, memory)
}

/// Where the kernel puts the registers of interrupted code, from the stack pointer of the handler's
/// caller, and their numbers: `uc_mcontext` of `ucontext_t`. The last one is rip.
const CONTEXT: u64 = 40;
const CONTEXT_REGISTERS: [u16; 17] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16];

fn enter_without_row(
    modules: &Modules,
    registers: &mut FrameRegisters,
    frame: &mut Frame,
    memory: &mut impl FnMut(u64) -> Option<u64>,
) -> EnterResult {
    let rsp = registers.rsp().ok_or(UnwindEnd::Unreadable)?;
    if is_signal_return(registers.rip, memory) {
        return enter_interrupted(registers, frame, rsp, memory);
    }
    let rbp = registers.read(FrameRegister::Rbp as u16, memory);
    let (cfa, saved_rbp) = match place_by_code(modules, registers.rip, frame.is_exact, memory) {
        ReturnPlace::Top => (rsp.wrapping_add(8), None),
        ReturnPlace::AboveRbp => (rsp.wrapping_add(16), Some(rsp)),
        ReturnPlace::Unclear => (rbp.ok_or(UnwindEnd::Unknown)?.wrapping_add(16), rbp),
    };
    let place = cfa.wrapping_add_signed(RETURN_OFFSET);
    if cfa <= rsp || place % 8 != 0 {
        return Err(UnwindEnd::Unknown);
    }
    let return_address = memory(place).filter(|&address| follows_call(modules, address, memory));
    let return_address = return_address.ok_or(UnwindEnd::Unknown)?;
    frame.cfa = Some(cfa);
    if let Some(saved) = saved_rbp {
        registers.set(FrameRegister::Rbp as u16, Value::Saved(saved));
    }
    enter(registers, return_address, cfa)?;
    Ok(false)
}

/// Returns where the caller's address is, as far as the next instruction shows it. It shows nothing
/// behind a call. If there is no code, the thread has called a wrong address.
fn place_by_code(
    modules: &Modules,
    rip: u64,
    is_exact: bool,
    memory: &mut impl FnMut(u64) -> Option<u64>,
) -> ReturnPlace {
    match memory(rip) {
        _ if !is_exact => ReturnPlace::Unclear,
        Some(code) => return_place(code),
        None if modules.at(rip).is_some() => ReturnPlace::Unclear,
        None => ReturnPlace::Top,
    }
}

/// Returns whether an address follows a call. Of code that cannot be read it is enough to know that
/// it is code.
fn follows_call(modules: &Modules, address: u64, memory: &mut impl FnMut(u64) -> Option<u64>) -> bool {
    memory(address.wrapping_sub(8)).map_or(modules.at(address).is_some(), ends_with_call)
}

fn enter_interrupted(
    registers: &mut FrameRegisters,
    frame: &mut Frame,
    rsp: u64,
    memory: &mut impl FnMut(u64) -> Option<u64>,
) -> EnterResult {
    let mut place = rsp.wrapping_add(CONTEXT);
    for number in CONTEXT_REGISTERS {
        let value = memory(place).ok_or(UnwindEnd::Unreadable)?;
        registers.set(number, Value::Known(value));
        registers.rip = value;
        place = place.wrapping_add(8);
    }
    frame.cfa = registers.rsp();
    Ok(true)
}
