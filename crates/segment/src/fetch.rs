//! Simulates a fetch unit: a predictor of traces and trace caches. A [`FetchSimulator`] observes a
//! [`crate::Segmenter`].

use hashbrown::HashMap;
use trace::{AppPc, ThreadId};

use crate::predictor::{TraceHistory, TracePredictor};
use crate::segmenter::{ExecutedTrace, TraceObserver};
use crate::trace_cache::{BlockUses, TraceCache, TraceCacheShape, TraceReplacement};

/// Static properties of a trace.
#[derive(Clone, Debug)]
struct TraceInfo {
    start: AppPc,
    instructions: u32,
    calls: i32,
    /// Numbers of its instruction runs, which are its blocks unless it begins inside one.
    blocks: Vec<u32>,
}

/// Counts of what one cache supplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSupply {
    /// Traces that hit the cache.
    pub hits: u64,
    /// Their instructions.
    pub instructions: u64,
    /// Instructions of hits that were also predicted.
    pub predicted: u64,
}

/// Counts of what was fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchDemand {
    pub traces: u64,
    pub instructions: u64,
    /// Traces that were mispredicted.
    pub mispredicted: u64,
}

/// Observes a segmenter with a predictor of traces and any number of independent caches. Threads
/// share them, but each thread has its own history of traces.
#[derive(Clone, Debug)]
pub struct FetchSimulator {
    infos: Vec<TraceInfo>,
    blocks: HashMap<AppPc, u32>,
    uses: BlockUses,
    counts_blocks: bool,
    predictor: TracePredictor,
    histories: HashMap<ThreadId, TraceHistory>,
    demand: FetchDemand,
    caches: Vec<(TraceCache, CacheSupply)>,
}

impl FetchSimulator {
    /// `path` is the number of traces in a history.
    #[must_use]
    pub fn new(path: usize, shapes: &[TraceCacheShape]) -> Self {
        Self {
            infos: Vec::new(),
            blocks: HashMap::new(),
            uses: BlockUses::default(),
            counts_blocks: shapes.iter().any(|shape| shape.replacement == TraceReplacement::Blocks),
            predictor: TracePredictor::new(path),
            histories: HashMap::new(),
            demand: FetchDemand::default(),
            caches: shapes.iter().map(|&shape| (TraceCache::new(shape), CacheSupply::default())).collect(),
        }
    }

    #[must_use]
    pub fn demand(&self) -> &FetchDemand {
        &self.demand
    }

    /// Returns what each cache supplied.
    pub fn supply(&self) -> impl Iterator<Item = (&TraceCacheShape, &CacheSupply)> {
        self.caches.iter().map(|(cache, supply)| (cache.shape(), supply))
    }

    /// Records a trace that is executed for the first time.
    fn add_trace(&mut self, trace: &ExecutedTrace<'_>) {
        let runs = trace.runs();
        let mut number = |address| {
            let new = self.blocks.len() as u32;
            *self.blocks.entry(address).or_insert(new)
        };
        let runs = runs.iter().filter(|run| run.instructions > 0);
        let blocks = runs.map(|run| number(run.address)).collect();
        let (start, instructions, calls) = (trace.start(), trace.instructions(), trace.calls());
        self.infos.push(TraceInfo { start, instructions, calls, blocks });
    }
}

impl TraceObserver for FetchSimulator {
    fn trace_executed(&mut self, trace: &ExecutedTrace<'_>) {
        if trace.number as usize == self.infos.len() {
            self.add_trace(trace);
        }
        let Some(TraceInfo { start, instructions, calls, blocks }) = self.infos.get(trace.number as usize) else {
            return;
        };
        let history = self.histories.entry(trace.thread).or_default();
        let is_predicted = self.predictor.predict_and_update(history, trace.number, *calls);
        let instructions = u64::from(*instructions);
        self.demand.traces += 1;
        self.demand.instructions += instructions;
        self.demand.mispredicted += u64::from(!is_predicted);
        if self.counts_blocks {
            self.uses.add_trace(blocks);
        }
        for (cache, supply) in &mut self.caches {
            if cache.access(trace.number, *start, |held| self.uses.mean(&self.infos[held as usize].blocks)) {
                supply.hits += 1;
                supply.instructions += instructions;
                supply.predicted += if is_predicted { instructions } else { 0 };
            }
        }
    }
}
