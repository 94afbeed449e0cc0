//! Where batches come from: a program that runs, or a file.

use std::path::Path;

use capture::{Limits, Options, Selection};
use replay::OrderedBatches;
use trace::{Batch, DataMode, Live, Merged, ReadError, RoundRobinUnit, Step, ThreadInfo, Trace};

use super::files::Descriptors;
use super::routines::{self, Selected};
use super::{Form, Tool};
use crate::arguments::mtrace::Common;
use crate::descriptor::Shape;
use crate::digits::grouped;
use crate::failure::{FAILED, Failure};
use crate::live::{self, Executed, Receiver};
use crate::output::Stopped;
use crate::progress::Progress;
use crate::select::{self, Window};
use crate::verb::dump::{high_thread, refuse_high_threads};
use crate::verb::record::status;

pub enum Source {
    Program,
    File(Box<Trace>, Option<Selected>),
}

/// What is known at the end.
pub struct Delivered {
    pub threads: u64,
    pub status: u8,
}

/// Makes sure that there is something to trace, before any file is made.
pub fn open<T: Tool>(common: &Common) -> Result<Source, Failure> {
    let Some(path) = &common.source.input else {
        if common.source.pid.is_none() {
            routines::check_program(common)?;
        }
        return Ok(Source::Program);
    };
    let trace = Trace::open(path)?;
    if T::DATA == DataMode::Values {
        select::need_values(&trace)?;
    }
    if !common.ascii && !common.wide {
        refuse_high_threads(&trace, None)?;
    }
    let selected = Selected::of_trace(&trace, common)?;
    Ok(Source::File(Box::new(trace), selected))
}

impl Source {
    pub fn deliver<T: Tool>(
        self,
        common: &Common,
        tool: &mut T,
        descriptors: &mut Descriptors,
    ) -> Result<Delivered, Stopped> {
        match self {
            Self::Program => run(common, tool, descriptors),
            Self::File(trace, selected) => read(&trace, selected.as_ref(), common, tool, descriptors),
        }
    }
}

/// A trace that is read: how far, and what was damaged.
struct Reading {
    available: u64,
    damaged: u64,
    progress: Progress,
}

impl Reading {
    fn tick(&mut self, done: u64) {
        let available = self.available;
        self.progress.tick(|| format!("{} of {} instructions", grouped(done), grouped(available)));
    }

    /// What could be read; something damaged is told, and left out.
    fn intact<T>(&mut self, read: Result<T, ReadError>) -> Option<T> {
        read.inspect_err(|error| {
            eprintln!("trackway: left out: {error}");
            self.damaged += 1;
        })
        .ok()
    }
}

fn read<T: Tool>(
    trace: &Trace,
    selected: Option<&Selected>,
    common: &Common,
    tool: &mut T,
    descriptors: &mut Descriptors,
) -> Result<Delivered, Stopped> {
    let available = trace.summary().totals.instructions;
    let mut reading = Reading { available, damaged: 0, progress: Progress::new() };
    let is_whole = selected.is_none() && common.skip == 0 && common.length.is_none();
    match tool.takes() {
        Form::PathBatches if is_whole => read_path_batches(trace.merged(), tool, descriptors, &mut reading),
        Form::Memory if is_whole => read_memory(trace.merged_with_accesses()?, tool, descriptors, &mut reading),
        _ => {
            let unit = if T::DATA == DataMode::None { RoundRobinUnit::Branches } else { RoundRobinUnit::Accesses };
            let order = tool.sharing().order(trace, unit)?;
            read_part(trace, order, selected, common, tool, descriptors, &mut reading);
        }
    }
    descriptors.check()?;
    let file = common.source.input.as_deref().unwrap_or(Path::new(""));
    let damaged = reading.damaged + select::tell_unfinished(trace, file);
    Ok(Delivered { threads: trace.threads().len() as u64, status: if damaged == 0 { 0 } else { FAILED } })
}

fn read_path_batches<T: Tool>(
    mut merged: Merged<'_>,
    tool: &mut T,
    descriptors: &mut Descriptors,
    reading: &mut Reading,
) {
    while !descriptors.is_full() {
        match reading.intact(merged.next_path_batch()) {
            Some(None) => break,
            Some(Some(batch)) => tool.path_batch(&batch, descriptors),
            None => {}
        }
        reading.tick(tool.instructions());
    }
}

