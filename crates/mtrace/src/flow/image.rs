//! The mirror image of the filter.

use filter::traptor::{Counting, Mirror, Predictors, Went};
use hashbrown::HashMap;
use isa::Transfer;
use predict::IllegalSize;
use trace::{Batch, Blocks, Event, Leave, Step, Trace};

use super::{Filter, NOT_BEGUN, Settings, Statistics};
use crate::check::{CheckError, Checked};
use crate::threads::Structures;
use crate::walk::{Tail, Tails, Walker};

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
    /// And where each thread is, as the filter has it.
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
