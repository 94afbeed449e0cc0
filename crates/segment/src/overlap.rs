//! How often the same instruction is in traces.

use crate::listing::Listing;
use crate::set::Trace;

/// Different instructions of each trace, all together, and how many different ones they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    pub instructions: u64,
    pub different: u64,
}

impl Overlap {
    #[must_use]
    pub fn of(listing: &Listing<'_>, traces: &[Trace]) -> Self {
        // The last trace that each instruction was met in. What a trace goes through several times is in it once.
        let mut seen = vec![0; listing.len()];
        let mut overlap = Self::default();
        for (number, trace) in (1_u32..).zip(traces) {
            for spot in listing.path(trace) {
                let last = std::mem::replace(&mut seen[listing.number(spot) as usize], number);
                overlap.instructions += u64::from(last != number);
                overlap.different += u64::from(last == 0);
            }
        }
        overlap
    }

    /// How many traces an instruction is in, on average: 1 if they do not overlap.
    #[must_use]
    pub fn times(&self) -> f64 {
        self.instructions as f64 / self.different.max(1) as f64
    }
}
