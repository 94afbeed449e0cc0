//! Techniques by name. A [`Technique`] is a filter ([`FilterKind`]) and a way to write its
//! messages. [`PortSettings`] and [`Config`] parametrise them.

use cache::{FlagCoverage, Geometry, IllegalGeometry, Replacement};
use filter::cfiat::{Cfiat, CfiatConfig, KnownCriterion};
use filter::traptor::{PredictorSizes, Predictors, TaggedPredictors};
use predict::{Budget, IllegalSize};
use thiserror::Error;

use crate::chunks::{Chunks, Coding};
use crate::count::Field;
use crate::message::{ExceptionTarget, FlowCodings};
use crate::nexus::Streams;

/// A technique: which events are written, and how. The first six are those of Tewar 2015.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Technique {
    McfNxB,
    McfTrB,
    McfTrE,
    McfTrA,
    McfTgE,
    McfTgA,
    McfEt,
    McfPt,
    MlvNxB,
    MlvCfB,
    MlvCfE,
    MlvCfA,
    MlvCcE,
}

/// Kind of events that a technique writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Flow,
    Loads,
}

impl Technique {
    pub const ALL: [Self; 13] = [
        Self::McfNxB,
        Self::McfTrB,
        Self::McfTrE,
        Self::McfTrA,
        Self::McfTgE,
        Self::McfTgA,
        Self::McfEt,
        Self::McfPt,
        Self::MlvNxB,
        Self::MlvCfB,
        Self::MlvCfE,
        Self::MlvCfA,
        Self::MlvCcE,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::McfNxB => "mcfNX_b",
            Self::McfTrB => "mcfTR_b",
            Self::McfTrE => "mcfTR_e",
            Self::McfTrA => "mcfTR_a",
            Self::McfTgE => "mcfTG_e",
            Self::McfTgA => "mcfTG_a",
            Self::McfEt => "mcfET",
            Self::McfPt => "mcfPT",
            Self::MlvNxB => "mlvNX_b",
            Self::MlvCfB => "mlvCF_b",
            Self::MlvCfE => "mlvCF_e",
            Self::MlvCfA => "mlvCF_a",
            Self::MlvCcE => "mlvCC_e",
        }
    }

    /// Returns the technique of this name; case does not matter.
    #[must_use]
    pub fn called(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|technique| technique.name().eq_ignore_ascii_case(name))
    }

    #[must_use]
    pub fn subject(self) -> Subject {
        if self < Self::MlvNxB { Subject::Flow } else { Subject::Loads }
    }

    /// Returns the technique that it is compared with.
    #[must_use]
    pub fn baseline(self) -> Self {
        match self.subject() {
            Subject::Flow => Self::McfNxB,
            Subject::Loads => Self::MlvNxB,
        }
    }

    #[must_use]
    pub fn filter(self) -> FilterKind {
        match self {
            Self::McfNxB => FilterKind::Nexus,
            Self::McfTrB | Self::McfTrE | Self::McfTrA => FilterKind::Traptor,
            Self::McfTgE | Self::McfTgA => FilterKind::Tagged,
            Self::McfEt => FilterKind::Etrace,
            Self::McfPt => FilterKind::Pt,
            Self::MlvNxB => FilterKind::AllLoads,
            Self::MlvCfB | Self::MlvCfE | Self::MlvCfA => FilterKind::Cfiat,
            Self::MlvCcE => FilterKind::CoherentCfiat,
        }
    }

    fn style(self) -> Style {
        match self {
            Self::McfTrE | Self::McfTgE | Self::MlvCfE | Self::MlvCcE => Style::Variable,
            Self::McfTrA | Self::McfTgA | Self::MlvCfA => Style::Adaptive,
            _ => Style::Fixed,
        }
    }

    /// Returns whether it filters loads by a cache.
    #[must_use]
    pub fn has_cache(self) -> bool {
        matches!(self.filter(), FilterKind::Cfiat | FilterKind::CoherentCfiat)
    }

    /// Returns whether chunk sizes can be chosen, at least the initial ones.
    #[must_use]
    pub fn has_variable_chunks(self) -> bool {
        !matches!(self.style(), Style::Fixed)
    }

    /// Returns the encodings of control-flow messages.
    #[must_use]
    pub fn flow_codings(self, settings: &PortSettings) -> FlowCodings {
        let counted = if self == Self::McfNxB { Field::Sl } else { Field::BCnt };
        let (style, sizes) = (self.style(), &settings.sizes);
        FlowCodings {
            counted,
            count: style.coding(8, sizes.branches),
            instructions: style.coding(8, sizes.instructions),
            target: style.coding(32, sizes.target),
            exception_target: settings.exception_target,
        }
    }

    /// Returns the encoding of the number of known loads; `None` if every load is written.
    #[must_use]
    pub fn load_coding(self, settings: &PortSettings) -> Option<Coding> {
        (self != Self::MlvNxB).then(|| self.style().coding(8, settings.sizes.loads))
    }
}

/// Kind of filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterKind {
    Nexus,
    Traptor,
    /// TRaptor with predictors of the TAGE family.
    Tagged,
    Etrace,
    Pt,
    AllLoads,
    Cfiat,
    /// CFiat with coherent caches.
    CoherentCfiat,
}

impl FilterKind {
    /// Returns whether it has predictors or caches of configurable sizes.
    #[must_use]
    pub fn is_configured(self) -> bool {
        matches!(self, Self::Traptor | Self::Tagged | Self::Cfiat | Self::CoherentCfiat)
    }
}

