//! Decoders of TRaptor messages for all threads of a trace. `DecodedFlow` (in [`crate::control`])
//! asks a [`BranchDecoders`] where branches go; each thread has a `BranchDecoder` and its own or
//! shared predictors.

use filter::traptor::{BranchDecoder, BranchMessageSource, BranchOutcome, BranchSite, CountStart, Predict};
use hashbrown::HashMap;
use trace::{AppPc, ThreadId};

use crate::control::{FlowDecoder, ThreadFlowDecoder};
use crate::threads::{MessageSources, PerThread, Sharing};

/// Branch decoders of all threads.
#[derive(Debug)]
pub struct BranchDecoders<P, S> {
    predictors: PerThread<P>,
    count_start: CountStart,
    decoders: HashMap<ThreadId, BranchDecoder>,
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

    fn thread(&mut self, thread: ThreadId) -> ThreadBranchDecoder<'_, P, S::Messages> {
        ThreadBranchDecoder {
            decoder: self.decoders.entry(thread).or_insert_with(|| BranchDecoder::new(self.count_start)),
            predictors: self.predictors.of(thread),
            messages: self.source.of(thread),
        }
    }
}

/// Branch decoder of one thread, with its predictors and messages.
#[derive(Debug)]
pub struct ThreadBranchDecoder<'s, P, M> {
    decoder: &'s mut BranchDecoder,
    predictors: &'s mut P,
    messages: &'s mut M,
}

impl<P: Predict, M: BranchMessageSource> ThreadFlowDecoder for ThreadBranchDecoder<'_, P, M> {
    fn decode_discontinuity(&mut self) -> Option<AppPc> {
        self.decoder.decode_exception(self.messages).map(AppPc::new)
    }

    fn add_instructions(&mut self, count: u64) {
        self.decoder.add_instructions(count);
    }

    fn decode_branch(&mut self, site: &BranchSite) -> Option<BranchOutcome> {
        self.decoder.decode_branch(self.predictors, site, self.messages)
    }
}
