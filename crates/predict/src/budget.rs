//! Storage budgets of the tagged predictors.

/// Storage of [`crate::Tage`] and [`crate::Ittage`]; their `storage_bits` give the exact number of
/// bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Budget {
    /// About 4 KB for outcomes and 1 KB for targets.
    Small,
    /// About 16 KB and 4 KB.
    #[default]
    Medium,
    /// About 64 KB and 16 KB.
    Large,
}
