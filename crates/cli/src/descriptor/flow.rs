//! Messages of mcfTRaptor (Myers 2014, Figure 4.22): mispredicted outcomes, mispredicted targets,
//! exceptions.
//!
//! Counts have four bytes in binary. A larger count is split: records with [`COUNT_MAX`] and no
//! event, and one with the rest.

use filter::traptor::BranchMessage;
use trace::ThreadId;

use super::{BinaryOptions, Line, RecordFormat};
use crate::digits::hex;

/// The position of the type in a binary record.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Behind the count, at the same offset in all records: they can be read from the first to the
    /// last.
    #[default]
    Fixed,
    /// At the end, as Figure 4.22 draws it: they can only be read from the last to the first.
    Last,
    /// Absent, as the text of the thesis has it (5, 14 and 17 bytes): only a decoder that executes
    /// the program knows the type.
    None,
}

/// Types of records.
const OUTCOME: u8 = 0;
const TARGET: u8 = 1;
const EXCEPTION: u8 = 2;

/// A count without an event; the next record continues it.
const COUNT_MAX: u32 = u32::MAX;

/// Writes a message.
#[inline]
pub fn write(
    format: RecordFormat,
    layout: Layout,
    thread: ThreadId,
    message: BranchMessage,
    text: Option<&str>,
    lines: &mut Vec<u8>,
) {
    match format {
        RecordFormat::Binary(binary) => write_binary(binary, layout, thread, message, lines),
        RecordFormat::Ascii | RecordFormat::Json => write_ascii(thread, message, text, lines),
    }
}

fn write_ascii(thread: ThreadId, message: BranchMessage, text: Option<&str>, lines: &mut Vec<u8>) {
    let mut line = Line::new();
    line.push_number(thread.get().into());
    line.push(b", ");
    match message {
        BranchMessage::Outcome { branches } => line.push_number(branches),
        BranchMessage::Target { branches, target } => {
            line.push_number(branches);
            line.push(b", T, ");
            line.push(&hex(target));
        }
        BranchMessage::Exception { instructions, target } => {
            line.push(b"0, ");
            line.push_number(instructions);
            line.push(b", ");
            line.push(&hex(target));
        }
    }
    line.end_text(b" ", text, lines);
}

#[inline]
fn write_binary(binary: BinaryOptions, layout: Layout, thread: ThreadId, message: BranchMessage, lines: &mut Vec<u8>) {
    // The fast path: nearly all records are of this form, and a tool has to keep up with the
    // program.
    if layout == Layout::Fixed && !binary.wide {
        match message {
            BranchMessage::Outcome { branches } if branches < u64::from(COUNT_MAX) => {
                return lines.extend_from_slice(&short(thread, branches, OUTCOME));
            }
            BranchMessage::Target { branches, target } if branches < u64::from(COUNT_MAX) => {
                let mut record = [1; SHORT_BYTES + 9];
                record[..SHORT_BYTES].copy_from_slice(&short(thread, branches, TARGET));
                record[SHORT_BYTES + 1..].copy_from_slice(&target.to_le_bytes());
                return lines.extend_from_slice(&record);
            }
            _ => {}
        }
    }
    write_any(binary, layout, thread, message, lines);
}

const SHORT_BYTES: usize = 6;

/// Returns the start of a usual record. The count has to fit.
#[inline]
fn short(thread: ThreadId, count: u64, kind: u8) -> [u8; SHORT_BYTES] {
    let [a, b, c, d] = (count as u32).to_le_bytes();
    [thread.get() as u8, a, b, c, d, kind]
}

fn write_any(binary: BinaryOptions, layout: Layout, thread: ThreadId, message: BranchMessage, lines: &mut Vec<u8>) {
    let record = Record { binary, layout, thread };
    match message {
        BranchMessage::Outcome { branches } => {
            record.write(OUTCOME, record.split(branches, OUTCOME, lines), &[], lines)
        }
        BranchMessage::Target { branches, target } => {
            let count = record.split(branches, OUTCOME, lines);
            let mut rest = [1; 9];
            rest[1..].copy_from_slice(&target.to_le_bytes());
            record.write(TARGET, count, &rest, lines);
        }
        BranchMessage::Exception { instructions, target } => {
            let count = record.split(instructions, EXCEPTION, lines);
            record.write(EXCEPTION, 0, &exception(count, target), lines);
        }
    }
}

fn exception(count: u32, target: u64) -> [u8; 12] {
    let mut rest = [0; 12];
    rest[..4].copy_from_slice(&count.to_le_bytes());
    rest[4..].copy_from_slice(&target.to_le_bytes());
    rest
}

