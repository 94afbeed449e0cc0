//! mcfTRaptor: which branches have to be told so that the rest of the control flow can be inferred.

mod image;
mod paths;

use filter::traptor::{Counter, Counting, Kind, Message, Predict, Predictors, Site, Sizes, Went};
use hashbrown::HashMap;
use predict::IllegalSize;
use trace::{Batch, BlockIndex, Blocks, Event, PathBatch, PathItem, Step, Terminator};

use crate::control::{self, Elsewhere};
use crate::threads::{Sharing, Structures};
use crate::walk::{Tail, Tails, Walker};

pub use image::{Mirrors, check};
use paths::Preparations;

#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    pub sizes: Sizes,
    pub counting: Counting,
    pub sharing: Sharing,
}

/// What was met, and how much of it was predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub instructions: u64,
    pub outcomes_predicted: u64,
    pub outcomes_mispredicted: u64,
    pub targets_predicted: u64,
    pub targets_mispredicted: u64,
    /// Indirect branches of which the trace does not tell where they went: the process ended before the thread's next
    /// block did.
    pub targets_unknown: u64,
    /// Signals, and returns from their handlers.
    pub exceptions: u64,
    /// Places behind something that was left out; told like exceptions.
    pub gaps: u64,
}

impl Statistics {
    /// Conditional and indirect branches.
    #[must_use]
    pub fn branches(&self) -> u64 {
        self.conditional() + self.indirect()
    }

    #[must_use]
    pub fn conditional(&self) -> u64 {
        self.outcomes_predicted + self.outcomes_mispredicted
    }

    #[must_use]
    pub fn indirect(&self) -> u64 {
        self.targets_predicted + self.targets_mispredicted + self.targets_unknown
    }

    #[inline]
    fn count(&mut self, went: Went, right: bool) {
        let sum = match (went, right) {
            (Went::Taken(_), true) => &mut self.outcomes_predicted,
            (Went::Taken(_), false) => &mut self.outcomes_mispredicted,
            (Went::To(_), true) => &mut self.targets_predicted,
            (Went::To(_), false) => &mut self.targets_mispredicted,
        };
        *sum += 1;
    }
}

/// Something that has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    pub thread: u32,
    pub message: Message,
    /// The branch, or the instruction that execution did not go on with.
    pub address: u64,
    /// The block with the branch; of an exception, the one that execution goes on with.
    pub block: BlockIndex,
}

/// Where a thread is, and what was counted of it.
#[derive(Clone, Copy, Debug)]
struct Place {
    counter: Counter,
    at: control::Place,
    /// The last step left by this branch, and only what comes next tells where to.
    pending: Option<Pending>,
}

/// A branch whose target is not known yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    site: Site,
    block: BlockIndex,
}

impl Tail {
    /// The branch that a step ends with, if only what comes next tells where it went.
    fn pending(&self, step: &Step) -> Option<Pending> {
        // In place of the target.
        const ANYWHERE: u64 = 1;
        let is_pending = step.terminator() == Terminator::Indirect && step.next() == 0;
        let (site, _) = self.branch(&step.with_next(ANYWHERE)).filter(|_| is_pending)?;
        Some(Pending { site, block: step.block() })
    }
}

/// The filter on its way through a trace.
#[derive(Clone, Debug)]
pub struct Filter {
    predictors: Structures<Predictors>,
    counting: Counting,
    places: HashMap<u32, Place>,
    statistics: Statistics,
    tails: Tails,
    prepared: Preparations,
}

impl Filter {
    pub fn new(settings: &Settings) -> Result<Self, IllegalSize> {
        Ok(Self {
            predictors: Structures::new(settings.sharing, Predictors::new(&settings.sizes)?),
            counting: settings.counting,
            places: HashMap::new(),
            statistics: Statistics::default(),
            tails: Tails::default(),
            prepared: Preparations::default(),
        })
    }

