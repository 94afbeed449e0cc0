//! `trackway info`: summarises a trace. The index contains everything, unless a part of the trace
//! is selected.

use std::fmt::Write;
use std::ops::Range;

use serde::Serialize;
use trace::{Access, Batch, Counts, DataMode, Event, Exit, Step, ThreadId, ThreadSummary, Trace, Tsc};

use crate::arguments::{Info, Input};
use crate::digits::{grouped, percent, size};
use crate::failure::FAILED;
use crate::names;
use crate::output::{Output, Stopped};
use crate::select::{self, Visitor};

pub fn run(arguments: &Info) -> Result<u8, Stopped> {
    let trace = select::open(&arguments.input)?;
    let mut output = Output::open_apart_from(&arguments.input.file, arguments.output.file.as_deref())?;
    let (threads, damaged) = counts_of(&trace, &arguments.input)?;
    let overview = Overview::new(&trace, &arguments.input, &threads, arguments.times);
    if arguments.json {
        output.json(&overview)?;
    } else {
        output.write(text(&overview).as_bytes())?;
    }
    output.finish()?;
    Ok(if damaged == 0 { 0 } else { FAILED })
}

/// Returns the threads with their counts in the selected part, and the number of damaged places in
/// it.
fn counts_of(trace: &Trace, input: &Input) -> Result<(Vec<ThreadSummary>, u64), Stopped> {
    let selected =
        trace.threads().iter().filter(|thread| input.thread.is_none_or(|wanted| wanted == thread.info.thread));
    let mut threads: Vec<ThreadSummary> = selected.cloned().collect();
    if input.skip == 0 && input.length.is_none() {
        return Ok((threads, 0));
    }
    for thread in &mut threads {
        thread.counts = Counts::default();
    }
    let mut counter = Counter { threads, accesses: trace.data() != DataMode::None };
    let damaged = select::walk(trace, input, &mut counter)?;
    Ok((counter.threads, damaged))
}

/// Counts what the selected threads execute.
struct Counter {
    threads: Vec<ThreadSummary>,
    /// Whether there are memory accesses.
    accesses: bool,
}

impl Counter {
    fn counts(&mut self, thread: ThreadId) -> Option<&mut Counts> {
        self.threads.iter_mut().find(|summary| summary.info.thread == thread).map(|summary| &mut summary.counts)
    }
}

impl Visitor for Counter {
    fn step(&mut self, thread: ThreadId, step: &Step, part: Range<u32>) -> Result<(), Stopped> {
        if let Some(counts) = self.counts(thread) {
            counts.add_step(step, part);
        }
        Ok(())
    }

    fn event(&mut self, thread: ThreadId, event: &Event) -> Result<(), Stopped> {
        if let Some(counts) = self.counts(thread) {
            counts.add_event(event);
        }
        Ok(())
    }

    fn wants_accesses(&self) -> bool {
        self.accesses
    }

    fn access(&mut self, batch: &Batch, access: &Access, _: Option<&Step>) -> Result<(), Stopped> {
        if let Some(counts) = self.counts(batch.thread()) {
            counts.add_access(access);
        }
        Ok(())
    }
}

/// Counts as they appear in JSON.
#[derive(Serialize)]
pub struct CountsJson {
    instructions: u64,
    branches: BranchesJson,
    loads: u64,
    stores: u64,
    exceptions: u64,
    system_calls: u64,
    steps: u64,
    lost: u64,
}

#[derive(Serialize)]
struct BranchesJson {
    total: u64,
    conditional_direct_taken: u64,
    conditional_direct_not_taken: u64,
    unconditional_direct: u64,
    unconditional_indirect: u64,
}

impl From<&Counts> for CountsJson {
    fn from(counts: &Counts) -> Self {
        Self {
            instructions: counts.instructions,
            branches: BranchesJson {
                total: counts.branches(),
                conditional_direct_taken: counts.conditional_taken,
                conditional_direct_not_taken: counts.conditional_not_taken,
                unconditional_direct: counts.unconditional_direct,
                unconditional_indirect: counts.unconditional_indirect,
            },
            loads: counts.reads,
            stores: counts.writes,
            exceptions: counts.signals,
            system_calls: counts.system_calls,
            steps: counts.steps,
            lost: counts.lost,
        }
    }
}