/// Style of writing numbers.
#[derive(Clone, Copy, Debug)]
enum Style {
    Fixed,
    Variable,
    Adaptive,
}

impl Style {
    fn coding(self, fixed: u32, variable: Chunks) -> Coding {
        match self {
            Self::Fixed => Coding::Chunks(Chunks::fixed(fixed)),
            Self::Variable => Coding::Chunks(variable),
            Self::Adaptive => Coding::adaptive(variable),
        }
    }
}

/// Sizes of variable chunks (Tewar 2015, section 4.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSizes {
    pub branches: Chunks,
    pub instructions: Chunks,
    pub target: Chunks,
    pub loads: Chunks,
}

impl Default for ChunkSizes {
    fn default() -> Self {
        Self {
            branches: Chunks::variable(4, 2),
            instructions: Chunks::variable(4, 2),
            target: Chunks::variable(3, 5),
            loads: Chunks::variable(2, 2),
        }
    }
}

/// Settings apart from the sizes of predictors and caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSettings {
    pub sizes: ChunkSizes,
    pub streams: Streams,
    pub exception_target: ExceptionTarget,
    /// Criterion by which a load counts as known to a cache.
    pub known_by: KnownCriterion,
}

/// Sizes of predictors and caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub name: &'static str,
    /// Size of TAGE and ITTAGE, which replace gshare and the target buffer.
    pub tage: Budget,
    pub gshare: usize,
    pub ras: usize,
    pub ibtb: usize,
    pub cache_bytes: u64,
    pub line_bytes: u64,
    pub ways: usize,
    /// Bytes that one first-access flag covers.
    pub granularity: u64,
}

impl Config {
    /// Tewar 2015, section 4.3.3.
    pub const SMALL: Self = Self {
        name: "small",
        tage: Budget::Small,
        gshare: 512,
        ras: 8,
        ibtb: 0,
        cache_bytes: 16 << 10,
        line_bytes: 64,
        ways: 4,
        granularity: 4,
    };
    pub const MEDIUM: Self = Self {
        name: "medium",
        tage: Budget::Medium,
        gshare: 1024,
        ras: 16,
        ibtb: 16,
        cache_bytes: 32 << 10,
        ..Self::SMALL
    };
    pub const LARGE: Self = Self {
        name: "large",
        tage: Budget::Large,
        gshare: 4096,
        ras: 32,
        ibtb: 64,
        cache_bytes: 64 << 10,
        ..Self::SMALL
    };

    /// Checks that the predictors and caches can be built, and that they need no more memory than
    /// any chip has.
    pub fn check(&self) -> Result<(), IllegalConfig> {
        let sizes = [
            ("entries of gshare", self.gshare as u64, ENTRIES_MAX),
            ("entries of the target buffer", self.ibtb as u64, ENTRIES_MAX),
            ("bytes of cache", self.cache_bytes, CACHE_BYTES_MAX),
        ];
        if let Some((kind, size, max)) = sizes.into_iter().find(|(_, size, max)| size > max) {
            return Err(IllegalConfig::TooLarge { kind, size, max });
        }
        Predictors::new(&self.predictors())?;
        Cfiat::new(&self.cache(KnownCriterion::default())?)?;
        Ok(())
    }

    #[must_use]
    pub fn predictors(&self) -> PredictorSizes {
        PredictorSizes { gshare: self.gshare, ras: self.ras, ibtb: self.ibtb, ..PredictorSizes::default() }
    }

    pub fn tagged_predictors(&self) -> Result<TaggedPredictors, IllegalSize> {
        TaggedPredictors::new(self.tage, self.ras)
    }

    pub fn cache(&self, known_by: KnownCriterion) -> Result<CfiatConfig, IllegalGeometry> {
        Ok(CfiatConfig {
            geometry: Geometry::new(self.cache_bytes, self.line_bytes, self.ways)?,
            replacement: Replacement::RoundRobin,
            granularity: self.granularity,
            cover: FlagCoverage::default(),
            known_by,
        })
    }
}

/// Error: predictors or caches that cannot be built.
#[derive(Debug, Error)]
pub enum IllegalConfig {
    #[error(transparent)]
    Predictor(#[from] IllegalSize),
    #[error(transparent)]
    Cache(#[from] IllegalGeometry),
    #[error("{size} {kind} are more than any chip has: {max} at most")]
    TooLarge { kind: &'static str, size: u64, max: u64 },
}

const ENTRIES_MAX: u64 = 1 << 20;
const CACHE_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for technique in Technique::ALL {
            assert_eq!(Technique::called(technique.name()), Some(technique));
            assert_eq!(technique.baseline().subject(), technique.subject());
        }
        assert_eq!(Technique::called("mcfNX_e"), None);
    }

    #[test]
    fn sizes_have_limits() {
        for config in [Config::SMALL, Config::MEDIUM, Config::LARGE] {
            assert!(config.check().is_ok());
        }
        let large = Config { cache_bytes: 1 << 40, ..Config::LARGE };
        assert_eq!(
            large.check().unwrap_err().to_string(),
            "1099511627776 bytes of cache are more than any chip has: 67108864 at most"
        );
        assert!(Config { gshare: 1 << 27, ..Config::LARGE }.check().is_err());
        assert!(Config { ibtb: 3, ..Config::LARGE }.check().is_err());
        assert!(Config { line_bytes: 3, ..Config::LARGE }.check().is_err());
    }
}
