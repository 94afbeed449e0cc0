//! mcfTRaptor: writes the branches that the predictors mispredict.

use filter::traptor::{BranchMessage, CountStart, PredictorSizes, StaticPrediction};
use mtrace::flow;
use predict::{Tagging, Victim};
use replay::Sharing;
use serde::Serialize;
use trace::{Batch, Blocks, DataMode, PathBatch};

use super::files::DescriptorFile;
use super::{InputForm, Run, share, sharing};
use crate::arguments::mtrace::{CountFrom, DefaultOutcome, McfTRaptor, TargetLookup, TargetVictim};
use crate::descriptor::flow::{Layout, write};
use crate::failure::Failure;

pub struct MispredictionTool {
    filter: flow::FlowFilter,
    sharing: Sharing,
    layout: Layout,
}

#[derive(Serialize)]
pub struct Statistics {
    tool: &'static str,
    shared: bool,
    instructions: u64,
    conditional_direct: u64,
    outcomes_predicted: u64,
    outcomes_mispredicted: u64,
    unconditional_indirect: u64,
    targets_predicted: u64,
    targets_mispredicted: u64,
    targets_unknown: u64,
    exceptions: u64,
    gaps: u64,
    #[serde(flatten)]
    run: Run,
}

impl MispredictionTool {
    pub fn new(arguments: &McfTRaptor) -> Result<Self, Failure> {
        let sharing = sharing(arguments.shared, &arguments.interleaving);
        let settings =
            flow::FlowSettings { sizes: sizes(arguments), count_start: counting(arguments.count_from), sharing };
        let filter = flow::FlowFilter::new(&settings).map_err(|error| Failure::new(error.to_string()))?;
        Ok(Self { filter, sharing, layout: arguments.layout })
    }
}

fn sizes(arguments: &McfTRaptor) -> PredictorSizes {
    PredictorSizes {
        gshare: arguments.gshare,
        ras: arguments.ras,
        ibtb: arguments.ibtb,
        tagging: match arguments.ibtb_lookup {
            TargetLookup::Tagged => Tagging::Tagged,
            TargetLookup::Untagged => Tagging::Untagged,
        },
        victim: match arguments.ibtb_victim {
            TargetVictim::Older => Victim::Older,
            TargetVictim::First => Victim::First,
        },
        without_gshare: match arguments.without_gshare {
            DefaultOutcome::NotTaken => StaticPrediction::NotTaken,
            DefaultOutcome::Nothing => StaticPrediction::Absent,
        },
    }
}

fn counting(from: CountFrom) -> CountStart {
    match from {
        CountFrom::One => CountStart::FromOne,
        CountFrom::Two => CountStart::FromTwo,
    }
}

impl super::Tool for MispredictionTool {
    const NAME: &'static str = "mcfTRaptor";
    const DATA: DataMode = DataMode::None;
    type Statistics = Statistics;

    fn fields(&self) -> &'static str {
        "mispredicted outcome: ThreadID, bCnt; mispredicted target: ThreadID, bCnt, T, Target Address; \
         exception: ThreadID, 0, iCnt, Target Address"
    }

    fn sharing(&self) -> Sharing {
        self.sharing
    }

    fn batch(&mut self, blocks: &Blocks, batch: &Batch, descriptors: &mut DescriptorFile) {
        let layout = self.layout;
        self.filter.batch(blocks, batch, |event| add(event, blocks, layout, descriptors));
    }

    /// Shared predictors are used in the order of batches.
    fn input_form(&self) -> InputForm {
        if self.sharing == Sharing::Private { InputForm::PathBatches } else { InputForm::Batches }
    }

    fn path_batch(&mut self, batch: &PathBatch<'_>, descriptors: &mut DescriptorFile) {
        let (layout, blocks) = (self.layout, batch.paths().blocks());
        self.filter.path_batch(batch, |event| add(event, blocks, layout, descriptors));
    }

    fn instructions(&self) -> u64 {
        self.filter.instructions()
    }

    fn statistics(&self, run: &Run) -> Statistics {
        let counted = self.filter.statistics();
        Statistics {
            tool: Self::NAME,
            shared: self.sharing != Sharing::Private,
            instructions: counted.instructions,
            conditional_direct: counted.conditional(),
            outcomes_predicted: counted.outcomes_predicted,
            outcomes_mispredicted: counted.outcomes_mispredicted,
            unconditional_indirect: counted.indirect(),
            targets_predicted: counted.targets_predicted,
            targets_mispredicted: counted.targets_mispredicted,
            targets_unknown: counted.targets_unknown,
            exceptions: counted.exceptions,
            gaps: counted.gaps,
            run: *run,
        }
    }

    fn text(&self, run: &Run) -> String {
        text(&self.filter.statistics(), run)
    }
}

