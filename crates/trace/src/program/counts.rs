//! Counts of paths: one path's in a word ([`PackedCounts`]), and sums of many ([`CountSum`]).
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use crate::model::{Counts, Step, Terminator};

/// Counts of a path in one word: instructions in 24 bits (two of which are never used), steps in 8,
/// then 8 bits each of conditional taken, not taken, direct, indirect. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedCounts(pub u64);

impl PackedCounts {
    pub(super) fn of<'a>(steps: impl Iterator<Item = &'a Step>) -> Self {
        Self(steps.fold(0, |packed, step| {
            let branch = match step.terminator() {
                Terminator::Taken => 1 << 32,
                Terminator::NotTaken => 1 << 40,
                Terminator::Direct => 1 << 48,
                Terminator::Indirect => 1 << 56,
                Terminator::Syscall | Terminator::Next | Terminator::Interrupted => 0,
            };
            packed + u64::from(step.instructions()) + (1 << 24) + branch
        }))
    }

    #[inline]
    pub(crate) fn instructions(self) -> u64 {
        self.0 & 0xff_ffff
    }

    #[inline]
    pub(crate) fn steps(self) -> usize {
        usize::from(self.0.to_le_bytes()[3])
    }

    /// Whether there is an indirect jump or call, or a return.
    #[inline]
    pub(crate) fn has_indirect(self) -> bool {
        self.0 >> 56 != 0
    }
}

/// A sum of at most [`SumLanes::ROOM`] [`PackedCounts`], in lanes that are wide enough for it.
#[derive(Clone, Copy, Debug, Default)]
struct SumLanes {
    even: u64,
    odd: u64,
    instructions: u64,
    count: u32,
}

impl SumLanes {
    /// Additions of 8 bits that a lane of 16 bits has room for.
    const ROOM: u32 = 256;

    #[inline]
    fn add(&mut self, PackedCounts(packed): PackedCounts) {
        const EVEN: u64 = 0x00ff_00ff_0000_0000;
        self.instructions += packed & 0xff_ffff;
        self.even += (packed & EVEN) >> 32;
        // Steps lie at bit 24, not taken at 40, indirect at 56.
        self.odd += packed >> 24 & 0x0000_00ff_00ff_00ff;
        self.count += 1;
    }
}

/// A sum of any number of [`PackedCounts`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CountSum {
    counts: Counts,
    lanes: SumLanes,
}

impl CountSum {
    #[inline]
    pub(crate) fn add(&mut self, packed: PackedCounts) {
        self.lanes.add(packed);
        if self.lanes.count == SumLanes::ROOM {
            self.flush(1);
        }
    }

    /// Adds all, and returns how many there were.
    #[inline]
    pub(crate) fn add_all(&mut self, packed: impl IntoIterator<Item = PackedCounts>) -> usize {
        let (mut packed, mut count) = (packed.into_iter(), 0);
        loop {
            // In registers: in memory, each addition would wait for the one before.
            let mut lanes = self.lanes;
            while lanes.count < SumLanes::ROOM {
                let Some(packed) = packed.next() else {
                    self.lanes = lanes;
                    return count;
                };
                lanes.add(packed);
                count += 1;
            }
            self.lanes = lanes;
            self.flush(1);
        }
    }

    pub(crate) fn add_times(&mut self, packed: PackedCounts, times: u64) {
        self.flush(1);
        self.add(packed);
        self.flush(times);
    }

    fn flush(&mut self, times: u64) {
        let lane = |lanes: u64, place: u32| (lanes >> place & 0xffff) * times;
        let SumLanes { even, odd, instructions, .. } = std::mem::take(&mut self.lanes);
        self.counts.instructions += instructions * times;
        self.counts.steps += lane(odd, 0);
        self.counts.conditional_taken += lane(even, 0);
        self.counts.conditional_not_taken += lane(odd, 16);
        self.counts.unconditional_direct += lane(even, 16);
        self.counts.unconditional_indirect += lane(odd, 32);
    }

    pub(crate) fn finish(&mut self) -> Counts {
        self.flush(1);
        self.counts
    }
}
