//! mlvCFiat: which values of loads have to be told so that the others can be inferred.

use cache::{IllegalGeometry, Load};
use filter::cfiat::{self, Cfiat, Counter, Message, Mirror, Origin, Shape, Trust};
use hashbrown::HashMap;
use trace::{Access, AccessVisitor, Batch, Event, Operand, RoundRobinUnit, Trace};

use crate::check::{CheckError, Checked};
use crate::threads::{Queues, Sharing, Source, Structures};

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub shape: Shape,
    pub sharing: Sharing,
    pub invalidation: Invalidation,
    /// Private caches know of each other: a line comes from another cache that has it, with what is known of it, and a store throws it
    /// out of all others.
    pub coherent: bool,
}

/// Whose writes clear first-access flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Invalidation {
    /// Those of other threads: in all lines that they touch.
    pub threads: bool,
    /// Those of the kernel: which they were is not recorded, so that a system call may have changed anything.
    pub kernel: bool,
}

impl Invalidation {
    /// Whether the kernel may have written.
    fn concerns(self, event: &Event) -> bool {
        self.kernel && matches!(event, Event::Syscall { .. } | Event::Signal { .. })
    }
}

/// Accesses and what they have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    pub cache_hits: u64,
    pub cache_misses: u64,
    /// Of the loads that hit the cache.
    pub flag_hits: u64,
    pub flag_misses: u64,
}

impl Hits {
    #[inline]
    fn count(&mut self, load: Load) {
        if load.flags_hit {
            self.cache_hits += 1;
            self.flag_hits += 1;
            return;
        }
        self.cache_misses += u64::from(!load.cache_hit);
        self.cache_hits += u64::from(load.cache_hit);
        self.flag_misses += u64::from(load.cache_hit);
    }

    fn add(&mut self, other: &Self) {
        self.cache_hits += other.cache_hits;
        self.cache_misses += other.cache_misses;
        self.flag_hits += other.flag_hits;
        self.flag_misses += other.flag_misses;
    }

    #[must_use]
    pub fn references(&self) -> u64 {
        self.cache_hits + self.cache_misses
    }
}

/// The sizes that are counted by themselves.
pub const SIZES: [u32; 7] = [1, 2, 4, 8, 10, 16, 32];
const OTHER: usize = SIZES.len();

/// The place of a size among [`SIZES`], or the one behind them.
#[must_use]
#[inline]
pub fn class_of(size: u32) -> usize {
    const CLASSES: [u8; 33] = {
        let mut classes = [OTHER as u8; 33];
        let mut class = 0;
        while class < SIZES.len() {
            classes[SIZES[class] as usize] = class as u8;
            class += 1;
        }
        classes
    };
    CLASSES.get(size as usize).map_or(OTHER, |&class| usize::from(class))
}

/// What was met, by the size of the operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub instructions: u64,
    pub loads: [Hits; OTHER + 1],
    /// These have nothing to do with flags.
    pub stores: [Hits; OTHER + 1],
    /// Accesses that were recorded without their value, which are left out.
    pub without_value: u64,
}

impl Statistics {
    #[must_use]
    pub fn all_loads(&self) -> Hits {
        sum(&self.loads)
    }

    #[must_use]
    pub fn all_stores(&self) -> Hits {
        sum(&self.stores)
    }
}

fn sum(hits: &[Hits]) -> Hits {
    let mut sum = Hits::default();
    hits.iter().for_each(|own| sum.add(own));
    sum
}

/// A load that has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told<'a> {
    pub thread: u32,
    /// Loads of the thread since the last one that were not told.
    pub hits: u64,
    pub value: &'a [u8],
    /// Address of the instruction.
    pub pc: u64,
    /// The place of the step among those of the batch, see [`Filter::with_steps`]; `None` if the load belongs to an event.
    pub step: Option<usize>,
}

/// The filter on its way through a trace with values.
#[derive(Clone, Debug)]
pub struct Filter {
    caches: Structures<Cfiat>,
    counters: HashMap<u32, Counter>,
    invalidation: Invalidation,
    coherent: bool,
    statistics: Statistics,
    tells_steps: bool,
}

impl Filter {
    pub fn new(settings: &Settings) -> Result<Self, IllegalGeometry> {
        Ok(Self {
            caches: Structures::new(settings.sharing, Cfiat::new(&settings.shape)?),
            counters: HashMap::new(),
            invalidation: settings.invalidation,
            coherent: settings.coherent,
            statistics: Statistics::default(),
            tells_steps: false,
        })
    }

    /// Tells the step of each load, which takes longer.
    #[must_use]
    pub fn with_steps(self) -> Self {
        Self { tells_steps: true, ..self }
    }

    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Whether it needs batches: what it tells, or in which order threads get at their cache, depends on steps.
    #[must_use]
    pub fn needs_batches(&self) -> bool {
        self.tells_steps || self.coherent || self.caches.are_shared()
    }

