//! Decodes a port. A [`PortDecoder`] is the inverse of a [`crate::Job`]: it has the program, the
//! bits and, for loads, addresses and stored values. It compares the decoded events with the trace.
//! Threads come in the order of the trace, as they were encoded.

use filter::traptor::{CountStart, Predict, Predictors};
use replay::branches::BranchDecoders;
use replay::control::{DecodedFlow, FlowDecoder};
use replay::{CheckReport, Sharing, loads};
use trace::{Batch, Blocks};

use crate::bits::BitReader;
use crate::cores::Cores;
use crate::etrace::Etrace;
use crate::job::load_settings;
use crate::loads::LoadReader;
use crate::message::{DecodedMessage, FlowReader, MessageLog};
use crate::nexus::NexusDecoder;
use crate::packet::{PacketDecoder, PacketFormat};
use crate::pt::Pt;
use crate::technique::{Config, FilterKind, IllegalConfig, PortSettings, Technique};

/// Decodes a trace from its bits.
pub struct PortDecoder<'b> {
    decoder: Box<dyn BatchDecoder + 'b>,
    pub report: CheckReport<()>,
}

impl<'b> PortDecoder<'b> {
    pub fn new(
        technique: Technique,
        config: &Config,
        settings: &PortSettings,
        cores: &Cores,
        bits: BitReader<'b>,
    ) -> Result<Self, IllegalConfig> {
        config.check()?;
        let cores = || cores.clone();
        let filter = technique.filter();
        let flow = |bits| FlowReader::new(cores(), technique.flow_codings(settings), bits);
        let loads = |bits| LoadReader::new(cores(), technique.load_coding(settings), bits);
        let decoder: Box<dyn BatchDecoder + 'b> = match filter {
            FilterKind::Nexus => Box::new(DecodedFlow::new(NexusDecoder::new(cores(), settings.streams, flow(bits)))),
            FilterKind::Traptor => traptor_decoder(Predictors::new(&config.predictors())?, flow(bits)),
            FilterKind::Tagged => traptor_decoder(config.tagged_predictors()?, flow(bits)),
            FilterKind::Etrace => Box::new(DecodedFlow::new(PacketDecoder::<Etrace>::new(cores(), bits))),
            FilterKind::Pt => Box::new(DecodedFlow::new(PacketDecoder::<Pt>::new(cores(), bits))),
            FilterKind::AllLoads => Box::new(loads(bits)),
            FilterKind::Cfiat | FilterKind::CoherentCfiat => {
                Box::new(loads::DecodedLoads::new(&load_settings(filter, config, settings.known_by)?, loads(bits))?)
            }
        };
        Ok(Self { decoder, report: CheckReport::default() })
    }

    /// Keeps a list of decoded messages from now on.
    pub fn log_messages(&mut self) {
        self.decoder.log().begin();
    }

    /// Takes the messages decoded since the last call; none without [`Self::log_messages`].
    pub fn take_messages(&mut self) -> Vec<DecodedMessage> {
        self.decoder.log().take()
    }

    /// Decodes and compares the next batch of a thread.
    pub fn batch(&mut self, blocks: &Blocks, batch: &Batch) {
        self.decoder.batch(blocks, batch, &mut self.report);
    }

    /// Ends decoding and returns the report.
    #[must_use]
    pub fn finish(mut self) -> CheckReport<()> {
        let (messages, is_exhausted) = self.decoder.end();
        self.report.messages = messages;
        if !is_exhausted {
            self.report.add_problem(|| "there are bits left at the end".to_owned());
        }
        self.report
    }
}

fn traptor_decoder<'b>(predictors: impl Predict + Clone + 'b, reader: FlowReader<'b>) -> Box<dyn BatchDecoder + 'b> {
    Box::new(DecodedFlow::new(BranchDecoders::new(predictors, Sharing::Private, CountStart::FromOne, reader)))
}

trait BatchDecoder {
    fn batch(&mut self, blocks: &Blocks, batch: &Batch, report: &mut CheckReport<()>);
    /// Returns the number of decoded messages, and whether every bit was used.
    fn end(&self) -> (u64, bool);
    fn log(&mut self) -> &mut MessageLog;
}

/// A decoder of control flow that knows when its bits are used up.
trait FlowStreamDecoder: FlowDecoder {
    fn end(&self) -> (u64, bool);
    fn log(&mut self) -> &mut MessageLog;
}

impl<S: FlowStreamDecoder> BatchDecoder for DecodedFlow<S> {
    fn batch(&mut self, blocks: &Blocks, batch: &Batch, report: &mut CheckReport<()>) {
        self.compare_batch(blocks, batch, report);
    }

    fn end(&self) -> (u64, bool) {
        self.decoder.end()
    }

    fn log(&mut self) -> &mut MessageLog {
        self.decoder.log()
    }
}

impl FlowStreamDecoder for NexusDecoder<'_> {
    fn end(&self) -> (u64, bool) {
        (self.reader.stream.messages, self.reader.stream.is_exhausted())
    }

    fn log(&mut self) -> &mut MessageLog {
        &mut self.reader.stream.log
    }
}

impl<P: Predict + Clone> FlowStreamDecoder for BranchDecoders<P, FlowReader<'_>> {
    fn end(&self) -> (u64, bool) {
        (self.source.stream.messages, self.source.stream.is_exhausted())
    }

    fn log(&mut self) -> &mut MessageLog {
        &mut self.source.stream.log
    }
}

impl<P: PacketFormat + Clone> FlowStreamDecoder for PacketDecoder<'_, P> {
    fn end(&self) -> (u64, bool) {
        self.end()
    }

    fn log(&mut self) -> &mut MessageLog {
        &mut self.log
    }
}

impl BatchDecoder for LoadReader<'_> {
    fn batch(&mut self, _: &Blocks, batch: &Batch, report: &mut CheckReport<()>) {
        self.compare_batch(batch, report);
    }

    fn end(&self) -> (u64, bool) {
        (self.stream.messages, self.stream.is_exhausted())
    }

    fn log(&mut self) -> &mut MessageLog {
        &mut self.stream.log
    }
}

impl BatchDecoder for loads::DecodedLoads<LoadReader<'_>> {
    fn batch(&mut self, _: &Blocks, batch: &Batch, report: &mut CheckReport<()>) {
        self.compare_batch(batch, report);
    }

    fn end(&self) -> (u64, bool) {
        (self.source.stream.messages, self.source.stream.is_exhausted())
    }

    fn log(&mut self) -> &mut MessageLog {
        &mut self.source.stream.log
    }
}
