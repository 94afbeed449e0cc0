//! `trackway segment`: traces of one or many policies.

use std::path::Path;

use capture::{Limits, Options, Selection};
use report::Table;
use segment::{Class, Moves, Policy, Segmenter, TraceSet};
use serde::Serialize;
use trace::{Batch, Blocks, DataMode, Live, ThreadInfo, Trace};

use crate::arguments::Input;
use crate::arguments::segment::{Policies, Segment};
use crate::digits::{grouped, percent};
use crate::failure::{FAILED, Failure};
use crate::live::{self, Executed, Receiver};
use crate::output::{Lines, Output, Stopped};
use crate::progress::Together;
use crate::select;
use crate::verb::record::status;

/// The share of instructions that "trace count" is about.
const SHARE: f64 = 0.9;

pub fn run(arguments: &Segment) -> Result<u8, Stopped> {
    let policies = policies(arguments)?;
    if arguments.output.is_some() && policies.len() > 1 {
        return Err(Failure::new("a CSV file holds the traces of one policy")
            .hint("leave out --policies or -o")
            .into());
    }
    let length = length(arguments)?;
    let open = |path| match &arguments.input {
        Some(input) => Output::beside(input, Some(path)),
        None => Output::open(Some(path)),
    };
    let csv = arguments.output.as_deref().map(open).transpose()?;
    let (Cut { sets, moves }, status) = match &arguments.input {
        Some(file) => read(file, length, arguments, &policies)?,
        None => watch(length, arguments, &policies)?,
    };
    if let (Some(csv), Some(set)) = (csv, sets.first()) {
        write_csv(csv, set)?;
    }
    let rows = rows(&policies, &sets);
    let mut output = Output::open(None)?;
    if arguments.json {
        output.json(&rows)?;
    } else {
        output.write(text(&rows, &sets, &moves).as_bytes())?;
    }
    output.finish()?;
    Ok(status)
}

/// How many instructions are looked at, if not all.
fn length(arguments: &Segment) -> Result<Option<u64>, Failure> {
    match (arguments.stop, arguments.length) {
        // As in the thesis's tool, 0 is no end.
        (Some(0), _) => Ok(None),
        (Some(stop), _) if stop <= arguments.start => {
            Err(Failure::new("there is nothing between -start and -stop").hint("-stop has to be larger"))
        }
        (Some(stop), _) => Ok(Some(stop - arguments.start)),
        (None, length) => Ok(length),
    }
}

/// Reads a trace; gives the exit status, too.
fn read(file: &Path, length: Option<u64>, arguments: &Segment, policies: &[Policy]) -> Result<(Cut, u8), Stopped> {
    let input = Input { file: file.to_owned(), thread: arguments.thread, skip: arguments.start, length };
    let trace = select::open(&input)?;
    let (cut, damage) = segment(&trace, &input, policies)?;
    damage.iter().for_each(|problem| eprintln!("trackway: left out: {problem}"));
    let damaged = damage.len() as u64 + select::tell_unfinished(&trace, file);
    Ok((cut, if damaged == 0 { 0 } else { FAILED }))
}

/// Looks at a program while it runs; gives the exit status, too.
fn watch(length: Option<u64>, arguments: &Segment, policies: &[Policy]) -> Result<(Cut, u8), Stopped> {
    let options = Options {
        command: arguments.command.clone(),
        process: arguments.pid,
        limits: Limits { time: arguments.seconds, bytes: None },
        selection: Selection { skip: arguments.start, length, ..Selection::default() },
        ..Options::default()
    };
    let mut cutting = Cutting::new(policies);
    let exit = live::run(&options, Live::new(DataMode::None), &mut cutting)?;
    Ok((cutting.finish(), if arguments.pid.is_some() { 0 } else { status(exit) }))
}

/// The traces of each policy, and what was executed.
#[derive(Default)]
struct Cut {
    sets: Vec<TraceSet>,
    moves: Moves,
}

