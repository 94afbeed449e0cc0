//! Load values through CFiat. A [`LoadFilter`] passes the accesses of a trace to caches and emits a
//! [`ReportedLoad`] for each first-access miss. [`DecodedLoads`] decodes the messages and compares
//! with the trace. Both run either over batches or, for the filter, directly as an `AccessVisitor`.

use cache::{IllegalGeometry, Load};
use filter::cfiat::{self, Cfiat, CfiatConfig, KnownCriterion, LoadDecoder, LoadEncoder, ValueOrigin};
use hashbrown::HashMap;
use trace::{Access, AccessVisitor, AppPc, Batch, Event, Operand, ThreadId};

use crate::check::CheckReport;
use crate::threads::{MessageSources, PerThread, Sharing};

#[derive(Clone, Copy, Debug)]
pub struct LoadSettings {
    pub cfiat: CfiatConfig,
    pub sharing: Sharing,
    pub invalidation: Invalidation,
    /// Whether private caches are coherent: a missing line comes, with its flags, from another
    /// cache that holds it, and a store invalidates it in all other caches.
    pub coherent: bool,
}

/// Which writes clear first-access flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Invalidation {
    /// Writes of other threads: clear the flags of all lines that they touch.
    pub threads: bool,
    /// Writes of the kernel: they are not recorded, so any system call clears all flags.
    pub kernel: bool,
}

impl Invalidation {
    /// Returns whether the kernel may have written memory at this event.
    fn applies_to(self, event: &Event) -> bool {
        self.kernel && matches!(event, Event::Syscall { .. } | Event::Signal { .. })
    }
}

/// Hits and misses of accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitCounts {
    pub cache_hits: u64,
    pub cache_misses: u64,
    /// Loads that hit the cache, by their flags.
    pub flag_hits: u64,
    pub flag_misses: u64,
}

impl HitCounts {
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

/// Operand sizes that are counted separately.
pub const SIZES: [u32; 7] = [1, 2, 4, 8, 10, 16, 32];
const OTHER: usize = SIZES.len();

/// Returns the index of a size in [`SIZES`], or `SIZES.len()` for any other size.
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

/// Hits and misses by the size of the operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadStatistics {
    pub instructions: u64,
    pub loads: [HitCounts; OTHER + 1],
    /// Stores do not use flags.
    pub stores: [HitCounts; OTHER + 1],
    /// Accesses without a recorded value, which are skipped.
    pub without_value: u64,
}

impl LoadStatistics {
    #[must_use]
    pub fn all_loads(&self) -> HitCounts {
        sum(&self.loads)
    }

    #[must_use]
    pub fn all_stores(&self) -> HitCounts {
        sum(&self.stores)
    }
}

fn sum(hits: &[HitCounts]) -> HitCounts {
    let mut sum = HitCounts::default();
    hits.iter().for_each(|own| sum.add(own));
    sum
}

/// A load that the filter emits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedLoad<'a> {
    pub thread: ThreadId,
    /// Known loads of the thread since its last emitted load.
    pub hits: u64,
    pub value: &'a [u8],
    /// Address of the instruction.
    pub pc: AppPc,
    /// Index of the step in the batch, see [`LoadFilter::with_steps`]; `None` if the load belongs
    /// to an event.
    pub step: Option<usize>,
}

/// The load filter of a trace with values.
#[derive(Clone, Debug)]
pub struct LoadFilter {
    caches: PerThread<Cfiat>,
    encoders: HashMap<ThreadId, LoadEncoder>,
    invalidation: Invalidation,
    coherent: bool,
    statistics: LoadStatistics,
    reports_steps: bool,
}

impl LoadFilter {
    pub fn new(settings: &LoadSettings) -> Result<Self, IllegalGeometry> {
        Ok(Self {
            caches: PerThread::new(settings.sharing, Cfiat::new(&settings.cfiat)?),
            encoders: HashMap::new(),
            invalidation: settings.invalidation,
            coherent: settings.coherent,
            statistics: LoadStatistics::default(),
            reports_steps: false,
        })
    }

    /// Reports the step of each load, which is slower.
    #[must_use]
    pub fn with_steps(self) -> Self {
        Self { reports_steps: true, ..self }
    }

    #[must_use]
    pub fn statistics(&self) -> &LoadStatistics {
        &self.statistics
    }

    /// Returns whether the filter needs batches: it reports steps, or threads use the caches in the
    /// order of steps.
    #[must_use]
    pub fn needs_batches(&self) -> bool {
        self.reports_steps || self.coherent || self.caches.are_shared()
    }

