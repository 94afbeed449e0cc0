//! The mirror image of the filter.

use filter::traptor::{Counting, Messages, Mirror, Predict, Predictors, Site, Went};
use hashbrown::HashMap;
use trace::{RoundRobinUnit, Trace};

use super::{Filter, Settings, Statistics};
use crate::check::{CheckError, Checked};
use crate::control::{Image, Show, ShowThread};
use crate::threads::{Queues, Sharing, Source, Structures};

/// Filters the whole trace, follows it by what was told alone, and compares every step.
pub fn check(trace: &Trace, settings: &Settings) -> Result<Checked<Statistics>, CheckError> {
    let mut filter = Filter::new(settings)?;
    let predictors = Predictors::new(&settings.sizes)?;
    let mut image = Image::new(Mirrors::new(predictors, settings.sharing, settings.counting, Queues::new()));
    let (mut checked, blocks) = (Checked::default(), trace.blocks());
    checked.each_batch(settings.sharing.order(trace, RoundRobinUnit::Branches)?, |batch, checked| {
        filter.batch(blocks, batch, |told| {
            checked.messages += 1;
            image.show.source.of(told.thread).push_back(told.message);
        });
        image.follow(blocks, batch, checked);
    });
    checked.statistics = filter.statistics();
    checked.all_used(&image.show.source);
    Ok(checked)
}

/// The mirror images of all threads.
#[derive(Debug)]
pub struct Mirrors<P, S> {
    predictors: Structures<P>,
    counting: Counting,
    mirrors: HashMap<u32, Mirror>,
    pub source: S,
}

impl<P: Predict + Clone, S: Source> Mirrors<P, S> {
    pub fn new(predictors: P, sharing: Sharing, counting: Counting, source: S) -> Self {
        Self { predictors: Structures::new(sharing, predictors), counting, mirrors: HashMap::new(), source }
    }
}

impl<P: Predict + Clone, S: Source<Messages: Messages>> Show for Mirrors<P, S> {
    type Thread<'s>
        = MirrorOf<'s, P, S::Messages>
    where
        Self: 's;

    fn thread(&mut self, thread: u32) -> MirrorOf<'_, P, S::Messages> {
        MirrorOf {
            mirror: self.mirrors.entry(thread).or_insert_with(|| Mirror::new(self.counting)),
            predictors: self.predictors.of(thread),
            messages: self.source.of(thread),
        }
    }
}

/// The mirror image of a thread, with what it needs.
#[derive(Debug)]
pub struct MirrorOf<'s, P, M> {
    mirror: &'s mut Mirror,
    predictors: &'s mut P,
    messages: &'s mut M,
}

impl<P: Predict, M: Messages> ShowThread for MirrorOf<'_, P, M> {
    fn elsewhere(&mut self) -> Option<u64> {
        self.mirror.exception(self.messages)
    }

    fn instructions(&mut self, count: u64) {
        self.mirror.instructions(count);
    }

    fn branch(&mut self, site: &Site) -> Option<Went> {
        self.mirror.branch(self.predictors, site, self.messages)
    }
}