fn read_memory<T: Tool>(mut merged: Merged<'_>, tool: &mut T, descriptors: &mut Descriptors, reading: &mut Reading) {
    while !descriptors.is_full() {
        let read = merged.visit_next(|thread| tool.watch(thread, descriptors));
        if reading.intact(read) == Some(false) {
            break;
        }
        reading.tick(tool.instructions());
    }
}

/// Reads batch by batch, which can be cut.
fn read_part<T: Tool>(
    trace: &Trace,
    mut order: OrderedBatches<'_>,
    selected: Option<&Selected>,
    common: &Common,
    tool: &mut T,
    descriptors: &mut Descriptors,
    reading: &mut Reading,
) {
    let skip = order.seek(common.skip);
    let mut window = Window { skip, left: common.length.unwrap_or(u64::MAX) };
    let (mut part, mut done, blocks) = (Batch::default(), common.skip - skip, trace.blocks());
    while window.left > 0 && !descriptors.is_full() {
        let batch = match reading.intact(order.next_batch()) {
            Some(None) => break,
            Some(Some(batch)) => batch,
            None => continue,
        };
        let count = batch.instructions();
        done += count;
        reading.tick(done);
        if selected.is_none() && window.takes_whole(count) {
            tool.batch(blocks, batch, descriptors);
        } else {
            let wanted = |step: &Step| selected.is_none_or(|selected| selected.has(step));
            if let Some(part) = window.part(blocks, batch, &mut part, wanted) {
                tool.batch(blocks, part, descriptors);
            }
        }
    }
}

fn run<T: Tool>(common: &Common, tool: &mut T, descriptors: &mut Descriptors) -> Result<Delivered, Stopped> {
    let options = Options {
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
        },
        ..Options::default()
    };
    let narrow = matches!(descriptors.shape, Shape::Binary(binary) if !binary.wide);
    let live = tool.sharing().order_live(Live::new(T::DATA));
    let mut tracer = Tracer { tool, descriptors, threads: 0, narrow, quiet: common.quiet };
    let exit = live::run(&options, live, &mut tracer)?;
    let status = if common.source.pid.is_some() { 0 } else { status(exit) };
    Ok(Delivered { threads: tracer.threads, status })
}

/// Hands what a program executes to a tool.
struct Tracer<'a, T> {
    tool: &'a mut T,
    descriptors: &'a mut Descriptors,
    threads: u64,
    /// Threads have one byte.
    narrow: bool,
    quiet: bool,
}

impl<T: Tool> Receiver for Tracer<'_, T> {
    fn thread(&mut self, thread: &ThreadInfo) -> Result<(), Stopped> {
        self.threads += 1;
        if self.narrow && thread.thread > u32::from(u8::MAX) {
            return Err(high_thread(thread.thread).into());
        }
        if !self.quiet {
            eprintln!("{}: thread begin {} {}", T::NAME, thread.thread, thread.os_tid);
        }
        Ok(())
    }

    fn path(&mut self, live: &mut Live, executed: Executed<'_>) -> Result<(), Stopped> {
        let Self { tool, descriptors, .. } = self;
        if descriptors.is_full() {
            return Ok(());
        }
        let Executed { image, thread, words, data } = executed;
        match tool.takes() {
            Form::PathBatches => live.path_batch(image, thread, words, |batch| {
                tool.path_batch(batch, descriptors);
                descriptors.check()
            }),
            Form::Memory => {
                live.add(image, thread, words, data);
                while live.visit_next(false, |thread| tool.watch(thread, descriptors)) {}
                descriptors.check()
            }
            Form::Batches => live.path(image, thread, words, data, |blocks, batch| {
                tool.batch(blocks, batch, descriptors);
                descriptors.check()
            }),
        }
    }

    fn finish(&mut self, live: &mut Live) -> Result<(), Stopped> {
        let Self { tool, descriptors, .. } = self;
        match tool.takes() {
            Form::PathBatches => live.finish_path_batches(|batch| {
                tool.path_batch(batch, descriptors);
                descriptors.check()
            }),
            Form::Memory => {
                while live.visit_next(true, |thread| tool.watch(thread, descriptors)) {}
                descriptors.check()
            }
            Form::Batches => live.finish(|blocks, batch| {
                tool.batch(blocks, batch, descriptors);
                descriptors.check()
            }),
        }
    }

    fn bytes(&self) -> u64 {
        // More than any limit, so that the program is left.
        if self.descriptors.is_full() { u64::MAX } else { self.descriptors.bytes() }
    }
}
