//! Encodes a trace: one filter, and a writer for each technique that uses it. The result of each
//! technique is a [`PortResult`].

use filter::cfiat::KnownCriterion;
use filter::traptor::{Predict, Predictors};
use replay::Sharing;
use replay::control::{FlowEncoder, Walk};
use replay::loads::{self, Invalidation};
use trace::{Batch, Blocks};

use crate::cores::Cores;
use crate::count::{Field, Port};
use crate::etrace::Etrace;
use crate::lengths::LengthHistogram;
use crate::loads::LoadWriter;
use crate::message::FlowWriter;
use crate::nexus::NexusEncoder;
use crate::packet::{PacketEncoder, PacketFormat};
use crate::pt::Pt;
use crate::technique::{Config, FilterKind, IllegalConfig, PortSettings, Technique};
use crate::traptor::{PredictionCounts, TraptorEncoder};

/// Result of a technique.
#[derive(Clone, Debug)]
pub struct PortResult {
    pub technique: Technique,
    pub config: Option<Config>,
    /// Executed instructions.
    pub instructions: u64,
    pub port: Port,
    pub rates: Rates,
}

/// Rates of a filter, and the lengths of the numbers that it emitted.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    pub predicted: Option<PredictionCounts>,
    pub known: Option<LoadCounts>,
    pub lengths: Vec<(Field, LengthHistogram)>,
    /// Loads by operand size, as [`replay::loads::class_of`] groups them; counted if all loads are
    /// written.
    pub load_classes: [u64; loads::SIZES.len() + 1],
}

/// Counts of loads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadCounts {
    /// Criterion by which they are known.
    pub known_by: KnownCriterion,
    pub loads: u64,
    pub cache_misses: u64,
    /// Loads that were written because of a miss in the cache or of a flag.
    pub reported: u64,
}

/// One filter, and one writer for each of its techniques.
pub struct Job {
    filter: FilterKind,
    techniques: Vec<Technique>,
    config: Option<Config>,
    output: Output,
}

enum Output {
    Flow(Box<Walk>, Box<dyn FlowOutput>),
    Loads(Box<LoadOutput>),
}

/// An encoder of control flow that writes to ports.
trait FlowOutput: FlowEncoder + Send {
    fn finish(&mut self);
    fn ports(&mut self) -> Vec<&mut Port>;
    fn rates(&self) -> Rates {
        Rates::default()
    }
}

struct LoadOutput {
    cores: Cores,
    instructions: u64,
    known_by: KnownCriterion,
    filter: Option<loads::LoadFilter>,
    counts: LengthHistogram,
    classes: [u64; loads::SIZES.len() + 1],
    writers: Vec<LoadWriter>,
}

impl Job {
    /// Creates a job. All techniques must use the same filter as the first one. `keep` says whether
    /// bits are kept.
    pub fn new(
        techniques: &[Technique],
        config: Option<&Config>,
        settings: &PortSettings,
        cores: &Cores,
        keep: bool,
    ) -> Result<Self, IllegalConfig> {
        let filter = techniques.first().map_or(FilterKind::Nexus, |technique| technique.filter());
        let port = || if keep { Port::writing() } else { Port::default() };
        let config = config.filter(|_| filter.is_configured()).copied();
        let own = config.unwrap_or(Config::LARGE);
        own.check()?;
        let flow = || -> Vec<FlowWriter> {
            let codings = techniques.iter().map(|technique| technique.flow_codings(settings));
            codings.map(|codings| FlowWriter::new(cores.clone(), codings, port())).collect()
        };
        let loads = |filter| {
            Box::new(LoadOutput {
                cores: cores.clone(),
                instructions: 0,
                known_by: settings.known_by,
                filter,
                counts: LengthHistogram::default(),
                classes: [0; loads::SIZES.len() + 1],
                writers: techniques
                    .iter()
                    .map(|technique| LoadWriter::new(cores.clone(), technique.load_coding(settings), port()))
                    .collect(),
            })
        };
        let output = match filter {
            FilterKind::Nexus => {
                let writer = FlowWriter::new(cores.clone(), Technique::McfNxB.flow_codings(settings), port());
                flow_output(NexusEncoder::new(cores.clone(), settings.streams, writer))
            }
            FilterKind::Traptor => {
                let predictors = Predictors::new(&own.predictors())?;
                flow_output(TraptorEncoder::new(cores.clone(), predictors, flow()))
            }
            FilterKind::Tagged => {
                let predictors = own.tagged_predictors()?;
                flow_output(TraptorEncoder::new(cores.clone(), predictors, flow()))
            }
            FilterKind::Etrace => flow_output(PacketEncoder::<Etrace>::new(cores.clone(), port())),
            FilterKind::Pt => flow_output(PacketEncoder::<Pt>::new(cores.clone(), port())),
            FilterKind::AllLoads => Output::Loads(loads(None)),
            FilterKind::Cfiat | FilterKind::CoherentCfiat => {
                let settings = load_settings(filter, &own, settings.known_by)?;
                Output::Loads(loads(Some(loads::LoadFilter::new(&settings)?)))
            }
        };
        Ok(Self { filter, techniques: techniques.to_vec(), config, output })
    }

