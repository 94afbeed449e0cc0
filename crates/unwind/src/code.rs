//! What machine code shows about a frame for which there is no call frame information.

#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

/// `mov $15, %rax`, the number of rt_sigreturn, without its last byte.
const SIGRETURN_NUMBER: [u8; 6] = [0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00];

/// The length of the instruction before `syscall`.
const NUMBER_LENGTH: u64 = 7;

const SYSCALL: [u8; 2] = [0x0f, 0x05];

const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

const PUSH_RBP: u8 = 0x55;
const RET: u8 = 0xc3;

/// Both encodings of `mov %rsp, %rbp`.
const MOV_RSP_RBP: [[u8; 3]; 2] = [[0x48, 0x89, 0xe5], [0x48, 0x8b, 0xec]];

/// Where the caller's address is, by the next instruction of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnPlace {
    /// On top of the stack: the function has pushed nothing, or is about to return.
    Top,
    /// Above the caller's rbp, which is on top of the stack.
    AboveRbp,
    /// The instruction does not say.
    Unclear,
}

/// Returns where the caller's address is, given the first bytes of the next instruction.
pub fn return_place(code: u64) -> ReturnPlace {
    let bytes = code.to_le_bytes();
    let after_endbr = bytes.strip_prefix(&ENDBR);
    match after_endbr.unwrap_or(&bytes) {
        [PUSH_RBP | RET, ..] => ReturnPlace::Top,
        _ if after_endbr.is_some() => ReturnPlace::Top,
        code if MOV_RSP_RBP.iter().any(|mov| code.starts_with(mov)) => ReturnPlace::AboveRbp,
        _ => ReturnPlace::Unclear,
    }
}

/// Returns whether an address is in the code that a handler returns to, and that returns from a
/// signal. The system's libraries have call frame information for it; those of other languages may
/// not.
pub fn is_signal_return(address: u64, memory: &mut impl FnMut(u64) -> Option<u64>) -> bool {
    let mut is_start = |start: u64| {
        let (first, second) = (memory(start), memory(start.wrapping_add(NUMBER_LENGTH)));
        first.is_some_and(|code| code.to_le_bytes().starts_with(&SIGRETURN_NUMBER))
            && second.is_some_and(|code| code.to_le_bytes().starts_with(&SYSCALL))
    };
    is_start(address) || is_start(address.wrapping_sub(NUMBER_LENGTH))
}

/// Returns whether a call instruction ends with these eight bytes.
pub fn ends_with_call(code: u64) -> bool {
    let bytes = code.to_le_bytes();
    (0..bytes.len()).any(|start| {
        let instruction = bytes.get(start..).unwrap_or_default();
        call_length(instruction) == Some(instruction.len())
    })
}

/// Returns the length of a near call, without its prefixes.
fn call_length(code: &[u8]) -> Option<usize> {
    match code {
        [0xe8, ..] => Some(5),
        [0xff, operand, rest @ ..] if operand >> 3 & 7 == 2 => Some(2 + operand_length(*operand, rest)),
        _ => None,
    }
}

/// Returns the length of what follows the ModRM byte of an operand.
fn operand_length(operand: u8, rest: &[u8]) -> usize {
    let (mode, base) = (operand >> 6, operand & 7);
    let has_index = mode != 3 && base == 4;
    let base = if has_index { rest.first().map_or(base, |index| index & 7) } else { base };
    let displacement = match mode {
        1 => 1,
        2 => 4,
        0 if base == 5 => 4,
        _ => 0,
    };
    usize::from(has_index) + displacement
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// Makes a word of the last bytes before an address.
    fn before(bytes: &[u8]) -> u64 {
        let mut word = [0x90; 8];
        word[8 - bytes.len()..].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }

    /// Makes a word of the first bytes at an address.
    fn at(bytes: &[u8]) -> u64 {
        let mut word = [0x90; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }

    #[test]
    fn calls_of_all_forms() {
        let calls: [&[u8]; 10] = [
            &[0xe8, 1, 2, 3, 4],
            &[0xff, 0xd0],
            &[0x41, 0xff, 0xd7],
            &[0xff, 0x10],
            &[0xff, 0x50, 8],
            &[0xff, 0x14, 0xc3],
            &[0xff, 0x54, 0x24, 8],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0xff, 0x93, 1, 2, 3, 4],
            &[0xff, 0x14, 0xc5, 1, 2, 3, 4],
        ];
        calls.iter().for_each(|call| assert!(ends_with_call(before(call)), "{call:x?}"));
    }

    #[test]
    fn other_instructions_are_no_call() {
        let others: [&[u8]; 5] = [&[], &[0xe9, 1, 2, 3, 4], &[0xff, 0xe0], &[0xff, 0x25, 1, 2, 3, 4], &[0xe8, 1, 2, 3]];
        others.iter().for_each(|other| assert!(!ends_with_call(before(other)), "{other:x?}"));
    }

    #[test]
    fn the_first_and_the_last_instruction() {
        let place = |bytes: &[u8]| return_place(at(bytes));
        assert_eq!(place(&[0x55]), ReturnPlace::Top);
        assert_eq!(place(&[0xf3, 0x0f, 0x1e, 0xfa, 0x31]), ReturnPlace::Top);
        assert_eq!(place(&[0xc3]), ReturnPlace::Top);
        assert_eq!(place(&[0x48, 0x89, 0xe5]), ReturnPlace::AboveRbp);
        assert_eq!(place(&[0x48, 0x8b, 0xec]), ReturnPlace::AboveRbp);
        assert_eq!(place(&[0x48, 0x89, 0xc5]), ReturnPlace::Unclear);
    }

    #[test]
    fn the_return_from_a_signal() {
        let code = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
        let mut memory = |address: u64| {
            let start = usize::try_from(address.checked_sub(0x100)?).ok()?;
            Some(u64::from_le_bytes(code.get(start..start + 8)?.try_into().ok()?))
        };
        let found: Vec<u64> = (0xf0..0x110).filter(|&address| is_signal_return(address, &mut memory)).collect();
        assert_eq!(found, [0x100, 0x107]);
        assert!(!is_signal_return(u64::MAX, &mut |_| None));
    }
}