    /// Takes what a thread has executed next; the batch must have accesses with values.
    pub fn batch(&mut self, batch: &Batch, tell: impl FnMut(Told<'_>)) {
        let (needs_order, invalidation) = (self.tells_steps || self.invalidation.kernel, self.invalidation);
        let mut passing = self.watch(batch.thread(), tell);
        passing.executed(batch.instructions());
        if needs_order {
            in_order(batch, invalidation, |met| match met {
                Met::SystemCall => passing.caches.forget_all(),
                Met::Access(access, step) => passing.meet(batch.operand(&access), step),
            });
        } else {
            batch.accesses().for_each(|access| passing.meet(batch.operand(&access), None));
        }
    }

    /// Takes what a thread has executed next as it is read, which is faster; unless it [needs batches](Self::needs_batches).
    pub fn watch<'f, F: FnMut(Told<'_>)>(&'f mut self, thread: u32, tell: F) -> Passing<'f, F> {
        let Self { caches, counters, invalidation, coherent, statistics, .. } = self;
        let (caches, counter) = (Caches::of(caches, thread, *coherent), counters.entry(thread).or_default());
        let concerns_others = *coherent || invalidation.threads;
        let (known, invalidation) = ([0; OTHER + 1], *invalidation);
        Passing { thread, caches, counter, statistics, known, invalidation, concerns_others, tell }
    }
}

/// A stretch of a thread on its way through the filter.
pub struct Passing<'f, F> {
    thread: u32,
    caches: Caches<'f>,
    counter: &'f mut Counter,
    statistics: &'f mut Statistics,
    /// Loads that were known at once, by the size of the operand; they are added to the others in the end.
    known: [u64; OTHER + 1],
    invalidation: Invalidation,
    /// Other caches must know of a store.
    concerns_others: bool,
    tell: F,
}

impl<F> Drop for Passing<'_, F> {
    fn drop(&mut self) {
        for (sum, known) in self.statistics.loads.iter_mut().zip(self.known) {
            sum.cache_hits += known;
            sum.flag_hits += known;
        }
    }
}

