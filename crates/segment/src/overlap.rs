//! How often the same instruction is in traces.

use crate::listing::Listing;
use crate::set::Trace;

/// Instructions of traces, and how many different ones they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    pub instructions: u64,
    pub different: u64,
}

impl Overlap {
    #[must_use]
    pub fn of(listing: &Listing<'_>, traces: &[Trace]) -> Self {
        let mut seen = vec![false; listing.len()];
        let mut overlap = Self::default();
        let spots = traces.iter().flat_map(|trace| &trace.stretches).flat_map(|&stretch| listing.walk(stretch));
        for spot in spots {
            overlap.instructions += 1;
            let was_seen = std::mem::replace(&mut seen[listing.number(spot) as usize], true);
            overlap.different += u64::from(!was_seen);
        }
        overlap
    }

    /// How many times an instruction is in traces, on average: 1 if they do not overlap.
    #[must_use]
    pub fn times(&self) -> f64 {
        self.instructions as f64 / self.different.max(1) as f64
    }
}
