//! Policies at work, on all processors, and what is known of each in the end.

use std::sync::{Mutex, mpsc};

use segment::{
    CacheSupply, DependenceChains, EdgeCounts, EdgeProbabilities, EndReason, FetchDemand, FetchSimulator,
    InstructionMix, InstructionTable, LengthWeight, Overlap, Policy, Score, Segmenter, StepBuffer, StepCollector,
    TraceCacheShape, TraceLength, TraceSet,
};
use trace::{Batch, Blocks, Live, ThreadInfo, Trace};

use crate::arguments::Input;
use crate::live::{Executed, Receiver};
use crate::output::Stopped;
use crate::progress::Together;
use crate::select;

/// The share of instructions that "trace count" is about.
pub const SHARE: f64 = 0.9;

/// What is to be done for each policy.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Caches that traces are fetched from, and how many traces the next one is predicted from.
    pub caches: Vec<TraceCacheShape>,
    pub path: usize,
    /// Chains of data dependences are looked for.
    pub dependences: bool,
    /// The traces themselves are wanted.
    pub keep: bool,
}

/// What came of a policy.
pub struct Outcome {
    pub policy: Policy,
    pub instructions: u64,
    /// Different traces, and how often traces were executed.
    pub traces: usize,
    pub occurrences: u64,
    /// Traces that the thesis's tool would take for others.
    pub aliases: usize,
    /// If traces that go the same way are one, whatever made them end: how many there are, and the "trace count".
    pub paths: usize,
    pub path_count: usize,
    /// As the thesis calls them.
    pub trace_length: TraceLength,
    pub trace_count: usize,
    /// The share of instructions of the first traces: of so many, so much.
    pub coverage: Vec<(usize, f64)>,
    pub reasons: Vec<(EndReason, u64)>,
    /// Of all traces, and of those that count for "trace count".
    pub overlap: [Overlap; 2],
    /// On average over all instructions.
    pub consistency: f64,
    /// Instructions over the longest chains of dependences, over all that was executed; if wanted.
    pub ilp: Option<f64>,
    /// How often branches were judged anew, if the policy learns.
    pub changes: u64,
    pub fetched: Option<(FetchDemand, Vec<(TraceCacheShape, CacheSupply)>)>,
    /// If wanted.
    pub kept: Option<Kept>,
}

/// The traces of a policy, with what is known of each.
pub struct Kept {
    pub set: TraceSet,
    pub consistencies: Vec<f64>,
    /// Longest chains, if wanted.
    pub chains: Vec<u32>,
}

/// All policies, and what was executed.
#[derive(Default)]
pub struct Cut {
    pub outcomes: Vec<Outcome>,
    pub mix: InstructionMix,
}

/// A policy at work.
struct Job {
    segmenter: Segmenter,
    fetch: Option<FetchSimulator>,
}

impl Job {
    fn new(policy: Policy, wish: &Wish) -> Self {
        let fetch = (!wish.caches.is_empty()).then(|| FetchSimulator::new(wish.path, &wish.caches));
        Self { segmenter: Segmenter::new(policy), fetch }
    }

    fn work(&mut self, collected: &StepBuffer, blocks: &Blocks) {
        for steps in collected.threads() {
            match &mut self.fetch {
                Some(fetch) => self.segmenter.process_observed(steps, blocks, fetch),
                None => self.segmenter.process(steps, blocks),
            }
        }
    }

    /// What came of it, with what is known of the program.
    fn end(self, program: &Program<'_>, wish: &Wish) -> Outcome {
        let (policy, changes) = (*self.segmenter.policy(), self.segmenter.changes());
        let kept = program.kept(self.segmenter.finish(), wish.dependences);
        let fetched = self
            .fetch
            .map(|fetch| (*fetch.demand(), fetch.supply().map(|(shape, supplied)| (*shape, *supplied)).collect()));
        let outcome = Outcome { changes, fetched, ..Outcome::new(policy, &program.table, &kept) };
        Outcome { kept: wish.keep.then_some(kept), ..outcome }
    }
}

/// What is known of the code and its branches in the end.
struct Program<'b> {
    table: InstructionTable<'b>,
    probabilities: EdgeProbabilities,
}

impl Program<'_> {
    fn kept(&self, set: TraceSet, dependences: bool) -> Kept {
        let consistency = |trace| self.probabilities.consistency(&self.table, trace);
        let consistencies = set.traces().iter().map(consistency).collect();
        let mut chains = dependences.then(|| DependenceChains::new(self.table.blocks()));
        let longest = |trace| {
            let path = self.table.path(trace).map(|instruction| (instruction.block, instruction.index));
            chains.as_mut().map(|chains| chains.longest(path))
        };
        let chains = set.traces().iter().filter_map(longest).collect();
        Kept { set, consistencies, chains }
    }
}

/// Policies at work, on all processors.
struct Jobs<'w> {
    jobs: Vec<Job>,
    edges: EdgeCounts,
    wish: &'w Wish,
}

impl<'w> Jobs<'w> {
    fn new(policies: &[Policy], wish: &'w Wish) -> Self {
        let jobs = policies.iter().map(|&policy| Job::new(policy, wish)).collect();
        Self { jobs, edges: EdgeCounts::default(), wish }
    }

    fn work(&mut self, collected: &StepBuffer, blocks: &Blocks) {
        collected.threads().for_each(|steps| self.edges.add(steps.steps));
        on_all_processors(self.jobs.iter_mut().collect(), |job| job.work(collected, blocks));
    }

    /// Nothing more is executed.
    fn end(self, blocks: &Blocks) -> Vec<Outcome> {
        let program = Program { table: InstructionTable::new(blocks), probabilities: self.edges.probabilities(blocks) };
        on_all_processors(self.jobs, |job| job.end(&program, self.wish))
    }
}