#[inline]
fn add(event: flow::LocatedMessage, blocks: &Blocks, layout: Layout, descriptors: &mut DescriptorFile) {
    descriptors.add(|format, texts, lines| {
        let text = texts.and_then(|texts| match event.message {
            BranchMessage::Exception { .. } => texts.at(blocks, event.address),
            BranchMessage::Outcome { .. } | BranchMessage::Target { .. } => {
                texts.in_block(blocks, event.block, event.address)
            }
        });
        write(format, layout, event.thread, event.message, text, lines);
    });
}

/// Returns the statistics as in Figure 4.23.
fn text(counted: &flow::FlowStatistics, run: &Run) -> String {
    let (conditional, indirect) = (counted.conditional(), counted.indirect());
    let unknown = match counted.targets_unknown {
        0 => String::new(),
        count => format!("\t{} targets unknown: not in the trace\n", share(count, indirect)),
    };
    let mut text = format!(
        "mcfTRaptor: Instrumentation Time {:.2} ms\n\
         mcfTRaptor: Traced {} instructions\n\
         mcfTRaptor: Skipped {} instructions\n\
         mcfTRaptor: Recorded {} direct conditional branches, indirect unconditional branches, and exceptions\n\
         {conditional} conditional direct branches\n\
         \t{} outcomes predicted\n\
         \t{} outcomes mispredicted\n\
         {indirect} unconditional indirect branches\n\
         \t{} targets predicted\n\
         \t{} targets mispredicted\n\
         {unknown}\
         {} exceptions\n",
        run.milliseconds,
        counted.instructions,
        run.skipped,
        counted.branches() + counted.exceptions,
        share(counted.outcomes_predicted, conditional),
        share(counted.outcomes_mispredicted, conditional),
        share(counted.targets_predicted, indirect),
        share(counted.targets_mispredicted, indirect),
        counted.exceptions,
    );
    if counted.gaps > 0 {
        text.push_str(&format!("{} returns from what was not traced, written as exceptions\n", counted.gaps));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 4.23, which does not have the number of instructions.
    #[test]
    fn statistics_are_those_of_the_seed() {
        let counted = flow::FlowStatistics {
            instructions: 7,
            outcomes_predicted: 5_040_574,
            outcomes_mispredicted: 24_223,
            targets_predicted: 56_288,
            targets_mispredicted: 2615,
            targets_unknown: 0,
            exceptions: 0,
            gaps: 0,
        };
        let expected = "mcfTRaptor: Instrumentation Time 6886.79 ms\n\
            mcfTRaptor: Traced 7 instructions\n\
            mcfTRaptor: Skipped 0 instructions\n\
            mcfTRaptor: Recorded 5123700 direct conditional branches, indirect unconditional branches, and exceptions\n\
            5064797 conditional direct branches\n\
            \t5040574 ( %99.52 ) outcomes predicted\n\
            \t24223 ( %0.48 ) outcomes mispredicted\n\
            58903 unconditional indirect branches\n\
            \t56288 ( %95.56 ) targets predicted\n\
            \t2615 ( %4.44 ) targets mispredicted\n\
            0 exceptions\n";
        let run = Run { milliseconds: 6886.79, ..Run::default() };
        assert_eq!(text(&counted, &run), expected);
        let text = text(&flow::FlowStatistics { targets_unknown: 1, ..counted }, &run);
        assert!(text.contains("\n58904 unconditional indirect branches\n"), "{text}");
        assert!(text.contains("mispredicted\n\t1 ( %0.00 ) targets unknown: not in the trace\n0 exc"));
    }
}
