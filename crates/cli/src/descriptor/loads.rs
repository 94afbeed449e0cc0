//! Messages of mlvCFiat (Myers 2014, Figure 4.36): values of loads, each with the number of known
//! loads before it.

use trace::ThreadId;

use super::memory::{push_value, write_value};
use super::{BinaryOptions, LONG_SIZE, Line, RecordFormat};

/// A count of known loads without a value; the size is 0, and the next record continues it.
const COUNT_MAX: u32 = u32::MAX;

/// Writes the message of a first-access miss.
#[inline]
pub fn write(format: RecordFormat, thread: ThreadId, hits: u64, value: &[u8], text: Option<&str>, lines: &mut Vec<u8>) {
    let RecordFormat::Binary(binary) = format else { return write_text(thread, hits, value, text, lines) };
    let mut left = hits;
    while left >= u64::from(COUNT_MAX) {
        record(thread, COUNT_MAX, &[], binary, lines);
        left -= u64::from(COUNT_MAX);
    }
    // Below the maximum, so that it fits.
    record(thread, left as u32, value, binary, lines);
}

fn write_text(thread: ThreadId, hits: u64, value: &[u8], text: Option<&str>, lines: &mut Vec<u8>) {
    let mut line = Line::new();
    line.push_number(thread.get().into());
    line.push(b", ");
    line.push_number(hits);
    line.push(b", ");
    push_value(line, value, lines).end_text(b" ", text, lines);
}

#[inline(always)]
fn record(thread: ThreadId, hits: u32, value: &[u8], binary: BinaryOptions, lines: &mut Vec<u8>) {
    let size = u32::try_from(value.len()).unwrap_or(u32::MAX);
    let [a, b, c, d] = hits.to_le_bytes();
    if binary.wide {
        let ([t, u, v, w], [e, f, g, h]) = (thread.get().to_le_bytes(), size.to_le_bytes());
        lines.extend_from_slice(&[t, u, v, w, a, b, c, d, e, f, g, h]);
        return write_value(value, binary, lines);
    }
    match u8::try_from(size) {
        Ok(short) if short != LONG_SIZE => lines.extend_from_slice(&[thread.get() as u8, a, b, c, d, short]),
        _ => {
            let [e, f, g, h] = size.to_le_bytes();
            lines.extend_from_slice(&[thread.get() as u8, a, b, c, d, LONG_SIZE, e, f, g, h]);
        }
    }
    write_value(value, binary, lines);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: RecordFormat, hits: u64, value: &[u8], text: Option<&str>) -> Vec<u8> {
        let mut lines = Vec::new();
        write(format, ThreadId::FIRST, hits, value, text, &mut lines);
        lines
    }

    /// The example of Figure 4.36.
    #[test]
    fn descriptors_are_those_of_the_seed() {
        let line = written(RecordFormat::Ascii, 2, &[4, 0, 0, 0], Some("mov r8d, dword ptr [rax]"));
        assert_eq!(line, b"0, 2, 0x00000004 mov r8d, dword ptr [rax]\n");
        let plain = RecordFormat::Binary(BinaryOptions::default());
        assert_eq!(written(plain, 2, &[4, 0, 0, 0], None), b"\0\x02\0\0\0\x04\x04\0\0\0");
        let reversed = RecordFormat::Binary(BinaryOptions { values_reversed: true, ..BinaryOptions::default() });
        assert_eq!(written(reversed, 2, &[4, 0, 0, 0], None), b"\0\x02\0\0\0\x04\0\0\0\x04");
    }

    #[test]
    fn large_counts_are_split() {
        let plain = RecordFormat::Binary(BinaryOptions::default());
        assert_eq!(written(plain, u64::from(u32::MAX) + 1, &[9], None), b"\0\xff\xff\xff\xff\0\0\x01\0\0\0\x01\x09");
    }

    #[test]
    fn long_values_have_long_sizes() {
        let plain = RecordFormat::Binary(BinaryOptions::default());
        assert_eq!(written(plain, 0, &[7; 254], None)[5..], [&[254][..], &[7; 254]].concat());
        assert_eq!(written(plain, 0, &[7; 255], None)[5..], [&[255, 255, 0, 0, 0][..], &[7; 255]].concat());
        assert_eq!(written(plain, 0, &[7; 300], None)[5..], [&[255, 44, 1, 0, 0][..], &[7; 300]].concat());
    }
}
