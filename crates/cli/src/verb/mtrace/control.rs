//! mcfTrace: writes every control transfer.

use serde::Serialize;
use trace::{Batch, Blocks, DataMode};

use super::files::DescriptorFile;
use super::{Run, share};
use crate::descriptor::control::{Class, Descriptor};

#[derive(Default)]
pub struct BranchTool {
    instructions: u64,
    /// Indexed by class.
    branches: [u64; 4],
}

#[derive(Serialize)]
pub struct Statistics {
    tool: &'static str,
    instructions: u64,
    branches: u64,
    unconditional_direct: u64,
    conditional_direct_taken: u64,
    conditional_direct_not_taken: u64,
    unconditional_indirect: u64,
    #[serde(flatten)]
    run: Run,
}

impl BranchTool {
    fn of(&self, class: Class) -> u64 {
        self.branches[class as usize]
    }
}

impl super::Tool for BranchTool {
    const NAME: &'static str = "mcfTrace";
    const DATA: DataMode = DataMode::None;
    type Statistics = Statistics;

    fn fields(&self) -> &'static str {
        "ThreadID, Instruction Address, Target Address, Type&Outcome"
    }

    fn batch(&mut self, blocks: &Blocks, batch: &Batch, descriptors: &mut DescriptorFile) {
        for step in batch.steps() {
            self.instructions += u64::from(step.instructions());
            let Some(block) = blocks.get(step.block()) else { continue };
            let Some(descriptor) = Descriptor::of(batch.thread(), step, &block) else { continue };
            descriptors.add(|format, texts, lines| {
                let text = texts.and_then(|texts| texts.last(blocks, step.block()));
                descriptor.write(format, text, lines);
            });
            if descriptors.is_full() {
                return;
            }
            self.branches[descriptor.class as usize] += 1;
        }
    }

    fn instructions(&self) -> u64 {
        self.instructions
    }

    fn statistics(&self, run: &Run) -> Statistics {
        Statistics {
            tool: Self::NAME,
            instructions: self.instructions,
            branches: self.branches.iter().sum(),
            unconditional_direct: self.of(Class::UnconditionalDirect),
            conditional_direct_taken: self.of(Class::ConditionalTaken),
            conditional_direct_not_taken: self.of(Class::ConditionalNotTaken),
            unconditional_indirect: self.of(Class::UnconditionalIndirect),
            run: *run,
        }
    }

    /// Returns the statistics as in Figure 4.3.
    fn text(&self, run: &Run) -> String {
        let all = self.branches.iter().sum();
        let line = |class| share(self.of(class), all);
        format!(
            "mcfTrace: Traced {} instructions\n\
             mcfTrace: Skipped {} instructions\n\
             mcfTrace: Recorded {all} control transfer instructions.\n\
             \t{} Unconditional Direct\n\
             \t{} Conditional Direct Taken\n\
             \t{} Conditional Direct Not Taken\n\
             \t{} Unconditional Indirect\n",
            self.instructions,
            run.skipped,
            line(Class::UnconditionalDirect),
            line(Class::ConditionalTaken),
            line(Class::ConditionalNotTaken),
            line(Class::UnconditionalIndirect),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tool as _;
    use super::*;

    /// Figure 4.3.
    #[test]
    fn statistics_are_those_of_the_seed() {
        let tool = BranchTool { instructions: 1_000_000, branches: [3733, 4968, 129_517, 131_116] };
        let text = tool.text(&Run { skipped: 3_000_000, ..Run::default() });
        let expected = "mcfTrace: Traced 1000000 instructions\n\
            mcfTrace: Skipped 3000000 instructions\n\
            mcfTrace: Recorded 269334 control transfer instructions.\n\
            \t4968 ( %1.84 ) Unconditional Direct\n\
            \t129517 ( %48.09 ) Conditional Direct Taken\n\
            \t131116 ( %48.68 ) Conditional Direct Not Taken\n\
            \t3733 ( %1.39 ) Unconditional Indirect\n";
        assert_eq!(text, expected);
    }
}
