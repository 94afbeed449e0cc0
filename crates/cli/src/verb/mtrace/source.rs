//! The input of a tool: a program that runs, or a trace.

use std::path::Path;

use capture::{CaptureOptions, Limits, Selection};
use replay::OrderedBatches;
use trace::{
    Batch, DataMode, InstructionIndex, InstructionWindow, LiveTrace, MergedBatches, ReadError, RoundRobinUnit, Step,
    ThreadInfo, Trace,
};

use super::files::DescriptorFile;
use super::routines::{self, SelectedBlocks};
use super::{InputForm, Tool};
use crate::arguments::mtrace::Common;
use crate::descriptor::RecordFormat;
use crate::digits::grouped;
use crate::failure::{FAILED, Failure};
use crate::live::{self, Receiver, ThreadWords};
use crate::output::Stopped;
use crate::progress::Progress;
use crate::select;
use crate::verb::dump::{high_thread, is_high, refuse_high_threads};
use crate::verb::record::status;

/// A program that is yet to run, or a trace and the selected blocks of it.
pub enum ToolInput {
    Program,
    File(Box<Trace>, Option<SelectedBlocks>),
}

/// The number of threads, and the exit status.
pub struct RunSummary {
    pub threads: u64,
    pub status: u8,
}

/// Opens the input, and checks it before any file is created.
pub fn open<T: Tool>(common: &Common) -> Result<ToolInput, Failure> {
    let Some(path) = &common.source.input else {
        if common.source.pid.is_none() {
            routines::check_program(common)?;
        }
        return Ok(ToolInput::Program);
    };
    let trace = Trace::open(path)?;
    if T::DATA == DataMode::Values {
        select::require_values(&trace)?;
    }
    if !common.ascii && !common.wide {
        refuse_high_threads(&trace, None)?;
    }
    let selected = SelectedBlocks::of_trace(&trace, common)?;
    Ok(ToolInput::File(Box::new(trace), selected))
}

impl ToolInput {
    pub fn deliver<T: Tool>(
        self,
        common: &Common,
        tool: &mut T,
        descriptors: &mut DescriptorFile,
    ) -> Result<RunSummary, Stopped> {
        match self {
            Self::Program => run(common, tool, descriptors),
            Self::File(trace, selected) => read(&trace, selected.as_ref(), common, tool, descriptors),
        }
    }
}

/// The state of reading a trace: progress and damage.
struct TraceReader {
    available: u64,
    damaged: u64,
    progress: Progress,
}

impl TraceReader {
    fn tick(&mut self, done: u64) {
        let available = self.available;
        self.progress.tick(|| format!("{} of {} instructions", grouped(done), grouped(available)));
    }

    /// Returns what was read. Reports and counts damage.
    fn intact_or_warn<T>(&mut self, read: Result<T, ReadError>) -> Option<T> {
        read.inspect_err(|error| {
            eprintln!("trackway: left out: {error}");
            self.damaged += 1;
        })
        .ok()
    }
}

fn read<T: Tool>(
    trace: &Trace,
    selected: Option<&SelectedBlocks>,
    common: &Common,
    tool: &mut T,
    descriptors: &mut DescriptorFile,
) -> Result<RunSummary, Stopped> {
    let available = trace.summary().totals.instructions;
    let mut reader = TraceReader { available, damaged: 0, progress: Progress::new() };
    let is_whole = selected.is_none() && common.skip == 0 && common.length.is_none();
    match tool.input_form() {
        InputForm::PathBatches if is_whole => read_path_batches(trace.merged(), tool, descriptors, &mut reader),
        InputForm::Memory if is_whole => read_memory(trace.merged_with_accesses()?, tool, descriptors, &mut reader),
        _ => {
            let unit = if T::DATA == DataMode::None { RoundRobinUnit::Branches } else { RoundRobinUnit::Accesses };
            let order = tool.sharing().order(trace, unit)?;
            read_part(trace, order, selected, common, tool, descriptors, &mut reader);
        }
    }
    descriptors.check()?;
    let file = common.source.input.as_deref().unwrap_or(Path::new(""));
    let damaged = reader.damaged + select::warn_if_unfinished(trace, file);
    Ok(RunSummary { threads: trace.threads().len() as u64, status: if damaged == 0 { 0 } else { FAILED } })
}

fn read_path_batches<T: Tool>(
    mut merged: MergedBatches<'_>,
    tool: &mut T,
    descriptors: &mut DescriptorFile,
    reader: &mut TraceReader,
) {
    while !descriptors.is_full() {
        match reader.intact_or_warn(merged.next_path_batch()) {
            Some(None) => break,
            Some(Some(batch)) => tool.path_batch(&batch, descriptors),
            None => {}
        }
        reader.tick(tool.instructions());
    }
}

fn read_memory<T: Tool>(
    mut merged: MergedBatches<'_>,
    tool: &mut T,
    descriptors: &mut DescriptorFile,
    reader: &mut TraceReader,
) {
    while !descriptors.is_full() {
        let read = merged.visit_next(|thread| tool.watch(thread, descriptors));
        if reader.intact_or_warn(read) == Some(false) {
            break;
        }
        reader.tick(tool.instructions());
    }
}

