//! mlvCFiat: which values of loads have to be told so that the others can be inferred.

use std::collections::HashMap;

use cache::{IllegalGeometry, Load};
use filter::cfiat::{Cfiat, Counter, Message, Mirror, Shape};
use trace::{Access, Batch, Trace};

use crate::check::{CheckError, Checked};
use crate::threads::{Sharing, Structures};

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub shape: Shape,
    pub sharing: Sharing,
    /// Whether a store makes the other threads' caches forget what it has changed.
    pub invalidation: bool,
}

/// Loads and what they have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    pub cache_hits: u64,
    pub cache_misses: u64,
    /// Of those that hit the cache.
    pub flag_hits: u64,
    pub flag_misses: u64,
}

impl Hits {
    fn count(&mut self, load: Load) {
        if !load.cache_hit {
            self.cache_misses += 1;
            return;
        }
        self.cache_hits += 1;
        let sum = if load.flags_hit { &mut self.flag_hits } else { &mut self.flag_misses };
        *sum += 1;
    }
}

/// What was met, in classes of sizes: 1, 2, 4, 8, 10, 16, 32 bytes, and others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub instructions: u64,
    pub stores: u64,
    pub loads: [Hits; SIZES.len() + 1],
}

/// The sizes that are counted by themselves.
pub const SIZES: [u32; 7] = [1, 2, 4, 8, 10, 16, 32];

impl Statistics {
    #[must_use]
    pub fn total(&self) -> Hits {
        let mut total = Hits::default();
        for hits in &self.loads {
            total.cache_hits += hits.cache_hits;
            total.cache_misses += hits.cache_misses;
            total.flag_hits += hits.flag_hits;
            total.flag_misses += hits.flag_misses;
        }
        total
    }

    fn count(&mut self, size: usize, load: Load) {
        let class = SIZES.iter().position(|&own| own as usize == size).unwrap_or(SIZES.len());
        self.loads[class].count(load);
    }
}

/// A load that has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told<'a> {
    pub thread: u32,
    /// Loads of the thread since the last one that were not told.
    pub hits: u32,
    pub value: &'a [u8],
    pub access: &'a Access,
}

/// The filter on its way through a trace with values.
#[derive(Clone, Debug)]
pub struct Filter {
    caches: Structures<Cfiat>,
    counters: HashMap<u32, Counter>,
    invalidation: bool,
    statistics: Statistics,
}

impl Filter {
    pub fn new(settings: &Settings) -> Result<Self, IllegalGeometry> {
        Ok(Self {
            caches: Structures::new(settings.sharing, Cfiat::new(&settings.shape)?),
            counters: HashMap::new(),
            invalidation: settings.invalidation,
            statistics: Statistics::default(),
        })
    }

    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Takes what a thread has executed next; the batch must have accesses with values.
    pub fn batch(&mut self, batch: &Batch, mut tell: impl FnMut(Told<'_>)) {
        let thread = batch.thread();
        let counter = self.counters.entry(thread).or_default();
        self.statistics.instructions += batch.instructions();
        for access in batch.accesses() {
            let Some(value) = batch.value(&access) else { continue };
            let address = access.address();
            if access.is_write() {
                self.statistics.stores += 1;
                self.caches.of(thread).store(address, value);
                if self.invalidation {
                    self.caches.of_others(thread).for_each(|cache| cache.forget(address, value.len() as u64));
                }
                continue;
            }
            let (load, told) = counter.load(self.caches.of(thread), address, value);
            self.statistics.count(value.len(), load);
            if let Some(hits) = told {
                tell(Told { thread, hits, value, access: &access });
            }
        }
    }
}

/// Filters the whole trace, follows it by addresses, stored values and what was told, and compares every load.
pub fn check(trace: &Trace, settings: &Settings) -> Result<Checked<Statistics>, CheckError> {
    let mut filter = Filter::new(settings)?;
    let mut messages: HashMap<u32, Vec<Message>> = HashMap::new();
    let mut merged = trace.merged_with_accesses()?;
    while let Some(batch) = merged.next_batch()? {
        let told = messages.entry(batch.thread()).or_default();
        filter.batch(batch, |new| told.push(Message { hits: new.hits, value: new.value.to_vec() }));
    }
    let message_count = messages.values().map(|messages| messages.len() as u64).sum();
    let mut checked = Checked::new(*filter.statistics(), message_count);
    let mut mirrors: HashMap<u32, _> =
        messages.into_iter().map(|(thread, messages)| (thread, Mirror::new(messages.into_iter()))).collect();
    let mut caches = Structures::new(settings.sharing, Cfiat::new(&settings.shape)?);
    let mut merged = trace.merged_with_accesses()?;
    while let Some(batch) = merged.next_batch()? {
        if let Some(mirror) = mirrors.get_mut(&batch.thread()) {
            follow(batch, settings, mirror, &mut caches, &mut checked);
        }
    }
    for (thread, mirror) in mirrors {
        if !mirror.is_exhausted() {
            checked.wrong(|| format!("thread {thread}: there are messages left at its end"));
        }
    }
    Ok(checked)
}

/// Goes on with a thread: what was really loaded is only compared.
fn follow<M: Iterator<Item = Message>>(
    batch: &Batch,
    settings: &Settings,
    mirror: &mut Mirror<M>,
    caches: &mut Structures<Cfiat>,
    checked: &mut Checked<Statistics>,
) {
    let thread = batch.thread();
    let mut shown = Vec::new();
    for access in batch.accesses() {
        let Some(value) = batch.value(&access) else { continue };
        let address = access.address();
        if access.is_write() {
            caches.of(thread).store(address, value);
            if settings.invalidation {
                caches.of_others(thread).for_each(|cache| cache.forget(address, value.len() as u64));
            }
            continue;
        }
        shown.clear();
        shown.resize(value.len(), 0);
        let told = mirror.load(caches.of(thread), address, &mut shown);
        if told.is_some() && shown == value {
            checked.right += 1;
        } else {
            let pc = access.pc();
            checked.wrong(|| format!("thread {thread}: the load at {pc:#x} from {address:#x} is shown wrong"));
        }
    }
}
