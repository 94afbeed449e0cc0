//! `trackway stat`: counts blocks, modules, system calls and signals. Chunks are counted in
//! parallel unless a part of the trace is selected.

mod allocations;
mod scopes;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use trace::{
    Access, AppPc, Batch, Counts, DataMode, Event, MappedModule, ReadError, Step, Steps, ThreadId, ThreadSummary, Trace,
};

use crate::arguments::{Input, Stat};
use crate::digits::{grouped, percent};
use crate::failure::FAILED;
use crate::names;
use crate::output::{Output, Stopped};
use crate::select::{self, Visitor};
use crate::verb::info::{self, Overview};

pub fn run(arguments: &Stat) -> Result<u8, Stopped> {
    let trace = select::open(&arguments.input)?;
    let mut output = Output::open_apart_from(&arguments.input.file, arguments.output.file.as_deref())?;
    let (tally, damaged) = tally(&trace, &arguments.input)?;
    let functions = scopes::count(&trace, arguments)?;
    let allocations = allocations::count(&trace, arguments)?;
    let statistics =
        Statistics { functions, allocations, ..Statistics::new(&trace, &arguments.input, &tally, arguments.top) };
    if arguments.json {
        output.json(&statistics)?;
    } else {
        output.write(text(&statistics).as_bytes())?;
    }
    output.finish()?;
    let damaged = damaged + select::warn_if_unfinished(&trace, &arguments.input.file);
    Ok(if damaged == 0 { 0 } else { FAILED })
}

/// All counts.
#[derive(Default)]
struct Tally {
    threads: BTreeMap<ThreadId, Counts>,
    /// For each static block: the number of executions, and of executed instructions.
    blocks: Vec<BlockCounts>,
    system_calls: BTreeMap<u32, u64>,
    signals: BTreeMap<u8, u64>,
    /// Whether there are memory accesses.
    accesses: bool,
    loads: Sizes,
    stores: Sizes,
}

/// Memory accesses by size.
#[derive(Default)]
struct Sizes {
    /// Up to 31 bytes.
    small: [u64; 32],
    large: BTreeMap<u32, u64>,
}

impl Sizes {
    #[inline]
    fn add(&mut self, size: u32, count: u64) {
        match self.small.get_mut(size as usize) {
            Some(sum) => *sum += count,
            None => *self.large.entry(size).or_default() += count,
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        let small = (0..).zip(self.small).filter(|(_, count)| *count > 0);
        small.chain(self.large.iter().map(|(&size, &count)| (size, count)))
    }
}

/// Executions of a static block, and of its instructions.
#[derive(Clone, Copy, Default)]
struct BlockCounts {
    times: u64,
    instructions: u64,
}

impl Tally {
    fn of(trace: &Trace) -> Self {
        let blocks = vec![BlockCounts::default(); trace.blocks().len()];
        Self { blocks, accesses: trace.data() != DataMode::None, ..Self::default() }
    }

    fn batch(&mut self, batch: &Batch) {
        let counts = self.threads.entry(batch.thread()).or_default();
        for step in batch.steps() {
            counts.add_step(step, 0..step.instructions());
            count_block(&mut self.blocks, step, step.instructions());
        }
        for (_, event) in batch.events() {
            self.event(batch.thread(), event);
        }
        batch.accesses().for_each(|access| self.access(batch.thread(), &access));
    }

    fn access(&mut self, thread: ThreadId, access: &Access) {
        self.threads.entry(thread).or_default().add_access(access);
        let sizes = if access.is_write() { &mut self.stores } else { &mut self.loads };
        sizes.add(access.size(), 1);
    }

    fn event(&mut self, thread: ThreadId, event: &Event) {
        self.threads.entry(thread).or_default().add_event(event);
        match *event {
            Event::Syscall { number, .. } => *self.system_calls.entry(number).or_default() += 1,
            // Signal 0 is none: the recorder has cut the path there.
            Event::Signal { signal, .. } if signal != 0 => *self.signals.entry(signal).or_default() += 1,
            _ => {}
        }
    }