/// Segmenters at work.
struct Cutting {
    segmenters: Vec<Segmenter>,
    moves: Moves,
}

impl Cutting {
    fn new(policies: &[Policy]) -> Self {
        let segmenters = policies.iter().map(|&policy| Segmenter::new(policy)).collect();
        Self { segmenters, moves: Moves::default() }
    }

    fn batch(&mut self, blocks: &Blocks, batch: &Batch) {
        let moves = self.moves.of(blocks, batch);
        self.segmenters.iter_mut().for_each(|segmenter| segmenter.moves(batch.thread(), moves, blocks));
    }

    fn finish(self) -> Cut {
        Cut { sets: self.segmenters.into_iter().map(Segmenter::finish).collect(), moves: self.moves }
    }
}

impl Receiver for Cutting {
    fn thread(&mut self, _: &ThreadInfo) -> Result<(), Stopped> {
        Ok(())
    }

    fn path(&mut self, live: &mut Live, executed: Executed<'_>) -> Result<(), Stopped> {
        let Executed { image, thread, words, data } = executed;
        live.path(image, thread, words, data, |blocks, batch| {
            self.batch(blocks, batch);
            Ok(())
        })
    }

    fn finish(&mut self, live: &mut Live) -> Result<(), Stopped> {
        live.finish(|blocks, batch| {
            self.batch(blocks, batch);
            Ok(())
        })
    }
}

/// The policy that is given, or those that are asked for.
fn policies(arguments: &Segment) -> Result<Vec<Policy>, Failure> {
    let illegal = |error: segment::IllegalPolicy| Failure::new(error.to_string());
    let mut given = Policy::new(arguments.instructions, arguments.cfis).map_err(illegal)?;
    if let Some(flags) = &arguments.flags {
        given = given.with_flags(flags).map_err(illegal)?;
    }
    let classes = [(&arguments.ends, false), (&arguments.inside, true)];
    for (&class, inside) in
        classes.iter().flat_map(|(all, inside)| all.iter().copied().flatten().map(move |class| (class, inside)))
    {
        given = given.with(class, *inside);
    }
    for (class, weight) in
        arguments.weight.iter().flat_map(|(all, weight)| all.iter().map(move |class| (class, weight)))
    {
        given = given.with_weight(*class, *weight);
    }
    let policies = arguments.policies.iter().flat_map(|which| match which {
        Policies::Given => vec![given],
        Policies::First => Policy::first_experiment(),
        Policies::Second => vec![given.long()],
        Policies::Third => vec![given.two_conditional_jumps()],
        Policies::Fourth => given.fourth_experiment(),
    });
    Ok(policies.collect())
}

/// Goes through the trace once on each processor, with a part of the policies each.
fn segment(trace: &Trace, input: &Input, policies: &[Policy]) -> Result<(Cut, Vec<String>), Stopped> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(policies.len());
    let shares: Vec<&[Policy]> = policies.chunks(policies.len().div_ceil(workers)).collect();
    let progress = Together::new(select::instructions(trace, input) * shares.len() as u64);
    let work = |share: &[Policy]| -> Result<(Cut, Vec<String>), Stopped> {
        let mut cutting = Cutting::new(share);
        let damage = select::batches(trace, input, false, |batch| {
            cutting.batch(trace.blocks(), batch);
            progress.add(batch.instructions());
        })?;
        Ok((cutting.finish(), damage))
    };
    let ended: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = shares.iter().map(|share| scope.spawn(|| work(share))).collect();
        running.into_iter().map(|worker| worker.join().expect("it does not panic")).collect()
    });
    let mut ended = ended.into_iter();
    let (mut all, damage) = ended.next().unwrap_or_else(|| Ok((Cut::default(), Vec::new())))?;
    for end in ended {
        all.sets.extend(end?.0.sets);
    }
    Ok((all, damage))
}

