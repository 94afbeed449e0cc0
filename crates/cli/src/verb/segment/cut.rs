//! Policies at work, on all processors, and what is known of each in the end.

use segment::{
    Asked, Chains, Edges, Fetch, Listing, Moves, Overlap, Policy, Reason, Score, Segmenter, Shape, Supplied, TraceSet,
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
    pub caches: Vec<Shape>,
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
    /// As the thesis calls them.
    pub trace_length: f64,
    pub trace_count: usize,
    /// The share of instructions of the first traces: of so many, so much.
    pub coverage: Vec<(usize, f64)>,
    pub reasons: Vec<(Reason, u64)>,
    /// Of all traces, and of those that count for "trace count".
    pub overlap: [Overlap; 2],
    /// On average over all instructions.
    pub consistency: f64,
    /// Instructions over the longest chains of dependences, over all that was executed; if wanted.
    pub ilp: Option<f64>,
    /// How often branches were judged anew, if the policy learns.
    pub changes: u64,
    pub fetched: Option<(Asked, Vec<(Shape, Supplied)>)>,
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
    pub moves: Moves,
}

/// A policy at work.
struct Job {
    segmenter: Segmenter,
    fetch: Option<Fetch>,
}

/// Policies at work.
pub struct Cutting {
    jobs: Vec<Job>,
    moves: Moves,
    edges: Edges,
    wish: Wish,
    cut: Cut,
}

impl Cutting {
    pub fn new(policies: &[Policy], wish: &Wish) -> Self {
        let fetch = || (!wish.caches.is_empty()).then(|| Fetch::new(wish.path, &wish.caches));
        let job = |&policy: &Policy| Job { segmenter: Segmenter::new(policy), fetch: fetch() };
        Self {
            jobs: policies.iter().map(job).collect(),
            moves: Moves::default(),
            edges: Edges::default(),
            wish: wish.clone(),
            cut: Cut::default(),
        }
    }

    fn batch(&mut self, blocks: &Blocks, batch: &Batch) {
        self.moves.add(blocks, batch);
        if self.moves.are_many() {
            self.work(blocks);
        }
    }

    /// Goes through what was collected.
    fn work(&mut self, blocks: &Blocks) {
        self.moves.parts().for_each(|(_, moves)| self.edges.moves(moves));
        for Job { segmenter, fetch } in &mut self.jobs {
            for (thread, moves) in self.moves.parts() {
                match fetch {
                    Some(fetch) => segmenter.watched(thread, moves, blocks, fetch),
                    None => segmenter.moves(thread, moves, blocks),
                }
            }
        }
        self.moves.clear();
    }

    /// Nothing more is executed.
    fn end(&mut self, blocks: &Blocks) {
        self.work(blocks);
        let (listing, probabilities) = (Listing::new(blocks), self.edges.probabilities(blocks));
        let mut chains = self.wish.dependences.then(|| Chains::new(blocks));
        for Job { segmenter, fetch } in self.jobs.drain(..) {
            let (policy, changes) = (*segmenter.policy(), segmenter.changes());
            let set = segmenter.finish();
            let consistencies: Vec<f64> =
                set.traces().iter().map(|trace| probabilities.consistency(&listing, trace)).collect();
            let chains: Vec<u32> = chains.as_mut().map_or_else(Vec::new, |chains| {
                let spots = |trace: &'_ segment::Trace| {
                    let spots = trace.stretches.iter().flat_map(|&stretch| listing.walk(stretch));
                    spots.map(|spot| (spot.block, spot.place)).collect::<Vec<_>>()
                };
                set.traces().iter().map(|trace| chains.longest(spots(trace).into_iter())).collect()
            });
            let kept = Kept { set, consistencies, chains };
            let fetched = fetch
                .map(|fetch| (*fetch.asked(), fetch.supplied().map(|(shape, supplied)| (*shape, *supplied)).collect()));
            let outcome = Outcome { changes, fetched, ..Outcome::new(policy, &listing, &kept) };
            self.cut.outcomes.push(Outcome { kept: self.wish.keep.then_some(kept), ..outcome });
        }
        self.cut.moves = std::mem::take(&mut self.moves);
    }

    /// What came of it, once it has ended.
    pub fn cut(self) -> Cut {
        self.cut
    }
}

impl Outcome {
    pub fn score(&self) -> Score {
        Score { length: self.trace_length, count: self.trace_count as f64 }
    }

    fn new(policy: Policy, listing: &Listing<'_>, Kept { set, consistencies, chains }: &Kept) -> Self {
        let trace_count = set.traces_for(SHARE);
        let weights = || set.traces().iter().map(|trace| trace.coverage() as f64);
        let consistent: f64 = weights().zip(consistencies).map(|(weight, own)| weight * own).sum();
        let cycles: f64 =
            set.traces().iter().zip(chains).map(|(trace, &chain)| f64::from(chain) * trace.occurrences as f64).sum();
        Self {
            policy,
            instructions: set.instructions(),
            traces: set.traces().len(),
            occurrences: set.occurrences(),
            aliases: set.aliases(),
            trace_length: set.weighted_length(),
            trace_count,
            coverage: curve(set),
            reasons: set.reasons(),
            overlap: [Overlap::of(listing, set.traces()), Overlap::of(listing, &set.traces()[..trace_count])],
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
            Ok::<_, Stopped>(())
        })?;
        self.end(live.blocks());
        Ok(())
    }
}

/// Goes through the trace once on each processor, with a part of the policies each; tells what of the trace was damaged, too.
pub fn segment(trace: &Trace, input: &Input, policies: &[Policy], wish: &Wish) -> Result<(Cut, Vec<String>), Stopped> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(policies.len());
    let shares: Vec<&[Policy]> = policies.chunks(policies.len().div_ceil(workers)).collect();
    let progress = Together::new(select::instructions(trace, input) * shares.len() as u64);
    let work = |share: &[Policy]| -> Result<(Cut, Vec<String>), Stopped> {
        let mut cutting = Cutting::new(share, wish);
        let damage = select::batches(trace, input, false, |batch| {
            cutting.batch(trace.blocks(), batch);
            progress.add(batch.instructions());
        })?;
        cutting.end(trace.blocks());
        Ok((cutting.cut(), damage))
    };
    let ended: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = shares.iter().map(|share| scope.spawn(|| work(share))).collect();
        running.into_iter().map(|worker| worker.join().expect("it does not panic")).collect()
    });
    let mut ended = ended.into_iter();
    let (mut all, damage) = ended.next().unwrap_or_else(|| Ok((Cut::default(), Vec::new())))?;
    for end in ended {
        all.outcomes.extend(end?.0.outcomes);
    }
    Ok((all, damage))
}
