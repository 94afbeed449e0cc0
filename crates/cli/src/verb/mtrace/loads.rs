//! mlvCFiat: writes the load values that the cache does not know.

use cache::{FlagCoverage, Geometry, Replacement};
use filter::cfiat::CfiatConfig;
use replay::loads::{HitCounts, Invalidation, ReportedLoad, SIZES};
use replay::{Sharing, loads};
use serde::Serialize;
use trace::{AccessVisitor, Batch, Blocks, DataMode, ThreadId};

use super::files::DescriptorFile;
use super::{InputForm, Run, sharing};
use crate::arguments::mtrace::{AccessedFlags, InvalidatingWriter, LineReplacement, MlvCFiat};
use crate::descriptor::DisassemblyCache;
use crate::descriptor::loads::write;
use crate::digits::percent;
use crate::failure::Failure;

/// The names of operand sizes, other sizes last.
const NAMES: [&str; SIZES.len() + 1] = [
    "Byte Operands",
    "Word Operands",
    "Doubleword Operands",
    "Quadword Operands",
    "Extended Precision Operands",
    "Octaword Operands",
    "Hexaword Operands",
    "Other Sized Operands",
];

pub struct LoadValueTool {
    filter: loads::LoadFilter,
    sharing: Sharing,
}

#[derive(Serialize)]
pub struct Statistics {
    tool: &'static str,
    shared: bool,
    instructions: u64,
    loads: u64,
    stores: u64,
    cache_hits: u64,
    cache_misses: u64,
    cache_miss_percent: f64,
    /// Loads that hit the cache, by their first-access flags.
    first_access_hits: u64,
    first_access_misses: u64,
    /// Of the loads that hit the cache (Myers 2014).
    first_access_miss_percent_of_hits: f64,
    /// Of all loads, those that missed the cache included (Tewar 2015).
    first_access_miss_percent_of_loads: f64,
    without_value: u64,
    #[serde(flatten)]
    run: Run,
}

impl LoadValueTool {
    pub fn new(arguments: &MlvCFiat) -> Result<Self, Failure> {
        let sharing = sharing(arguments.shared, &arguments.interleaving);
        let has = |whose| arguments.invalidate.contains(&whose);
        let invalidation =
            Invalidation { threads: has(InvalidatingWriter::Threads), kernel: has(InvalidatingWriter::Kernel) };
        let filter = Geometry::new(arguments.size, arguments.line, arguments.ways)
            .map(|geometry| loads::LoadSettings {
                cfiat: cfiat_config(arguments, geometry),
                sharing,
                invalidation,
                coherent: false,
            })
            .and_then(|settings| loads::LoadFilter::new(&settings));
        let filter = filter.map_err(|error| Failure::new(error.to_string()))?;
        let filter = if arguments.common.disassemble { filter.with_steps() } else { filter };
        Ok(Self { filter, sharing })
    }
}

fn cfiat_config(arguments: &MlvCFiat, geometry: Geometry) -> CfiatConfig {
    CfiatConfig {
        geometry,
        replacement: match arguments.replacement {
            LineReplacement::RoundRobin => Replacement::RoundRobin,
            LineReplacement::Lru => Replacement::Lru,
        },
        granularity: arguments.granularity,
        cover: match arguments.flags {
            AccessedFlags::Whole => FlagCoverage::Whole,
            AccessedFlags::Touched => FlagCoverage::Touched,
        },
        known_by: arguments.known.criterion(),
    }
}

impl super::Tool for LoadValueTool {
    const NAME: &'static str = "mlvCFiat";
    const DATA: DataMode = DataMode::Values;
    type Statistics = Statistics;

    fn fields(&self) -> &'static str {
        "ThreadID, fahCnt, Load Value"
    }

    fn sharing(&self) -> Sharing {
        self.sharing
    }

    fn batch(&mut self, blocks: &Blocks, batch: &Batch, descriptors: &mut DescriptorFile) {
        self.filter.batch(batch, |load| {
            let block = load.step.and_then(|step| batch.steps().get(step)).map(|step| step.block());
            add(&load, descriptors, |texts| texts.in_block(blocks, block?, load.pc));
        });
    }

    fn input_form(&self) -> InputForm {
        if self.filter.needs_batches() { InputForm::Batches } else { InputForm::Memory }
    }

    fn watch<'t>(&'t mut self, thread: ThreadId, descriptors: &'t mut DescriptorFile) -> impl AccessVisitor + 't {
        self.filter.watch(thread, |load| add(&load, descriptors, |_| None))
    }

    fn instructions(&self) -> u64 {
        self.filter.statistics().instructions
    }

    fn statistics(&self, run: &Run) -> Statistics {
        let counted = self.filter.statistics();
        let (loads, stores) = (counted.all_loads(), counted.all_stores());
        let (cache_hits, cache_misses) =
            (loads.cache_hits + stores.cache_hits, loads.cache_misses + stores.cache_misses);
        Statistics {
            tool: Self::NAME,
            shared: self.sharing != Sharing::Private,
            instructions: counted.instructions,
            loads: loads.references(),
            stores: stores.references(),
            cache_hits,
            cache_misses,
            cache_miss_percent: percent(cache_misses, cache_hits + cache_misses),
            first_access_hits: loads.flag_hits,
            first_access_misses: loads.flag_misses,
            first_access_miss_percent_of_hits: of_hits(&loads),
            first_access_miss_percent_of_loads: of_loads(&loads),
            without_value: counted.without_value,
            run: *run,
        }
    }

    fn text(&self, run: &Run) -> String {
        text(self.filter.statistics(), run)
    }
}