impl<F: FnMut(Told<'_>)> AccessVisitor for Passing<'_, F> {
    #[inline]
    fn executed(&mut self, instructions: u64) {
        self.statistics.instructions += instructions;
    }

    #[inline(always)]
    fn operand(&mut self, operand: Operand<'_>) {
        self.meet(operand, None);
    }

    fn event(&mut self, event: &Event) {
        if self.invalidation.concerns(event) {
            self.caches.forget_all();
        }
    }
}

impl<F: FnMut(Told<'_>)> Passing<'_, F> {
    /// Nearly all accesses meet what is known, or store where everything is.
    #[inline(always)]
    fn meet(&mut self, operand: Operand<'_>, step: Option<usize>) {
        let Operand { address, size, .. } = operand;
        let own = &mut self.caches.own;
        let narrow = operand.first_bytes().filter(|_| size <= 8).map(|bytes| u64::from_le_bytes(*bytes));
        let wide = || operand.first_bytes().filter(|_| size == 16);
        if operand.is_write {
            let is_done = !self.concerns_others
                && match narrow {
                    Some(value) => own.overwrite(address, size as usize, value),
                    None => wide().is_some_and(|value| own.overwrite_wide(address, value)),
                };
            if is_done {
                self.statistics.stores[class_of(size)].cache_hits += 1;
            } else {
                self.store(operand);
            }
            return;
        }
        let is_known = match narrow {
            Some(value) => own.knows(address, size as usize, value),
            None => wide().is_some_and(|value| own.knows_wide(address, value)),
        };
        if is_known {
            self.counter.known();
            self.known[class_of(size)] += 1;
        } else {
            self.load(operand, step);
        }
    }

    #[inline(never)]
    fn store(&mut self, operand: Operand<'_>) {
        let Some(value) = operand.value() else { return self.statistics.without_value += 1 };
        let cache_hit = self.caches.store(self.invalidation, operand.address, value);
        let sum = &mut self.statistics.stores[class_of(operand.size)];
        *(if cache_hit { &mut sum.cache_hits } else { &mut sum.cache_misses }) += 1;
    }

    #[inline(never)]
    fn load(&mut self, operand: Operand<'_>, step: Option<usize>) {
        let Some(value) = operand.value() else { return self.statistics.without_value += 1 };
        self.caches.fetch(operand.address, value.len());
        let (load, told) = self.counter.load(self.caches.own, operand.address, value);
        self.statistics.loads[class_of(operand.size)].count(load);
        if let Some(hits) = told {
            (self.tell)(Told { thread: self.thread, hits, value, pc: operand.pc, step });
        }
    }
}

/// Shows the accesses of a batch in the order they happened, each with the place of its step, unless it belongs to an event.
#[inline]
pub fn each_access(batch: &Batch, mut show: impl FnMut(Option<usize>, Access)) {
    in_order(batch, Invalidation::default(), |met| {
        if let Met::Access(access, step) = met {
            show(step, access);
        }
    });
}

/// What happens to caches.
enum Met {
    /// And the place of its step.
    Access(Access, Option<usize>),
    SystemCall,
}

/// Shows accesses, and system calls if they matter, in the order they happened.
#[inline]
fn in_order(batch: &Batch, invalidation: Invalidation, mut show: impl FnMut(Met)) {
    let mut shown = 0;
    for (number, &(steps_before, ref event)) in batch.events().iter().enumerate() {
        (shown..steps_before).for_each(|step| of_step(batch, step, &mut show));
        shown = steps_before;
        batch.accesses_of_event(number).for_each(|access| show(Met::Access(access, None)));
        if invalidation.concerns(event) {
            show(Met::SystemCall);
        }
    }
    (shown..batch.steps().len()).for_each(|step| of_step(batch, step, &mut show));
}

#[inline]
fn of_step(batch: &Batch, step: usize, show: &mut impl FnMut(Met)) {
    batch.accesses_of_step(step).for_each(|access| show(Met::Access(access, Some(step))));
}

/// The caches as a thread sees them.
struct Caches<'c> {
    own: &'c mut Cfiat,
    others: [&'c mut [Cfiat]; 2],
    coherent: bool,
}

impl<'c> Caches<'c> {
    fn of(caches: &'c mut Structures<Cfiat>, thread: u32, coherent: bool) -> Self {
        let (own, others) = caches.split(thread);
        Self { own, others, coherent }
    }

    /// An operand is about to be accessed.
    #[inline]
    fn fetch(&mut self, address: u64, bytes: usize) {
        if self.coherent {
            let others = self.others.iter().flat_map(|some| some.iter());
            self.own.fetch(others, address, bytes as u64);
        }
    }

    /// A store and what it does to all caches; says whether its own had the lines.
    #[inline]
    fn store(&mut self, invalidation: Invalidation, address: u64, value: &[u8]) -> bool {
        if self.coherent {
            self.fetch(address, value.len());
            self.others().for_each(|cache| cache.throw_out(address, value.len() as u64));
        } else if invalidation.threads {
            self.others().for_each(|cache| cache.forget(address, value.len() as u64));
        }
        self.own.store(address, value)
    }

    fn forget_all(&mut self) {
        self.own.forget_all();
        self.others().for_each(Cfiat::forget_all);
    }

    fn others(&mut self) -> impl Iterator<Item = &mut Cfiat> {
        self.others.iter_mut().flat_map(|some| some.iter_mut())
    }
}

/// Filters the whole trace, follows it by addresses, stored values and what was told, and compares every load.
pub fn check(trace: &Trace, settings: &Settings) -> Result<Checked<Statistics>, CheckError> {
    let (mut filter, mut image) = (Filter::new(settings)?, Image::new(settings, Queues::new())?);
    let mut checked = Checked::default();
    checked.each_batch(settings.sharing.order(trace, RoundRobinUnit::Accesses)?, |batch, checked| {
        filter.batch(batch, |told| {
            checked.messages += 1;
            let message = Message { hits: told.hits, value: told.value.to_vec() };
            image.source.of(told.thread).push_back(message);
        });
        image.follow(batch, checked);
    });
    checked.statistics = *filter.statistics();
    checked.all_used(&image.source);
    Ok(checked)
}

/// The mirror images of all threads.
#[derive(Debug)]
pub struct Image<S> {
    caches: Structures<Cfiat>,
    trust: Trust,
    invalidation: Invalidation,
    coherent: bool,
    mirrors: HashMap<u32, Mirror>,
    pub source: S,
    shown: Vec<u8>,
}

impl<S: Source<Messages: cfiat::Messages>> Image<S> {
    pub fn new(settings: &Settings, source: S) -> Result<Self, IllegalGeometry> {
        Ok(Self {
            caches: Structures::new(settings.sharing, Cfiat::new(&settings.shape)?),
            trust: settings.shape.trust,
            invalidation: settings.invalidation,
            coherent: settings.coherent,
            mirrors: HashMap::new(),
            source,
            shown: Vec::new(),
        })
    }

    /// Goes on with a thread: what was really loaded is only compared.
    pub fn follow<C>(&mut self, batch: &Batch, checked: &mut Checked<C>) {
        let thread = batch.thread();
        let Self { caches, trust, invalidation, coherent, mirrors, source, shown } = self;
        let (mirror, messages) = (mirrors.entry(thread).or_default(), source.of(thread));
        let mut caches = Caches::of(caches, thread, *coherent);
        in_order(batch, *invalidation, |met| match met {
            Met::SystemCall => caches.forget_all(),
            Met::Access(access, _) => {
                let (Some(value), address) = (batch.value(&access), access.address()) else { return };
                if access.is_write() {
                    caches.store(*invalidation, address, value);
                    return;
                }
                shown.clear();
                shown.resize(value.len(), 0);
                caches.fetch(address, value.len());
                match mirror.load(caches.own, address, shown, messages) {
                    Some(_) if shown == value => checked.right += 1,
                    Some(Origin::Cache) if *trust == Trust::Flags => checked.stale += 1,
                    _ => {
                        let pc = access.pc();
                        checked
                            .wrong(|| format!("thread {thread}: the load at {pc:#x} from {address:#x} is shown wrong"));
                    }
                }
            }
        });
    }
}