    fn add(&mut self, other: Self) {
        for (thread, counts) in other.threads {
            self.threads.entry(thread).or_default().add(&counts);
        }
        for (sum, executed) in self.blocks.iter_mut().zip(other.blocks) {
            sum.times += executed.times;
            sum.instructions += executed.instructions;
        }
        for (number, count) in other.system_calls {
            *self.system_calls.entry(number).or_default() += count;
        }
        for (signal, count) in other.signals {
            *self.signals.entry(signal).or_default() += count;
        }
        other.loads.iter().for_each(|(size, count)| self.loads.add(size, count));
        other.stores.iter().for_each(|(size, count)| self.stores.add(size, count));
    }
}

#[inline]
fn count_block(blocks: &mut [BlockCounts], step: &Step, instructions: u32) {
    if let Some(executed) = blocks.get_mut(step.block().0 as usize) {
        executed.times += 1;
        executed.instructions += u64::from(instructions);
    }
}

impl Visitor for Tally {
    fn step(&mut self, thread: ThreadId, step: &Step, part: Range<u32>) -> Result<(), Stopped> {
        count_block(&mut self.blocks, step, part.end - part.start);
        self.threads.entry(thread).or_default().add_step(step, part);
        Ok(())
    }

    fn event(&mut self, thread: ThreadId, event: &Event) -> Result<(), Stopped> {
        Tally::event(self, thread, event);
        Ok(())
    }

    fn wants_accesses(&self) -> bool {
        self.accesses
    }

    fn access(&mut self, batch: &Batch, access: &Access, _: Option<&Step>) -> Result<(), Stopped> {
        Tally::access(self, batch.thread(), access);
        Ok(())
    }
}

/// Counts the selected part. Returns the number of damaged places that were left out, too.
fn tally(trace: &Trace, input: &Input) -> Result<(Tally, u64), Stopped> {
    if input.is_partial() {
        let mut tally = Tally::of(trace);
        let damaged = select::walk(trace, input, &mut tally)?;
        return Ok((tally, damaged));
    }
    // One tally for each worker thread, whatever the number of chunks.
    let spare: Mutex<Vec<Tally>> = Mutex::default();
    let spares = || spare.lock().unwrap_or_else(PoisonError::into_inner);
    let count = |steps: &mut Steps<'_>| -> Result<(), ReadError> {
        let found = spares().pop();
        let mut tally = found.unwrap_or_else(|| Tally::of(trace));
        let mut result = Ok(());
        loop {
            match steps.next_batch() {
                Ok(Some(batch)) => tally.batch(batch),
                Ok(None) => break,
                // Behind damaged data, the steps come without accesses.
                Err(error) => result = Err(error),
            }
        }
        spares().push(tally);
        result
    };
    let results = match trace.data() {
        DataMode::None => trace.par_chunks(count),
        _ => trace.par_chunks_with_accesses(count)?,
    };
    let mut damaged = 0;
    for error in results.into_iter().filter_map(Result::err) {
        eprintln!("trackway: left out: {error}");
        damaged += 1;
    }
    let mut sum = Tally::of(trace);
    for tally in spare.into_inner().unwrap_or_else(PoisonError::into_inner) {
        sum.add(tally);
    }
    Ok((sum, damaged))
}

#[derive(Serialize)]
struct BlockJson {
    address: String,
    image: u32,
    module: String,
    /// Offset in the file of the module; null outside of modules.
    offset: Option<String>,
    instructions_per_execution: u32,
    executions: u64,
    instructions: u64,
    percent: f64,
}

#[derive(Serialize)]
struct ModuleJson {
    module: String,
    blocks: u64,
    instructions: u64,
    percent: f64,
}

#[derive(Serialize)]
struct CountJson {
    name: String,
    number: u32,
    count: u64,
}

#[derive(Serialize)]
struct Statistics {
    #[serde(flatten)]
    overview: Overview,
    blocks_executed: u64,
    top_blocks: Vec<BlockJson>,
    top_modules: Vec<ModuleJson>,
    system_calls_by_name: Vec<CountJson>,
    signals: Vec<CountJson>,
    /// Memory accesses by the number of bytes; absent if they were not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    operands: Option<Vec<SizeJson>>,
    /// Functions and loops of selected routines; absent if there are no such routines.
    #[serde(skip_serializing_if = "Option::is_none")]
    functions: Option<Vec<scopes::FunctionJson>>,
    /// Allocations; absent if they were not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    allocations: Option<allocations::AllocationsJson>,
}

