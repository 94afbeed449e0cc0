//! mcfTRaptor: which branches have to be told so that the rest of the control flow can be inferred.

use std::collections::HashMap;

use filter::traptor::{Counter, Counting, Kind, Message, Mirror, Predictors, Site, Sizes, Went};
use isa::Transfer;
use predict::IllegalSize;
use trace::{Batch, Block, Blocks, Event, Item, Leave, Step, Trace};

use crate::check::{CheckError, Checked};
use crate::threads::{Sharing, Structures};

#[derive(Clone, Copy, Debug)]
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
    pub exceptions: u64,
}

impl Statistics {
    /// Branches that could have been told of.
    #[must_use]
    pub fn branches(&self) -> u64 {
        self.outcomes_predicted + self.outcomes_mispredicted + self.targets_predicted + self.targets_mispredicted
    }

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
}

/// Where a thread is.
#[derive(Clone, Copy, Debug)]
struct Place {
    counter: Counter,
    /// The instruction that comes next, as far as the program and the branches before say.
    next: Option<u64>,
}

/// The filter on its way through a trace.
#[derive(Clone, Debug)]
pub struct Filter {
    predictors: Structures<Predictors>,
    counting: Counting,
    places: HashMap<u32, Place>,
    statistics: Statistics,
}

impl Filter {
    pub fn new(settings: &Settings) -> Result<Self, IllegalSize> {
        Ok(Self {
            predictors: Structures::new(settings.sharing, Predictors::new(&settings.sizes)?),
            counting: settings.counting,
            places: HashMap::new(),
            statistics: Statistics::default(),
        })
    }

    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Takes what a thread has executed next.
    pub fn batch(&mut self, blocks: &Blocks, batch: &Batch, mut tell: impl FnMut(Told)) {
        let thread = batch.thread();
        let fresh = Place { counter: Counter::new(self.counting), next: None };
        let Place { counter, next } = self.places.entry(thread).or_insert(fresh);
        let predictors = self.predictors.of(thread);
        let statistics = &mut self.statistics;
        for item in batch.items() {
            let step = match item {
                Item::Step(step) => step,
                Item::Event(Event::Start { pc, .. }) => {
                    *next = Some(pc);
                    continue;
                }
                Item::Event(_) => continue,
            };
            let Some(block) = blocks.get(step.block()) else { continue };
            let first = first_address(blocks, &block, &step);
            if let Some(expected) = next.replace(step.next()).filter(|&expected| expected != first) {
                statistics.exceptions += 1;
                tell(Told { thread, message: counter.exception(first), address: expected });
            }
            let count = u64::from(step.instructions());
            statistics.instructions += count;
            counter.instructions(count);
            let Some(site) = site(&block, &step) else { continue };
            let went = went(&site, &step);
            let message = counter.branch(predictors, &site, went);
            if site.kind != Kind::Call {
                statistics.count(went, message.is_none());
            }
            if let Some(message) = message {
                tell(Told { thread, message, address: site.address });
            }
        }
    }
}

/// The first instruction that a step executes.
fn first_address(blocks: &Blocks, block: &Block, step: &Step) -> u64 {
    if step.first() == 0 { block.address() } else { blocks.instructions(step).next().map_or(0, |first| first.address) }
}

/// The branch that a step ends with, if it makes a difference.
#[inline]
fn site(block: &Block, step: &Step) -> Option<Site> {
    let kind = match (step.leave(), block.transfer()) {
        (Leave::Taken | Leave::NotTaken, _) => Kind::Conditional,
        (Leave::Direct, Transfer::Call { .. }) => Kind::Call,
        // The trace does not tell where it went.
        (Leave::Indirect, _) if step.next() == 0 => return None,
        (Leave::Indirect, Transfer::IndirectCall) => Kind::IndirectCall,
        (Leave::Indirect, Transfer::Return) => Kind::Return,
        (Leave::Indirect, _) => Kind::IndirectJump,
        _ => return None,
    };
    Some(Site { kind, address: block.last(), behind: block.end() })
}

