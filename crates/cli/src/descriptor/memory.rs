//! Memory accesses as mlsTrace writes them: the six fields of Myers 2014, Figure 4.14, as text, and
//! the descriptor of Figure 4.13 in binary.

use trace::{Access, AppPc, Batch, ThreadId};

use super::{BinaryOptions, Line, RecordFormat, WITHOUT_VALUE};
use crate::digits::{hex, hex_of_bytes};

/// One load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    pub thread: ThreadId,
    pub store: bool,
    pub address: AppPc,
    pub operand: u64,
    pub size: u32,
    pub value: Option<&'a [u8]>,
}

/// The fields of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    All,
    /// Without the field for load or store, if there are only loads.
    Loads,
}

impl<'a> Descriptor<'a> {
    pub fn of(batch: &'a Batch, access: &Access) -> Self {
        Self {
            thread: batch.thread(),
            store: access.is_write(),
            address: access.pc(),
            operand: access.address(),
            size: access.size(),
            value: batch.value(access),
        }
    }

    pub fn write(&self, format: RecordFormat, fields: Fields, text: Option<&str>, lines: &mut Vec<u8>) {
        match format {
            RecordFormat::Ascii => self.write_ascii(fields, text, lines),
            RecordFormat::Binary(binary) => self.write_binary(fields, binary, lines),
            RecordFormat::Json => self.write_json(text, lines),
        }
    }

    fn write_ascii(&self, fields: Fields, text: Option<&str>, lines: &mut Vec<u8>) {
        let mut line = Line::new();
        line.push_number(self.thread.get().into());
        line.push(match (fields, self.store) {
            (Fields::Loads, _) => b", ",
            (Fields::All, true) => b", S, ",
            (Fields::All, false) => b", L, ",
        });
        line.push(&hex(self.address.get()));
        line.push(b", ");
        line.push(&hex(self.operand));
        line.push(b", ");
        line.push_number(self.size.into());
        if let Some(value) = self.value {
            line.push(b", ");
            line = push_value(line, value, lines);
        }
        line.end_text(b" ", text, lines);
    }

    fn write_binary(&self, fields: Fields, binary: BinaryOptions, lines: &mut Vec<u8>) {
        let mut line = Line::new();
        line.push_thread(self.thread, binary.wide);
        if fields == Fields::All {
            line.push(&[u8::from(self.store)]);
        }
        line.push(&self.address.get().to_le_bytes());
        line.push(&self.operand.to_le_bytes());
        let is_missing = self.value.is_none() && binary.has_values;
        line.push_size(if is_missing { self.size | WITHOUT_VALUE } else { self.size }, binary.wide);
        lines.extend_from_slice(line.as_bytes());
        if let Some(value) = self.value {
            write_value(value, binary, lines);
        }
    }

    fn write_json(&self, text: Option<&str>, lines: &mut Vec<u8>) {
        let mut line = Line::json(self.thread);
        line.push(b",\"kind\":\"");
        line.push(if self.store { b"store" } else { b"load" });
        line.push(b"\",\"address\":\"");
        line.push(&hex(self.address.get()));
        lines.extend_from_slice(line.as_bytes());
        line = Line::new();
        line.push(b"\",\"operand\":\"");
        line.push(&hex(self.operand));
        line.push(b"\",\"size\":");
        line.push_number(self.size.into());
        if let Some(value) = self.value {
            line.push(b",\"value\":\"");
            line = push_value(line, value, lines);
            line.push(b"\"");
        }
        line.end_json(text, lines);
    }
}

/// Appends a value as a number. Writes out the line first if the value does not fit.
pub fn push_value(mut line: Line, value: &[u8], lines: &mut Vec<u8>) -> Line {
    let mut digits = [0; 2 + 2 * 64];
    if value.len() <= 8 {
        line.push(hex_of_bytes(value, &mut digits));
        return line;
    }
    line.push(b"0x");
    lines.extend_from_slice(line.as_bytes());
    // Highest byte first, as in a number.
    for part in value.rchunks(64) {
        lines.extend_from_slice(&hex_of_bytes(part, &mut digits)[2..]);
    }
    Line::new()
}