#[derive(Serialize)]
struct SizeJson {
    size: u32,
    loads: u64,
    stores: u64,
}

fn operands(tally: &Tally) -> Vec<SizeJson> {
    let mut sizes: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    tally.loads.iter().for_each(|(size, count)| sizes.entry(size).or_default().0 += count);
    tally.stores.iter().for_each(|(size, count)| sizes.entry(size).or_default().1 += count);
    sizes.into_iter().map(|(size, (loads, stores))| SizeJson { size, loads, stores }).collect()
}

impl Statistics {
    fn new(trace: &Trace, input: &Input, tally: &Tally, top: usize) -> Self {
        let selected =
            trace.threads().iter().filter(|thread| input.thread.is_none_or(|wanted| wanted == thread.info.thread));
        let counted = |thread: &ThreadSummary| {
            let counts = tally.threads.get(&thread.info.thread).copied().unwrap_or_default();
            ThreadSummary { counts, ..thread.clone() }
        };
        let threads: Vec<ThreadSummary> = selected.map(counted).collect();
        let all = threads.iter().map(|thread| thread.counts.instructions).sum();
        let modules_by_address = ModuleMap::new(trace);
        Self {
            overview: Overview::new(trace, input, &threads, false),
            blocks_executed: tally.blocks.iter().filter(|executed| executed.times > 0).count() as u64,
            top_blocks: top_blocks(trace, tally, &modules_by_address, all, top),
            top_modules: top_modules(trace, tally, &modules_by_address, all),
            system_calls_by_name: by_count(&tally.system_calls, |&number| (number, names::system_call(number))),
            signals: by_count(&tally.signals, |&signal| (u32::from(signal), names::signal(signal))),
            operands: tally.accesses.then(|| operands(tally)),
            functions: None,
            allocations: None,
        }
    }
}

fn by_count<K>(counts: &BTreeMap<K, u64>, name: impl Fn(&K) -> (u32, String)) -> Vec<CountJson> {
    let named = |(key, &count): (&K, &u64)| {
        let (number, name) = name(key);
        CountJson { name, number, count }
    };
    let mut list: Vec<CountJson> = counts.iter().map(named).collect();
    list.sort_by(|a, b| b.count.cmp(&a.count).then(a.number.cmp(&b.number)));
    list
}

/// Finds the module that an address belongs to.
struct ModuleMap<'t> {
    /// Sorted by image and address.
    modules: Vec<&'t MappedModule>,
}

impl<'t> ModuleMap<'t> {
    fn new(trace: &'t Trace) -> Self {
        let mut modules: Vec<&MappedModule> = trace.modules().iter().collect();
        modules.sort_by_key(|mapped| (mapped.image, mapped.module.address));
        Self { modules }
    }

    fn find(&self, image: u32, pc: AppPc) -> Option<&'t MappedModule> {
        let address = pc.get();
        let after = self.modules.partition_point(|mapped| (mapped.image, mapped.module.address) <= (image, address));
        let &mapped = self.modules.get(after.checked_sub(1)?)?;
        let inside = mapped.image == image && address - mapped.module.address < mapped.module.length;
        inside.then_some(mapped)
    }
}

fn module_name(place: Option<&MappedModule>) -> String {
    place.map_or("(no file)".into(), |mapped| mapped.module.path.clone())
}

