//! `trackway dump`: instructions, branches or memory accesses, one by one, as text, as binary records, or as JSON.
//!
//! The descriptors of branches are those of mcfTrace (Myers 2014, Figures 4.2 and 4.3), those of memory accesses are in
//! [`memory`].

mod memory;

use std::ops::Range;

use isa::Transfer;
use trace::{Block, BlockIndex, Event, Leave, Step, Trace};

use crate::arguments::{Dump, Format, Kind};
use crate::digits::hex;
use crate::disassembly::Disassembler;
use crate::failure::{FAILED, Failure};
use crate::output::{Output, Stopped};
use crate::select::{self, Visitor};
use memory::Memory;

pub fn run(arguments: &Dump) -> Result<u8, Stopped> {
    let trace = select::open(&arguments.input)?;
    let shape = Shape::of(arguments);
    if arguments.kind == Kind::Memory {
        select::need_data(&trace)?;
    }
    if shape == (Shape::Binary { wide: false }) {
        refuse_high_threads(&trace, arguments.input.thread)?;
    }
    let mut output = Output::open(arguments.output.file.as_deref())?;
    let texts = arguments.disassemble.then(Texts::new);
    let lister = Lister { trace: &trace, output: &mut output, shape, texts };
    let damaged = match arguments.kind {
        Kind::Instructions => select::walk(&trace, &arguments.input, &mut Instructions(lister))?,
        Kind::Control => select::walk(&trace, &arguments.input, &mut Control(lister))?,
        Kind::Memory => select::walk(&trace, &arguments.input, &mut Memory(lister))?,
    };
    output.finish()?;
    let damaged = damaged + select::tell_unfinished(&trace, &arguments.input);
    Ok(if damaged == 0 { 0 } else { FAILED })
}

/// How one thing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Ascii,
    Binary { wide: bool },
    Json,
}

impl Shape {
    fn of(arguments: &Dump) -> Self {
        match (arguments.json, arguments.format) {
            (true, _) => Self::Json,
            (false, Format::Ascii) => Self::Ascii,
            (false, Format::Binary) => Self::Binary { wide: arguments.wide },
        }
    }
}

/// The binary format has one byte for the thread.
fn refuse_high_threads(trace: &Trace, selected: Option<u32>) -> Result<(), Failure> {
    let high = trace
        .threads()
        .iter()
        .map(|thread| thread.info.thread)
        .find(|&thread| thread > u32::from(u8::MAX) && selected.is_none_or(|selected| selected == thread));
    match high {
        None => Ok(()),
        Some(thread) => {
            Err(Failure::new(format!("thread {thread} does not fit into the one byte of the binary format"))
                .hint("--wide writes 4 bytes per thread"))
        }
    }
}

struct Lister<'t> {
    trace: &'t Trace,
    output: &'t mut Output,
    shape: Shape,
    texts: Option<Texts>,
}

/// One line or record under construction, without an allocation.
struct Line {
    bytes: [u8; 96],
    length: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: [0; 96], length: 0 }
    }

    #[inline]
    fn push(&mut self, text: &[u8]) {
        self.bytes[self.length..self.length + text.len()].copy_from_slice(text);
        self.length += text.len();
    }

    /// A number in decimal; mostly one digit.
    #[inline]
    fn push_number(&mut self, number: u32) {
        if number >= 10 {
            self.push_number(number / 10);
        }
        self.push(&[b'0' + (number % 10) as u8]);
    }

    #[inline]
    fn push_thread(&mut self, thread: u32, wide: bool) {
        if wide {
            self.push(&thread.to_le_bytes());
        } else {
            self.push(&[thread as u8]);
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

struct Instructions<'t>(Lister<'t>);

impl Visitor for Instructions<'_> {
    fn step(&mut self, thread: u32, step: &Step, part: Range<u32>) -> Result<(), Stopped> {
        let lister = &mut self.0;
        let (skip, count) = (part.start as usize, part.len());
        let texts = match &mut lister.texts {
            Some(texts) => texts.of(lister.trace, step.block()),
            None => &[],
        };
        let texts = texts.get(step.first() as usize + skip..).unwrap_or(&[]);
        let blocks = lister.trace.blocks();
        for (number, instruction) in blocks.instructions(step).skip(skip).take(count).enumerate() {
            let text = texts.get(number).map(|text| &**text);
            write_instruction(lister.output, lister.shape, thread, instruction.address, text)?;
        }
        Ok(())
    }

    fn event(&mut self, _: u32, _: &Event) -> Result<(), Stopped> {
        Ok(())
    }
}

