//! Memory accesses as mlsTrace writes them: the six fields of Myers 2014, Figure 4.14, as text, and the descriptor of
//! Figure 4.13 in binary.

use std::ops::Range;

use trace::{Access, Batch, Event, Step};

use super::{Line, Lister, Shape, write_json_line, write_text_line};
use crate::digits::{hex, hex_of_bytes};
use crate::output::{Output, Stopped};
use crate::select::Visitor;

pub struct Memory<'t>(pub Lister<'t>);

impl Visitor for Memory<'_> {
    fn step(&mut self, _: u32, _: &Step, _: Range<u32>) -> Result<(), Stopped> {
        Ok(())
    }

    fn event(&mut self, _: u32, _: &Event) -> Result<(), Stopped> {
        Ok(())
    }

    fn wants_accesses(&self) -> bool {
        true
    }

    fn access(&mut self, batch: &Batch, access: &Access, step: Option<&Step>) -> Result<(), Stopped> {
        let lister = &mut self.0;
        let text = match (&mut lister.texts, step) {
            (Some(texts), Some(step)) => {
                let block = lister.trace.blocks().get(step.block());
                let number = block.and_then(|block| block.instructions().position(|own| own.address == access.pc()));
                number.and_then(|number| texts.of(lister.trace, step.block()).get(number)).map(|text| &**text)
            }
            _ => None,
        };
        let descriptor = Descriptor {
            thread: batch.thread(),
            store: access.is_write(),
            address: access.pc(),
            operand: access.address(),
            size: access.size(),
            value: batch.value(access),
        };
        write_descriptor(lister.output, lister.shape, &descriptor, text)
    }
}

/// One load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor<'a> {
    thread: u32,
    store: bool,
    address: u64,
    operand: u64,
    size: u32,
    value: Option<&'a [u8]>,
}

fn write_descriptor(
    output: &mut Output,
    shape: Shape,
    descriptor: &Descriptor,
    text: Option<&str>,
) -> Result<(), Stopped> {
    match shape {
        Shape::Ascii => write_ascii(output, descriptor, text),
        Shape::Binary { wide } => write_binary(output, descriptor, wide),
        Shape::Json => write_json(output, descriptor, text),
    }
}

fn write_ascii(output: &mut Output, descriptor: &Descriptor, text: Option<&str>) -> Result<(), Stopped> {
    let mut line = Line::new();
    line.push_number(descriptor.thread);
    line.push(if descriptor.store { b", S, " } else { b", L, " });
    line.push(&hex(descriptor.address));
    line.push(b", ");
    line.push(&hex(descriptor.operand));
    line.push(b", ");
    line.push_number(descriptor.size);
    let mut digits = [0; 2 + 2 * 64];
    match descriptor.value {
        None => {}
        Some(value) if value.len() <= 8 => {
            line.push(b", ");
            line.push(hex_of_bytes(value, &mut digits));
        }
        Some(value) => {
            line.push(b", 0x");
            output.write(line.as_bytes())?;
            line = Line::new();
            // Highest byte first, as a number is written.
            for part in value.rchunks(64) {
                output.write(&hex_of_bytes(part, &mut digits)[2..])?;
            }
        }
    }
    write_text_line(output, &mut line, b" ", text)
}

fn write_binary(output: &mut Output, descriptor: &Descriptor, wide: bool) -> Result<(), Stopped> {
    let mut line = Line::new();
    line.push_thread(descriptor.thread, wide);
    line.push(&[u8::from(descriptor.store)]);
    line.push(&descriptor.address.to_le_bytes());
    line.push(&descriptor.operand.to_le_bytes());
    let size = if wide { descriptor.size } else { descriptor.size.min(u32::from(u8::MAX)) };
    line.push_thread(size, wide);
    output.write(line.as_bytes())?;
    match descriptor.value {
        Some(value) => output.write(value.get(..size as usize).unwrap_or(value)),
        None => Ok(()),
    }
}

