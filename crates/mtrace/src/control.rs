//! Control flow, step by step: a [`Walk`] tells it to whoever makes messages of it, and an [`Image`] asks whoever reads them
//! where execution goes, and compares.

use filter::traptor::{Site, Went};
use hashbrown::HashMap;
use isa::Transfer;
use trace::{Batch, Blocks, Event, Step, Terminator};

use crate::check::Checked;
use crate::walk::{Tail, Tails, Walker};

/// How a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With no branch.
    Through,
    /// With an indirect branch of which the trace does not tell where it went.
    Unknown,
    /// With a direct jump.
    Jump,
    Branch(Site, Went),
}

impl End {
    #[inline]
    fn of(step: &Step, tail: &Tail) -> Self {
        match (tail.branch(step), step.terminator()) {
            (Some((site, went)), _) => Self::Branch(site, went),
            (None, Terminator::Direct) => Self::Jump,
            (None, Terminator::Indirect) => Self::Unknown,
            (None, _) => Self::Through,
        }
    }
}

/// Receives what threads have executed.
pub trait Tell {
    /// What follows was executed by this thread.
    fn thread(&mut self, thread: u32);
    /// Execution goes on at `target`, which neither a branch nor the program said.
    fn elsewhere(&mut self, target: u64);
    /// So many instructions were executed, a branch as the last of them included.
    fn step(&mut self, instructions: u64, end: &End);
}

/// Says what threads execute: the mirror image of [`Tell`].
pub trait Show {
    type Thread<'s>: ShowThread
    where
        Self: 's;
    /// What this thread executes next.
    fn thread(&mut self, thread: u32) -> Self::Thread<'_>;
}

/// Says what a thread executes, one step after the other.
pub trait ShowThread {
    /// Where execution goes on, if it is not where the program or a branch said.
    fn elsewhere(&mut self) -> Option<u64>;
    /// So many more instructions are executed, a branch as the last of them included.
    fn instructions(&mut self, count: u64);
    /// The last of them is a direct jump.
    fn jump(&mut self) {}
    /// The last of them is this branch: where it goes. `None` of a direct call, or if that is not known.
    fn branch(&mut self, site: &Site) -> Option<Went>;
}

/// In place of an address: whoever follows is told where a thread begins.
const NOT_BEGUN: u64 = u64::MAX;

/// Where a thread is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The instruction that comes next, as far as the program and the branches before say; 0 if they do not, or [`NOT_BEGUN`].
    pub next: u64,
    /// Where a signal, or the return from its handler, has led; 0 if there was none.
    interruption: u64,
}

/// What made execution go on where neither a branch nor the program said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elsewhere {
    /// A signal, or the return from its handler.
    Exception,
    /// Something was left out.
    Gap,
}

impl Place {
    pub(crate) const NOT_BEGUN: Self = Self { next: NOT_BEGUN, interruption: 0 };

    /// Something has happened to the thread.
    pub(crate) fn event(&mut self, event: &Event) {
        match *event {
            Event::Start { pc, .. } => self.next = pc,
            Event::Signal { handler, .. } => self.interruption = handler,
            Event::Resume { pc, .. } => self.interruption = pc,
            _ => {}
        }
    }

    /// Execution goes on at `first`, which is not what comes next: why, unless the thread begins there.
    #[cold]
    pub(crate) fn elsewhere(&mut self, first: u64) -> Option<Elsewhere> {
        if self.next == NOT_BEGUN {
            return None;
        }
        let is_interruption = std::mem::take(&mut self.interruption) == first;
        Some(if is_interruption { Elsewhere::Exception } else { Elsewhere::Gap })
    }
}

/// A way through a trace on which everything is told.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    tails: Tails,
    places: HashMap<u32, Place>,
    pub instructions: u64,
}

impl Walk {
    /// Tells what a thread has executed next.
    pub fn batch(&mut self, blocks: &Blocks, batch: &Batch, tell: &mut (impl Tell + ?Sized)) {
        let place = self.places.entry(batch.thread()).or_insert(Place::NOT_BEGUN);
        self.instructions += batch.instructions();
        tell.thread(batch.thread());
        self.tails.walk(blocks, batch, &mut Telling { place, tell });
    }
}