/// Writes a value in binary.
#[inline(always)]
pub fn write_value(value: &[u8], binary: BinaryOptions, lines: &mut Vec<u8>) {
    if binary.values_reversed {
        return lines.extend(value.iter().rev());
    }
    // Fixed sizes save a call.
    match (value.as_array::<4>(), value.as_array::<8>(), value.as_array::<16>()) {
        (Some(value), ..) => lines.extend_from_slice(value),
        (_, Some(value), _) => lines.extend_from_slice(value),
        (.., Some(value)) => lines.extend_from_slice(value),
        _ => lines.extend_from_slice(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(format: RecordFormat, descriptor: &Descriptor, text: Option<&str>, expected: &[u8]) {
        let mut lines = Vec::new();
        descriptor.write(format, Fields::All, text, &mut lines);
        assert_eq!(lines, expected, "{}", String::from_utf8_lossy(&lines));
    }

    const VALUE: [u8; 8] = 0x3f_8320_1130u64.to_le_bytes();
    /// Line 21 of Figure 4.14.
    const LOAD: Descriptor = Descriptor {
        thread: ThreadId::FIRST,
        store: false,
        address: AppPc::new(0x3f_8320_1156),
        operand: 0x3f_8341_fb80,
        size: 8,
        value: Some(&VALUE),
    };

    #[test]
    fn fields_are_those_of_the_seed() {
        let plain = b"0, L, 0x0000003f83201156, 0x0000003f8341fb80, 8, 0x0000003f83201130\n";
        check(RecordFormat::Ascii, &LOAD, None, plain);
        // Line 9 of Figure 4.18.
        let store = Descriptor {
            thread: ThreadId::FIRST,
            store: true,
            address: AppPc::new(0x4005a0),
            operand: 0x7fff_19df_6161,
            size: 1,
            value: Some(&[0xff]),
        };
        let line = b"0, S, 0x00000000004005a0, 0x00007fff19df6161, 1, 0xff mov byte ptr [rsp+rax*1+0x1a0], dl\n";
        check(RecordFormat::Ascii, &store, Some("mov byte ptr [rsp+rax*1+0x1a0], dl"), line);
        check(
            RecordFormat::Ascii,
            &Descriptor { value: None, ..LOAD },
            None,
            b"0, L, 0x0000003f83201156, 0x0000003f8341fb80, 8\n",
        );
    }

    /// Line 11 of Figure 4.20: 1.0 with ten bytes.
    #[test]
    fn long_values_are_numbers() {
        let value = [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f];
        let descriptor = Descriptor { size: 10, value: Some(&value), ..LOAD };
        let line = b"0, L, 0x0000003f83201156, 0x0000003f8341fb80, 10, 0x3fff8000000000000000\n";
        check(RecordFormat::Ascii, &descriptor, None, line);
        let value: Vec<u8> = (0..130).collect();
        let descriptor = Descriptor { size: 130, value: Some(&value), ..LOAD };
        let digits: String = value.iter().rev().map(|byte| format!("{byte:02x}")).collect();
        let line = format!("0, L, 0x0000003f83201156, 0x0000003f8341fb80, 130, 0x{digits} x\n");
        check(RecordFormat::Ascii, &descriptor, Some("x"), line.as_bytes());
    }

    /// mlsTrace without -store; and values with their highest byte first.
    #[test]
    fn loads_alone_have_no_letter() {
        let written = |format| {
            let mut lines = Vec::new();
            LOAD.write(format, Fields::Loads, None, &mut lines);
            lines
        };
        let plain = b"0, 0x0000003f83201156, 0x0000003f8341fb80, 8, 0x0000003f83201130\n";
        assert_eq!(written(RecordFormat::Ascii), plain);
        let reversed = BinaryOptions { values_reversed: true, ..BinaryOptions::default() };
        let binary = b"\0\x56\x11\x20\x83\x3f\0\0\0\x80\xfb\x41\x83\x3f\0\0\0\x08\0\0\0\x3f\x83\x20\x11\x30";
        assert_eq!(written(RecordFormat::Binary(reversed)), binary);
    }

    #[test]
    fn accesses_are_written_as_binary_and_json() {
        let binary = b"\0\0\x56\x11\x20\x83\x3f\0\0\0\x80\xfb\x41\x83\x3f\0\0\0\x08\x30\x11\x20\x83\x3f\0\0\0";
        assert_eq!(binary.len(), 1 + 1 + 8 + 8 + 1 + 8);
        check(RecordFormat::Binary(BinaryOptions::default()), &LOAD, None, binary);
        let value = [7; 300];
        let long = Descriptor { store: true, size: 300, value: Some(&value), ..LOAD };
        let head = [&[0, 1][..], &binary[2..18]].concat();
        check(
            RecordFormat::Binary(BinaryOptions::default()),
            &long,
            None,
            &[&head[..], &[255, 44, 1, 0, 0], &[7; 300]].concat(),
        );
        let border = Descriptor { size: 255, value: Some(&value[..255]), ..long };
        check(
            RecordFormat::Binary(BinaryOptions::default()),
            &border,
            None,
            &[&head[..], &[255, 255, 0, 0, 0], &[7; 255]].concat(),
        );
        let wide = [&[0, 0, 0, 0, 1][..], &binary[2..18], &[44, 1, 0, 0], &[7; 300]].concat();
        check(RecordFormat::Binary(BinaryOptions { wide: true, ..BinaryOptions::default() }), &long, None, &wide);
        // A size alone is enough where no access has a value.
        let (missing, with_values) = (
            Descriptor { store: true, value: None, ..LOAD },
            BinaryOptions { has_values: true, ..BinaryOptions::default() },
        );
        check(RecordFormat::Binary(BinaryOptions::default()), &missing, None, &[&head[..], &[8]].concat());
        check(RecordFormat::Binary(with_values), &missing, None, &[&head[..], &[255, 8, 0, 0, 0x80]].concat());
        let json = concat!(
            r#"{"thread":0,"kind":"load","address":"0x0000003f83201156","operand":"0x0000003f8341fb80","#,
            r#""size":8,"value":"0x0000003f83201130","assembly":"nop"}"#,
            "\n"
        );
        check(RecordFormat::Json, &LOAD, Some("nop"), json.as_bytes());
    }
}
