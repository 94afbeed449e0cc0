//! Takes a trace through a filter and writes what it tells in several ways at once.

use filter::cfiat::Trust;
use filter::traptor::{Predict, Predictors};
use mtrace::Sharing;
use mtrace::control::{Tell, Walk};
use mtrace::loads::{self, Invalidation};
use trace::{Batch, Blocks};

use crate::cores::Cores;
use crate::count::{Field, Port};
use crate::etrace::Etrace;
use crate::lengths::Lengths;
use crate::loads::LoadWriter;
use crate::message::FlowWriter;
use crate::nexus::NexusTeller;
use crate::packet::{PacketTeller, Packing};
use crate::pt::Pt;
use crate::technique::{Config, Filter, IllegalConfig, Settings, Technique};
use crate::traptor::{Predicted, TraptorTeller};

/// What came of a technique.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub technique: Technique,
    pub config: Option<Config>,
    /// Instructions that were executed.
    pub instructions: u64,
    pub port: Port,
    pub rates: Rates,
}

/// How much a filter knew, and how long numbers were that it told.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    pub predicted: Option<Predicted>,
    pub known: Option<Known>,
    pub lengths: Vec<(Field, Lengths)>,
    /// Loads by the size of the operand, as [`mtrace::loads::class_of`] has it; counted where all loads are told.
    pub load_classes: [u64; loads::SIZES.len() + 1],
}

/// What loads have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// What made them known.
    pub trust: Trust,
    pub loads: u64,
    pub cache_misses: u64,
    /// Loads that were told, because of the cache or of a flag.
    pub told: u64,
}

/// One filter, and one writer for each technique that it serves.
pub struct Job {
    filter: Filter,
    techniques: Vec<Technique>,
    config: Option<Config>,
    work: Work,
}

enum Work {
    Flow(Box<Walk>, Box<dyn FlowWork>),
    Loads(Box<LoadWork>),
}

/// Something that makes bits of control flow.
trait FlowWork: Tell + Send {
    fn finish(&mut self);
    fn ports(&mut self) -> Vec<&mut Port>;
    fn rates(&self) -> Rates {
        Rates::default()
    }
}

struct LoadWork {
    cores: Cores,
    instructions: u64,
    trust: Trust,
    filter: Option<loads::Filter>,
    counts: Lengths,
    classes: [u64; loads::SIZES.len() + 1],
    writers: Vec<LoadWriter>,
}

impl Job {
    /// All techniques must have the same filter, the first one's. `keep` is whether bits are kept.
    pub fn new(
        techniques: &[Technique],
        config: Option<&Config>,
        settings: &Settings,
        cores: &Cores,
        keep: bool,
    ) -> Result<Self, IllegalConfig> {
        let filter = techniques.first().map_or(Filter::Nexus, |technique| technique.filter());
        let port = || if keep { Port::writing() } else { Port::default() };
        let config = config.filter(|_| filter.is_configured()).copied();
        let own = config.unwrap_or(Config::LARGE);
        own.check()?;
        let flow = || -> Vec<FlowWriter> {
            let codings = techniques.iter().map(|technique| technique.flow_codings(settings));
            codings.map(|codings| FlowWriter::new(cores.clone(), codings, port())).collect()
        };
        let loads = |filter| {
            Box::new(LoadWork {
                cores: cores.clone(),
                instructions: 0,
                trust: settings.trust,
                filter,
                counts: Lengths::default(),
                classes: [0; loads::SIZES.len() + 1],
                writers: techniques
                    .iter()
                    .map(|technique| LoadWriter::new(cores.clone(), technique.load_coding(settings), port()))
                    .collect(),
            })
        };
        let work = match filter {
            Filter::Nexus => {
                let writer = FlowWriter::new(cores.clone(), Technique::McfNxB.flow_codings(settings), port());
                flow_work(NexusTeller::new(cores.clone(), settings.streams, writer))
            }
            Filter::Traptor => {
                let predictors = Predictors::new(&own.predictors())?;
                flow_work(TraptorTeller::new(cores.clone(), predictors, flow()))
            }
            Filter::Tagged => {
                let predictors = own.tagged_predictors()?;
                flow_work(TraptorTeller::new(cores.clone(), predictors, flow()))
            }
            Filter::Etrace => flow_work(PacketTeller::<Etrace>::new(cores.clone(), port())),
            Filter::Pt => flow_work(PacketTeller::<Pt>::new(cores.clone(), port())),
            Filter::AllLoads => Work::Loads(loads(None)),
            Filter::Cfiat | Filter::CoherentCfiat => {
                let settings = load_settings(filter, &own, settings.trust)?;
                Work::Loads(loads(Some(loads::Filter::new(&settings)?)))
            }
        };
        Ok(Self { filter, techniques: techniques.to_vec(), config, work })
    }

