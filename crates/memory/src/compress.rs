//! From an execution trace to a memory trace.

use std::io::{self, Write};

use entity::{AppPc, ThreadId};
use isa::Transfer;
use scope::{FunctionId, ScopeEvent, Scopes, Tracker};
use std::collections::BTreeMap;
use trace::{Access, Batch, Blocks, Event, Item, ReadError, Step, Trace};

use crate::origin::{CodeModule, FunctionScope, LoopScope, MemoryCodec, Origin};
use crate::point::{AccessPoint, PointId};
use crate::row::{Action, FunctionIndex, LoopIndex};
use crate::writer::{CompressionOptions, CompressionSummary, MemoryTraceWriter, ThreadWriter};

/// Why an execution trace could not be compressed.
#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
}

/// Compresses the memory accesses of a trace and the scopes that are known.
///
/// Damaged chunks are left out: `damaged` is called for each.
pub fn compress<W: Write>(
    trace: &Trace,
    scopes: &Scopes,
    codec: MemoryCodec,
    options: CompressionOptions,
    out: W,
    mut damaged: impl FnMut(&ReadError),
    mut progress: impl FnMut(u64),
) -> Result<(W, CompressionSummary), CompressError> {
    let mut compression = Compression {
        blocks: trace.blocks(),
        scopes,
        first_loops: first_loops(scopes),
        trackers: BTreeMap::new(),
        points: vec![Vec::new(); trace.blocks().len()],
        writer: MemoryTraceWriter::new(out, &origin(trace, scopes, codec), options)?,
    };
    let mut merged = trace.merged_with_accesses()?;
    loop {
        match merged.next_batch() {
            Ok(Some(batch)) => compression.batch(batch)?,
            Ok(None) => break,
            Err(error) => damaged(&error),
        }
        progress(compression.writer.accesses());
    }
    Ok(compression.writer.finish()?)
}

/// Says where the accesses of a trace come from.
fn origin(trace: &Trace, scopes: &Scopes, codec: MemoryCodec) -> Origin {
    let recording = trace.recording();
    let modules = trace.modules().iter().map(|mapped| CodeModule {
        image: mapped.image,
        address: mapped.module.address,
        length: mapped.module.length,
        file_offset: mapped.module.file_offset,
        path: mapped.module.path.clone(),
    });
    let functions = scopes.functions().map(|function| FunctionScope {
        name: function.name.clone(),
        image: function.image,
        entry: function.entry,
    });
    Origin {
        codec,
        command: recording.command.clone(),
        options: recording.options.clone(),
        modules: modules.collect(),
        functions: functions.collect(),
        loops: loops(scopes),
    }
}

fn loops(scopes: &Scopes) -> Vec<LoopScope> {
    let mut loops = Vec::new();
    for (function, first) in (0..).zip(first_loops(scopes)) {
        let Some(flow) = scopes.flow(FunctionId(function)) else { continue };
        loops.extend(flow.forest.loops().iter().map(|found| {
            let entry = found.entries.first().and_then(|&node| flow.span(node)).map_or(AppPc::NONE, |span| span.start);
            let parent = found.parent.map(|parent| first + parent);
            LoopScope { function, parent, entry, is_irreducible: found.is_irreducible() }
        }));
    }
    loops
}

/// Returns, for each function, the number of its first loop in the file.
fn first_loops(scopes: &Scopes) -> Vec<u32> {
    let mut next = 0;
    let first = |function| {
        let count = scopes.flow(FunctionId(function)).map_or(0, |flow| flow.forest.loops().len());
        let first = next;
        next += u32::try_from(count).unwrap_or(0);
        first
    };
    (0..).take(scopes.functions().len()).map(first).collect()
}