    /// How many instructions came so far.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.statistics.instructions
    }

    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let pending = self.places.values().filter(|place| place.pending.is_some()).count() as u64;
        Statistics { targets_unknown: self.statistics.targets_unknown + pending, ..self.statistics }
    }

    /// Takes what a thread has executed next.
    pub fn batch(&mut self, blocks: &Blocks, batch: &Batch, tell: impl FnMut(Told)) {
        self.each(batch.thread(), tell, |filtering, tails, _| tails.walk(blocks, batch, filtering));
    }

    /// The same, path by path, which is faster. A trace goes through a filter in one way or the other: where an indirect branch at the end of a batch
    /// went is told by the thread's next one, when others may have been at predictors that are shared.
    pub fn path_batch(&mut self, batch: &PathBatch<'_>, tell: impl FnMut(Told)) {
        let paths = batch.paths();
        self.each(batch.thread(), tell, |filtering, tails, prepared| {
            tails.extend(paths.blocks());
            let mut parts = batch.items();
            while let Some(part) = parts.next() {
                match part {
                    PathItem::Path(path) => filtering.path(paths, path, &mut parts, tails, prepared),
                    PathItem::Event { event, steps, last, at } => {
                        if let Some(at) = at {
                            filtering.went_to(at);
                        }
                        steps.iter().chain(&last).for_each(|step| filtering.single(step, tails));
                        filtering.event(&event);
                    }
                }
            }
        });
    }

    fn each<F: FnMut(Told)>(
        &mut self,
        thread: u32,
        tell: F,
        walk: impl FnOnce(&mut Filtering<'_, F>, &mut Tails, &mut Preparations),
    ) {
        let fresh = Place { counter: Counter::new(self.counting), at: control::Place::NOT_BEGUN, pending: None };
        let place = self.places.entry(thread).or_insert(fresh);
        let mut filtering = Filtering {
            thread,
            place: *place,
            predictors: self.predictors.of(thread),
            statistics: self.statistics,
            tell,
        };
        walk(&mut filtering, &mut self.tails, &mut self.prepared);
        (*place, self.statistics) = (filtering.place, filtering.statistics);
    }
}

/// A batch that goes through the filter.
struct Filtering<'f, F> {
    thread: u32,
    place: Place,
    predictors: &'f mut Predictors,
    statistics: Statistics,
    tell: F,
}

impl<F: FnMut(Told)> Walker for Filtering<'_, F> {
    fn event(&mut self, event: &Event) {
        self.place.at.event(event);
    }

    #[inline]
    fn step(&mut self, step: &Step, first: u64, tail: &Tail) {
        self.arrive(step, first);
        self.leave(step, tail);
    }
}

