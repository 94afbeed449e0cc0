//! Overlap of traces: how many traces contain the same instruction.

use crate::instruction_table::InstructionTable;
use crate::set::SegmentTrace;

/// Sum of the distinct instructions of each trace, and the number of distinct instructions overall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    pub instructions: u64,
    pub different: u64,
}

impl Overlap {
    #[must_use]
    pub fn of(table: &InstructionTable<'_>, traces: &[SegmentTrace]) -> Self {
        // The last trace that contained each instruction. An instruction that a trace repeats
        // counts once.
        let mut seen = vec![0; table.len()];
        let mut overlap = Self::default();
        for (number, trace) in (1_u32..).zip(traces) {
            for instruction in table.path(trace) {
                let last = std::mem::replace(&mut seen[table.number(instruction) as usize], number);
                overlap.instructions += u64::from(last != number);
                overlap.different += u64::from(last == 0);
            }
        }
        overlap
    }

    /// Returns the average number of traces that contain an instruction; 1 without overlap.
    #[must_use]
    pub fn times(&self) -> f64 {
        self.instructions as f64 / self.different.max(1) as f64
    }
}
