//! mcfTRaptor: which branches have to be told so that the rest of the control flow can be inferred.

use std::collections::HashMap;

use filter::traptor::{Counter, Counting, Kind, Message, Mirror, Predictors, Sizes, Went};
use isa::Transfer;
use predict::IllegalSize;
use trace::{Batch, BlockIndex, Blocks, Event, Leave, Step, Trace};

use crate::check::{CheckError, Checked};
use crate::threads::{Sharing, Structures};
use crate::walk::{Tail, Tails, Walker};

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
    /// Signals, and returns from their handlers.
    pub exceptions: u64,
    /// Places behind something that was left out; told like exceptions.
    pub gaps: u64,
}

impl Statistics {
    /// Branches that could have been told of.
    #[must_use]
    pub fn branches(&self) -> u64 {
        self.outcomes_predicted + self.outcomes_mispredicted + self.targets_predicted + self.targets_mispredicted
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

/// In place of an address: whoever follows is told where a thread begins.
const NOT_BEGUN: u64 = u64::MAX;

/// Where a thread is.
#[derive(Clone, Copy, Debug)]
struct Place {
    counter: Counter,
    /// The instruction that comes next, as far as the program and the branches before say; 0 if they do not, or [`NOT_BEGUN`].
    next: u64,
    /// Something other than a branch has happened since the last step.
    is_interrupted: bool,
}

/// The filter on its way through a trace.
#[derive(Clone, Debug)]
pub struct Filter {
    predictors: Structures<Predictors>,
    counting: Counting,
    places: HashMap<u32, Place>,
    statistics: Statistics,
    tails: Tails,
}

impl Filter {
    pub fn new(settings: &Settings) -> Result<Self, IllegalSize> {
        Ok(Self {
            predictors: Structures::new(settings.sharing, Predictors::new(&settings.sizes)?),
            counting: settings.counting,
            places: HashMap::new(),
            statistics: Statistics::default(),
            tails: Tails::default(),
        })
    }

    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Takes what a thread has executed next.
    pub fn batch(&mut self, blocks: &Blocks, batch: &Batch, tell: impl FnMut(Told)) {
        let thread = batch.thread();
        let fresh = Place { counter: Counter::new(self.counting), next: NOT_BEGUN, is_interrupted: false };
        let place = self.places.entry(thread).or_insert(fresh);
        let mut filtering = Filtering {
            thread,
            place: *place,
            predictors: self.predictors.of(thread),
            statistics: self.statistics,
            tell,
        };
        self.tails.walk(blocks, batch, &mut filtering);
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
        match *event {
            Event::Start { pc, .. } => self.place.next = pc,
            Event::Signal { .. } | Event::Resume { .. } => self.place.is_interrupted = true,
            _ => {}
        }
    }

    #[inline]
    fn step(&mut self, step: &Step, first: u64, tail: &Tail) {
        if self.place.next != first {
            self.went_elsewhere(step, first);
        }
        self.place.next = step.next();
        let count = u64::from(step.instructions());
        self.statistics.instructions += count;
        self.place.counter.instructions(count);
        let Some((site, went)) = tail.branch(step) else { return };
        let message = self.place.counter.branch(self.predictors, &site, went);
        if site.kind != Kind::Call {
            self.statistics.count(went, message.is_none());
        }
        if let Some(message) = message {
            (self.tell)(Told { thread: self.thread, message, address: site.address, block: step.block() });
        }
    }
}

impl<F: FnMut(Told)> Filtering<'_, F> {
    /// Execution goes on at `first`, which neither a branch nor the program said.
    #[cold]
    fn went_elsewhere(&mut self, step: &Step, first: u64) {
        let is_interrupted = std::mem::take(&mut self.place.is_interrupted);
        if self.place.next == NOT_BEGUN {
            return;
        }
        *(if is_interrupted { &mut self.statistics.exceptions } else { &mut self.statistics.gaps }) += 1;
        let (message, address) = (self.place.counter.exception(first), self.place.next);
        (self.tell)(Told { thread: self.thread, message, address, block: step.block() });
    }
}

/// Filters the whole trace, follows it by what was told alone, and compares every step.
pub fn check(trace: &Trace, settings: &Settings) -> Result<Checked<Statistics>, CheckError> {
    let (mut filter, mut image) = (Filter::new(settings)?, Image::new(settings)?);
    let (mut checked, blocks) = (Checked::default(), trace.blocks());
    checked.each_batch(settings.sharing.order(trace.merged()), |batch, checked| {
        filter.batch(blocks, batch, |told| {
            checked.messages += 1;
            image.mirror(told.thread).0.tell(told.message);
        });
        image.follow(blocks, batch, checked);
    });
    checked.statistics = *filter.statistics();
    image.finish(&mut checked);
    Ok(checked)
}

/// The mirror images of all threads.
struct Image {
    predictors: Structures<Predictors>,
    counting: Counting,
    /// And where each thread is, as in [`Place`].
    mirrors: HashMap<u32, (Mirror, u64)>,
    tails: Tails,
}

impl Image {
    fn new(settings: &Settings) -> Result<Self, IllegalSize> {
        let predictors = Structures::new(settings.sharing, Predictors::new(&settings.sizes)?);
        Ok(Self { predictors, counting: settings.counting, mirrors: HashMap::new(), tails: Tails::default() })
    }