/// A thread as it appears in JSON.
#[derive(Serialize)]
pub struct ThreadJson {
    id: u32,
    os_tid: u32,
    parent: Option<u32>,
    image: u32,
    #[serde(flatten)]
    counts: CountsJson,
    #[serde(skip)]
    plain: Counts,
}

#[derive(Serialize)]
struct ModuleJson {
    path: String,
    image: u32,
    address: String,
    length: u64,
    file_offset: u64,
}

/// Times, which differ from run to run.
#[derive(Serialize)]
struct TimesJson {
    start_unix_nanoseconds: u64,
    seconds: Option<f64>,
}

/// The selection, if it is not the whole trace.
#[derive(Serialize)]
struct SelectionJson {
    thread: Option<u32>,
    skip: u64,
    length: Option<u64>,
}

/// The summary that `info` prints and `stat` begins with.
#[derive(Serialize)]
pub struct Overview {
    file: String,
    command: Vec<String>,
    /// Options that restricted the recording.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    options: Vec<String>,
    exit: ExitJson,
    /// False if the recorder was killed before the end.
    finished: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    selection: Option<SelectionJson>,
    #[serde(flatten)]
    counts: CountsJson,
    #[serde(skip)]
    totals: Counts,
    /// The recorded data of loads and stores: none, addresses or values.
    data: String,
    /// Size of the data before compression and in the file.
    data_bytes: u64,
    stored_data_bytes: u64,
    data_bits_per_instruction: f64,
    threads: Vec<ThreadJson>,
    modules: Vec<ModuleJson>,
    blocks: u64,
    fragments: u64,
    code_bytes: u64,
    chunks: u64,
    file_bytes: u64,
    bits_per_instruction: f64,
    pid: u32,
    cpu: String,
    system: String,
    recorder: String,
    /// The processes that were recorded together, if there is more than one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    family: Vec<ProcessJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<TimesJson>,
}

