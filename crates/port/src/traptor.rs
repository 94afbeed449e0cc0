//! mcfTR_b, mcfTR_e and their relatives: only what predictors did not know is told. One filter serves several ways of writing messages.

use filter::traptor::{Counter, Counting, Kind, Message, Predict, Site, Went};
use mtrace::control::{End, Tell};

use crate::cores::Cores;
use crate::lengths::Lengths;
use crate::message::FlowWriter;

/// What the predictors have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Predicted {
    pub outcomes: u64,
    pub outcomes_wrong: u64,
    /// Of all indirect branches, those included of which nobody knows where they went.
    pub targets: u64,
    pub targets_wrong: u64,
}

/// Makes messages of what is executed, by predictors that each thread has to itself.
#[derive(Clone, Debug)]
pub struct TraptorTeller<P> {
    cores: Cores,
    threads: Vec<(P, Counter)>,
    core: usize,
    pub writers: Vec<FlowWriter>,
    pub predicted: Predicted,
    /// Bits that bCnt and |diffTA| need.
    pub counts: Lengths,
    pub targets: Lengths,
    last_targets: Vec<u64>,
}

impl<P: Predict + Clone> TraptorTeller<P> {
    #[must_use]
    pub fn new(cores: Cores, predictors: P, writers: Vec<FlowWriter>) -> Self {
        let threads = vec![(predictors, Counter::new(Counting::FromOne)); cores.threads()];
        let last_targets = vec![0; cores.threads()];
        let (counts, targets) = (Lengths::default(), Lengths::default());
        Self { cores, threads, core: 0, writers, predicted: Predicted::default(), counts, targets, last_targets }
    }

    fn tell(&mut self, message: Message) {
        match message {
            Message::Outcome { branches } => self.counts.add(branches),
            Message::Target { branches, target } => {
                self.counts.add(branches);
                self.note_target(target);
            }
            Message::Exception { target, .. } => self.note_target(target),
        }
        self.writers.iter_mut().for_each(|writer| writer.tell(self.core, message));
    }

    fn note_target(&mut self, target: u64) {
        let last = std::mem::replace(&mut self.last_targets[self.core], target);
        self.targets.add((target.wrapping_sub(last) as i64).unsigned_abs());
    }

    #[inline]
    fn count(&mut self, site: &Site, is_wrong: bool) {
        let Predicted { outcomes, outcomes_wrong, targets, targets_wrong } = &mut self.predicted;
        let (all, wrong) = match site.kind {
            Kind::Call => return,
            Kind::Conditional => (outcomes, outcomes_wrong),
            Kind::IndirectCall | Kind::IndirectJump | Kind::Return => (targets, targets_wrong),
        };
        *all += 1;
        *wrong += u64::from(is_wrong);
    }

    #[inline]
    fn branch(&mut self, site: &Site, went: Went) {
        let (predictors, counter) = &mut self.threads[self.core];
        let message = counter.branch(predictors, site, went);
        self.count(site, message.is_some());
        if let Some(message) = message {
            self.tell(message);
        }
    }
}

impl<P: Predict + Clone> Tell for TraptorTeller<P> {
    fn thread(&mut self, thread: u32) {
        self.core = self.cores.of(thread);
    }

    fn elsewhere(&mut self, target: u64) {
        let message = self.threads[self.core].1.exception(target);
        self.tell(message);
    }

    #[inline]
    fn step(&mut self, instructions: u64, end: &End) {
        self.threads[self.core].1.instructions(instructions);
        match end {
            End::Branch(site, went) => self.branch(site, *went),
            End::Unknown => self.predicted.targets += 1,
            End::Through | End::Jump => {}
        }
    }
}
