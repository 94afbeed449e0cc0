//! The file that keeps bits: a magic number, the bits, then a [`Description`] as JSON and its
//! length in four bytes.

use filter::cfiat::KnownCriterion;
use predict::Budget;
use serde::{Deserialize, Serialize};

use crate::chunks::Chunks;
use crate::message::ExceptionTarget;
use crate::nexus::Streams;
use crate::{ChunkSizes, Config, PortSettings, Technique};

pub const MAGIC: &[u8; 8] = b"TRKPORT1";
const LENGTH_BYTES: usize = 4;

/// Description of the bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    pub technique: String,
    pub bits: u64,
    pub instructions: u64,
    /// Threads of the trace, in the order of their cores.
    pub threads: Vec<u32>,
    pub cores: usize,
    /// Selected part of the trace.
    pub thread: Option<u32>,
    pub skip: u64,
    pub length: Option<u64>,
    config: ConfigRecord,
    chunks: [(u32, u32); 4],
    uninferable_streams: bool,
    full_exception_targets: bool,
    /// Missing in older files, whose loads are known by value.
    #[serde(default)]
    known_by_flags: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ConfigRecord {
    name: String,
    /// 0, 1 or 2 for small, medium or large.
    tage: usize,
    gshare: usize,
    ras: usize,
    ibtb: usize,
    cache_bytes: u64,
    line_bytes: u64,
    ways: usize,
    granularity: u64,
}

const BUDGETS: [Budget; 3] = [Budget::Small, Budget::Medium, Budget::Large];

fn index_of(budget: Budget) -> usize {
    BUDGETS.iter().position(|own| *own == budget).unwrap_or(0)
}

impl Description {
    #[must_use]
    pub fn new(technique: Technique, config: &Config, settings: &PortSettings) -> Self {
        let &ChunkSizes { branches, instructions, target, loads } = &settings.sizes;
        let &Config { name, tage, gshare, ras, ibtb, cache_bytes, line_bytes, ways, granularity } = config;
        Self {
            technique: technique.name().to_owned(),
            bits: 0,
            instructions: 0,
            threads: Vec::new(),
            cores: 0,
            thread: None,
            skip: 0,
            length: None,
            config: ConfigRecord {
                name: name.to_owned(),
                tage: index_of(tage),
                gshare,
                ras,
                ibtb,
                cache_bytes,
                line_bytes,
                ways,
                granularity,
            },
            chunks: [branches, instructions, target, loads].map(|chunks| chunks.sizes()),
            uninferable_streams: settings.streams == Streams::Uninferable,
            full_exception_targets: settings.exception_target == ExceptionTarget::Full,
            known_by_flags: settings.known_by == KnownCriterion::Flags,
        }
    }

    #[must_use]
    pub fn technique(&self) -> Option<Technique> {
        Technique::called(&self.technique)
    }

    /// Returns the configuration; `None` if it is illegal.
    #[must_use]
    pub fn config(&self) -> Option<Config> {
        let &ConfigRecord { tage, gshare, ras, ibtb, cache_bytes, line_bytes, ways, granularity, .. } = &self.config;
        let known =
            [Config::SMALL, Config::MEDIUM, Config::LARGE].into_iter().find(|known| known.name == self.config.name);
        let name = known.map_or("custom", |known| known.name);
        let tage = BUDGETS.get(tage).copied()?;
        Some(Config { name, tage, gshare, ras, ibtb, cache_bytes, line_bytes, ways, granularity })
    }

    /// Returns the settings; `None` if they are illegal.
    #[must_use]
    pub fn settings(&self) -> Option<PortSettings> {
        let mut sizes = ChunkSizes::default();
        let fields = [&mut sizes.branches, &mut sizes.instructions, &mut sizes.target, &mut sizes.loads];
        for (field, (first, next)) in fields.into_iter().zip(self.chunks) {
            *field = Chunks::new(first, next).ok()?;
        }
        let streams = if self.uninferable_streams { Streams::Uninferable } else { Streams::All };
        let exception_target =
            if self.full_exception_targets { ExceptionTarget::Full } else { ExceptionTarget::Difference };
        let known_by = if self.known_by_flags { KnownCriterion::Flags } else { KnownCriterion::Values };
        Some(PortSettings { sizes, streams, exception_target, known_by })
    }

    /// Returns the bytes that follow the bits.
    #[must_use]
    pub fn trailer(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        bytes.extend(length.to_le_bytes());
        bytes
    }
}

/// Error: not a file of port bits, or a damaged one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no file of port bits, or a part of it is missing")]
pub struct DamagedFile;

/// Parses a file into its description and its bits.
pub fn parse(file: &[u8]) -> Result<(Description, &[u8]), DamagedFile> {
    let rest = file.strip_prefix(MAGIC).ok_or(DamagedFile)?;
    let (rest, length) = rest.split_last_chunk::<LENGTH_BYTES>().ok_or(DamagedFile)?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let at = rest.len().checked_sub(length).ok_or(DamagedFile)?;
    let (bits, description) = rest.split_at(at);
    let description: Description = serde_json::from_slice(description).map_err(|_| DamagedFile)?;
    if description.bits.div_ceil(8) != bits.len() as u64 {
        return Err(DamagedFile);
    }
    Ok((description, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_comes_back() {
        let mut description = Description::new(Technique::McfTrE, &Config::SMALL, &PortSettings::default());
        description.bits = 11;
        let file = [&MAGIC[..], &[0xaa, 0xe0], &description.trailer()].concat();
        let (decoded, bits) = parse(&file).unwrap();
        assert_eq!((&decoded, bits), (&description, &[0xaa, 0xe0][..]));
        assert_eq!((decoded.config(), decoded.settings()), (Some(Config::SMALL), Some(PortSettings::default())));
        let settings = PortSettings { known_by: KnownCriterion::Flags, ..PortSettings::default() };
        let by_flags = Description::new(Technique::MlvCfE, &Config::LARGE, &settings);
        assert_eq!(by_flags.settings(), Some(settings));
        for end in 0..file.len() {
            assert!(parse(&file[..end]).is_err());
        }
        for index in 0..file.len() {
            let mut damaged = file.clone();
            damaged[index] ^= 0x15;
            drop(parse(&damaged));
        }
    }
}