#[inline]
fn went(site: &Site, step: &Step) -> Went {
    match site.kind {
        Kind::Conditional => Went::Taken(step.leave() == Leave::Taken),
        _ => Went::To(step.next()),
    }
}

/// Filters the whole trace, follows it by what was told alone, and compares every step.
pub fn check(trace: &Trace, settings: &Settings) -> Result<Checked<Statistics>, CheckError> {
    let mut filter = Filter::new(settings)?;
    let mut messages: HashMap<u32, Vec<Message>> = HashMap::new();
    let mut merged = trace.merged();
    while let Some(batch) = merged.next_batch()? {
        let told = messages.entry(batch.thread()).or_default();
        filter.batch(trace.blocks(), batch, |new| told.push(new.message));
    }
    let message_count = messages.values().map(|messages| messages.len() as u64).sum();
    let mut checked = Checked::new(*filter.statistics(), message_count);
    let mut mirrors: HashMap<u32, _> = messages
        .into_iter()
        .map(|(thread, messages)| (thread, (Mirror::new(settings.counting, messages.into_iter()), None)))
        .collect();
    let mut predictors = Structures::new(settings.sharing, Predictors::new(&settings.sizes)?);
    let mut merged = trace.merged();
    while let Some(batch) = merged.next_batch()? {
        if let Some((mirror, next)) = mirrors.get_mut(&batch.thread()) {
            follow(trace.blocks(), batch, mirror, next, predictors.of(batch.thread()), &mut checked);
        }
    }
    for (thread, (mirror, _)) in mirrors {
        if !mirror.is_exhausted() {
            checked.wrong(|| format!("thread {thread}: there are messages left at its end"));
        }
    }
    Ok(checked)
}

/// Goes on with a thread: the program says what is executed from `next` on, the mirror where branches go. What was really
/// executed is only compared.
fn follow<M: Iterator<Item = Message>>(
    blocks: &Blocks,
    batch: &Batch,
    mirror: &mut Mirror<M>,
    next: &mut Option<u64>,
    predictors: &mut Predictors,
    checked: &mut Checked<Statistics>,
) {
    for item in batch.items() {
        let step = match item {
            Item::Step(step) => step,
            Item::Event(Event::Start { pc, .. }) => {
                *next = Some(pc);
                continue;
            }
            Item::Event(_) => continue,
        };
        let Some(block) = blocks.get(step.block()) else { continue };
        let first = first_address(blocks, &block, &step);
        if next.is_some()
            && let Some(target) = mirror.exception()
        {
            *next = Some(target);
        }
        let shown = next.unwrap_or(first);
        if shown == first {
            checked.right += 1;
        } else {
            let thread = batch.thread();
            checked.wrong(|| format!("thread {thread}: goes on at {first:#x}, the mirror image says {shown:#x}"));
        }
        mirror.instructions(step.instructions().into());
        *next = Some(match site(&block, &step) {
            None => inferred(&block, &step),
            Some(site) => match (mirror.branch(predictors, &site), block.transfer()) {
                (Some(Went::Taken(true)), Transfer::Conditional { target }) => target,
                (Some(Went::Taken(false)), _) => site.behind,
                (Some(Went::To(target)), _) | (None, Transfer::Call { target }) => target,
                _ => 0,
            },
        });
    }
}

/// Where a step goes that has no branch that makes a difference, by the program alone.
fn inferred(block: &Block, step: &Step) -> u64 {
    match (step.leave(), block.transfer()) {
        (Leave::Direct, Transfer::Jump { target } | Transfer::Call { target }) => target,
        // The next instruction of the block, or the one behind it.
        (Leave::Interrupted, _) => {
            let executed = step.first() + step.instructions();
            block.instructions().nth(executed as usize).map_or(block.end(), |instruction| instruction.address)
        }
        (Leave::Indirect, _) => 0,
        _ => block.end(),
    }
}
