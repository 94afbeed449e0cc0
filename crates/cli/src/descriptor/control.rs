//! Branches as mcfTrace writes them (Myers 2014, Figures 4.2 and 4.3).

use isa::Transfer;
use trace::{AppPc, Block, Step, Terminator, ThreadId};

use super::{BinaryOptions, Line, RecordFormat};
use crate::digits::hex;

/// The type and outcome of a branch, numbered as in the binary format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    UnconditionalIndirect = 0,
    UnconditionalDirect = 1,
    ConditionalTaken = 2,
    ConditionalNotTaken = 3,
}

impl Class {
    pub fn of(terminator: Terminator) -> Option<Self> {
        match terminator {
            Terminator::Indirect => Some(Self::UnconditionalIndirect),
            Terminator::Direct => Some(Self::UnconditionalDirect),
            Terminator::Taken => Some(Self::ConditionalTaken),
            Terminator::NotTaken => Some(Self::ConditionalNotTaken),
            Terminator::Syscall | Terminator::Next | Terminator::Interrupted => None,
        }
    }

    fn letters(self) -> &'static [u8] {
        match self {
            Self::UnconditionalIndirect => b"U, I, T",
            Self::UnconditionalDirect => b"U, D, T",
            Self::ConditionalTaken => b"C, D, T",
            Self::ConditionalNotTaken => b"C, D, NT",
        }
    }

    fn json(self) -> &'static [u8] {
        match self {
            Self::UnconditionalIndirect => b"\"type\":\"UI\",\"taken\":true",
            Self::UnconditionalDirect => b"\"type\":\"UD\",\"taken\":true",
            Self::ConditionalTaken => b"\"type\":\"CD\",\"taken\":true",
            Self::ConditionalNotTaken => b"\"type\":\"CD\",\"taken\":false",
        }
    }
}

/// The type in the binary format of an indirect branch whose target is not known; the target is
/// written as 0.
const UNKNOWN_TARGET: u8 = 4;

/// One executed branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub thread: ThreadId,
    pub address: AppPc,
    /// `None` if the trace does not contain it: the process ended before the next block of the
    /// thread, or that block is damaged.
    pub target: Option<AppPc>,
    pub class: Class,
}

impl Descriptor {
    /// Returns the branch at the end of `step`, if there is one.
    #[inline]
    pub fn of(thread: ThreadId, step: &Step, block: &Block) -> Option<Self> {
        let class = Class::of(step.terminator())?;
        Some(Self { thread, address: block.last(), target: target(step, block, class), class })
    }

    pub fn write(&self, format: RecordFormat, text: Option<&str>, lines: &mut Vec<u8>) {
        let &Self { thread, address, target, class } = self;
        let mut line = Line::new();
        match format {
            RecordFormat::Ascii => {
                line.push_number(thread.get().into());
                line.push(b", ");
                line.push(&hex(address.get()));
                line.push(b", ");
                match target {
                    Some(target) => line.push(&hex(target.get())),
                    None => line.push(b"unknown"),
                }
                line.push(b", ");
                line.push(class.letters());
                line.end_text(b" ", text, lines);
            }
            RecordFormat::Binary(BinaryOptions { wide, .. }) => {
                line.push_thread(thread, wide);
                line.push(&address.get().to_le_bytes());
                line.push(&target.unwrap_or(AppPc::NONE).get().to_le_bytes());
                line.push(&[target.map_or(UNKNOWN_TARGET, |_| class as u8)]);
                lines.extend_from_slice(line.as_bytes());
            }
            RecordFormat::Json => {
                line = Line::json(thread);
                line.push(b",\"address\":\"");
                line.push(&hex(address.get()));
                match target {
                    Some(target) => {
                        line.push(b"\",\"target\":\"");
                        line.push(&hex(target.get()));
                        line.push(b"\",");
                    }
                    None => line.push(b"\",\"target\":null,"),
                }
                lines.extend_from_slice(line.as_bytes());
                let mut rest = Line::new();
                rest.push(class.json());
                rest.end_json(text, lines);
            }
        }
    }
}