#[derive(Serialize)]
struct ProcessJson {
    pid: u32,
    parent: Option<u32>,
    /// Seconds from the start of the first process's recording to the creation of this one.
    seconds: f64,
    command: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum ExitJson {
    Code(i32),
    Signal(i32),
    #[serde(rename = "left")]
    Detached,
    Unknown,
}

impl Overview {
    pub fn new(trace: &Trace, input: &Input, threads: &[ThreadSummary], times: bool) -> Self {
        let (recording, summary) = (trace.recording(), trace.summary());
        let mut totals = Counts::default();
        for thread in threads {
            totals.add(&thread.counts);
        }
        Self {
            file: input.file.display().to_string(),
            command: recording.command.clone(),
            options: recording.options.clone(),
            exit: match trace.exit() {
                Exit::Code(code) => ExitJson::Code(code),
                Exit::Signal(signal) => ExitJson::Signal(signal),
                Exit::Detached => ExitJson::Detached,
                Exit::Unknown => ExitJson::Unknown,
            },
            finished: trace.is_finished(),
            selection: input.is_partial().then_some(SelectionJson {
                thread: input.thread.map(ThreadId::get),
                skip: input.skip,
                length: input.length,
            }),
            counts: CountsJson::from(&totals),
            totals,
            data: trace.data().to_string(),
            data_bytes: summary.data_bytes,
            stored_data_bytes: summary.stored_data_bytes,
            data_bits_per_instruction: summary.data_bits_per_instruction(),
            threads: threads.iter().map(thread_json).collect(),
            modules: trace.modules().iter().map(module_json).collect(),
            blocks: summary.blocks,
            fragments: summary.fragments,
            code_bytes: summary.code_bytes,
            chunks: summary.chunks,
            file_bytes: summary.file_bytes,
            bits_per_instruction: summary.bits_per_instruction(),
            pid: recording.pid,
            cpu: recording.cpu.clone(),
            system: recording.system.clone(),
            recorder: recording.recorder.clone(),
            family: processes_json(trace),
            times: times.then(|| times_json(trace)),
        }
    }
}

fn thread_json(thread: &ThreadSummary) -> ThreadJson {
    let info = &thread.info;
    ThreadJson {
        id: info.thread.get(),
        os_tid: info.os_tid,
        parent: info.parent.map(ThreadId::get),
        image: info.image,
        counts: CountsJson::from(&thread.counts),
        plain: thread.counts,
    }
}

fn module_json(mapped: &trace::MappedModule) -> ModuleJson {
    let module = &mapped.module;
    ModuleJson {
        path: module.path.clone(),
        image: mapped.image,
        address: format!("{:#x}", module.address),
        length: module.length,
        file_offset: module.file_offset,
    }
}

fn times_json(trace: &Trace) -> TimesJson {
    let recording = trace.recording();
    let last = trace.threads().iter().map(|thread| thread.last_tsc).max().unwrap_or(Tsc::NONE);
    let ticks = last.get().saturating_sub(recording.start_tsc.get());
    let seconds = (recording.tsc_hz > 0 && !last.is_none()).then(|| ticks as f64 / recording.tsc_hz as f64);
    TimesJson { start_unix_nanoseconds: recording.start_unix_nanos, seconds }
}

/// Returns the overview as text.
fn text(overview: &Overview) -> String {
    let mut text = heading(overview);
    text.push_str(&thread_table(&overview.threads));
    text.push_str(&module_table(&overview.modules));
    text.push_str(&process_tree(&overview.family, overview.pid));
    text
}

/// Returns the tree of processes that were recorded together; `own` is marked.
fn process_tree(family: &[ProcessJson], own: u32) -> String {
    let mut text = String::new();
    if !family.is_empty() {
        text.push_str("\nprocesses\n");
        let known = |pid: u32| family.iter().any(|process| process.pid == pid);
        for first in family.iter().filter(|process| !process.parent.is_some_and(known)) {
            add_subtree(&mut text, family, first, own, 0);
        }
    }
    text
}

fn add_subtree(text: &mut String, family: &[ProcessJson], process: &ProcessJson, own: u32, depth: usize) {
    let mark = if process.pid == own { '*' } else { ' ' };
    let (indent, command) = ("  ".repeat(depth), process.command.join(" "));
    writeln!(text, "{mark} {indent}{:<8} {:>10.6} s  {command}", process.pid, process.seconds)
        .expect("a string takes everything");
    // A process is younger than its parent, so that even a damaged trace has no cycle.
    let is_child = |other: &&ProcessJson| other.parent == Some(process.pid) && other.seconds > process.seconds;
    for child in family.iter().filter(is_child) {
        add_subtree(text, family, child, own, depth + 1);
    }
}

fn processes_json(trace: &Trace) -> Vec<ProcessJson> {
    let first = trace.processes().map(|process| process.tsc).min().unwrap_or(Tsc::NONE);
    let hertz = trace.recording().tsc_hz.max(1) as f64;
    let mut family: Vec<ProcessJson> = trace
        .processes()
        .map(|process| ProcessJson {
            pid: process.pid,
            parent: process.parent,
            seconds: (process.tsc - first) as f64 / hertz,
            command: process.command.clone(),
        })
        .collect();
    family.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    family
}

/// Returns everything but the tables.
pub fn heading(overview: &Overview) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| writeln!(text, "{name:<14}{value}").expect("a string takes everything");
    line("command", overview.command.join(" "));
    if !overview.options.is_empty() {
        line("only", overview.options.join(" "));
    }
    line("exit", exit_text(overview));
    if let Some(selection) = &overview.selection {
        line("selected", selection_text(selection));
    }
    if let Some(times) = &overview.times {
        line("start", format!("{:.3} s after 1970-01-01 UTC", times.start_unix_nanoseconds as f64 / 1e9));
        line("duration", times.seconds.map_or("unknown".into(), |seconds| format!("{seconds:.3} s")));
    }
    line("recorded by", format!("{} on {}, {}", overview.recorder, overview.cpu, overview.system));
    line(
        "file",
        format!(
            "{} ({} bytes), {} chunks",
            size(overview.file_bytes),
            grouped(overview.file_bytes),
            grouped(overview.chunks)
        ),
    );
    line("instructions", grouped(overview.totals.instructions));
    line("", format!("{:.4} bits per instruction", overview.bits_per_instruction));
    line("branches", grouped(overview.totals.branches()));
    text.push_str(&branch_lines(&overview.totals));
    let mut line = |name: &str, value: String| writeln!(text, "{name:<14}{value}").expect("a string takes everything");
    if overview.data != "none" {
        line("data", data_text(overview));
        line("loads", grouped(overview.totals.reads));
        line("stores", grouped(overview.totals.writes));
    }
    line("system calls", grouped(overview.totals.system_calls));
    line("exceptions", grouped(overview.totals.signals));
    line(
        "code",
        format!(
            "{} blocks, {} fragments, {}",
            grouped(overview.blocks),
            grouped(overview.fragments),
            size(overview.code_bytes)
        ),
    );
    if overview.totals.lost > 0 {
        line("lost", format!("the path is unknown at {} places", grouped(overview.totals.lost)));
    }
    text
}