struct Telling<'t, T: ?Sized> {
    place: &'t mut Place,
    tell: &'t mut T,
}

impl<T: Tell + ?Sized> Walker for Telling<'_, T> {
    fn event(&mut self, event: &Event) {
        self.place.event(event);
    }

    #[inline]
    fn step(&mut self, step: &Step, first: u64, tail: &Tail) {
        if self.place.next != first && self.place.elsewhere(first).is_some() {
            self.tell.elsewhere(first);
        }
        self.place.next = step.next();
        self.tell.step(step.instructions().into(), &End::of(step, tail));
    }
}

/// A trace as somebody shows it, compared with what was executed.
#[derive(Debug)]
pub struct Image<S> {
    pub show: S,
    /// Where each thread is, as it is shown; `None` before it has begun, which nobody has to tell.
    places: HashMap<u32, Option<u64>>,
    tails: Tails,
}

impl<S: Show> Image<S> {
    pub fn new(show: S) -> Self {
        Self { show, places: HashMap::new(), tails: Tails::default() }
    }

    /// Goes on with a thread: the program says what is executed, and what is shown where branches go. What was really executed is only
    /// compared.
    pub fn follow<C>(&mut self, blocks: &Blocks, batch: &Batch, checked: &mut Checked<C>) {
        let thread = batch.thread();
        let next = self.places.entry(thread).or_insert(None);
        let show = self.show.thread(thread);
        self.tails.walk(blocks, batch, &mut Following { thread, blocks, next, show, checked });
    }
}

struct Following<'f, S, C> {
    thread: u32,
    blocks: &'f Blocks,
    next: &'f mut Option<u64>,
    show: S,
    checked: &'f mut Checked<C>,
}

impl<S: ShowThread, C> Walker for Following<'_, S, C> {
    fn event(&mut self, event: &Event) {
        if let Event::Start { pc, .. } = *event {
            *self.next = Some(pc);
        }
    }

    fn step(&mut self, step: &Step, first: u64, tail: &Tail) {
        if let Some(next) = self.next
            && let Some(target) = self.show.elsewhere()
        {
            *next = target;
        }
        let shown = self.next.unwrap_or(first);
        if shown == first {
            self.checked.right += 1;
        } else {
            let thread = self.thread;
            self.checked.wrong(|| format!("thread {thread}: goes on at {first:#x}, the mirror image says {shown:#x}"));
        }
        self.show.instructions(step.instructions().into());
        let next = match End::of(step, tail) {
            End::Through | End::Unknown => self.inferred(step, tail),
            End::Jump => {
                self.show.jump();
                self.inferred(step, tail)
            }
            End::Branch(site, _) => match (self.show.branch(&site), tail.transfer) {
                (Some(Went::Taken(true)), Transfer::Conditional { target }) => target,
                (Some(Went::Taken(false)), _) => site.behind,
                (Some(Went::To(target)), _) | (None, Transfer::Call { target }) => target,
                _ => 0,
            },
        };
        *self.next = Some(next);
    }
}

impl<S, C> Following<'_, S, C> {
    /// Where a step goes that has no branch that makes a difference, by the program alone.
    fn inferred(&self, step: &Step, tail: &Tail) -> u64 {
        match (step.terminator(), tail.transfer) {
            (Terminator::Direct, Transfer::Jump { target } | Transfer::Call { target }) => target,
            // The next instruction of the block, or the one behind it.
            (Terminator::Interrupted, _) => {
                let executed = (step.first() + step.instructions()) as usize;
                let block = self.blocks.get(step.block());
                let next = block.and_then(|block| block.instructions().nth(executed).map(|next| next.address));
                next.unwrap_or(tail.end)
            }
            (Terminator::Indirect, _) => 0,
            _ => tail.end,
        }
    }
}