/// Returns the address that the branch went to, or would have gone to (Figure 4.8).
fn target(step: &Step, block: &Block, class: Class) -> Option<AppPc> {
    match (class, block.transfer()) {
        (Class::ConditionalNotTaken, Transfer::Conditional { target }) => Some(target),
        (Class::UnconditionalIndirect, _) if step.next().is_none() => None,
        _ => Some(step.next()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(format: RecordFormat, descriptor: &Descriptor, text: Option<&str>, expected: &[u8]) {
        let mut lines = Vec::new();
        descriptor.write(format, text, &mut lines);
        assert_eq!(lines, expected);
    }

    const CALL: Descriptor = Descriptor {
        thread: ThreadId::FIRST,
        address: AppPc::new(0x3f_8320_0b03),
        target: Some(AppPc::new(0x3f_8320_1130)),
        class: Class::UnconditionalDirect,
    };

    /// The example of Figure 4.2.
    #[test]
    fn descriptors_are_those_of_the_seed() {
        let plain = b"0, 0x0000003f83200b03, 0x0000003f83201130, U, D, T\n";
        check(RecordFormat::Ascii, &CALL, None, plain);
        let assembly = b"0, 0x0000003f83200b03, 0x0000003f83201130, U, D, T call 0x3f83201130\n";
        check(RecordFormat::Ascii, &CALL, Some("call 0x3f83201130"), assembly);
        let binary = b"\x00\x03\x0b\x20\x83\x3f\x00\x00\x00\x30\x11\x20\x83\x3f\x00\x00\x00\x01";
        assert_eq!(binary.len(), 18);
        check(RecordFormat::Binary(BinaryOptions::default()), &CALL, None, binary);
        let wide = b"\x00\x00\x00\x00\x03\x0b\x20\x83\x3f\x00\x00\x00\x30\x11\x20\x83\x3f\x00\x00\x00\x01";
        check(RecordFormat::Binary(BinaryOptions { wide: true, ..BinaryOptions::default() }), &CALL, None, wide);
    }

    /// Line 9 of Figure 4.3 and the classes of Figure 4.2.
    #[test]
    fn classes_and_outcomes_have_letters() {
        let descriptor = Descriptor {
            thread: ThreadId::new(1),
            address: AppPc::new(0x7f5a_4099_6bbe),
            target: Some(AppPc::new(0x7f5a_4099_6be4)),
            class: Class::ConditionalNotTaken,
        };
        check(RecordFormat::Ascii, &descriptor, None, b"1, 0x00007f5a40996bbe, 0x00007f5a40996be4, C, D, NT\n");
        let letters = |terminator| Class::of(terminator).map(|class| (class as u8, class.letters()));
        assert_eq!(letters(Terminator::Indirect), Some((0, &b"U, I, T"[..])));
        assert_eq!(letters(Terminator::Direct), Some((1, &b"U, D, T"[..])));
        assert_eq!(letters(Terminator::Taken), Some((2, &b"C, D, T"[..])));
        assert_eq!(letters(Terminator::NotTaken), Some((3, &b"C, D, NT"[..])));
        assert_eq!(letters(Terminator::Syscall), None);
    }

    #[test]
    fn unknown_targets_are_marked() {
        let jump = Descriptor { target: None, class: Class::UnconditionalIndirect, ..CALL };
        check(RecordFormat::Ascii, &jump, Some("jmp rax"), b"0, 0x0000003f83200b03, unknown, U, I, T jmp rax\n");
        let binary = b"\x00\x03\x0b\x20\x83\x3f\x00\x00\x00\0\0\0\0\0\0\0\0\x04";
        check(RecordFormat::Binary(BinaryOptions::default()), &jump, None, binary);
        let json = br#"{"thread":0,"address":"0x0000003f83200b03","target":null,"type":"UI","taken":true}"#;
        check(RecordFormat::Json, &jump, None, &[&json[..], b"\n"].concat());
    }

    #[test]
    fn the_largest_line_fits() {
        let descriptor = Descriptor {
            thread: ThreadId::new(u32::MAX),
            address: AppPc::new(u64::MAX),
            target: Some(AppPc::new(u64::MAX)),
            class: Class::ConditionalNotTaken,
        };
        let expected = b"4294967295, 0xffffffffffffffff, 0xffffffffffffffff, C, D, NT\n";
        check(RecordFormat::Ascii, &descriptor, None, expected);
        let mut json = Vec::new();
        descriptor.write(RecordFormat::Json, Some("jz 0x1"), &mut json);
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(value["thread"], u32::MAX);
        assert_eq!(value["taken"], false);
        assert_eq!(value["assembly"], "jz 0x1");
    }
}
