//! How often each branch went where.

use hashbrown::HashMap;
use isa::Transfer;
use trace::Blocks;

use crate::listing::Listing;
use crate::moves::Move;
use crate::set::Trace;

/// Of the branch at the end of a block: where it went the last few times. They are counted together when it goes elsewhere.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    next: u64,
    times: u64,
}

/// Counts where branches went.
#[derive(Clone, Debug, Default)]
pub struct Edges {
    runs: Vec<Run>,
    counts: HashMap<(u32, u64), u64>,
}

impl Edges {
    pub fn moves(&mut self, moves: &[Move]) {
        for step in moves.iter().filter(|step| step.class.is_choice()) {
            let place = step.block as usize;
            if place >= self.runs.len() {
                self.runs.resize(place + 1, Run::default());
            }
            let run = &mut self.runs[place];
            if run.next != step.next {
                let ended = std::mem::replace(run, Run { next: step.next, times: 0 });
                *self.counts.entry((step.block, ended.next)).or_default() += ended.times;
            }
            run.times += 1;
        }
    }

    /// All that was seen, by the addresses of branches.
    #[must_use]
    pub fn probabilities(&self, blocks: &Blocks) -> Probabilities {
        let runs = (0..).zip(&self.runs).map(|(block, run)| ((block, run.next), run.times));
        let counts = self.counts.iter().map(|(&edge, &times)| (edge, times)).chain(runs);
        let mut all = Probabilities::default();
        for ((block, next), times) in counts.filter(|&(_, times)| times > 0) {
            let Some(block) = blocks.get(trace::BlockIndex(block)) else { continue };
            let branch = (block.image(), block.last());
            *all.edges.entry((branch, next)).or_default() += times;
            *all.branches.entry(branch).or_default() += times;
        }
        all
    }
}

/// How probable it is that branches go where they go, over all that was executed.
#[derive(Clone, Debug, Default)]
pub struct Probabilities {
    edges: HashMap<(Branch, u64), u64>,
    branches: HashMap<Branch, u64>,
}

/// Image and address.
type Branch = (u32, u64);

impl Probabilities {
    /// That a branch goes to an address; 1 if it has no choice.
    fn of(&self, branch: Branch, next: u64) -> f64 {
        let Some(&all) = self.branches.get(&branch) else { return 1.0 };
        self.edges.get(&(branch, next)).copied().unwrap_or(0) as f64 / all as f64
    }

    /// The consistency of a trace (Hadjipavlou 2025, section 8.3): the product of the probabilities that each of its blocks is followed by the next. A return whose call is
    /// in the trace goes where it has to.
    #[must_use]
    pub fn consistency(&self, listing: &Listing<'_>, trace: &Trace) -> f64 {
        let (mut product, mut calls) = (1.0, 0_u32);
        for pair in trace.stretches.windows(2) {
            let Some(last) = listing.walk(trace.image, pair[0]).last() else { continue };
            let Some(block) = listing.blocks().get(last.block) else { continue };
            let transfer = if last.place + 1 == block.instruction_count() { block.transfer() } else { Transfer::Next };
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