    /// Filters the next batch of a thread. The batch must have accesses with values.
    pub fn batch(&mut self, batch: &Batch, emit: impl FnMut(ReportedLoad<'_>)) {
        let (needs_order, invalidation) = (self.reports_steps || self.invalidation.kernel, self.invalidation);
        let mut pass = self.watch(batch.thread(), emit);
        pass.executed(batch.instructions());
        if needs_order {
            for_each_in_order(batch, invalidation, |event| match event {
                CacheEvent::SystemCall => pass.caches.clear_all_flags(),
                CacheEvent::Access(access, step) => pass.visit(batch.operand(&access), step),
            });
        } else {
            batch.accesses().for_each(|access| pass.visit(batch.operand(&access), None));
        }
    }

    /// Returns a visitor that filters the accesses of a thread as they are read, which is faster.
    /// Not allowed if the filter [needs batches](Self::needs_batches).
    pub fn watch<'f, F: FnMut(ReportedLoad<'_>)>(&'f mut self, thread: ThreadId, emit: F) -> ThreadPass<'f, F> {
        let Self { caches, encoders, invalidation, coherent, statistics, .. } = self;
        let (caches, encoder) = (Caches::of(caches, thread, *coherent), encoders.entry(thread).or_default());
        let affects_others = *coherent || invalidation.threads;
        let (fast_hits, invalidation) = ([0; OTHER + 1], *invalidation);
        ThreadPass { thread, caches, encoder, statistics, fast_hits, invalidation, affects_others, emit }
    }
}

/// A run of one thread's accesses through the filter.
pub struct ThreadPass<'f, F> {
    thread: ThreadId,
    caches: Caches<'f>,
    encoder: &'f mut LoadEncoder,
    statistics: &'f mut LoadStatistics,
    /// Loads that the fast check found known, by operand size; added to the statistics at the end.
    fast_hits: [u64; OTHER + 1],
    invalidation: Invalidation,
    /// Whether stores affect other caches.
    affects_others: bool,
    emit: F,
}

impl<F> Drop for ThreadPass<'_, F> {
    fn drop(&mut self) {
        for (sum, known) in self.statistics.loads.iter_mut().zip(self.fast_hits) {
            sum.cache_hits += known;
            sum.flag_hits += known;
        }
    }
}

