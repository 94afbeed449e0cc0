//! mlsTrace: writes every load and, with -store, every store.

use replay::loads::{SIZES, class_of, for_each_access};
use serde::Serialize;
use trace::{Access, Batch, Blocks, DataMode};

use super::files::DescriptorFile;
use super::{Run, share};
use crate::descriptor::memory::{Descriptor, Fields};

/// The names of operand sizes, other sizes last.
const NAMES: [&str; SIZES.len() + 1] =
    ["Byte", "Word", "Doubleword", "Quadword", "Extended Precision", "Octaword", "Hexaword", "other size"];

type Counts = [u64; SIZES.len() + 1];

pub struct AccessTool {
    fields: Fields,
    instructions: u64,
    loads: Counts,
    stores: Counts,
    without_value: u64,
}

#[derive(Serialize)]
pub struct Statistics {
    tool: &'static str,
    instructions: u64,
    loads: Sizes,
    stores: Option<Sizes>,
    without_value: u64,
    #[serde(flatten)]
    run: Run,
}

/// Operands by their size.
#[derive(Serialize)]
struct Sizes {
    total: u64,
    byte: u64,
    word: u64,
    doubleword: u64,
    quadword: u64,
    extended_precision: u64,
    octaword: u64,
    hexaword: u64,
    other: u64,
}

impl Sizes {
    fn of(counts: &Counts) -> Self {
        let &[byte, word, doubleword, quadword, extended_precision, octaword, hexaword, other] = counts;
        let total = counts.iter().sum();
        Self { total, byte, word, doubleword, quadword, extended_precision, octaword, hexaword, other }
    }
}

impl AccessTool {
    pub fn new(store: bool) -> Self {
        let fields = if store { Fields::All } else { Fields::Loads };
        Self { fields, instructions: 0, loads: Counts::default(), stores: Counts::default(), without_value: 0 }
    }
}

impl super::Tool for AccessTool {
    const NAME: &'static str = "mlsTrace";
    const DATA: DataMode = DataMode::Values;
    type Statistics = Statistics;

    fn fields(&self) -> &'static str {
        match self.fields {
            Fields::All => "ThreadID, Load/Store, Instruction Address, Operand Address, Operand Size, Value",
            Fields::Loads => "ThreadID, Instruction Address, Operand Address, Operand Size, Value",
        }
    }

    fn batch(&mut self, blocks: &Blocks, batch: &Batch, descriptors: &mut DescriptorFile) {
        self.instructions += batch.instructions();
        let has_texts = descriptors.texts.is_some();
        let write = |step: Option<usize>, access: Access| {
            if (access.is_write() && self.fields == Fields::Loads) || descriptors.is_full() {
                return;
            }
            let descriptor = Descriptor::of(batch, &access);
            descriptors.add(|format, texts, lines| {
                let block = step.and_then(|step| batch.steps().get(step)).map(|step| step.block());
                let text = texts.and_then(|texts| texts.in_block(blocks, block?, access.pc()));
                descriptor.write(format, self.fields, text, lines);
            });
            if descriptors.is_full() {
                return;
            }
            let counts = if access.is_write() { &mut self.stores } else { &mut self.loads };
            counts[class_of(access.size())] += 1;
            self.without_value += u64::from(descriptor.value.is_none());
        };
        if has_texts {
            for_each_access(batch, write);
        } else {
            let mut write = write;
            batch.accesses().for_each(|access| write(None, access));
        }
    }

    fn instructions(&self) -> u64 {
        self.instructions
    }

    fn statistics(&self, run: &Run) -> Statistics {
        Statistics {
            tool: Self::NAME,
            instructions: self.instructions,
            loads: Sizes::of(&self.loads),
            stores: (self.fields == Fields::All).then(|| Sizes::of(&self.stores)),
            without_value: self.without_value,
            run: *run,
        }
    }

    /// Returns the statistics as in Figure 4.14.
    fn text(&self, run: &Run) -> String {
        let mut text = format!(
            "Instrumentation Time: {:.2} ms\nNumber of Threads: {}\nTraced {} instructions\nSkipped {} instructions\n",
            run.milliseconds, run.threads, self.instructions, run.skipped
        );
        text.push_str(&operands("Load", &self.loads));
        if self.fields == Fields::All {
            text.push_str(&operands("Store", &self.stores));
        }
        if self.without_value > 0 {
            text.push_str(&format!("Without a value: {}\n", self.without_value));
        }
        text
    }
}

fn operands(kind: &str, counts: &Counts) -> String {
    let total = counts.iter().sum();
    let mut text = format!("Total {kind} Operands: {total}\n");
    let (other, sizes) = NAMES.split_last().unwrap_or((&"", &[]));
    for (name, &count) in sizes.iter().zip(counts) {
        text.push_str(&format!("\t{} {name} Operands\n", share(count, total)));
    }
    text.push_str(&format!("\t{} Operands of {other}\n", share(counts[SIZES.len()], total)));
    text
}

#[cfg(test)]
mod tests {
    use super::super::Tool as _;
    use super::*;

    /// Figure 4.14, loads.
    #[test]
    fn statistics_are_those_of_the_seed() {
        let loads = [125_272, 8284, 1_467_034, 245_226, 0, 837, 0, 0];
        let tool = AccessTool { loads, instructions: 11_636_618, ..AccessTool::new(true) };
        let text = tool.text(&Run { milliseconds: 3838.15, threads: 8, ..Run::default() });
        let expected = "Instrumentation Time: 3838.15 ms\n\
            Number of Threads: 8\n\
            Traced 11636618 instructions\n\
            Skipped 0 instructions\n\
            Total Load Operands: 1846653\n\
            \t125272 ( %6.78 ) Byte Operands\n\
            \t8284 ( %0.45 ) Word Operands\n\
            \t1467034 ( %79.44 ) Doubleword Operands\n\
            \t245226 ( %13.28 ) Quadword Operands\n\
            \t0 ( %0.00 ) Extended Precision Operands\n\
            \t837 ( %0.05 ) Octaword Operands\n\
            \t0 ( %0.00 ) Hexaword Operands\n\
            \t0 ( %0.00 ) Operands of other size\n\
            Total Store Operands: 0\n";
        assert!(text.starts_with(expected), "{text}");
    }
}
