//! Descriptors of instructions, branches and accesses: as lines of text, as binary records, or as
//! JSON. The formats are those of mTrace (Myers 2014, chapter 4): [`control`] for mcfTrace,
//! [`memory`] for mlsTrace, [`flow`] for mcfTRaptor, [`loads`] for mlvCFiat.
//!
//! All functions append to a buffer of bytes, whose owner writes it out.

pub mod control;
pub mod flow;
pub mod loads;
pub mod memory;
mod text;

pub use text::DisassemblyCache;

use trace::{AppPc, ThreadId};

use crate::digits::hex;

/// The format of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFormat {
    Ascii,
    Binary(BinaryOptions),
    Json,
}

/// Options of binary records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BinaryOptions {
    /// Threads and sizes of operands have 4 bytes.
    pub wide: bool,
    /// Values begin with their highest byte.
    pub values_reversed: bool,
    /// The recording has values, so that an access without one is marked.
    pub has_values: bool,
}

/// Replaces a size in one byte: the size follows in four bytes.
const LONG_SIZE: u8 = u8::MAX;

/// The bit of a size in four bytes that marks an access without a value.
const WITHOUT_VALUE: u32 = 1 << 31;

/// A line or record under construction, without an allocation.
pub struct Line {
    bytes: [u8; 96],
    length: usize,
}

impl Line {
    pub fn new() -> Self {
        Self { bytes: [0; 96], length: 0 }
    }

    /// Begins a JSON object.
    pub fn json(thread: ThreadId) -> Self {
        let mut line = Self::new();
        line.push(b"{\"thread\":");
        line.push_number(thread.get().into());
        line
    }

    #[inline]
    pub fn push(&mut self, text: &[u8]) {
        self.bytes[self.length..self.length + text.len()].copy_from_slice(text);
        self.length += text.len();
    }

    /// Appends a number in decimal; usually one digit.
    #[inline]
    pub fn push_number(&mut self, number: u64) {
        if number >= 10 {
            self.push_number(number / 10);
        }
        self.push(&[b'0' + (number % 10) as u8]);
    }

    /// Appends a thread in binary.
    #[inline]
    pub fn push_thread(&mut self, thread: ThreadId, wide: bool) {
        if wide {
            self.push(&thread.get().to_le_bytes());
        } else {
            self.push(&[thread.get() as u8]);
        }
    }

    /// Appends the size of an operand in binary. A size that does not fit into a byte follows
    /// [`LONG_SIZE`].
    #[inline]
    pub fn push_size(&mut self, size: u32, wide: bool) {
        match u8::try_from(size) {
            Ok(short) if short != LONG_SIZE && !wide => return self.push(&[short]),
            _ if !wide => self.push(&[LONG_SIZE]),
            _ => {}
        }
        self.push(&size.to_le_bytes());
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Ends a line of text, perhaps with the disassembly of an instruction.
    pub fn end_text(mut self, separator: &[u8], text: Option<&str>, lines: &mut Vec<u8>) {
        match text {
            None => {
                self.push(b"\n");
                lines.extend_from_slice(self.as_bytes());
            }
            Some(text) => {
                self.push(separator);
                lines.extend_from_slice(self.as_bytes());
                lines.extend_from_slice(text.as_bytes());
                lines.push(b'\n');
            }
        }
    }

    /// Ends a JSON object. Disassembly has neither quotes nor backslashes, so it needs no escapes.
    pub fn end_json(self, text: Option<&str>, lines: &mut Vec<u8>) {
        lines.extend_from_slice(self.as_bytes());
        if let Some(text) = text {
            lines.extend_from_slice(b",\"assembly\":\"");
            lines.extend_from_slice(text.as_bytes());
            lines.push(b'"');
        }
        lines.extend_from_slice(b"}\n");
    }
}

/// Writes an executed instruction.
#[inline]
pub fn instruction(format: RecordFormat, thread: ThreadId, address: AppPc, text: Option<&str>, lines: &mut Vec<u8>) {
    let mut line = Line::new();
    match format {
        RecordFormat::Ascii => {
            line.push_number(thread.get().into());
            line.push(b", ");
            line.push(&hex(address.get()));
            line.end_text(b", ", text, lines);
        }
        RecordFormat::Binary(BinaryOptions { wide, .. }) => {
            line.push_thread(thread, wide);
            line.push(&address.get().to_le_bytes());
            lines.extend_from_slice(line.as_bytes());
        }
        RecordFormat::Json => {
            line = Line::json(thread);
            line.push(b",\"address\":\"");
            line.push(&hex(address.get()));
            line.push(b"\"");
            line.end_json(text, lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_written_in_every_format() {
        let check = |format, text, expected: &[u8]| {
            let mut lines = Vec::new();
            instruction(format, ThreadId::new(12), AppPc::new(0x400572), text, &mut lines);
            assert_eq!(lines, expected);
        };
        check(RecordFormat::Ascii, None, b"12, 0x0000000000400572\n");
        check(RecordFormat::Ascii, Some("loop 0x400572"), b"12, 0x0000000000400572, loop 0x400572\n");
        check(RecordFormat::Binary(BinaryOptions::default()), None, b"\x0c\x72\x05\x40\0\0\0\0\0");
        check(RecordFormat::Json, None, b"{\"thread\":12,\"address\":\"0x0000000000400572\"}\n");
    }
}