impl<F: FnMut(Told)> Filtering<'_, F> {
    /// A step is executed, up to its branch.
    #[inline]
    fn arrive(&mut self, step: &Step, first: u64) {
        if self.place.at.next != first {
            self.went_elsewhere(step, first);
        }
        let count = u64::from(step.instructions());
        self.statistics.instructions += count;
        self.place.counter.instructions(count);
    }

    /// It goes to where it goes.
    #[inline]
    fn leave(&mut self, step: &Step, tail: &Tail) {
        self.place.at.next = step.next();
        match tail.branch(step) {
            Some((site, went)) => self.branch(&site, went, step.block()),
            None => self.statistics.targets_unknown += u64::from(step.terminator() == Terminator::Indirect),
        }
    }

    #[inline]
    fn branch(&mut self, site: &Site, went: Went, block: BlockIndex) {
        let message = self.place.counter.branch(self.predictors, site, went);
        if site.kind != Kind::Call {
            self.statistics.count(went, message.is_none());
        }
        if let Some(message) = message {
            (self.tell)(Told { thread: self.thread, message, address: site.address, block });
        }
    }

    /// An indirect branch went to `target`: learns, and says whether it was predicted.
    #[inline]
    fn learn_target(&mut self, site: &Site, target: u64) -> bool {
        match site.kind {
            Kind::Return => self.predictors.returned(target),
            _ => self.predictors.learn(site, Went::To(target)) == Some(true),
        }
    }

    /// A step whose block is executed from its beginning. Where it goes may be told later.
    fn single(&mut self, step: &Step, tails: &Tails) {
        let Some(tail) = tails.of(step) else { return };
        self.arrive(step, tail.head);
        self.place.pending = tail.pending(step);
        if self.place.pending.is_none() {
            self.leave(step, tail);
        }
    }

    /// The last step, if it left indirectly, went to `target`.
    #[inline]
    fn went_to(&mut self, target: u64) {
        if let Some(Pending { site, block }) = self.place.pending.take() {
            self.place.at.next = target;
            if target == 0 {
                self.statistics.targets_unknown += 1;
                return;
            }
            if self.learn_target(&site, target) {
                self.statistics.targets_predicted += 1;
                self.place.counter.predicted(1);
                return;
            }
            self.statistics.targets_mispredicted += 1;
            let message = self.place.counter.went_elsewhere(target);
            (self.tell)(Told { thread: self.thread, message, address: site.address, block });
        }
    }

    /// Execution goes on at `first`, which neither a branch nor the program said.
    #[cold]
    fn went_elsewhere(&mut self, step: &Step, first: u64) {
        let count = match self.place.at.elsewhere(first) {
            None => return,
            Some(Elsewhere::Exception) => &mut self.statistics.exceptions,
            Some(Elsewhere::Gap) => &mut self.statistics.gaps,
        };
        *count += 1;
        let (message, address) = (self.place.counter.exception(first), self.place.at.next);
        (self.tell)(Told { thread: self.thread, message, address, block: step.block() });
    }
}

#[cfg(test)]
mod tests {
    use trace::{DataMode, Fragment, Live, WriteError};
    use wire::{code, word};

    use super::*;

    /// Two returns to each other; one thread ends in the second, the other is lost in the first and begins anew.
    fn live() -> Live {
        let mut live = Live::new(DataMode::None);
        for (id, address) in [(1, 0x1000), (2, 0x2000)] {
            live.block(0, id, address, &[0xc3]).unwrap();
            let exits = [1 | code::TERMINATOR_INDIRECT << 16];
            live.fragment(0, &Fragment { first_path: id, blocks: &[id], exits: &exits }).unwrap();
        }
        live.add(0, 7, &[1, 2, 1, 2], &[]);
        live.add(0, 8, &[1, word::event(word::START, 0), 0x2000, 0, 9, 0, 2, 1], &[]);
        live
    }

    #[test]
    fn branches_without_a_target_are_counted() {
        let (mut by_step, mut by_path) =
            (Filter::new(&Settings::default()).unwrap(), Filter::new(&Settings::default()).unwrap());
        let (mut steps, mut paths) = (Vec::new(), Vec::new());
        let (mut of_steps, mut of_paths) = (live(), live());
        let result: Result<(), WriteError> = of_steps.finish(|blocks, batch| {
            by_step.batch(blocks, batch, |told| steps.push(told));
            Ok(())
        });
        result.unwrap();
        let result: Result<(), WriteError> = of_paths.finish_path_batches(|batch| {
            by_path.path_batch(batch, |told| paths.push(told));
            Ok(())
        });
        result.unwrap();
        // Of seven returns, the last of each thread and the one before thread 8 begins anew.
        let expected =
            Statistics { instructions: 7, targets_mispredicted: 4, targets_unknown: 3, ..Statistics::default() };
        assert_eq!((by_step.statistics(), by_path.statistics()), (expected, expected));
        assert_eq!((steps.len(), by_step.statistics().indirect()), (4, 7));
        steps.sort_by_key(|told| told.thread);
        paths.sort_by_key(|told| told.thread);
        assert_eq!(steps, paths);
    }
}