#[inline]
fn write_instruction(
    output: &mut Output,
    shape: Shape,
    thread: u32,
    address: u64,
    text: Option<&str>,
) -> Result<(), Stopped> {
    let mut line = Line::new();
    match shape {
        Shape::Ascii => {
            line.push_number(thread);
            line.push(b", ");
            line.push(&hex(address));
            write_text_line(output, &mut line, b", ", text)
        }
        Shape::Binary { wide } => {
            line.push_thread(thread, wide);
            line.push(&address.to_le_bytes());
            output.write(line.as_bytes())
        }
        Shape::Json => {
            line.push(b"{\"thread\":");
            line.push_number(thread);
            line.push(b",\"address\":\"");
            line.push(&hex(address));
            line.push(b"\"");
            write_json_line(output, &line, text)
        }
    }
}

fn write_text_line(output: &mut Output, line: &mut Line, separator: &[u8], text: Option<&str>) -> Result<(), Stopped> {
    match text {
        None => {
            line.push(b"\n");
            output.write(line.as_bytes())
        }
        Some(text) => {
            line.push(separator);
            output.write(line.as_bytes())?;
            output.write(text.as_bytes())?;
            output.write(b"\n")
        }
    }
}

/// Disassembly has neither quotes nor backslashes, so it needs no escapes.
fn write_json_line(output: &mut Output, line: &Line, text: Option<&str>) -> Result<(), Stopped> {
    output.write(line.as_bytes())?;
    if let Some(text) = text {
        output.write(b",\"assembly\":\"")?;
        output.write(text.as_bytes())?;
        output.write(b"\"")?;
    }
    output.write(b"}\n")
}

/// The type and outcome of a branch, numbered as in the binary format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Class {
    UnconditionalIndirect = 0,
    UnconditionalDirect = 1,
    ConditionalTaken = 2,
    ConditionalNotTaken = 3,
}

impl Class {
    fn of(leave: Leave) -> Option<Self> {
        match leave {
            Leave::Indirect => Some(Self::UnconditionalIndirect),
            Leave::Direct => Some(Self::UnconditionalDirect),
            Leave::Taken => Some(Self::ConditionalTaken),
            Leave::NotTaken => Some(Self::ConditionalNotTaken),
            Leave::Syscall | Leave::Next | Leave::Interrupted => None,
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

/// One executed branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor {
    thread: u32,
    address: u64,
    target: u64,
    class: Class,
}

struct Control<'t>(Lister<'t>);

impl Visitor for Control<'_> {
    fn step(&mut self, thread: u32, step: &Step, part: Range<u32>) -> Result<(), Stopped> {
        let lister = &mut self.0;
        let Some(class) = Class::of(step.leave()).filter(|_| part.end == step.instructions()) else { return Ok(()) };
        let Some(block) = lister.trace.blocks().get(step.block()) else { return Ok(()) };
        let descriptor = Descriptor { thread, address: block.last(), target: target(step, &block, class), class };
        let text = match &mut lister.texts {
            Some(texts) => texts.of(lister.trace, step.block()).last().map(|text| &**text),
            None => None,
        };
        write_descriptor(lister.output, lister.shape, &descriptor, text)
    }

    fn event(&mut self, _: u32, _: &Event) -> Result<(), Stopped> {
        Ok(())
    }
}

/// Where the branch went, or would have gone (Figure 4.8).
fn target(step: &Step, block: &Block, class: Class) -> u64 {
    match (class, block.transfer()) {
        (Class::ConditionalNotTaken, Transfer::Conditional { target }) => target,
        _ => step.next(),
    }
}

fn write_descriptor(
    output: &mut Output,
    shape: Shape,
    descriptor: &Descriptor,
    text: Option<&str>,
) -> Result<(), Stopped> {
    let &Descriptor { thread, address, target, class } = descriptor;
    let mut line = Line::new();
    match shape {
        Shape::Ascii => {
            line.push_number(thread);
            for address in [address, target] {
                line.push(b", ");
                line.push(&hex(address));
            }
            line.push(b", ");
            line.push(class.letters());
            write_text_line(output, &mut line, b" ", text)
        }
        Shape::Binary { wide } => {
            line.push_thread(thread, wide);
            line.push(&address.to_le_bytes());
            line.push(&target.to_le_bytes());
            line.push(&[class as u8]);
            output.write(line.as_bytes())
        }
        Shape::Json => {
            line.push(b"{\"thread\":");
            line.push_number(thread);
            line.push(b",\"address\":\"");
            line.push(&hex(address));
            line.push(b"\",\"target\":\"");
            line.push(&hex(target));
            line.push(b"\",");
            output.write(line.as_bytes())?;
            let mut rest = Line::new();
            rest.push(class.json());
            write_json_line(output, &rest, text)
        }
    }
}

/// The disassembly of each block, made when it is first met.
struct Texts {
    disassembler: Disassembler,
    blocks: Vec<Option<Box<[Box<str>]>>>,
}

impl Texts {
    fn new() -> Self {
        Self { disassembler: Disassembler::new(), blocks: Vec::new() }
    }