struct Record {
    binary: BinaryOptions,
    layout: Layout,
    thread: ThreadId,
}

impl Record {
    fn write(&self, kind: u8, count: u32, rest: &[u8], lines: &mut Vec<u8>) {
        let mut line = Line::new();
        line.push_thread(self.thread, self.binary.wide);
        line.push(&count.to_le_bytes());
        if self.layout == Layout::Fixed {
            line.push(&[kind]);
        }
        line.push(rest);
        if self.layout == Layout::Last {
            line.push(&[kind]);
        }
        lines.extend_from_slice(line.as_bytes());
    }

    /// Writes the part of a count that does not fit, and returns the rest.
    fn split(&self, mut count: u64, kind: u8, lines: &mut Vec<u8>) -> u32 {
        while count >= u64::from(COUNT_MAX) {
            match kind {
                EXCEPTION => self.write(kind, 0, &exception(COUNT_MAX, 0), lines),
                _ => self.write(kind, COUNT_MAX, &[], lines),
            }
            count -= u64::from(COUNT_MAX);
        }
        // Below COUNT_MAX, so that it fits.
        count as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTCOME_1: BranchMessage = BranchMessage::Outcome { branches: 1 };
    const CALL: BranchMessage = BranchMessage::Target { branches: 1, target: 0x3f_83e0_7780 };
    const DIVISION: BranchMessage = BranchMessage::Exception { instructions: 78, target: 0x40_1000 };

    fn ascii(thread: u32, message: BranchMessage, text: Option<&str>) -> String {
        let mut lines = Vec::new();
        write(RecordFormat::Ascii, Layout::Fixed, ThreadId::new(thread), message, text, &mut lines);
        String::from_utf8(lines).unwrap()
    }

    /// The examples of Figure 4.22; the last one lacks the target there.
    #[test]
    fn descriptors_are_those_of_the_seed() {
        assert_eq!(ascii(0, OUTCOME_1, Some("jz 0x7f428fe34618")), "0, 1 jz 0x7f428fe34618\n");
        assert_eq!(ascii(1, CALL, Some("call rax")), "1, 1, T, 0x0000003f83e07780 call rax\n");
        assert_eq!(ascii(0, DIVISION, None), "0, 0, 78, 0x0000000000401000\n");
    }

    fn binary(layout: Layout, message: BranchMessage) -> Vec<u8> {
        let mut lines = Vec::new();
        write(RecordFormat::Binary(BinaryOptions::default()), layout, ThreadId::new(3), message, None, &mut lines);
        lines
    }

    #[test]
    fn binary_records_have_their_sizes_and_types() {
        for (layout, sizes) in [(Layout::Fixed, [6, 15, 18]), (Layout::Last, [6, 15, 18]), (Layout::None, [5, 14, 17])]
        {
            assert_eq!([OUTCOME_1, CALL, DIVISION].map(|message| binary(layout, message).len()), sizes);
        }
        assert_eq!(binary(Layout::Fixed, OUTCOME_1), b"\x03\x01\0\0\0\0");
        assert_eq!(binary(Layout::Fixed, CALL), b"\x03\x01\0\0\0\x01\x01\x80\x77\xe0\x83\x3f\0\0\0");
        assert_eq!(binary(Layout::Fixed, DIVISION), b"\x03\0\0\0\0\x02\x4e\0\0\0\0\x10\x40\0\0\0\0\0");
        assert_eq!(binary(Layout::Last, DIVISION), b"\x03\0\0\0\0\x4e\0\0\0\0\x10\x40\0\0\0\0\0\x02");
    }

    #[test]
    fn large_counts_are_split() {
        let branches = u64::from(u32::MAX) * 2 + 5;
        let records = binary(Layout::Fixed, BranchMessage::Outcome { branches });
        assert_eq!(records, b"\x03\xff\xff\xff\xff\0\x03\xff\xff\xff\xff\0\x03\x05\0\0\0\0");
        assert_eq!(ascii(0, BranchMessage::Outcome { branches }, None), "0, 8589934595\n");
        let records = binary(Layout::Fixed, BranchMessage::Exception { instructions: u64::from(u32::MAX), target: 7 });
        assert_eq!(records.len(), 36);
        assert_eq!(records[6..18], *b"\xff\xff\xff\xff\0\0\0\0\0\0\0\0");
        assert_eq!(records[24..], *b"\0\0\0\0\x07\0\0\0\0\0\0\0");
    }
}