fn data_text(overview: &Overview) -> String {
    format!(
        "{}: {} in {}, {:.4} bits per instruction",
        overview.data,
        size(overview.data_bytes),
        size(overview.stored_data_bytes),
        overview.data_bits_per_instruction
    )
}

/// Returns a table of the branch classes of each thread.
pub fn branch_mix(overview: &Overview) -> String {
    let mut text = String::from(
        "\nthread        instructions            branches  C taken %  C not taken %  U direct %  U indirect %\n",
    );
    for thread in &overview.threads {
        let counts = &thread.plain;
        let share = |count| percent(count, counts.branches());
        writeln!(
            text,
            "{:>6}{:>20}{:>20}{:>11.2}{:>15.2}{:>12.2}{:>14.2}",
            thread.id,
            grouped(counts.instructions),
            grouped(counts.branches()),
            share(counts.conditional_taken),
            share(counts.conditional_not_taken),
            share(counts.unconditional_direct),
            share(counts.unconditional_indirect)
        )
        .expect("a string takes everything");
    }
    text
}

fn exit_text(overview: &Overview) -> String {
    match (&overview.exit, overview.finished) {
        (ExitJson::Code(code), _) => format!("status {code}"),
        (ExitJson::Signal(signal), _) => format!("killed by {}", names::signal(u8::try_from(*signal).unwrap_or(0))),
        (ExitJson::Detached, _) => "none: it ran on when the recording ended".into(),
        (ExitJson::Unknown, true) => "unknown".into(),
        (ExitJson::Unknown, false) => "unknown: the recording was not finished".into(),
    }
}

fn selection_text(selection: &SelectionJson) -> String {
    let thread = selection.thread.map_or("all threads".into(), |thread| format!("thread {thread}"));
    let length = selection.length.map_or("all the rest".into(), |length| format!("{} instructions", grouped(length)));
    format!("{thread}, {length} after {}", grouped(selection.skip))
}

/// Returns four lines, one per class of branches.
pub fn branch_lines(counts: &Counts) -> String {
    let classes = [
        ("conditional direct, taken", counts.conditional_taken),
        ("conditional direct, not taken", counts.conditional_not_taken),
        ("unconditional direct", counts.unconditional_direct),
        ("unconditional indirect", counts.unconditional_indirect),
    ];
    let all = counts.branches();
    let line =
        |(name, count): (&str, u64)| format!("  {name:<30}{:>18}{:>7.2} %\n", grouped(count), percent(count, all));
    classes.map(line).concat()
}

fn thread_table(threads: &[ThreadJson]) -> String {
    let mut text =
        String::from("\nthread    os tid  parent        instructions            branches  system calls  exceptions\n");
    for thread in threads {
        let parent = thread.parent.map_or("-".into(), |parent| parent.to_string());
        let counts = &thread.plain;
        writeln!(
            text,
            "{:>6}{:>10}{parent:>8}{:>20}{:>20}{:>14}{:>12}",
            thread.id,
            thread.os_tid,
            grouped(counts.instructions),
            grouped(counts.branches()),
            grouped(counts.system_calls),
            grouped(counts.signals)
        )
        .expect("a string takes everything");
    }
    text
}

fn module_table(modules: &[ModuleJson]) -> String {
    let mut text = String::from("\nmodules\n");
    for module in modules {
        writeln!(text, "  {:>18} {:>10}  {}", module.address, size(module.length), module.path)
            .expect("a string takes everything");
    }
    text
}
