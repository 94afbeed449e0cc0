//! Evaluates the expressions of call frame information.

#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use gimli::{Encoding, EvaluationResult, Expression, Reader, Value};

use crate::registers::FrameRegisters;

/// The most operations to execute: expressions can have loops.
const OPERATIONS_MAX: u32 = 1000;

/// Returns the result of an expression, which begins with `initial` on its stack.
pub fn evaluate<R: Reader<Offset = usize>>(
    expression: Expression<R>,
    encoding: Encoding,
    initial: Option<u64>,
    registers: &FrameRegisters,
    memory: &mut impl FnMut(u64) -> Option<u64>,
) -> Option<u64> {
    let mut evaluation = expression.evaluation(encoding);
    evaluation.set_max_iterations(OPERATIONS_MAX);
    initial.into_iter().for_each(|value| evaluation.set_initial_value(value));
    let mut result = evaluation.evaluate().ok()?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = registers.read(register.0, memory)?;
                evaluation.resume_with_register(Value::Generic(value)).ok()?
            }
            EvaluationResult::RequiresMemory { address, size, space: None, .. } => {
                let word = memory(address)? & lowest_bytes(size)?;
                evaluation.resume_with_memory(Value::Generic(word)).ok()?
            }
            _ => return None,
        };
    }
    match evaluation.value_result()? {
        Value::Generic(value) | Value::U64(value) => Some(value),
        _ => None,
    }
}

/// Returns the mask of this many bytes.
fn lowest_bytes(size: u8) -> Option<u64> {
    (1..=8).contains(&size).then(|| u64::MAX >> (64 - 8 * u32::from(size)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use gimli::{EndianSlice, Format, LittleEndian};

    use super::*;
    use crate::registers::FrameRegister;

    fn value(bytes: &[u8], initial: Option<u64>) -> Option<u64> {
        let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 1 };
        let registers = FrameRegisters::new(0x100b, 0x50).with(FrameRegister::Rbp, 0x60);
        let mut memory = |address| (address == 0x58).then_some(0x1122_3344_5566_7788);
        evaluate(Expression(EndianSlice::new(bytes, LittleEndian)), encoding, initial, &registers, &mut memory)
    }

    #[test]
    fn the_expression_of_a_linkage_stub() {
        // rsp + 8, and 8 more behind the stub's push.
        let stub = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(value(&stub, None), Some(0x50 + 8 + 8));
    }

    #[test]
    fn memory_and_the_initial_value() {
        assert_eq!(value(&[0x77, 8, 0x06], None), Some(0x1122_3344_5566_7788));
        assert_eq!(value(&[0x77, 8, 0x94, 2], None), Some(0x7788));
        assert_eq!(value(&[0x23, 5], Some(7)), Some(12));
        assert_eq!(value(&[0x76, 0], None), Some(0x60));
    }

    #[test]
    fn what_cannot_be_evaluated_has_no_result() {
        assert_eq!(value(&[], None), None);
        assert_eq!(value(&[0x77, 9, 0x06], None), None, "unreadable memory");
        assert_eq!(value(&[0x70, 0], None), None, "an unknown register");
        assert_eq!(value(&[0x30, 0x2f, 0xfc, 0xff], None), None, "a loop");
        assert_eq!(value(&[0x94], None), None, "an operand is missing");
    }
}
