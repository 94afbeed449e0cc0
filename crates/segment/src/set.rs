//! Sets of traces and their metrics (Hadjipavlou 2025, section 5.5).

use hashbrown::{HashMap, HashSet};

use trace::AppPc;

use crate::class::Class;
use crate::score::TraceLength;

/// Reason for the end of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndReason {
    /// End of execution.
    End,
    /// The class of its last instruction is not allowed inside.
    Class(Class),
    MaxInstructions,
    MaxCfis,
    /// Its last branch deviated from its bias, or would make the trace too improbable.
    Inconsistent,
    /// Other traces begin at the next instruction.
    OtherTraceStart,
}

impl EndReason {
    /// Returns a code that distinguishes reasons, apart from the class.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::End => 1,
            Self::Class(_) => 2,
            Self::MaxInstructions => 3,
            Self::MaxCfis => 4,
            Self::Inconsistent => 5,
            Self::OtherTraceStart => 6,
        }
    }

    /// Returns the name that the thesis's tool prints.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::End => Class::None.name(),
            Self::Class(class) => class.name(),
            Self::MaxInstructions => "Max instructions reached",
            Self::MaxCfis => "Max control-flow instructions reached",
            Self::Inconsistent => "Inconsistent branch",
            Self::OtherTraceStart => "Start of other traces",
        }
    }
}

/// A run of consecutive instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstructionRun {
    /// Address of the first instruction.
    pub address: AppPc,
    /// 0 if execution continued elsewhere before the first one.
    pub instructions: u32,
}

/// A trace and its number of executions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentTrace {
    /// The process image of its instructions.
    pub image: u32,
    /// Its path: a run from the start, and a run from the target of each control-flow instruction
    /// but the last.
    pub runs: Vec<InstructionRun>,
    pub instructions: u32,
    /// Weighted control-flow instructions.
    pub cfis: u32,
    pub reason: EndReason,
    pub occurrences: u64,
}

impl SegmentTrace {
    #[must_use]
    pub fn start(&self) -> AppPc {
        self.runs.first().map_or(AppPc::NONE, |run| run.address)
    }

    /// Returns the number of instructions executed in it.
    #[must_use]
    pub fn coverage(&self) -> u64 {
        u64::from(self.instructions) * self.occurrences
    }

    /// Returns the thesis's hash of the path, which may be equal for different paths (Appendix B).
    #[must_use]
    pub fn branch_outcomes(&self) -> u32 {
        self.runs.iter().skip(1).fold(0x1bad_c0de, |outcomes, InstructionRun { address, .. }| {
            let address = address.get();
            let hash = address ^ address >> 17 ^ address >> 34;
            outcomes ^ (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash >> 33) as u32
        })
    }
}

/// All traces of a policy, by descending coverage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSet {
    traces: Vec<SegmentTrace>,
    instructions: u64,
    occurrences: u64,
}

impl TraceSet {
    pub(crate) fn new(mut traces: Vec<SegmentTrace>) -> Self {
        traces.sort_by(|one, other| {
            let key = |trace: &SegmentTrace| (std::cmp::Reverse(trace.coverage()), trace.start(), trace.instructions);
            key(one).cmp(&key(other)).then_with(|| one.runs.cmp(&other.runs))
        });
        let instructions = traces.iter().map(SegmentTrace::coverage).sum();
        let occurrences = traces.iter().map(|trace| trace.occurrences).sum();
        Self { traces, instructions, occurrences }
    }

    #[must_use]
    pub fn traces(&self) -> &[SegmentTrace] {
        &self.traces
    }

    /// Returns the number of executed instructions.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Returns the number of executions of all traces.
    #[must_use]
    pub fn occurrences(&self) -> u64 {
        self.occurrences
    }

    /// Returns "trace length": the average number of instructions of a trace.
    #[must_use]
    pub fn trace_length(&self) -> TraceLength {
        let squares: u128 =
            self.traces.iter().map(|own| u128::from(own.instructions) * u128::from(own.coverage())).sum();
        TraceLength {
            by_coverage: squares as f64 / self.instructions.max(1) as f64,
            by_occurrences: self.instructions as f64 / self.occurrences.max(1) as f64,
        }
    }

    /// Returns "trace count": the smallest number of traces that cover this share of all
    /// instructions.
    #[must_use]
    pub fn traces_for(&self, share: f64) -> usize {
        let enough = share * self.instructions as f64;
        let mut sum = 0.0;
        let covers = |trace: &SegmentTrace| {
            sum += trace.coverage() as f64;
            sum >= enough
        };
        if self.traces.is_empty() {
            0
        } else {
            self.traces.iter().position(covers).map_or(self.traces.len(), |last| last + 1)
        }
    }

    /// Merges traces with equal paths, whatever ended them. (In the thesis, a trace that ends with
    /// a taken conditional jump differs from one where the jump is not taken.) A merged trace has
    /// the reason of the one with the largest coverage.
    #[must_use]
    pub fn merged(&self) -> Self {
        let mut indices: HashMap<(u32, &[InstructionRun]), usize> = HashMap::new();
        let mut traces: Vec<SegmentTrace> = Vec::new();
        for trace in &self.traces {
            let index = *indices.entry((trace.image, &trace.runs[..])).or_insert(traces.len());
            match traces.get_mut(index) {
                Some(merged) => merged.occurrences += trace.occurrences,
                None => traces.push(trace.clone()),
            }
        }
        Self::new(traces)
    }