/// Reads batch by batch, for input that has to be cut.
fn read_part<T: Tool>(
    trace: &Trace,
    mut order: OrderedBatches<'_>,
    selected: Option<&SelectedBlocks>,
    common: &Common,
    tool: &mut T,
    descriptors: &mut DescriptorFile,
    reader: &mut TraceReader,
) {
    let skip = order.seek(InstructionIndex::new(common.skip));
    let mut window = InstructionWindow { skip, left: common.length.unwrap_or(u64::MAX) };
    let (mut part, mut done, blocks) = (Batch::default(), common.skip - skip, trace.blocks());
    while window.left > 0 && !descriptors.is_full() {
        let batch = match reader.intact_or_warn(order.next_batch()) {
            Some(None) => break,
            Some(Some(batch)) => batch,
            None => continue,
        };
        let count = batch.instructions();
        done += count;
        reader.tick(done);
        if selected.is_none() && window.take_whole(count) {
            tool.batch(blocks, batch, descriptors);
        } else {
            let wanted = |step: &Step| selected.is_none_or(|selected| selected.has(step));
            if let Some(part) = window.cut_batch(blocks, batch, &mut part, wanted) {
                tool.batch(blocks, part, descriptors);
            }
        }
    }
}

fn run<T: Tool>(common: &Common, tool: &mut T, descriptors: &mut DescriptorFile) -> Result<RunSummary, Stopped> {
    let options = CaptureOptions {
        command: common.source.command.clone(),
        process: common.source.pid,
        no_aslr: common.no_aslr,
        data: T::DATA,
        limits: Limits { time: common.source.seconds, bytes: Some(common.max_size) },
        selection: Selection {
            skip: common.skip,
            length: common.length,
            no_shared_libs: common.no_shared_libs,
            routines: common.routines.clone(),
            callees: common.callees,
            ..Selection::default()
        },
        ..CaptureOptions::default()
    };
    let narrow = matches!(descriptors.format, RecordFormat::Binary(binary) if !binary.wide);
    let live = tool.sharing().order_live(LiveTrace::new(T::DATA));
    let mut receiver = ToolReceiver { tool, descriptors, threads: 0, narrow, quiet: common.quiet };
    let exit = live::run(&options, live, &mut receiver)?;
    let status = if common.source.pid.is_some() { 0 } else { status(exit) };
    Ok(RunSummary { threads: receiver.threads, status })
}

/// Passes the execution of a program to a tool.
struct ToolReceiver<'a, T> {
    tool: &'a mut T,
    descriptors: &'a mut DescriptorFile,
    threads: u64,
    /// Whether threads have one byte.
    narrow: bool,
    quiet: bool,
}

impl<T: Tool> Receiver for ToolReceiver<'_, T> {
    fn thread(&mut self, thread: &ThreadInfo) -> Result<(), Stopped> {
        self.threads += 1;
        if self.narrow && is_high(thread.thread) {
            return Err(high_thread(thread.thread).into());
        }
        if !self.quiet {
            eprintln!("{}: thread begin {} {}", T::NAME, thread.thread, thread.os_tid);
        }
        Ok(())
    }

    fn path(&mut self, live: &mut LiveTrace, executed: ThreadWords<'_>) -> Result<(), Stopped> {
        let Self { tool, descriptors, .. } = self;
        if descriptors.is_full() {
            return Ok(());
        }
        let ThreadWords { image, thread, words, data } = executed;
        match tool.input_form() {
            InputForm::PathBatches => live.path_batch(image, thread, words, |batch| {
                tool.path_batch(batch, descriptors);
                descriptors.check()
            }),
            InputForm::Memory => {
                live.add(image, thread, words, data);
                while live.visit_next(false, |thread| tool.watch(thread, descriptors)) {}
                descriptors.check()
            }
            InputForm::Batches => live.path(image, thread, words, data, |blocks, batch| {
                tool.batch(blocks, batch, descriptors);
                descriptors.check()
            }),
        }
    }

    fn finish(&mut self, live: &mut LiveTrace) -> Result<(), Stopped> {
        let Self { tool, descriptors, .. } = self;
        match tool.input_form() {
            InputForm::PathBatches => live.finish_path_batches(|batch| {
                tool.path_batch(batch, descriptors);
                descriptors.check()
            }),
            InputForm::Memory => {
                while live.visit_next(true, |thread| tool.watch(thread, descriptors)) {}
                descriptors.check()
            }
            InputForm::Batches => live.finish(|blocks, batch| {
                tool.batch(blocks, batch, descriptors);
                descriptors.check()
            }),
        }
    }

    fn bytes(&self) -> u64 {
        // Above any limit, so that the recorder detaches.
        if self.descriptors.is_full() { u64::MAX } else { self.descriptors.bytes() }
    }
}