/// Writes a load, perhaps with the disassembly of its instruction.
fn add(
    load: &ReportedLoad<'_>,
    descriptors: &mut DescriptorFile,
    text: impl FnOnce(&mut DisassemblyCache) -> Option<&str>,
) {
    descriptors.add(|shape, texts, lines| {
        write(shape, load.thread, load.hits, load.value, texts.and_then(text), lines);
    });
}

fn of_hits(loads: &HitCounts) -> f64 {
    percent(loads.flag_misses, loads.cache_hits)
}

fn of_loads(loads: &HitCounts) -> f64 {
    percent(loads.flag_misses + loads.cache_misses, loads.references())
}

/// Returns the statistics as in Figure 4.38, and two miss rates.
fn text(counted: &loads::LoadStatistics, run: &Run) -> String {
    let mut text = format!(
        "Instrumentation Time (ms): {:.6}\nInstructions Traced: {}\nSkipped Instructions: {}\n\n",
        run.milliseconds, counted.instructions, run.skipped
    );
    let (loads, stores) = (counted.all_loads(), counted.all_stores());
    text.push_str("-- Cache References Hits: Misses (Hit Rate)\n");
    line(&mut text, "Total", loads.cache_hits + stores.cache_hits, loads.cache_misses + stores.cache_misses);
    for (name, (loads, stores)) in NAMES.iter().zip(counted.loads.iter().zip(&counted.stores)) {
        line(&mut text, name, loads.cache_hits + stores.cache_hits, loads.cache_misses + stores.cache_misses);
    }
    text.push_str("-- First Access Flag References Hits: Misses (Hit Rate)\n");
    line(&mut text, "Total", loads.flag_hits, loads.flag_misses);
    for (name, loads) in NAMES.iter().zip(&counted.loads) {
        line(&mut text, name, loads.flag_hits, loads.flag_misses);
    }
    text.push_str(&format!(
        "-- First Access Miss Rate\n\
         \tOf Loads That Hit the Cache {:.2}%\n\
         \tOf All Loads, Cache Misses Included {:.2}%\n",
        of_hits(&loads),
        of_loads(&loads)
    ));
    if counted.without_value > 0 {
        text.push_str(&format!("-- Left Out: {} Accesses Without a Value\n", counted.without_value));
    }
    text
}

/// Appends a line. The rate is truncated to whole per cent, as in the thesis.
fn line(text: &mut String, name: &str, hits: u64, misses: u64) {
    let rate = (100 * hits).checked_div(hits + misses).unwrap_or(0);
    text.push_str(&format!("\t{name} {hits}:{misses} ({rate}%)\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 4.38, the lines that are not empty.
    #[test]
    fn statistics_are_those_of_the_seed() {
        let mut counted = loads::LoadStatistics { instructions: 27_329_641, ..loads::LoadStatistics::default() };
        let cache = [(177_687, 4534), (7195, 1900), (3_672_973, 3584), (907_307, 13_357), (0, 0), (4210, 88)];
        let flags = [(136_310, 13_283), (5329, 1832), (3_564_260, 5817), (556_745, 16_219), (0, 0), (3095, 21)];
        for (place, ((cache_hits, cache_misses), (flag_hits, flag_misses))) in cache.into_iter().zip(flags).enumerate()
        {
            counted.loads[place] =
                HitCounts { cache_hits: flag_hits + flag_misses, cache_misses, flag_hits, flag_misses };
            counted.stores[place].cache_hits = cache_hits - flag_hits - flag_misses;
        }
        let text = text(&counted, &Run { milliseconds: 5297.71, ..Run::default() });
        let expected = "Instrumentation Time (ms): 5297.710000\n\
            Instructions Traced: 27329641\n\
            Skipped Instructions: 0\n\
            \n\
            -- Cache References Hits: Misses (Hit Rate)\n\
            \tTotal 4769372:23463 (99%)\n\
            \tByte Operands 177687:4534 (97%)\n\
            \tWord Operands 7195:1900 (79%)\n\
            \tDoubleword Operands 3672973:3584 (99%)\n\
            \tQuadword Operands 907307:13357 (98%)\n\
            \tExtended Precision Operands 0:0 (0%)\n\
            \tOctaword Operands 4210:88 (97%)\n\
            \tHexaword Operands 0:0 (0%)\n\
            \tOther Sized Operands 0:0 (0%)\n\
            -- First Access Flag References Hits: Misses (Hit Rate)\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("\tQuadword Operands 556745:16219 (97%)\n\tExtended"), "{text}");
    }
}
