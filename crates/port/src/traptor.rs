//! mcfTR_b, mcfTR_e and related techniques: a [`TraptorEncoder`] emits a message for each
//! mispredicted branch. One filter serves several writers.

use filter::traptor::{BranchEncoder, BranchKind, BranchMessage, BranchOutcome, BranchSite, CountStart, Predict};
use replay::control::{FlowEncoder, StepEnd};
use trace::{AppPc, ThreadId};

use crate::cores::Cores;
use crate::lengths::LengthHistogram;
use crate::message::FlowWriter;

/// Counts of predicted branches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PredictionCounts {
    pub outcomes: u64,
    pub outcomes_wrong: u64,
    /// All indirect branches, including those with an unknown target.
    pub targets: u64,
    pub targets_wrong: u64,
}

/// Encodes executed steps as messages; each thread has its own predictors.
#[derive(Clone, Debug)]
pub struct TraptorEncoder<P> {
    cores: Cores,
    threads: Vec<(P, BranchEncoder)>,
    core: usize,
    pub writers: Vec<FlowWriter>,
    pub predicted: PredictionCounts,
    /// Lengths of bCnt and |diffTA| in bits.
    pub counts: LengthHistogram,
    pub targets: LengthHistogram,
    last_targets: Vec<u64>,
}

impl<P: Predict + Clone> TraptorEncoder<P> {
    #[must_use]
    pub fn new(cores: Cores, predictors: P, writers: Vec<FlowWriter>) -> Self {
        let threads = vec![(predictors, BranchEncoder::new(CountStart::FromOne)); cores.threads()];
        let last_targets = vec![0; cores.threads()];
        let (counts, targets) = (LengthHistogram::default(), LengthHistogram::default());
        Self { cores, threads, core: 0, writers, predicted: PredictionCounts::default(), counts, targets, last_targets }
    }

    fn emit(&mut self, message: BranchMessage) {
        match message {
            BranchMessage::Outcome { branches } => self.counts.add(branches),
            BranchMessage::Target { branches, target } => {
                self.counts.add(branches);
                self.note_target(target);
            }
            BranchMessage::Exception { target, .. } => self.note_target(target),
        }
        self.writers.iter_mut().for_each(|writer| writer.write(self.core, message));
    }

    fn note_target(&mut self, target: u64) {
        let last = std::mem::replace(&mut self.last_targets[self.core], target);
        self.targets.add((target.wrapping_sub(last) as i64).unsigned_abs());
    }

    #[inline]
    fn count(&mut self, site: &BranchSite, is_wrong: bool) {
        let PredictionCounts { outcomes, outcomes_wrong, targets, targets_wrong } = &mut self.predicted;
        let (all, wrong) = match site.kind {
            BranchKind::Call => return,
            BranchKind::Conditional => (outcomes, outcomes_wrong),
            BranchKind::IndirectCall | BranchKind::IndirectJump | BranchKind::Return => (targets, targets_wrong),
        };
        *all += 1;
        *wrong += u64::from(is_wrong);
    }

    #[inline]
    fn branch(&mut self, site: &BranchSite, outcome: BranchOutcome) {
        let (predictors, encoder) = &mut self.threads[self.core];
        let message = encoder.encode_branch(predictors, site, outcome);
        self.count(site, message.is_some());
        if let Some(message) = message {
            self.emit(message);
        }
    }
}

impl<P: Predict + Clone> FlowEncoder for TraptorEncoder<P> {
    fn switch_thread(&mut self, thread: ThreadId) {
        self.core = self.cores.of(thread);
    }

    fn encode_discontinuity(&mut self, target: AppPc) {
        let message = self.threads[self.core].1.encode_exception(target.get());
        self.emit(message);
    }

    #[inline]
    fn encode_step(&mut self, instructions: u64, end: &StepEnd) {
        self.threads[self.core].1.add_instructions(instructions);
        match end {
            StepEnd::Branch(site, outcome) => self.branch(site, *outcome),
            StepEnd::UnknownTarget => self.predicted.targets += 1,
            StepEnd::FallThrough | StepEnd::Jump => {}
        }
    }
}