    /// One text per instruction of the block.
    fn of(&mut self, trace: &Trace, index: BlockIndex) -> &[Box<str>] {
        if self.blocks.is_empty() {
            self.blocks.resize(trace.blocks().len(), None);
        }
        let Some(entry) = self.blocks.get_mut(index.0 as usize) else { return &[] };
        let disassembler = &mut self.disassembler;
        entry.get_or_insert_with(|| match trace.blocks().get(index) {
            Some(block) => disassemble(disassembler, &block),
            None => Box::default(),
        })
    }
}

fn disassemble(disassembler: &mut Disassembler, block: &Block) -> Box<[Box<str>]> {
    let mut text = String::new();
    let texts = block.instructions().map(|instruction| {
        text.clear();
        disassembler.append(instruction.address, instruction.bytes, &mut text);
        text.as_str().into()
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn written(write: impl FnOnce(&mut Output) -> Result<(), Stopped>) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let mut output = Output::open(Some(&path)).unwrap();
        write(&mut output).unwrap();
        output.finish().unwrap();
        std::fs::read(path).unwrap()
    }

    fn check(shape: Shape, descriptor: &Descriptor, text: Option<&str>, expected: &[u8]) {
        assert_eq!(written(|output| write_descriptor(output, shape, descriptor, text)), expected);
    }

    const CALL: Descriptor =
        Descriptor { thread: 0, address: 0x3f_8320_0b03, target: 0x3f_8320_1130, class: Class::UnconditionalDirect };

    /// The example of Figure 4.2.
    #[test]
    fn the_descriptor_of_the_seed() {
        let plain = b"0, 0x0000003f83200b03, 0x0000003f83201130, U, D, T\n";
        check(Shape::Ascii, &CALL, None, plain);
        let assembly = b"0, 0x0000003f83200b03, 0x0000003f83201130, U, D, T call 0x3f83201130\n";
        check(Shape::Ascii, &CALL, Some("call 0x3f83201130"), assembly);
        let binary = b"\x00\x03\x0b\x20\x83\x3f\x00\x00\x00\x30\x11\x20\x83\x3f\x00\x00\x00\x01";
        assert_eq!(binary.len(), 18);
        check(Shape::Binary { wide: false }, &CALL, None, binary);
        let wide = b"\x00\x00\x00\x00\x03\x0b\x20\x83\x3f\x00\x00\x00\x30\x11\x20\x83\x3f\x00\x00\x00\x01";
        check(Shape::Binary { wide: true }, &CALL, None, wide);
    }

    /// Line 9 of Figure 4.3 and the classes of Figure 4.2.
    #[test]
    fn classes_and_outcomes() {
        let descriptor = Descriptor {
            thread: 1,
            address: 0x7f5a_4099_6bbe,
            target: 0x7f5a_4099_6be4,
            class: Class::ConditionalNotTaken,
        };
        check(Shape::Ascii, &descriptor, None, b"1, 0x00007f5a40996bbe, 0x00007f5a40996be4, C, D, NT\n");
        let letters = |leave| Class::of(leave).map(|class| (class as u8, class.letters()));
        assert_eq!(letters(Leave::Indirect), Some((0, &b"U, I, T"[..])));
        assert_eq!(letters(Leave::Direct), Some((1, &b"U, D, T"[..])));
        assert_eq!(letters(Leave::Taken), Some((2, &b"C, D, T"[..])));
        assert_eq!(letters(Leave::NotTaken), Some((3, &b"C, D, NT"[..])));
        assert_eq!(letters(Leave::Syscall), None);
    }

    #[test]
    fn the_largest_line_fits() {
        let descriptor =
            Descriptor { thread: u32::MAX, address: u64::MAX, target: u64::MAX, class: Class::ConditionalNotTaken };
        let expected = b"4294967295, 0xffffffffffffffff, 0xffffffffffffffff, C, D, NT\n";
        check(Shape::Ascii, &descriptor, None, expected);
        let json = written(|output| write_descriptor(output, Shape::Json, &descriptor, Some("jz 0x1")));
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(value["thread"], u32::MAX);
        assert_eq!(value["taken"], false);
        assert_eq!(value["assembly"], "jz 0x1");
    }

    #[test]
    fn instructions() {
        let check = |shape, text, expected: &[u8]| {
            assert_eq!(written(|output| write_instruction(output, shape, 12, 0x400572, text)), expected);
        };
        check(Shape::Ascii, None, b"12, 0x0000000000400572\n");
        check(Shape::Ascii, Some("loop 0x400572"), b"12, 0x0000000000400572, loop 0x400572\n");
        check(Shape::Binary { wide: false }, None, b"\x0c\x72\x05\x40\0\0\0\0\0");
        check(Shape::Json, None, b"{\"thread\":12,\"address\":\"0x0000000000400572\"}\n");
    }
}