    #[must_use]
    pub fn filter(&self) -> Filter {
        self.filter
    }

    /// Takes what a thread has executed next; with accesses if it is about loads.
    pub fn batch(&mut self, blocks: &Blocks, batch: &Batch) {
        match &mut self.work {
            Work::Flow(walk, work) => walk.batch(blocks, batch, work.as_mut()),
            Work::Loads(work) => work.batch(batch),
        }
    }

    /// Nothing more comes.
    pub fn finish(&mut self) {
        if let Work::Flow(_, work) = &mut self.work {
            work.finish();
        }
    }

    /// The port of each technique.
    pub fn ports(&mut self) -> Vec<&mut Port> {
        match &mut self.work {
            Work::Flow(_, work) => work.ports(),
            Work::Loads(work) => work.writers.iter_mut().map(|writer| &mut writer.port).collect(),
        }
    }

    #[must_use]
    pub fn outcomes(mut self) -> Vec<Outcome> {
        let (instructions, rates) = match &self.work {
            Work::Flow(walk, work) => (walk.instructions, work.rates()),
            Work::Loads(work) => (work.instructions, work.rates()),
        };
        let (techniques, config) = (self.techniques.clone(), self.config);
        let ports = self.ports().into_iter().map(std::mem::take);
        techniques
            .into_iter()
            .zip(ports)
            .map(|(technique, port)| Outcome { technique, config, instructions, port, rates: rates.clone() })
            .collect()
    }
}

fn flow_work(work: impl FlowWork + 'static) -> Work {
    Work::Flow(Box::default(), Box::new(work))
}

/// The caches of a filter of loads; each thread has its own.
pub(crate) fn load_settings(filter: Filter, config: &Config, trust: Trust) -> Result<loads::Settings, IllegalConfig> {
    let (invalidation, coherent) = (Invalidation::default(), filter == Filter::CoherentCfiat);
    Ok(loads::Settings { shape: config.cache(trust)?, sharing: Sharing::Private, invalidation, coherent })
}

impl FlowWork for NexusTeller {
    fn finish(&mut self) {}

    fn ports(&mut self) -> Vec<&mut Port> {
        vec![&mut self.writer.port]
    }
}

impl<P: Predict + Clone + Send> FlowWork for TraptorTeller<P> {
    fn finish(&mut self) {}

    fn ports(&mut self) -> Vec<&mut Port> {
        self.writers.iter_mut().map(|writer| &mut writer.port).collect()
    }

    fn rates(&self) -> Rates {
        let lengths = vec![(Field::BCnt, self.counts.clone()), (Field::DiffTA, self.targets.clone())];
        Rates { predicted: Some(self.predicted), lengths, ..Rates::default() }
    }
}

impl<P: Packing + Send> FlowWork for PacketTeller<P> {
    fn finish(&mut self) {
        PacketTeller::finish(self);
    }

    fn ports(&mut self) -> Vec<&mut Port> {
        vec![&mut self.port]
    }
}

impl LoadWork {
    fn batch(&mut self, batch: &Batch) {
        self.instructions += batch.instructions();
        let core = self.cores.of(batch.thread());
        let Self { filter, writers, counts, classes, .. } = self;
        match filter {
            Some(filter) => filter.batch(batch, |told| {
                counts.add(told.hits);
                writers.iter_mut().for_each(|writer| writer.tell(core, told.hits, told.value));
            }),
            None => {
                let loads = batch.accesses().filter(|access| !access.is_write());
                loads.for_each(|load| classes[loads::class_of(load.size())] += 1);
                writers.iter_mut().for_each(|writer| writer.batch(batch));
            }
        }
    }

    fn rates(&self) -> Rates {
        let Some(filter) = &self.filter else {
            return Rates { load_classes: self.classes, ..Rates::default() };
        };
        let loads = filter.statistics().all_loads();
        let told = loads.cache_misses + loads.flag_misses;
        let known = Known { trust: self.trust, loads: loads.references(), cache_misses: loads.cache_misses, told };
        Rates { known: Some(known), lengths: vec![(Field::FahCnt, self.counts.clone())], ..Rates::default() }
    }
}
