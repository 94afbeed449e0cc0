//! Runs policies over an execution, on all processors, and collects the outcome of each.

use std::sync::{Mutex, mpsc};

use segment::{
    CacheSupply, DependenceChains, EdgeCounts, EdgeProbabilities, EndReason, FetchDemand, FetchSimulator,
    InstructionMix, InstructionTable, LengthWeight, Overlap, Policy, Score, Segmenter, StepBuffer, StepCollector,
    TraceCacheShape, TraceLength, TraceSet,
};
use trace::{Batch, Blocks, Excerpt, ReadError, Trace};

use crate::Observer;
use crate::observer::InstructionCounter;

/// The share of instructions that the traces of "trace count" cover.
pub const SHARE: f64 = 0.9;

/// The analyses for each policy.
#[derive(Clone, Debug, Default)]
pub struct AnalysisOptions {
    /// Trace caches, and the number of traces that a prediction of the next one is based on.
    pub caches: Vec<TraceCacheShape>,
    pub path: usize,
    /// Whether to find chains of data dependences.
    pub dependences: bool,
    /// Whether to return the traces themselves.
    pub keep_traces: bool,
}

/// The outcome of a policy.
pub struct PolicyOutcome {
    pub policy: Policy,
    pub instructions: u64,
    /// The number of different traces, and of executed traces.
    pub traces: usize,
    pub occurrences: u64,
    /// The number of traces that the tool of the thesis would take for others.
    pub aliases: usize,
    /// With traces of the same path merged, whatever ended them: their number, and the "trace
    /// count".
    pub paths: usize,
    pub path_count: usize,
    /// The two numbers that the thesis judges by.
    pub trace_length: TraceLength,
    pub trace_count: usize,
    /// Pairs: a number of traces, and the share of instructions that they cover.
    pub coverage: Vec<(usize, f64)>,
    pub reasons: Vec<(EndReason, u64)>,
    /// The overlap of all traces, and of those in "trace count".
    pub overlap: [Overlap; 2],
    /// The average over all instructions.
    pub consistency: f64,
    /// Executed instructions over the sum of the longest chains of dependences, if wanted.
    pub ilp: Option<f64>,
    /// How often the policy changed its judgement of a branch, if it learns.
    pub changes: u64,
    pub fetched: Option<(FetchDemand, Vec<(TraceCacheShape, CacheSupply)>)>,
    /// The traces, if wanted.
    pub details: Option<TraceDetails>,
}

/// The traces of a policy, and the consistency of each.
pub struct TraceDetails {
    pub set: TraceSet,
    pub consistencies: Vec<f64>,
    /// The longest chain of each trace, if wanted.
    pub chains: Vec<u32>,
}

/// The outcomes of all policies, and the executed control-flow instructions.
#[derive(Default)]
pub struct Segmentation {
    pub outcomes: Vec<PolicyOutcome>,
    pub mix: InstructionMix,
}

/// A policy that runs.
struct PolicyRun {
    segmenter: Segmenter,
    fetch: Option<FetchSimulator>,
}

impl PolicyRun {
    fn new(policy: Policy, options: &AnalysisOptions) -> Self {
        let fetch = (!options.caches.is_empty()).then(|| FetchSimulator::new(options.path, &options.caches));
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

    /// Returns the outcome.
    fn end(self, program: &ProgramModel<'_>, options: &AnalysisOptions) -> PolicyOutcome {
        let (policy, changes) = (*self.segmenter.policy(), self.segmenter.changes());
        let details = program.details(self.segmenter.finish(), options.dependences);
        let fetched = self
            .fetch
            .map(|fetch| (*fetch.demand(), fetch.supply().map(|(shape, supplied)| (*shape, *supplied)).collect()));
        let outcome = PolicyOutcome { changes, fetched, ..PolicyOutcome::new(policy, &program.table, &details) };
        PolicyOutcome { details: options.keep_traces.then_some(details), ..outcome }
    }
}

/// The code, and the probabilities of its branches.
struct ProgramModel<'b> {
    table: InstructionTable<'b>,
    probabilities: EdgeProbabilities,
}

impl ProgramModel<'_> {
    fn details(&self, set: TraceSet, dependences: bool) -> TraceDetails {
        let consistency = |trace| self.probabilities.consistency(&self.table, trace);
        let consistencies = set.traces().iter().map(consistency).collect();
        let mut chains = dependences.then(|| DependenceChains::new(self.table.blocks()));
        let longest = |trace| {
            let path = self.table.path(trace).map(|instruction| (instruction.block, instruction.index));
            chains.as_mut().map(|chains| chains.longest(path))
        };
        let chains = set.traces().iter().filter_map(longest).collect();
        TraceDetails { set, consistencies, chains }
    }
}

/// All policies, which run on all processors.
struct PolicyRuns<'w> {
    runs: Vec<PolicyRun>,
    edges: EdgeCounts,
    options: &'w AnalysisOptions,
}