impl<F: FnMut(ReportedLoad<'_>)> AccessVisitor for ThreadPass<'_, F> {
    #[inline]
    fn executed(&mut self, instructions: u64) {
        self.statistics.instructions += instructions;
    }

    #[inline(always)]
    fn operand(&mut self, operand: Operand<'_>) {
        self.visit(operand, None);
    }

    fn event(&mut self, event: &Event) {
        if self.invalidation.applies_to(event) {
            self.caches.clear_all_flags();
        }
    }
}

impl<F: FnMut(ReportedLoad<'_>)> ThreadPass<'_, F> {
    /// Filters an access. Nearly all loads are known, and nearly all stores hit lines with all
    /// flags set; both are handled here.
    #[inline(always)]
    fn visit(&mut self, operand: Operand<'_>, step: Option<usize>) {
        let Operand { address, size, .. } = operand;
        let own = &mut self.caches.own;
        let narrow = operand.first_bytes().filter(|_| size <= 8).map(|bytes| u64::from_le_bytes(*bytes));
        let wide = || operand.first_bytes().filter(|_| size == 16);
        if operand.is_write {
            let is_done = !self.affects_others
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
            self.encoder.add_hit();
            self.fast_hits[class_of(size)] += 1;
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
        let (load, emitted) = self.encoder.encode_load(self.caches.own, operand.address, value);
        self.statistics.loads[class_of(operand.size)].count(load);
        if let Some(hits) = emitted {
            (self.emit)(ReportedLoad { thread: self.thread, hits, value, pc: operand.pc, step });
        }
    }
}

/// Calls `visit` for the accesses of a batch in execution order, each with the index of its step;
/// `None` if it belongs to an event.
#[inline]
pub fn for_each_access(batch: &Batch, mut visit: impl FnMut(Option<usize>, Access)) {
    for_each_in_order(batch, Invalidation::default(), |event| {
        if let CacheEvent::Access(access, step) = event {
            visit(step, access);
        }
    });
}

/// An event that affects caches.
enum CacheEvent {
    /// An access, and the index of its step.
    Access(Access, Option<usize>),
    SystemCall,
}

/// Calls `visit` for accesses, and for system calls if they clear flags, in execution order.
#[inline]
fn for_each_in_order(batch: &Batch, invalidation: Invalidation, mut visit: impl FnMut(CacheEvent)) {
    let mut visited = 0;
    for (number, &(steps_before, ref event)) in batch.events().iter().enumerate() {
        (visited..steps_before).for_each(|step| visit_step(batch, step, &mut visit));
        visited = steps_before;
        batch.accesses_of_event(number).for_each(|access| visit(CacheEvent::Access(access, None)));
        if invalidation.applies_to(event) {
            visit(CacheEvent::SystemCall);
        }
    }
    (visited..batch.steps().len()).for_each(|step| visit_step(batch, step, &mut visit));
}

#[inline]
fn visit_step(batch: &Batch, step: usize, visit: &mut impl FnMut(CacheEvent)) {
    batch.accesses_of_step(step).for_each(|access| visit(CacheEvent::Access(access, Some(step))));
}

/// The caches from the view of one thread.
struct Caches<'c> {
    own: &'c mut Cfiat,
    others: [&'c mut [Cfiat]; 2],
    coherent: bool,
}

impl<'c> Caches<'c> {
    fn of(caches: &'c mut PerThread<Cfiat>, thread: ThreadId, coherent: bool) -> Self {
        let (own, others) = caches.own_and_others(thread);
        Self { own, others, coherent }
    }

    /// Copies missing lines from other caches before an access, if caches are coherent.
    #[inline]
    fn fetch(&mut self, address: u64, bytes: usize) {
        if self.coherent {
            let others = self.others.iter().flat_map(|some| some.iter());
            self.own.fetch(others, address, bytes as u64);
        }
    }

    /// Performs a store in all caches. Returns whether the thread's own cache held the lines.
    #[inline]
    fn store(&mut self, invalidation: Invalidation, address: u64, value: &[u8]) -> bool {
        if self.coherent {
            self.fetch(address, value.len());
            self.others().for_each(|cache| cache.invalidate(address, value.len() as u64));
        } else if invalidation.threads {
            self.others().for_each(|cache| cache.clear_flags(address, value.len() as u64));
        }
        self.own.store(address, value)
    }

    fn clear_all_flags(&mut self) {
        self.own.clear_all_flags();
        self.others().for_each(Cfiat::clear_all_flags);
    }

    fn others(&mut self) -> impl Iterator<Item = &mut Cfiat> {
        self.others.iter_mut().flat_map(|some| some.iter_mut())
    }
}

/// Load decoders of all threads, compared with the trace.
#[derive(Debug)]
pub struct DecodedLoads<S> {
    caches: PerThread<Cfiat>,
    known_by: KnownCriterion,
    invalidation: Invalidation,
    coherent: bool,
    decoders: HashMap<ThreadId, LoadDecoder>,
    pub source: S,
    decoded: Vec<u8>,
}

impl<S: MessageSources<Messages: cfiat::LoadMessageSource>> DecodedLoads<S> {
    pub fn new(settings: &LoadSettings, source: S) -> Result<Self, IllegalGeometry> {
        Ok(Self {
            caches: PerThread::new(settings.sharing, Cfiat::new(&settings.cfiat)?),
            known_by: settings.cfiat.known_by,
            invalidation: settings.invalidation,
            coherent: settings.coherent,
            decoders: HashMap::new(),
            source,
            decoded: Vec::new(),
        })
    }

    /// Decodes the next batch of a thread and compares its loads with the trace.
    pub fn compare_batch<C>(&mut self, batch: &Batch, report: &mut CheckReport<C>) {
        let thread = batch.thread();
        let Self { caches, known_by, invalidation, coherent, decoders, source, decoded } = self;
        let (decoder, messages) = (decoders.entry(thread).or_default(), source.of(thread));
        let mut caches = Caches::of(caches, thread, *coherent);
        for_each_in_order(batch, *invalidation, |event| match event {
            CacheEvent::SystemCall => caches.clear_all_flags(),
            CacheEvent::Access(access, _) => {
                let (Some(value), address) = (batch.value(&access), access.address()) else { return };
                if access.is_write() {
                    caches.store(*invalidation, address, value);
                    return;
                }
                decoded.clear();
                decoded.resize(value.len(), 0);
                caches.fetch(address, value.len());
                match decoder.decode_load(caches.own, address, decoded, messages) {
                    Some(_) if decoded == value => report.matches += 1,
                    Some(ValueOrigin::Cache) if *known_by == KnownCriterion::Flags => report.stale += 1,
                    _ => {
                        let pc = access.pc();
                        report.add_problem(|| {
                            format!("thread {thread}: the load at {pc:#x} from {address:#x} is decoded wrong")
                        });
                    }
                }
            }
        });
    }
}
