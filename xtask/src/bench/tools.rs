//! The speed of the tools over a recorded part of a program.

use std::path::Path;

use serde::{Deserialize, Serialize};
use trace::Trace;

use super::{geometric_mean, measure};

/// Millions of instructions of each program that are recorded, with values.
pub const MILLIONS: u32 = 100;
/// The policies of two experiments of Hadjipavlou 2025, and how many they are.
const POLICIES: &str = "first,fourth";
pub const POLICY_COUNT: u32 = 32 + 16;

/// Speeds in millions per second, from the start of the command to its end, results written.
#[derive(Serialize, Deserialize, Clone, Copy)]
pub struct Tools {
    /// Of all kinds, direct jumps and calls included.
    pub mcftraptor_branches: f64,
    pub mlvcfiat_accesses: f64,
    pub segment_instructions: f64,
    /// With many policies: per policy and core.
    pub segment_policies_instructions: f64,
    /// All techniques of the trace port, with predictors and caches of three sizes.
    pub port_instructions: f64,
}

/// Returns the result of each round.
pub fn measure(trackway: &Path, command: &[String], directory: &Path, rounds: u32) -> Result<Vec<Tools>, String> {
    let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let (trackway, file, out) = (trackway.to_string_lossy(), path("tools.trk"), path("tools.out"));
    let length = format!("{MILLIONS}M");
    measure::time(command, &[&trackway, "record", "-q", "--length", &length, "--data", "values", "-o", &file, "--"])?;
    let counts = *Trace::open(Path::new(&file)).map_err(|error| error.to_string())?.totals();
    let speed = |count: u64, words: &[&str]| -> Result<f64, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Ok(count as f64 / 1e6 / measure::time(&words, &[&trackway])?)
    };
    let (instructions, accesses) = (counts.instructions, counts.reads + counts.writes);
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let many = ["segment", "-i", &file, "--policies", POLICIES];
    let round = || -> Result<Tools, String> {
        Ok(Tools {
            mcftraptor_branches: speed(counts.branches(), &["mcfTRaptor", "-i", &file, "-o", &out])?,
            mlvcfiat_accesses: speed(accesses, &["mlvCFiat", "-i", &file, "-o", &out])?,
            segment_instructions: speed(instructions, &["segment", "-i", &file])?,
            segment_policies_instructions: speed(instructions, &many)? * f64::from(POLICY_COUNT) / cores,
            port_instructions: speed(instructions, &["port", &file])?,
        })
    };
    (0..rounds).map(|_| round()).collect()
}

/// Geometric means; `None` for no values.
pub fn means(all: impl Iterator<Item = Tools> + Clone) -> Option<Tools> {
    let mean = |value: fn(&Tools) -> f64| geometric_mean(all.clone().map(|own| value(&own)));
    each(mean)
}

/// The best of the rounds; `None` for no rounds.
pub fn best(rounds: &[Tools]) -> Option<Tools> {
    each(|value| rounds.iter().map(value).reduce(f64::max))
}

fn each(mean: impl Fn(fn(&Tools) -> f64) -> Option<f64>) -> Option<Tools> {
    Some(Tools {
        mcftraptor_branches: mean(|own| own.mcftraptor_branches)?,
        mlvcfiat_accesses: mean(|own| own.mlvcfiat_accesses)?,
        segment_instructions: mean(|own| own.segment_instructions)?,
        segment_policies_instructions: mean(|own| own.segment_policies_instructions)?,
        port_instructions: mean(|own| own.port_instructions)?,
    })
}
