//! Bias of branches: the target that each branch usually takes, and how often. A
//! [`crate::Segmenter`] whose policy learns asks [`BranchBiases`] about each branch and updates it.

use trace::{AppPc, BlockIndex};

/// Recent targets of a branch. Counts are halved regularly, so that old executions count less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BranchBias {
    /// Recent targets and their counts, out of `executions`. A branch with more targets than
    /// entries has no frequent target.
    targets: [(AppPc, u16); 4],
    executions: u16,
    is_biased: bool,
}

/// Prediction from the bias of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BiasPrediction {
    /// Too few executions.
    Unknown,
    /// The branch mostly takes one target; `follows_bias` says whether it does so now.
    Biased {
        follows_bias: bool,
    },
    Unbiased,
}

/// Executions below which a branch has no bias.
const EXECUTIONS_MIN: u16 = 16;
/// Executions at which counts are halved.
const EXECUTIONS_MAX: u16 = 1024;

impl BranchBias {
    fn record(&mut self, next: AppPc) {
        if self.executions == EXECUTIONS_MAX {
            self.executions /= 2;
            self.targets.iter_mut().for_each(|(_, times)| *times /= 2);
        }
        self.executions += 1;
        match self.targets.iter_mut().find(|(target, times)| *target == next && *times > 0) {
            Some((_, times)) => *times += 1,
            None => {
                let rarest = self.targets.iter_mut().min_by_key(|(_, times)| *times).expect("there are four");
                *rarest = (next, 1);
            }
        }
    }

    fn times(&self, next: AppPc) -> u16 {
        self.targets.iter().filter(|(target, _)| *target == next).map(|&(_, times)| times).sum()
    }

    /// Returns the most frequent target and its count.
    fn most_frequent(&self) -> (AppPc, u16) {
        self.targets.iter().copied().max_by_key(|&(_, times)| times).unwrap_or_default()
    }

    /// Returns the estimated probability of `next`: one extra execution for each of two targets
    /// keeps it off certainty.
    fn probability(&self, next: AppPc) -> f32 {
        (f32::from(self.times(next)) + 1.0) / (f32::from(self.executions) + 2.0)
    }

    /// Updates the bias. Returns whether it changed. A biased branch stays biased until it clearly
    /// deviates.
    fn update_bias(&mut self) -> bool {
        let (times, executions) = (u32::from(self.most_frequent().1), u32::from(self.executions));
        let is_biased = if self.is_biased { times * 8 >= executions * 7 } else { times * 16 >= executions * 15 };
        let is_biased = is_biased && self.executions >= EXECUTIONS_MIN;
        std::mem::replace(&mut self.is_biased, is_biased) != is_biased
    }
}

/// Biases of all branches, indexed by the block that they end.
#[derive(Clone, Debug, Default)]
pub struct BranchBiases {
    biases: Vec<BranchBias>,
    changes: u64,
}

impl BranchBiases {
    #[inline]
    fn of(&mut self, block: BlockIndex) -> &mut BranchBias {
        let index = block.0 as usize;
        if index >= self.biases.len() {
            self.biases.resize(index + 1, BranchBias::default());
        }
        &mut self.biases[index]
    }

    /// Returns the probability, before this execution, that the branch at the end of `block` goes
    /// to `next`; then records the execution.
    pub fn probability(&mut self, block: BlockIndex, next: AppPc) -> f32 {
        let bias = self.of(block);
        let probability = bias.probability(next);
        bias.record(next);
        probability
    }

    /// Returns the prediction for the branch at the end of `block`; then records that it goes to
    /// `next`.
    pub fn predict_bias(&mut self, block: BlockIndex, next: AppPc) -> BiasPrediction {
        let bias = self.of(block);
        let before = *bias;
        bias.record(next);
        let changed = bias.update_bias();
        self.changes += u64::from(changed);
        match before {
            BranchBias { executions, .. } if executions < EXECUTIONS_MIN => BiasPrediction::Unknown,
            BranchBias { is_biased: true, .. } => {
                BiasPrediction::Biased { follows_bias: before.most_frequent().0 == next }
            }
            _ => BiasPrediction::Unbiased,
        }
    }

    /// Returns how often a branch became biased or unbiased.
    pub fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_learned() {
        let mut biases = BranchBiases::default();
        assert_eq!(biases.probability(BlockIndex(7), AppPc::new(0x10)), 0.5, "unknown");
        let known: Vec<f32> = (0..1000).map(|_| biases.probability(BlockIndex(7), AppPc::new(0x10))).collect();
        assert!(known.is_sorted() && known[999] > 0.99);
        assert!(biases.probability(BlockIndex(7), AppPc::new(0x20)) < 0.01);
        // Both targets of a branch are counted exactly.
        (0..50).for_each(|time| {
            assert!(biases.probability(BlockIndex(8), AppPc::new(if time % 5 == 0 { 0x10 } else { 0x20 })) > 0.0)
        });
        assert_eq!(
            [0x10, 0x20].map(|next| biases.of(BlockIndex(8)).probability(AppPc::new(next))),
            [11.0 / 52.0, 41.0 / 52.0]
        );
        // None of many targets is probable.
        let known: Vec<f32> = (0..1000).map(|time| biases.probability(BlockIndex(9), AppPc::new(time % 64))).collect();
        assert!(known[100..].iter().all(|&known| known < 0.04));
    }

    #[test]
    fn a_branch_that_deviates_is_no_longer_biased() {
        let mut biases = BranchBiases::default();
        let predictions: Vec<BiasPrediction> =
            (0..40).map(|_| biases.predict_bias(BlockIndex(1), AppPc::new(0x10))).collect();
        assert_eq!(predictions[15], BiasPrediction::Unknown);
        assert_eq!(predictions[39], BiasPrediction::Biased { follows_bias: true });
        assert_eq!(
            biases.predict_bias(BlockIndex(1), AppPc::new(0x20)),
            BiasPrediction::Biased { follows_bias: false }
        );
        let predictions: Vec<BiasPrediction> =
            (0..40).map(|_| biases.predict_bias(BlockIndex(1), AppPc::new(0x20))).collect();
        assert!(predictions.contains(&BiasPrediction::Unbiased));
        assert_eq!(biases.changes(), 2);
        // After some time it has a new bias.
        let predictions = (0..3000).map(|_| biases.predict_bias(BlockIndex(1), AppPc::new(0x20))).last();
        assert_eq!(predictions, Some(BiasPrediction::Biased { follows_bias: true }));
        assert_eq!(biases.changes(), 3);
    }
}