fn write_json(output: &mut Output, descriptor: &Descriptor, text: Option<&str>) -> Result<(), Stopped> {
    let mut line = Line::new();
    line.push(b"{\"thread\":");
    line.push_number(descriptor.thread);
    line.push(b",\"kind\":\"");
    line.push(if descriptor.store { b"store" } else { b"load" });
    line.push(b"\",\"address\":\"");
    line.push(&hex(descriptor.address));
    output.write(line.as_bytes())?;
    line = Line::new();
    line.push(b"\",\"operand\":\"");
    line.push(&hex(descriptor.operand));
    line.push(b"\",\"size\":");
    line.push_number(descriptor.size);
    if let Some(value) = descriptor.value {
        line.push(b",\"value\":\"0x");
        output.write(line.as_bytes())?;
        line = Line::new();
        let mut digits = [0; 2 + 2 * 64];
        for part in value.rchunks(64) {
            output.write(&hex_of_bytes(part, &mut digits)[2..])?;
        }
        line.push(b"\"");
    }
    write_json_line(output, &line, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(shape: Shape, descriptor: &Descriptor, text: Option<&str>, expected: &[u8]) {
        let written = super::super::tests::written(|output| write_descriptor(output, shape, descriptor, text));
        assert_eq!(written, expected, "{}", String::from_utf8_lossy(&written));
    }

    const VALUE: [u8; 8] = 0x3f_8320_1130u64.to_le_bytes();
    /// Line 21 of Figure 4.14.
    const LOAD: Descriptor = Descriptor {
        thread: 0,
        store: false,
        address: 0x3f_8320_1156,
        operand: 0x3f_8341_fb80,
        size: 8,
        value: Some(&VALUE),
    };

    #[test]
    fn the_fields_of_the_seed() {
        let plain = b"0, L, 0x0000003f83201156, 0x0000003f8341fb80, 8, 0x0000003f83201130\n";
        check(Shape::Ascii, &LOAD, None, plain);
        // Line 9 of Figure 4.18.
        let store = Descriptor {
            thread: 0,
            store: true,
            address: 0x4005a0,
            operand: 0x7fff_19df_6161,
            size: 1,
            value: Some(&[0xff]),
        };
        let line = b"0, S, 0x00000000004005a0, 0x00007fff19df6161, 1, 0xff mov byte ptr [rsp+rax*1+0x1a0], dl\n";
        check(Shape::Ascii, &store, Some("mov byte ptr [rsp+rax*1+0x1a0], dl"), line);
        check(
            Shape::Ascii,
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
        check(Shape::Ascii, &descriptor, None, line);
        let value: Vec<u8> = (0..130).collect();
        let descriptor = Descriptor { size: 130, value: Some(&value), ..LOAD };
        let digits: String = value.iter().rev().map(|byte| format!("{byte:02x}")).collect();
        let line = format!("0, L, 0x0000003f83201156, 0x0000003f8341fb80, 130, 0x{digits} x\n");
        check(Shape::Ascii, &descriptor, Some("x"), line.as_bytes());
    }

    #[test]
    fn binary_and_json() {
        let binary = b"\0\0\x56\x11\x20\x83\x3f\0\0\0\x80\xfb\x41\x83\x3f\0\0\0\x08\x30\x11\x20\x83\x3f\0\0\0";
        assert_eq!(binary.len(), 1 + 1 + 8 + 8 + 1 + 8);
        check(Shape::Binary { wide: false }, &LOAD, None, binary);
        let value = [7; 300];
        let long = Descriptor { store: true, size: 300, value: Some(&value), ..LOAD };
        let head = [&[0, 1][..], &binary[2..18]].concat();
        check(Shape::Binary { wide: false }, &long, None, &[&head[..], &[255], &[7; 255]].concat());
        let wide = [&[0, 0, 0, 0, 1][..], &binary[2..18], &[44, 1, 0, 0], &[7; 300]].concat();
        check(Shape::Binary { wide: true }, &long, None, &wide);
        let json = br#"{"thread":0,"kind":"load","address":"0x0000003f83201156","operand":"0x0000003f8341fb80","size":8,"value":"0x0000003f83201130","assembly":"nop"}"#;
        check(Shape::Json, &LOAD, Some("nop"), &[&json[..], b"\n"].concat());
    }
}
