//! The mirror image of a [`crate::Job`]: has the program, for loads also addresses and stored values, and the bits; compares what comes out
//! with the trace. Threads come in the order in which they were told: that of the trace.

use filter::traptor::{Counting, Predict, Predictors};
use mtrace::control::{Image, Show};
use mtrace::flow::Mirrors;
use mtrace::{Checked, Sharing, loads};
use trace::{Batch, Blocks};

use crate::bits::BitReader;
use crate::cores::Cores;
use crate::etrace::Etrace;
use crate::job::load_settings;
use crate::loads::LoadReader;
use crate::message::{FlowReader, Listing, Read};
use crate::nexus::NexusShower;
use crate::packet::{PacketShower, Packing};
use crate::pt::Pt;
use crate::technique::{Config, Filter, IllegalConfig, Settings, Technique};

/// Follows a trace by its bits.
pub struct Follower<'b> {
    following: Box<dyn Following + 'b>,
    pub checked: Checked<()>,
}

impl<'b> Follower<'b> {
    pub fn new(
        technique: Technique,
        config: &Config,
        settings: &Settings,
        cores: &Cores,
        bits: BitReader<'b>,
    ) -> Result<Self, IllegalConfig> {
        config.check()?;
        let cores = || cores.clone();
        let filter = technique.filter();
        let flow = |bits| FlowReader::new(cores(), technique.flow_codings(settings), bits);
        let loads = |bits| LoadReader::new(cores(), technique.load_coding(settings), bits);
        let following: Box<dyn Following + 'b> = match filter {
            Filter::Nexus => Box::new(Image::new(NexusShower::new(cores(), settings.streams, flow(bits)))),
            Filter::Traptor => mirrors(Predictors::new(&config.predictors())?, flow(bits)),
            Filter::Tagged => mirrors(config.tagged_predictors()?, flow(bits)),
            Filter::Etrace => Box::new(Image::new(PacketShower::<Etrace>::new(cores(), bits))),
            Filter::Pt => Box::new(Image::new(PacketShower::<Pt>::new(cores(), bits))),
            Filter::AllLoads => Box::new(loads(bits)),
            Filter::Cfiat | Filter::CoherentCfiat => {
                Box::new(loads::Image::new(&load_settings(filter, config, settings.trust)?, loads(bits))?)
            }
        };
        Ok(Self { following, checked: Checked::default() })
    }

    /// From now on, keeps a list of the messages that are read.
    pub fn list(&mut self) {
        self.following.listing().begin();
    }

    /// The messages that were read since the last time; none without [`Self::list`].
    pub fn read(&mut self) -> Vec<Read> {
        self.following.listing().take()
    }

    /// Goes on with a thread.
    pub fn batch(&mut self, blocks: &Blocks, batch: &Batch) {
        self.following.batch(blocks, batch, &mut self.checked);
    }

    /// Nothing more comes.
    #[must_use]
    pub fn finish(mut self) -> Checked<()> {
        let (messages, is_exhausted) = self.following.end();
        self.checked.messages = messages;
        if !is_exhausted {
            self.checked.wrong(|| "there are bits left at the end".to_owned());
        }
        self.checked
    }
}

fn mirrors<'b>(predictors: impl Predict + Clone + 'b, reader: FlowReader<'b>) -> Box<dyn Following + 'b> {
    Box::new(Image::new(Mirrors::new(predictors, Sharing::Private, Counting::FromOne, reader)))
}

trait Following {
    fn batch(&mut self, blocks: &Blocks, batch: &Batch, checked: &mut Checked<()>);
    /// How many messages were read, and whether every bit was used.
    fn end(&self) -> (u64, bool);
    fn listing(&mut self) -> &mut Listing;
}

/// Something that shows control flow, and when it is at its end.
trait Ending: Show {
    fn end(&self) -> (u64, bool);
    fn listing(&mut self) -> &mut Listing;
}

impl<S: Ending> Following for Image<S> {
    fn batch(&mut self, blocks: &Blocks, batch: &Batch, checked: &mut Checked<()>) {
        self.follow(blocks, batch, checked);
    }

    fn end(&self) -> (u64, bool) {
        self.show.end()
    }

    fn listing(&mut self) -> &mut Listing {
        self.show.listing()
    }
}

impl Ending for NexusShower<'_> {
    fn end(&self) -> (u64, bool) {
        (self.reader.incoming.messages, self.reader.incoming.is_exhausted())
    }

    fn listing(&mut self) -> &mut Listing {
        &mut self.reader.incoming.listing
    }
}

impl<P: Predict + Clone> Ending for Mirrors<P, FlowReader<'_>> {
    fn end(&self) -> (u64, bool) {
        (self.source.incoming.messages, self.source.incoming.is_exhausted())
    }

    fn listing(&mut self) -> &mut Listing {
        &mut self.source.incoming.listing
    }
}

impl<P: Packing + Clone> Ending for PacketShower<'_, P> {
    fn end(&self) -> (u64, bool) {
        self.end()
    }

    fn listing(&mut self) -> &mut Listing {
        &mut self.listing
    }
}

impl Following for LoadReader<'_> {
    fn batch(&mut self, _: &Blocks, batch: &Batch, checked: &mut Checked<()>) {
        self.follow(batch, checked);
    }

    fn end(&self) -> (u64, bool) {
        (self.incoming.messages, self.incoming.is_exhausted())
    }

    fn listing(&mut self) -> &mut Listing {
        &mut self.incoming.listing
    }
}

impl Following for loads::Image<LoadReader<'_>> {
    fn batch(&mut self, _: &Blocks, batch: &Batch, checked: &mut Checked<()>) {
        self.follow(batch, checked);
    }

    fn end(&self) -> (u64, bool) {
        (self.source.incoming.messages, self.source.incoming.is_exhausted())
    }

    fn listing(&mut self) -> &mut Listing {
        &mut self.source.incoming.listing
    }
}
