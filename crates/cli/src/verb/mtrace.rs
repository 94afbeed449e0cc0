//! The tools of mTrace (Myers 2014, chapter 4): `mcfTrace`, `mlsTrace`, `mcfTRaptor`, `mlvCFiat`,
//! for a running program or a recorded trace.
//!
//! Each is a [`Tool`], which takes batches and writes descriptors. [`source`] reads a trace or runs
//! a program and calls the tool; [`files`] writes the descriptors.

mod control;
mod files;
mod flow;
mod loads;
mod memory;
mod routines;
mod source;

use std::time::Instant;

use replay::Sharing;
use serde::Serialize;
use trace::{AccessVisitor, Batch, Blocks, DataMode, Event, Operand, PathBatch, ThreadId};

use crate::arguments::mtrace::{ByteOrder, Common, InterleaveOptions, McfTRaptor, McfTrace, MlsTrace, MlvCFiat};
use crate::descriptor::{BinaryOptions, RecordFormat};
use crate::digits::grouped;
use crate::output::{Output, Stopped};
use files::{DescriptorFile, FileNames};

pub fn run_mcftrace(arguments: &McfTrace) -> Result<u8, Stopped> {
    run(&arguments.common, BinaryOptions::default(), control::BranchTool::default())
}

pub fn run_mlstrace(arguments: &MlsTrace) -> Result<u8, Stopped> {
    run(&arguments.common, binary(&arguments.order), memory::AccessTool::new(arguments.store))
}

pub fn run_mcftraptor(arguments: &McfTRaptor) -> Result<u8, Stopped> {
    run(&arguments.common, BinaryOptions::default(), flow::MispredictionTool::new(arguments)?)
}

pub fn run_mlvcfiat(arguments: &MlvCFiat) -> Result<u8, Stopped> {
    run(&arguments.common, binary(&arguments.order), loads::LoadValueTool::new(arguments)?)
}

/// Returns whether threads share the structures of a filter, and in which order they use them.
fn sharing(shared: bool, interleaving: &InterleaveOptions) -> Sharing {
    if shared { Sharing::shared(interleaving.interleave) } else { Sharing::Private }
}

/// Returns the binary format of tools that record values.
fn binary(order: &ByteOrder) -> BinaryOptions {
    BinaryOptions { values_reversed: order.big_endian, has_values: true, ..BinaryOptions::default() }
}

/// One of the four tools.
trait Tool {
    const NAME: &'static str;
    /// The data that a recording needs beside control flow.
    const DATA: DataMode;
    type Statistics: Serialize;

    /// Returns the names of the fields of a descriptor.
    fn fields(&self) -> &'static str;

    fn sharing(&self) -> Sharing {
        Sharing::Private
    }

    /// Takes the next batch of a thread.
    fn batch(&mut self, blocks: &Blocks, batch: &Batch, descriptors: &mut DescriptorFile);

    /// Returns the form of input that the tool takes, if nothing has to be left out.
    fn input_form(&self) -> InputForm {
        InputForm::Batches
    }

    fn path_batch(&mut self, batch: &PathBatch<'_>, descriptors: &mut DescriptorFile) {
        let _ = (batch, descriptors);
    }

    /// Returns a visitor for the next memory accesses of a thread.
    fn watch<'t>(&'t mut self, thread: ThreadId, descriptors: &'t mut DescriptorFile) -> impl AccessVisitor + 't {
        let _ = (thread, descriptors);
        NoAccessVisitor
    }

    /// Returns the number of instructions that the tool has taken.
    fn instructions(&self) -> u64;

    /// Returns the statistics for JSON, and as text.
    fn statistics(&self, run: &Run) -> Self::Statistics;
    fn text(&self, run: &Run) -> String;
}

/// The form in which a tool takes an execution: batches, or a form that is faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputForm {
    Batches,
    /// Whole paths.
    PathBatches,
    /// Memory accesses.
    Memory,
}

/// Ignores all accesses.
struct NoAccessVisitor;

impl AccessVisitor for NoAccessVisitor {
    fn executed(&mut self, _: u64) {}
    fn operand(&mut self, _: Operand<'_>) {}
    fn event(&mut self, _: &Event) {}
}

/// Statistics that all tools have.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Run {
    threads: u64,
    skipped: u64,
    milliseconds: f64,
    descriptors: u64,
    /// Size of the descriptors, before compression.
    bytes: u64,
    /// Whether the size limit was reached.
    is_full: bool,
}

fn run<T: Tool>(common: &Common, binary: BinaryOptions, mut tool: T) -> Result<u8, Stopped> {
    let start = Instant::now();
    if let Some(compressor) = common.compressor {
        compressor.require_installed()?;
    }
    let format = if common.ascii {
        RecordFormat::Ascii
    } else {
        RecordFormat::Binary(BinaryOptions { wide: common.wide, ..binary })
    };
    let source = source::open::<T>(common)?;
    let names = FileNames::new(T::NAME, common)?;
    let mut descriptors = DescriptorFile::create(&names, common, format)?;
    if !common.quiet {
        let kind = if common.ascii { "text" } else { "binary" };
        eprintln!("{}: Writing to {kind} file: {}", T::NAME, names.descriptors.display());
        eprintln!("{} descriptor: {}", T::NAME, tool.fields());
    }
    let delivered = source.deliver(common, &mut tool, &mut descriptors)?;
    let run = Run {
        threads: delivered.threads,
        skipped: common.skip,
        milliseconds: start.elapsed().as_secs_f64() * 1000.0,
        descriptors: descriptors.count(),
        bytes: descriptors.bytes(),
        is_full: descriptors.is_full(),
    };
    descriptors.finish()?;
    let mut output = Output::open(Some(&names.statistics))?;
    if common.json {
        output.json(&tool.statistics(&run))?;
    } else {
        output.write(tool.text(&run).as_bytes())?;
    }
    output.finish()?;
    if !common.quiet {
        eprintln!("{}: {}", T::NAME, closing_line(&run, &names));
    }
    Ok(delivered.status)
}

fn closing_line(run: &Run, names: &FileNames) -> String {
    let limit = if run.is_full { "; the limit (-f) is reached" } else { "" };
    format!(
        "{} descriptors, {} bytes, statistics in {}{limit}",
        grouped(run.descriptors),
        grouped(run.bytes),
        names.statistics.display()
    )
}

/// Returns `part` of `whole` as the thesis prints it.
fn share(part: u64, whole: u64) -> String {
    format!("{part} ( %{:.2} )", crate::digits::percent(part, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line 4 of Figure 4.3.
    #[test]
    fn shares_are_printed_as_in_the_seed() {
        assert_eq!(share(4968, 269_334), "4968 ( %1.84 )");
        assert_eq!(share(0, 0), "0 ( %0.00 )");
    }
}