/// What is printed of a policy.
#[derive(Serialize)]
struct Row {
    max_instructions: u32,
    max_cfis: u32,
    flags: String,
    instructions: u64,
    /// Different traces, and how often traces were executed.
    traces: usize,
    occurrences: u64,
    trace_length: f64,
    trace_count: usize,
    max_norm_ratio: f64,
    reasons: serde_json::Map<String, serde_json::Value>,
}

fn rows(policies: &[Policy], sets: &[TraceSet]) -> Vec<Row> {
    let longest = sets.iter().map(TraceSet::weighted_length).fold(0.0, f64::max);
    let most = sets.iter().map(|set| set.traces_for(SHARE)).max().unwrap_or(0);
    let row = |(policy, set): (&Policy, &TraceSet)| {
        let (trace_length, trace_count) = (set.weighted_length(), set.traces_for(SHARE));
        let is_empty = trace_count == 0 || longest == 0.0;
        Row {
            max_instructions: policy.max_instructions(),
            max_cfis: policy.max_cfis(),
            flags: policy.flags(),
            instructions: set.instructions(),
            traces: set.traces().len(),
            occurrences: set.occurrences(),
            trace_length,
            trace_count,
            max_norm_ratio: if is_empty { 0.0 } else { trace_length / longest / (trace_count as f64 / most as f64) },
            reasons: set
                .reasons()
                .into_iter()
                .map(|(reason, count)| (reason.name().to_owned(), count.into()))
                .collect(),
        }
    };
    policies.iter().zip(sets).map(row).collect()
}

fn text(rows: &[Row], sets: &[TraceSet], moves: &Moves) -> String {
    let instructions = rows.first().map_or(0, |row| row.instructions);
    let heads = ["flags", "ins", "cfis", "traces", "executed", "trace length", "trace count", "max-norm ratio"];
    let mut table = Table::new(&format!("{} instructions in traces", grouped(instructions)), &heads);
    for row in rows {
        let limits = [row.flags.clone(), row.max_instructions.to_string(), row.max_cfis.to_string()];
        let counts = [grouped(row.traces as u64), grouped(row.occurrences)];
        let judged =
            [format!("{:.2}", row.trace_length), grouped(row.trace_count as u64), format!("{:.2}", row.max_norm_ratio)];
        table.row(limits.into_iter().chain(counts).chain(judged));
    }
    match (rows, sets) {
        ([_], [set]) => table.text() + &reasons(set).text() + &mix(moves).text(),
        _ => table.text(),
    }
}

/// Why traces ended.
fn reasons(set: &TraceSet) -> Table {
    let mut table = Table::new("Why traces ended", &["reason", "times", "%"]);
    for (reason, count) in set.reasons() {
        let share = format!("{:.2}", percent(count, set.occurrences()));
        table.row([reason.name().to_owned(), grouped(count), share]);
    }
    table
}

/// Table 7.1.
fn mix(moves: &Moves) -> Table {
    let mut table = Table::new("Control-flow instructions", &["class", "times", "%"]);
    let all: u64 = Class::ALL.into_iter().skip(1).map(|class| moves.executed(class)).sum();
    for class in Class::ALL.into_iter().skip(1).filter(|&class| moves.executed(class) > 0) {
        let count = moves.executed(class);
        table.row([class.name().to_owned(), grouped(count), format!("{:.2}", percent(count, all))]);
    }
    table
}

/// Every trace, as the thesis's tool writes it, those that cover most first.
fn write_csv(output: Output, set: &TraceSet) -> Result<(), Stopped> {
    let mut lines = Lines::new(output);
    lines.bytes.extend(b"StartAddress,Instructions,CFICount,BranchOutcomes,Reason,Occurrences\n");
    for trace in set.traces() {
        let (start, outcomes) = (trace.start, trace.branch_outcomes());
        let (reason, count) = (trace.reason.name(), trace.occurrences);
        let line = format!("{start:#x},{},{},{outcomes:#x},{reason},{count}\n", trace.instructions, trace.cfis);
        lines.bytes.extend(line.as_bytes());
        lines.flush_long()?;
    }
    lines.finish()
}