struct Compression<'t, W> {
    blocks: &'t Blocks,
    scopes: &'t Scopes,
    first_loops: Vec<u32>,
    trackers: BTreeMap<ThreadId, Tracker<'t>>,
    /// The access points of every block, in the order of the block's last execution.
    points: Vec<Vec<(AccessPoint, PointId)>>,
    writer: MemoryTraceWriter<W>,
}

impl<W: Write> Compression<'_, W> {
    fn batch(&mut self, batch: &Batch) -> io::Result<()> {
        let tracker = self.trackers.entry(batch.thread()).or_insert_with(|| Tracker::new(self.scopes));
        let mut thread = self.writer.thread(batch.thread());
        let has_scopes = self.scopes.functions().len() > 0;
        for (item, accesses) in batch.items_with_accesses() {
            if has_scopes {
                let mut written = Ok(());
                let change = |event| {
                    if written.is_ok() {
                        written = thread.scope(action(event, &self.first_loops));
                    }
                };
                match &item {
                    Item::Step(step) => tracker.step(step, self.blocks, change),
                    Item::Event(event) => tracker.event(event, change),
                }
                written?;
            }
            let known = match &item {
                Item::Step(step) => self.points.get_mut(step.block().0 as usize),
                Item::Event(_) => None,
            };
            put_accesses(&mut thread, batch.image(), accesses, known)?;
            if ends_row(&item, self.blocks) {
                thread.end_row();
            }
        }
        thread.finish()
    }
}

/// Writes the accesses of a step or an event. `known` are the points of the block's last execution.
#[inline]
fn put_accesses<W: Write>(
    thread: &mut ThreadWriter<'_, W>,
    image: u32,
    accesses: impl Iterator<Item = Access>,
    known: Option<&mut Vec<(AccessPoint, PointId)>>,
) -> io::Result<()> {
    let mut unknown = Vec::new();
    let known = known.unwrap_or(&mut unknown);
    for (index, access) in accesses.enumerate() {
        let point = AccessPoint { image, pc: access.pc(), size: access.size(), is_write: access.is_write() };
        let id = match known.get(index) {
            Some(&(other, id)) if other == point => id,
            _ => {
                let id = thread.point(point);
                match known.get_mut(index) {
                    Some(known) => *known = (point, id),
                    // The iterations of a string instruction are not worth a table.
                    None if index < POINTS_MAX => known.push((point, id)),
                    None => {}
                }
                id
            }
        };
        thread.access(id, access.address())?;
    }
    Ok(())
}

/// Points that are remembered of a block.
const POINTS_MAX: usize = 256;

fn action(event: ScopeEvent, first_loops: &[u32]) -> Action {
    let number = |FunctionId(function): FunctionId, index: u32| {
        LoopIndex(first_loops.get(function as usize).map_or(u32::MAX, |first| first + index))
    };
    match event {
        ScopeEvent::Enter { function: FunctionId(id), .. } => Action::EnterFunction(FunctionIndex(id)),
        ScopeEvent::Exit { function: FunctionId(id), .. } => Action::ExitFunction(FunctionIndex(id)),
        ScopeEvent::EnterLoop { function, index } => Action::EnterLoop(number(function, index)),
        ScopeEvent::Iterate { function, index } => Action::Iterate(number(function, index)),
        ScopeEvent::ExitLoop { function, index, .. } => Action::ExitLoop(number(function, index)),
    }
}

/// Whether a row ends behind an item: where a loop goes back, at calls and at returns. What comes
/// between two of these is likely to come again.
#[inline]
fn ends_row(item: &Item, blocks: &Blocks) -> bool {
    match item {
        Item::Step(step) => goes_back(step, blocks),
        Item::Event(Event::Time { .. }) => false,
        Item::Event(_) => true,
    }
}

#[inline]
fn goes_back(step: &Step, blocks: &Blocks) -> bool {
    blocks.get(step.block()).is_some_and(|block| {
        step.next() <= block.address()
            || matches!(block.transfer(), Transfer::Call { .. } | Transfer::IndirectCall | Transfer::Return)
    })
}
