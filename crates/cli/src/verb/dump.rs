//! `trackway dump`: lists instructions, branches, memory accesses, scopes or allocations as text,
//! as binary records, or as JSON.

mod allocations;
mod scopes;

use std::ops::Range;

use trace::{Access, Batch, DataMode, Event, Step, ThreadId, Trace};

use crate::arguments::{Dump, Format, Kind};
use crate::descriptor::memory::Fields;
use crate::descriptor::{self, BinaryOptions, DisassemblyCache, RecordFormat, control, memory};
use crate::failure::{FAILED, Failure};
use crate::output::{LineBuffer, Output, Stopped};
use crate::select::{self, Visitor};
use allocations::AllocationWriter;
use scopes::ScopeWriter;

pub fn run(arguments: &Dump) -> Result<u8, Stopped> {
    let trace = select::open(&arguments.input)?;
    if arguments.kind == Kind::Scopes {
        return run_scopes(&trace, arguments);
    }
    if arguments.kind == Kind::Allocations {
        return run_allocations(&trace, arguments);
    }
    let format = format_of(arguments, trace.data());
    if arguments.kind == Kind::Memory {
        select::require_data(&trace)?;
    }
    if matches!(format, RecordFormat::Binary(BinaryOptions { wide: false, .. })) {
        refuse_high_threads(&trace, arguments.input.thread)?;
    }
    let lines = LineBuffer::new(Output::open_apart_from(&arguments.input.file, arguments.output.file.as_deref())?);
    let mut writer = DumpWriter {
        trace: &trace,
        kind: arguments.kind,
        lines,
        format,
        texts: arguments.disassemble.then(DisassemblyCache::new),
    };
    let damaged = select::walk(&trace, &arguments.input, &mut writer)?;
    writer.lines.finish()?;
    let damaged = damaged + select::warn_if_unfinished(&trace, &arguments.input.file);
    Ok(if damaged == 0 { 0 } else { FAILED })
}

fn run_scopes(trace: &Trace, arguments: &Dump) -> Result<u8, Stopped> {
    if arguments.format == Format::Binary {
        return Err(Failure::new("scopes have no binary format").hint("--json is for programs").into());
    }
    let scopes = crate::scopes::select(trace, &arguments.routines)?;
    let lines = LineBuffer::new(Output::open_apart_from(&arguments.input.file, arguments.output.file.as_deref())?);
    let mut writer = ScopeWriter::new(trace, &scopes, lines, arguments.json);
    let damaged = select::walk(trace, &arguments.input, &mut writer)?;
    writer.finish()?;
    let damaged = damaged + select::warn_if_unfinished(trace, &arguments.input.file);
    Ok(if damaged == 0 { 0 } else { FAILED })
}

fn run_allocations(trace: &Trace, arguments: &Dump) -> Result<u8, Stopped> {
    if arguments.format == Format::Binary {
        return Err(Failure::new("allocations have no binary format").hint("--json is for programs").into());
    }
    crate::allocations::require(trace)?;
    let lines = LineBuffer::new(Output::open_apart_from(&arguments.input.file, arguments.output.file.as_deref())?);
    let mut writer = AllocationWriter::new(trace, lines, arguments.json);
    let damaged = select::walk(trace, &arguments.input, &mut writer)?;
    writer.finish()?;
    let damaged = damaged + select::warn_if_unfinished(trace, &arguments.input.file);
    Ok(if damaged == 0 { 0 } else { FAILED })
}

fn format_of(arguments: &Dump, data: DataMode) -> RecordFormat {
    match (arguments.json, arguments.format) {
        (true, _) => RecordFormat::Json,
        (false, Format::Ascii) => RecordFormat::Ascii,
        (false, Format::Binary) => RecordFormat::Binary(BinaryOptions {
            wide: arguments.wide,
            has_values: data == DataMode::Values,
            ..BinaryOptions::default()
        }),
    }
}

/// Fails if a thread does not fit into the one byte that the binary format has for it.
pub fn refuse_high_threads(trace: &Trace, selected: Option<ThreadId>) -> Result<(), Failure> {
    let high = trace
        .threads()
        .iter()
        .map(|thread| thread.info.thread)
        .find(|&thread| is_high(thread) && selected.is_none_or(|selected| selected == thread));
    high.map_or(Ok(()), |thread| Err(high_thread(thread)))
}

/// Returns whether a thread does not fit into one byte.
pub fn is_high(thread: ThreadId) -> bool {
    u8::try_from(thread.get()).is_err()
}

/// Returns the failure for a thread that does not fit into one byte.
pub fn high_thread(thread: ThreadId) -> Failure {
    Failure::new(format!("thread {thread} does not fit into the one byte of the binary format"))
        .hint("--wide writes 4 bytes per thread")
}

/// Writes the selected steps or accesses.
struct DumpWriter<'t> {
    trace: &'t Trace,
    kind: Kind,
    lines: LineBuffer,
    format: RecordFormat,
    texts: Option<DisassemblyCache>,
}

impl Visitor for DumpWriter<'_> {
    fn step(&mut self, thread: ThreadId, step: &Step, part: Range<u32>) -> Result<(), Stopped> {
        match self.kind {
            Kind::Instructions => self.instructions(thread, step, part),
            Kind::Control if part.end == step.instructions() => self.branch(thread, step),
            Kind::Control | Kind::Memory | Kind::Scopes | Kind::Allocations => {}
        }
        self.lines.flush_if_long()
    }

    fn event(&mut self, _: ThreadId, _: &Event) -> Result<(), Stopped> {
        Ok(())
    }

    fn wants_accesses(&self) -> bool {
        self.kind == Kind::Memory
    }

    fn access(&mut self, batch: &Batch, access: &Access, step: Option<&Step>) -> Result<(), Stopped> {
        let blocks = self.trace.blocks();
        let text = match (&mut self.texts, step) {
            (Some(texts), Some(step)) => texts.in_block(blocks, step.block(), access.pc()),
            _ => None,
        };
        memory::Descriptor::of(batch, access).write(self.format, Fields::All, text, &mut self.lines.bytes);
        self.lines.flush_if_long()
    }
}

impl DumpWriter<'_> {
    fn instructions(&mut self, thread: ThreadId, step: &Step, part: Range<u32>) {
        let (skip, count, blocks) = (part.start as usize, part.len(), self.trace.blocks());
        let texts = match &mut self.texts {
            Some(texts) => texts.of(blocks, step.block()),
            None => &[],
        };
        let texts = texts.get(step.first() as usize + skip..).unwrap_or(&[]);
        for (number, instruction) in blocks.instructions(step).skip(skip).take(count).enumerate() {
            let text = texts.get(number).map(|text| &**text);
            descriptor::instruction(self.format, thread, instruction.address, text, &mut self.lines.bytes);
        }
    }

    fn branch(&mut self, thread: ThreadId, step: &Step) {
        let blocks = self.trace.blocks();
        let Some(block) = blocks.get(step.block()) else { return };
        let Some(descriptor) = control::Descriptor::of(thread, step, &block) else { return };
        let text = self.texts.as_mut().and_then(|texts| texts.last(blocks, step.block()));
        descriptor.write(self.format, text, &mut self.lines.bytes);
    }
}