/// Does something with each, in no order; gives what came out in the order of the list.
fn on_all_processors<T: Send, R: Send>(list: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(list.len());
    if workers < 2 {
        return list.into_iter().map(work).collect();
    }
    let next = Mutex::new(list.into_iter().enumerate());
    let worker = || {
        let take = || next.lock().expect("nobody panics with it").next();
        std::iter::from_fn(take).map(|(place, item)| (place, work(item))).collect::<Vec<_>>()
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        running.into_iter().flat_map(|worker| worker.join().expect("it does not panic")).collect()
    });
    done.sort_by_key(|&(place, _)| place);
    done.into_iter().map(|(_, result)| result).collect()
}

impl Outcome {
    pub fn score(&self, weight: LengthWeight) -> Score {
        Score { length: self.trace_length.by(weight), count: self.trace_count as f64 }
    }

    /// If traces that go the same way are one.
    pub fn merged_score(&self, weight: LengthWeight) -> Score {
        Score { count: self.path_count as f64, ..self.score(weight) }
    }

    fn new(policy: Policy, table: &InstructionTable<'_>, Kept { set, consistencies, chains }: &Kept) -> Self {
        let (merged, trace_count) = (set.merged(), set.traces_for(SHARE));
        let path_count = merged.traces_for(SHARE);
        let weights = || set.traces().iter().map(|trace| trace.coverage() as f64);
        let consistent = weights().zip(consistencies).fold(0.0, |sum, (weight, own)| sum + weight * own);
        let cycles: f64 =
            set.traces().iter().zip(chains).map(|(trace, &chain)| f64::from(chain) * trace.occurrences as f64).sum();
        Self {
            policy,
            instructions: set.instructions(),
            traces: set.traces().len(),
            occurrences: set.occurrences(),
            aliases: set.aliases(),
            paths: merged.traces().len(),
            path_count,
            trace_length: set.trace_length(),
            trace_count,
            coverage: curve(set),
            reasons: set.reasons(),
            overlap: [Overlap::of(table, merged.traces()), Overlap::of(table, &merged.traces()[..path_count])],
            consistency: consistent / (set.instructions() as f64).max(1.0),
            ilp: (cycles > 0.0).then(|| set.instructions() as f64 / cycles),
            changes: 0,
            fetched: None,
            kept: None,
        }
    }
}

/// The coverage of so many traces: of each of the first ten, then of fewer and fewer, as a logarithmic axis shows them.
fn curve(set: &TraceSet) -> Vec<(usize, f64)> {
    let mut next = 1;
    let mut is_shown = |rank: usize| {
        let shown = rank >= next || rank == set.traces().len();
        if shown {
            next = rank + rank / 10 + 1;
        }
        shown
    };
    set.coverage().enumerate().map(|(place, share)| (place + 1, share)).filter(|&(rank, _)| is_shown(rank)).collect()
}

/// Cuts what a program executes while it runs.
pub struct Watching<'w> {
    steps: StepCollector,
    jobs: Jobs<'w>,
    outcomes: Vec<Outcome>,
}

impl<'w> Watching<'w> {
    pub fn new(policies: &[Policy], wish: &'w Wish) -> Self {
        Self { steps: StepCollector::default(), jobs: Jobs::new(policies, wish), outcomes: Vec::new() }
    }

    fn batch(&mut self, blocks: &Blocks, batch: &Batch) {
        self.steps.add(blocks, batch);
        if self.steps.is_full() {
            self.work(blocks);
        }
    }

    fn work(&mut self, blocks: &Blocks) {
        let mut collected = self.steps.take(StepBuffer::default());
        self.jobs.work(&collected, blocks);
        collected.clear();
        self.steps.take(collected);
    }

    /// What came of it, once it has ended.
    pub fn cut(self) -> Cut {
        Cut { outcomes: self.outcomes, mix: *self.steps.mix() }
    }
}

impl Receiver for Watching<'_> {
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
            Ok::<_, Stopped>(())
        })?;
        self.work(live.blocks());
        let nothing = Jobs::new(&[], self.jobs.wish);
        self.outcomes = std::mem::replace(&mut self.jobs, nothing).end(live.blocks());
        Ok(())
    }
}

/// Goes through a trace; tells what of it was damaged, too. What comes next is read while policies are at work.
pub fn segment(trace: &Trace, input: &Input, policies: &[Policy], wish: &Wish) -> Result<(Cut, Vec<String>), Stopped> {
    let (blocks, mut jobs) = (trace.blocks(), Jobs::new(policies, wish));
    let progress = Together::new(select::instructions(trace, input));
    let mut steps = StepCollector::default();
    let damage = std::thread::scope(|scope| {
        let (full, to_do) = mpsc::sync_channel::<StepBuffer>(1);
        let (empty, done) = mpsc::channel();
        let jobs = &mut jobs;
        scope.spawn(move || {
            for mut collected in to_do {
                jobs.work(&collected, blocks);
                collected.clear();
                // Nobody wants it when all is read.
                let _ = empty.send(collected);
            }
        });
        let damage = select::batches(trace, input, false, |batch| {
            steps.add(blocks, batch);
            progress.add(batch.instructions());
            if steps.is_full() {
                let collected = steps.take(done.try_recv().unwrap_or_default());
                full.send(collected).expect("it waits for more");
            }
        });
        full.send(steps.take(StepBuffer::default())).expect("it waits for more");
        damage
    })?;
    Ok((Cut { outcomes: jobs.end(blocks), mix: *steps.mix() }, damage))
}