    fn mirror(&mut self, thread: u32) -> &mut (Mirror, u64) {
        self.mirrors.entry(thread).or_insert_with(|| (Mirror::new(self.counting), NOT_BEGUN))
    }

    /// Goes on with a thread: the program says what is executed, the mirror where branches go. What was really executed is only
    /// compared.
    fn follow(&mut self, blocks: &Blocks, batch: &Batch, checked: &mut Checked<Statistics>) {
        let thread = batch.thread();
        let mut tails = std::mem::take(&mut self.tails);
        self.mirror(thread);
        if let Some((mirror, next)) = self.mirrors.get_mut(&thread) {
            let predictors = self.predictors.of(thread);
            tails.walk(blocks, batch, &mut Following { thread, blocks, mirror, next, predictors, checked });
        }
        self.tails = tails;
    }

    fn finish(self, checked: &mut Checked<Statistics>) {
        for (thread, (mirror, _)) in self.mirrors {
            if !mirror.is_exhausted() {
                checked.wrong(|| format!("thread {thread}: there are messages left at its end"));
            }
        }
    }
}

struct Following<'f> {
    thread: u32,
    blocks: &'f Blocks,
    mirror: &'f mut Mirror,
    next: &'f mut u64,
    predictors: &'f mut Predictors,
    checked: &'f mut Checked<Statistics>,
}

impl Walker for Following<'_> {
    fn event(&mut self, event: &Event) {
        if let Event::Start { pc, .. } = *event {
            *self.next = pc;
        }
    }

    fn step(&mut self, step: &Step, first: u64, tail: &Tail) {
        if *self.next != NOT_BEGUN
            && let Some(target) = self.mirror.exception()
        {
            *self.next = target;
        }
        let shown = if *self.next == NOT_BEGUN { first } else { *self.next };
        if shown == first {
            self.checked.right += 1;
        } else {
            let thread = self.thread;
            self.checked.wrong(|| format!("thread {thread}: goes on at {first:#x}, the mirror image says {shown:#x}"));
        }
        self.mirror.instructions(step.instructions().into());
        *self.next = match tail.branch(step) {
            None => self.inferred(step, tail),
            Some((site, _)) => match (self.mirror.branch(self.predictors, &site), tail.transfer) {
                (Some(Went::Taken(true)), Transfer::Conditional { target }) => target,
                (Some(Went::Taken(false)), _) => site.behind,
                (Some(Went::To(target)), _) | (None, Transfer::Call { target }) => target,
                _ => 0,
            },
        };
    }
}

impl Following<'_> {
    /// Where a step goes that has no branch that makes a difference, by the program alone.
    fn inferred(&self, step: &Step, tail: &Tail) -> u64 {
        match (step.leave(), tail.transfer) {
            (Leave::Direct, Transfer::Jump { target } | Transfer::Call { target }) => target,
            // The next instruction of the block, or the one behind it.
            (Leave::Interrupted, _) => {
                let executed = (step.first() + step.instructions()) as usize;
                let block = self.blocks.get(step.block());
                let next = block.and_then(|block| block.instructions().nth(executed).map(|next| next.address));
                next.unwrap_or(tail.end)
            }
            (Leave::Indirect, _) => 0,
            _ => tail.end,
        }
    }
}