fn top_blocks(trace: &Trace, tally: &Tally, modules_by_address: &ModuleMap, all: u64, top: usize) -> Vec<BlockJson> {
    // The same code may be in several blocks: it may have been translated more than once.
    let mut by_address: BTreeMap<(u32, AppPc, u32), BlockCounts> = BTreeMap::new();
    for (block, executed) in trace.blocks().iter().zip(&tally.blocks).filter(|(_, executed)| executed.times > 0) {
        let sum = by_address.entry((block.image(), block.address(), block.instruction_count())).or_default();
        sum.times += executed.times;
        sum.instructions += executed.instructions;
    }
    let mut list: Vec<_> = by_address.into_iter().collect();
    list.sort_by(|a, b| b.1.instructions.cmp(&a.1.instructions).then(a.0.cmp(&b.0)));
    list.truncate(top);
    let describe = |((image, address, instruction_count), executed): ((u32, AppPc, u32), BlockCounts)| {
        let place = modules_by_address.find(image, address);
        let offset = place.map(|mapped| address.get() - mapped.module.address + mapped.module.file_offset);
        BlockJson {
            address: format!("{address:#x}"),
            image,
            module: module_name(place),
            offset: offset.map(|offset| format!("{offset:#x}")),
            instructions_per_execution: instruction_count,
            executions: executed.times,
            instructions: executed.instructions,
            percent: rounded(percent(executed.instructions, all)),
        }
    };
    list.into_iter().map(describe).collect()
}

fn top_modules(trace: &Trace, tally: &Tally, modules_by_address: &ModuleMap, all: u64) -> Vec<ModuleJson> {
    let mut by_name: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (block, executed) in trace.blocks().iter().zip(&tally.blocks).filter(|(_, executed)| executed.times > 0) {
        let sum = by_name.entry(module_name(modules_by_address.find(block.image(), block.address()))).or_default();
        sum.0 += 1;
        sum.1 += executed.instructions;
    }
    let describe = |(module, (blocks, instructions)): (String, (u64, u64))| ModuleJson {
        module,
        blocks,
        instructions,
        percent: rounded(percent(instructions, all)),
    };
    let mut list: Vec<ModuleJson> = by_name.into_iter().map(describe).collect();
    list.sort_by(|a, b| b.instructions.cmp(&a.instructions).then(a.module.cmp(&b.module)));
    list
}

/// Rounds to a thousandth.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn text(statistics: &Statistics) -> String {
    let mut text = info::heading(&statistics.overview);
    text.push_str(&info::branch_mix(&statistics.overview));
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes everything");
    line(format!("\n{:>20}{:>9}  module", "instructions", "%"));
    for module in &statistics.top_modules {
        line(format!("{:>20}{:>9.3}  {}", grouped(module.instructions), module.percent, module.module));
    }
    line(format!("\n{:>20}{:>9}{:>18}{:>8}  block", "instructions", "%", "executions", "length"));
    for block in &statistics.top_blocks {
        let (name, place) =
            (file_name(&block.module), block.offset.as_ref().map_or(String::new(), |at| format!("+{at}")));
        line(format!(
            "{:>20}{:>9.3}{:>18}{:>8}  {} {name}{place}",
            grouped(block.instructions),
            block.percent,
            grouped(block.executions),
            block.instructions_per_execution,
            block.address
        ));
    }
    operand_table(&mut text, statistics.operands.as_deref().unwrap_or(&[]));
    named_table(&mut text, "system call", &statistics.system_calls_by_name);
    named_table(&mut text, "signal", &statistics.signals);
    scopes::table(&mut text, statistics.functions.as_deref().unwrap_or(&[]));
    if let Some(allocations) = &statistics.allocations {
        allocations::table(&mut text, allocations);
    }
    text
}

fn operand_table(text: &mut String, operands: &[SizeJson]) {
    if operands.is_empty() {
        return;
    }
    let (loads, stores) =
        operands.iter().fold((0, 0), |(loads, stores), size| (loads + size.loads, stores + size.stores));
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes everything");
    line(format!("\n{:>20}{:>9}{:>20}{:>9}  bytes", "loads", "%", "stores", "%"));
    for size in operands {
        line(format!(
            "{:>20}{:>9.3}{:>20}{:>9.3}  {}",
            grouped(size.loads),
            percent(size.loads, loads),
            grouped(size.stores),
            percent(size.stores, stores),
            size.size
        ));
    }
}

fn named_table(text: &mut String, heading: &str, list: &[CountJson]) {
    if list.is_empty() {
        return;
    }
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes everything");
    line(format!("\n{:>20}  {heading}", "times"));
    for named in list {
        line(format!("{:>20}  {}", grouped(named.count), named.name));
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