impl<'w> PolicyRuns<'w> {
    fn new(policies: &[Policy], options: &'w AnalysisOptions) -> Self {
        let runs = policies.iter().map(|&policy| PolicyRun::new(policy, options)).collect();
        Self { runs, edges: EdgeCounts::default(), options }
    }

    fn work(&mut self, collected: &StepBuffer, blocks: &Blocks) {
        collected.threads().for_each(|steps| self.edges.add(steps.steps));
        on_all_processors(self.runs.iter_mut().collect(), |run| run.work(collected, blocks));
    }

    /// Returns the outcomes at the end of the execution.
    fn end(self, blocks: &Blocks) -> Vec<PolicyOutcome> {
        let program =
            ProgramModel { table: InstructionTable::new(blocks), probabilities: self.edges.probabilities(blocks) };
        on_all_processors(self.runs, |run| run.end(&program, self.options))
    }
}

/// Calls `work` with each item, on all processors. Returns the results in the order of the list.
fn on_all_processors<T: Send, R: Send>(list: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(list.len());
    if workers < 2 {
        return list.into_iter().map(work).collect();
    }
    let next = Mutex::new(list.into_iter().enumerate());
    let worker = || {
        let take = || next.lock().expect("workers do not panic with the lock").next();
        std::iter::from_fn(take).map(|(place, item)| (place, work(item))).collect::<Vec<_>>()
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        running.into_iter().flat_map(|worker| worker.join().expect("it does not panic")).collect()
    });
    done.sort_by_key(|&(place, _)| place);
    done.into_iter().map(|(_, result)| result).collect()
}

impl PolicyOutcome {
    pub fn score(&self, weight: LengthWeight) -> Score {
        Score { length: self.trace_length.by(weight), count: self.trace_count as f64 }
    }

    /// Returns the score with traces of the same path merged.
    pub fn merged_score(&self, weight: LengthWeight) -> Score {
        Score { count: self.path_count as f64, ..self.score(weight) }
    }

    fn new(
        policy: Policy,
        table: &InstructionTable<'_>,
        TraceDetails { set, consistencies, chains }: &TraceDetails,
    ) -> Self {
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
            details: None,
        }
    }
}

/// Returns points of the coverage curve: the first ten, then fewer and fewer, for a logarithmic
/// axis.
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

/// Segments the execution of a running program.
pub struct LiveSegmenter<'w> {
    steps: StepCollector,
    runs: PolicyRuns<'w>,
    outcomes: Vec<PolicyOutcome>,
}

impl<'w> LiveSegmenter<'w> {
    pub fn new(policies: &[Policy], options: &'w AnalysisOptions) -> Self {
        Self { steps: StepCollector::default(), runs: PolicyRuns::new(policies, options), outcomes: Vec::new() }
    }

    /// Takes a batch that a thread has executed.
    pub fn add_batch(&mut self, blocks: &Blocks, batch: &Batch) {
        self.steps.add(blocks, batch);
        if self.steps.is_full() {
            self.work(blocks);
        }
    }

    fn work(&mut self, blocks: &Blocks) {
        let mut collected = self.steps.take(StepBuffer::default());
        self.runs.work(&collected, blocks);
        collected.clear();
        self.steps.take(collected);
    }

    /// Ends all traces: the program executes nothing more.
    pub fn finish(&mut self, blocks: &Blocks) {
        self.work(blocks);
        let nothing = PolicyRuns::new(&[], self.runs.options);
        self.outcomes = std::mem::replace(&mut self.runs, nothing).end(blocks);
    }

    /// Returns the result, once [`Self::finish`] was called.
    pub fn into_segmentation(self) -> Segmentation {
        Segmentation { outcomes: self.outcomes, mix: *self.steps.mix() }
    }
}

/// Segments a part of a trace by all policies. Returns the errors of chunks that were left out,
/// too.
///
/// One thread reads ahead while the policies are at work.
pub fn segment_trace(
    trace: &Trace,
    excerpt: Excerpt,
    policies: &[Policy],
    options: &AnalysisOptions,
    observer: &dyn Observer,
) -> Result<(Segmentation, Vec<ReadError>), ReadError> {
    let (blocks, mut runs) = (trace.blocks(), PolicyRuns::new(policies, options));
    let progress = InstructionCounter::new(observer, excerpt.instructions(trace));
    let mut steps = StepCollector::default();
    let damage = std::thread::scope(|scope| {
        let (full, to_do) = mpsc::sync_channel::<StepBuffer>(1);
        let (empty, done) = mpsc::channel();
        let runs = &mut runs;
        scope.spawn(move || {
            for mut collected in to_do {
                runs.work(&collected, blocks);
                collected.clear();
                // The reader has ended and does not receive any more.
                let _ = empty.send(collected);
            }
        });
        let damage = excerpt.for_each_batch(trace, false, |batch| {
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
    Ok((Segmentation { outcomes: runs.end(blocks), mix: *steps.mix() }, damage))
}