    /// Returns how many traces the thesis's tool would confuse with others: those with equal start,
    /// lengths, reason and hash of the path.
    #[must_use]
    pub fn aliases(&self) -> usize {
        let key = |trace: &SegmentTrace| {
            (trace.start(), trace.instructions, trace.cfis, trace.reason, trace.branch_outcomes())
        };
        let different: HashSet<_> = self.traces.iter().map(key).collect();
        self.traces.len() - different.len()
    }

    /// Returns the cumulative share of instructions that the first traces cover.
    pub fn coverage(&self) -> impl Iterator<Item = f64> + '_ {
        let all = self.instructions.max(1) as f64;
        self.traces.iter().scan(0, move |sum, trace| {
            *sum += trace.coverage();
            Some(*sum as f64 / all)
        })
    }

    /// Returns how often traces ended, by reason.
    #[must_use]
    pub fn reasons(&self) -> Vec<(EndReason, u64)> {
        let mut reasons: Vec<(EndReason, u64)> = Vec::new();
        for trace in &self.traces {
            match reasons.iter_mut().find(|(reason, _)| *reason == trace.reason) {
                Some((_, count)) => *count += trace.occurrences,
                None => reasons.push((trace.reason, trace.occurrences)),
            }
        }
        reasons.sort_by_key(|&(reason, count)| (std::cmp::Reverse(count), reason));
        reasons
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(start: u64, instructions: u32, occurrences: u64) -> SegmentTrace {
        let runs = vec![InstructionRun { address: AppPc::new(start), instructions }];
        SegmentTrace { image: 0, runs, instructions, cfis: 1, reason: EndReason::MaxCfis, occurrences }
    }

    #[test]
    fn metrics() {
        let set = TraceSet::new(vec![trace(1, 10, 1), trace(2, 5, 14), trace(3, 20, 1)]);
        assert_eq!((set.instructions(), set.occurrences()), (100, 16));
        let length = set.trace_length();
        assert!((length.by_occurrences - 6.25).abs() < 1e-9);
        // 70 instructions are in traces of 5, 10 in one of 10, 20 in one of 20.
        assert!((length.by_coverage - 8.5).abs() < 1e-9);
        assert_eq!([0.0, 0.7, 0.71, 0.9, 0.91, 1.0].map(|share| set.traces_for(share)), [1, 1, 2, 2, 3, 3]);
        assert_eq!(set.coverage().collect::<Vec<_>>(), [0.7, 0.9, 1.0]);
        assert_eq!(set.reasons(), [(EndReason::MaxCfis, 16)]);
        let none = TraceSet::new(Vec::new());
        assert_eq!((none.traces_for(0.9), none.trace_length()), (0, TraceLength::default()));
    }

    /// Executes traces one by one and counts each instruction.
    #[test]
    fn trace_length_by_brute_force() {
        let length_of = |kind: u64| 1 + (kind * kind * 7 % 31) as u32;
        let executed: Vec<u64> = (0..5000).map(|turn: u64| turn * turn * turn % 17 * (turn % 3)).collect();
        let mut of_instructions = Vec::new();
        for &kind in &executed {
            (0..length_of(kind)).for_each(|_| of_instructions.push(f64::from(length_of(kind))));
        }
        let mean = |lengths: &[f64]| lengths.iter().sum::<f64>() / lengths.len() as f64;
        let of_traces: Vec<f64> = executed.iter().map(|&kind| f64::from(length_of(kind))).collect();
        let different: HashSet<u64> = executed.iter().copied().collect();
        let times = |kind: u64| executed.iter().filter(|&&own| own == kind).count() as u64;
        let traces = different.iter().map(|&kind| trace(kind, length_of(kind), times(kind)));
        let set = TraceSet::new(traces.collect());
        let (by_coverage, by_occurrences) = (mean(&of_instructions), mean(&of_traces));
        assert!((set.trace_length().by_coverage - by_coverage).abs() < 1e-9 * by_coverage);
        assert!((set.trace_length().by_occurrences - by_occurrences).abs() < 1e-9 * by_occurrences);
        assert!(by_coverage > by_occurrences + 1.0 && set.traces().len() > 10);
        assert_eq!(set.merged().trace_length(), set.trace_length());
    }

    #[test]
    fn ends_are_merged() {
        let ends = |reason, occurrences| SegmentTrace { reason, ..trace(1, 10, occurrences) };
        let taken = ends(EndReason::Class(Class::ForwardTaken), 3);
        let set = TraceSet::new(vec![taken, ends(EndReason::Class(Class::ForwardNotTaken), 4), trace(2, 10, 5)]);
        let merged = set.merged();
        assert_eq!((set.traces().len(), merged.traces().len()), (3, 2));
        assert_eq!(merged.traces()[0], ends(EndReason::Class(Class::ForwardNotTaken), 7));
        assert_eq!((merged.instructions(), merged.occurrences()), (set.instructions(), set.occurrences()));
    }

    /// Worked out by hand from Appendix B.
    #[test]
    fn the_hash_of_the_thesis() {
        let through = |blocks: &[u64]| {
            let run = |&address: &u64| InstructionRun { address: AppPc::new(address), instructions: 1 };
            SegmentTrace { runs: [&[1], blocks].concat().iter().map(run).collect(), ..trace(1, 1, 1) }.branch_outcomes()
        };
        assert_eq!(through(&[]), 0x1bad_c0de);
        assert_eq!(through(&[1]), 0x1bad_c0de ^ 0x7f4a_7c15);
        assert_eq!(through(&[1, 1]), 0x1bad_c0de, "it forgets what it meets twice");
    }
}
