//! The mirror image of the filter.

use filter::traptor::{BranchDecoder, BranchMessageSource, BranchOutcome, BranchSite, CountStart, Predict, Predictors};
use hashbrown::HashMap;
use trace::{RoundRobinUnit, Trace};

use super::{FlowFilter, FlowSettings, FlowStatistics};
use crate::check::{CheckError, CheckReport};
use crate::control::{DecodedFlow, FlowDecoder, ThreadFlowDecoder};
use crate::threads::{MessageQueues, MessageSources, PerThread, Sharing};

/// Filters the whole trace, follows it by what was told alone, and compares every step.
pub fn check(trace: &Trace, settings: &FlowSettings) -> Result<CheckReport<FlowStatistics>, CheckError> {
    let mut filter = FlowFilter::new(settings)?;
    let predictors = Predictors::new(&settings.sizes)?;
    let mut decoded =
        DecodedFlow::new(BranchDecoders::new(predictors, settings.sharing, settings.count_start, MessageQueues::new()));
    let (mut report, blocks) = (CheckReport::default(), trace.blocks());
    report.for_each_batch(settings.sharing.order(trace, RoundRobinUnit::Branches)?, |batch, report| {
        filter.batch(blocks, batch, |message| {
            report.messages += 1;
            decoded.decoder.source.of(message.thread).push_back(message.message);
        });
        decoded.compare_batch(blocks, batch, report);
    });
    report.statistics = filter.statistics();
    report.check_all_used(&decoded.decoder.source);
    Ok(report)
}

/// The mirror images of all threads.
#[derive(Debug)]
pub struct BranchDecoders<P, S> {
    predictors: PerThread<P>,
    count_start: CountStart,
    decoders: HashMap<u32, BranchDecoder>,
    pub source: S,
}

impl<P: Predict + Clone, S: MessageSources> BranchDecoders<P, S> {
    pub fn new(predictors: P, sharing: Sharing, count_start: CountStart, source: S) -> Self {
        Self { predictors: PerThread::new(sharing, predictors), count_start, decoders: HashMap::new(), source }
    }
}

impl<P: Predict + Clone, S: MessageSources<Messages: BranchMessageSource>> FlowDecoder for BranchDecoders<P, S> {
    type Thread<'s>
        = ThreadBranchDecoder<'s, P, S::Messages>
    where
        Self: 's;

    fn thread(&mut self, thread: u32) -> ThreadBranchDecoder<'_, P, S::Messages> {
        ThreadBranchDecoder {
            decoder: self.decoders.entry(thread).or_insert_with(|| BranchDecoder::new(self.count_start)),
            predictors: self.predictors.of(thread),
            messages: self.source.of(thread),
        }
    }
}

/// The mirror image of a thread, with what it needs.
#[derive(Debug)]
pub struct ThreadBranchDecoder<'s, P, M> {
    decoder: &'s mut BranchDecoder,
    predictors: &'s mut P,
    messages: &'s mut M,
}

impl<P: Predict, M: BranchMessageSource> ThreadFlowDecoder for ThreadBranchDecoder<'_, P, M> {
    fn decode_discontinuity(&mut self) -> Option<u64> {
        self.decoder.decode_exception(self.messages)
    }

    fn add_instructions(&mut self, count: u64) {
        self.decoder.add_instructions(count);
    }

    fn decode_branch(&mut self, site: &BranchSite) -> Option<BranchOutcome> {
        self.decoder.decode_branch(self.predictors, site, self.messages)
    }
}
