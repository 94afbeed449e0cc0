//! Counts of branch targets ([`EdgeCounts`]), and the probabilities that follow from them
//! ([`EdgeProbabilities`]).

use hashbrown::HashMap;
use isa::Transfer;
use trace::{AppPc, BlockIndex, Blocks};

use crate::instruction_table::InstructionTable;
use crate::set::SegmentTrace;
use crate::steps::SegmentStep;

/// Latest executions of the branch at the end of a block, all with the same target. They are
/// counted together when the target changes.
#[derive(Clone, Copy, Debug, Default)]
struct EdgeRun {
    next: AppPc,
    times: u64,
}

/// Counts the targets of branches.
#[derive(Clone, Debug, Default)]
pub struct EdgeCounts {
    runs: Vec<EdgeRun>,
    counts: HashMap<(BlockIndex, AppPc), u64>,
}

impl EdgeCounts {
    pub fn add(&mut self, steps: &[SegmentStep]) {
        for step in steps.iter().filter(|step| step.class.is_choice()) {
            let index = step.block.0 as usize;
            if index >= self.runs.len() {
                self.runs.resize(index + 1, EdgeRun::default());
            }
            let run = &mut self.runs[index];
            if run.next != step.next {
                let ended = std::mem::replace(run, EdgeRun { next: step.next, times: 0 });
                *self.counts.entry((step.block, ended.next)).or_default() += ended.times;
            }
            run.times += 1;
        }
    }

    /// Returns the probabilities of all edges, by the addresses of branches.
    #[must_use]
    pub fn probabilities(&self, blocks: &Blocks) -> EdgeProbabilities {
        let runs = (0..).zip(&self.runs).map(|(block, run)| ((BlockIndex(block), run.next), run.times));
        let counts = self.counts.iter().map(|(&edge, &times)| (edge, times)).chain(runs);
        let mut all = EdgeProbabilities::default();
        for ((block, next), times) in counts.filter(|&(_, times)| times > 0) {
            let Some(block) = blocks.get(block) else { continue };
            let branch = (block.image(), block.last());
            *all.edges.entry((branch, next)).or_default() += times;
            *all.branches.entry(branch).or_default() += times;
        }
        all
    }
}

/// Probabilities of branch targets over the whole execution.
#[derive(Clone, Debug, Default)]
pub struct EdgeProbabilities {
    edges: HashMap<(BranchKey, AppPc), u64>,
    branches: HashMap<BranchKey, u64>,
}

/// Image and address.
type BranchKey = (u32, AppPc);

impl EdgeProbabilities {
    /// Returns the probability that a branch goes to `next`; 1 if it has only one target.
    fn of(&self, branch: BranchKey, next: AppPc) -> f64 {
        let Some(&all) = self.branches.get(&branch) else { return 1.0 };
        self.edges.get(&(branch, next)).copied().unwrap_or(0) as f64 / all as f64
    }

    /// Returns the consistency of a trace (Hadjipavlou 2025, section 8.3): the product of the
    /// probabilities that each block is followed by the next one. A return whose call is in the
    /// trace is certain.
    #[must_use]
    pub fn consistency(&self, table: &InstructionTable<'_>, trace: &SegmentTrace) -> f64 {
        let (mut product, mut calls) = (1.0, 0_u32);
        for pair in trace.runs.windows(2) {
            let Some(last) = table.walk(trace.image, pair[0]).last() else { continue };
            let Some(block) = table.blocks().get(last.block) else { continue };
            let transfer = if last.index + 1 == block.instruction_count() { block.transfer() } else { Transfer::Next };
            if transfer == Transfer::Return && calls > 0 {
                calls -= 1;
                continue;
            }
            calls += u32::from(matches!(transfer, Transfer::Call { .. } | Transfer::IndirectCall));
            if transfer.ends_block() {
                product *= self.of((block.image(), block.last()), pair[1].address);
            }
        }
        product
    }
}
