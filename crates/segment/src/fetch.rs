//! What a processor would fetch: traces that are predicted, and taken out of caches.

use hashbrown::HashMap;

use crate::predictor::{History, Predictor};
use crate::segmenter::{Executed, Watch};
use crate::trace_cache::{BlockUses, Replacement, Shape, TraceCache};

/// What does not change from one execution of a trace to the next.
#[derive(Clone, Debug)]
struct Known {
    start: u64,
    instructions: u32,
    calls: i32,
    /// Numbers of its stretches, which are its blocks unless it begins inside one.
    blocks: Vec<u32>,
}

/// What came out of one cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supplied {
    /// Traces that were in the cache.
    pub hits: u64,
    /// Their instructions.
    pub instructions: u64,
    /// Those of traces that were predicted, too.
    pub predicted: u64,
}

/// What was to be fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub traces: u64,
    pub instructions: u64,
    /// Traces that were not predicted.
    pub mispredicted: u64,
}

/// Watches a segmenter: a predictor of traces and any number of caches, each by itself. Threads share them, but each has its own path of traces.
#[derive(Clone, Debug)]
pub struct Fetch {
    known: Vec<Known>,
    blocks: HashMap<u64, u32>,
    uses: BlockUses,
    counts_blocks: bool,
    predictor: Predictor,
    histories: HashMap<u32, History>,
    asked: Asked,
    caches: Vec<(TraceCache, Supplied)>,
}

impl Fetch {
    /// Paths have so many traces.
    #[must_use]
    pub fn new(path: usize, shapes: &[Shape]) -> Self {
        Self {
            known: Vec::new(),
            blocks: HashMap::new(),
            uses: BlockUses::default(),
            counts_blocks: shapes.iter().any(|shape| shape.replacement == Replacement::Blocks),
            predictor: Predictor::new(path),
            histories: HashMap::new(),
            asked: Asked::default(),
            caches: shapes.iter().map(|&shape| (TraceCache::new(shape), Supplied::default())).collect(),
        }
    }

    #[must_use]
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// By cache.
    pub fn supplied(&self) -> impl Iterator<Item = (&Shape, &Supplied)> {
        self.caches.iter().map(|(cache, supplied)| (cache.shape(), supplied))
    }

    /// A trace that is executed for the first time.
    fn learn(&mut self, trace: &Executed<'_>) {
        let stretches = trace.stretches();
        let mut number = |address| {
            let new = self.blocks.len() as u32;
            *self.blocks.entry(address).or_insert(new)
        };
        let stretches = stretches.iter().filter(|stretch| stretch.instructions > 0);
        let blocks = stretches.map(|stretch| number(stretch.address)).collect();
        let (start, instructions, calls) = (trace.start(), trace.instructions(), trace.calls());
        self.known.push(Known { start, instructions, calls, blocks });
    }
}

impl Watch for Fetch {
    fn trace(&mut self, trace: &Executed<'_>) {
        if trace.number as usize == self.known.len() {
            self.learn(trace);
        }
        let Some(Known { start, instructions, calls, blocks }) = self.known.get(trace.number as usize) else { return };
        let history = self.histories.entry(trace.thread).or_default();
        let is_predicted = self.predictor.next(history, trace.number, *calls);
        let instructions = u64::from(*instructions);
        self.asked.traces += 1;
        self.asked.instructions += instructions;
        self.asked.mispredicted += u64::from(!is_predicted);
        if self.counts_blocks {
            self.uses.trace(blocks);
        }
        for (cache, supplied) in &mut self.caches {
            if cache.look_up(trace.number, *start, |held| self.uses.mean(&self.known[held as usize].blocks)) {
                supplied.hits += 1;
                supplied.instructions += instructions;
                supplied.predicted += if is_predicted { instructions } else { 0 };
            }
        }
    }
}