    #[must_use]
    pub fn filter(&self) -> FilterKind {
        self.filter
    }

    /// Encodes the next batch of a thread. For loads, the batch must have accesses.
    pub fn batch(&mut self, blocks: &Blocks, batch: &Batch) {
        match &mut self.output {
            Output::Flow(walk, output) => walk.batch(blocks, batch, output.as_mut()),
            Output::Loads(output) => output.batch(batch),
        }
    }

    /// Writes what remains at the end.
    pub fn finish(&mut self) {
        if let Output::Flow(_, output) = &mut self.output {
            output.finish();
        }
    }

    /// Returns the port of each technique.
    pub fn ports(&mut self) -> Vec<&mut Port> {
        match &mut self.output {
            Output::Flow(_, output) => output.ports(),
            Output::Loads(output) => output.writers.iter_mut().map(|writer| &mut writer.port).collect(),
        }
    }

    #[must_use]
    pub fn outcomes(mut self) -> Vec<PortResult> {
        let (instructions, rates) = match &self.output {
            Output::Flow(walk, output) => (walk.instructions, output.rates()),
            Output::Loads(output) => (output.instructions, output.rates()),
        };
        let (techniques, config) = (self.techniques.clone(), self.config);
        let ports = self.ports().into_iter().map(std::mem::take);
        techniques
            .into_iter()
            .zip(ports)
            .map(|(technique, port)| PortResult { technique, config, instructions, port, rates: rates.clone() })
            .collect()
    }
}

fn flow_output(output: impl FlowOutput + 'static) -> Output {
    Output::Flow(Box::default(), Box::new(output))
}

/// Returns the settings of a load filter; each thread has its own cache.
pub(crate) fn load_settings(
    filter: FilterKind,
    config: &Config,
    known_by: KnownCriterion,
) -> Result<loads::LoadSettings, IllegalConfig> {
    let (invalidation, coherent) = (Invalidation::default(), filter == FilterKind::CoherentCfiat);
    Ok(loads::LoadSettings { cfiat: config.cache(known_by)?, sharing: Sharing::Private, invalidation, coherent })
}

impl FlowOutput for NexusEncoder {
    fn finish(&mut self) {}

    fn ports(&mut self) -> Vec<&mut Port> {
        vec![&mut self.writer.port]
    }
}

impl<P: Predict + Clone + Send> FlowOutput for TraptorEncoder<P> {
    fn finish(&mut self) {}

    fn ports(&mut self) -> Vec<&mut Port> {
        self.writers.iter_mut().map(|writer| &mut writer.port).collect()
    }

    fn rates(&self) -> Rates {
        let lengths = vec![(Field::BCnt, self.counts.clone()), (Field::DiffTA, self.targets.clone())];
        Rates { predicted: Some(self.predicted), lengths, ..Rates::default() }
    }
}

impl<P: PacketFormat + Send> FlowOutput for PacketEncoder<P> {
    fn finish(&mut self) {
        PacketEncoder::finish(self);
    }

    fn ports(&mut self) -> Vec<&mut Port> {
        vec![&mut self.port]
    }
}

impl LoadOutput {
    fn batch(&mut self, batch: &Batch) {
        self.instructions += batch.instructions();
        let core = self.cores.of(batch.thread());
        let Self { filter, writers, counts, classes, .. } = self;
        match filter {
            Some(filter) => filter.batch(batch, |load| {
                counts.add(load.hits);
                writers.iter_mut().for_each(|writer| writer.write(core, load.hits, load.value));
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
        let reported = loads.cache_misses + loads.flag_misses;
        let known = LoadCounts {
            known_by: self.known_by,
            loads: loads.references(),
            cache_misses: loads.cache_misses,
            reported,
        };
        Rates { known: Some(known), lengths: vec![(Field::FahCnt, self.counts.clone())], ..Rates::default() }
    }
}
