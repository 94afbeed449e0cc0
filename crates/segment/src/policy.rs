//! Policies: when a trace ends (Hadjipavlou 2025, sections 5.2, 5.3 and 6.2).

use thiserror::Error;

use crate::class::Class;

/// Rules for the end of a trace, and the weight of each class of control-flow instructions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    max_instructions: u32,
    max_cfis: u32,
    /// Whether a class is allowed inside a trace; otherwise it ends the trace.
    inside: [bool; Class::COUNT],
    weights: [u32; Class::COUNT],
    learning: Learning,
    keeps_blocks: bool,
    meets_from: Option<u32>,
}

/// What a policy learns about branches while it segments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Learning {
    #[default]
    Nothing,
    /// A trace ends where its probability would fall below this.
    Consistency(f32),
    /// The bias of each branch decides.
    Biases,
}

/// Error: an illegal policy.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum IllegalPolicy {
    #[error("a trace has at least one instruction: 1 to {}", u32::MAX)]
    NoInstructions,
    #[error("a trace has at least one control-flow instruction: 1 to {}", u32::MAX)]
    NoCfis,
    #[error("flags are eleven numbers, 0 or 1, with commas between them, such as 0,1,1,1,1,1,1,1,1,1,1: {0}")]
    Flags(String),
    #[error("consistency is more than 0 and at most 1: {0}")]
    Consistency(f32),
}

/// The thesis's eleven flags, in order. The second was originally that of interrupts.
const FLAGS: [Class; 11] = [
    Class::Syscall,
    Class::ForwardTaken,
    Class::Return,
    Class::DirectCall,
    Class::IndirectCall,
    Class::ForwardNotTaken,
    Class::BackwardTaken,
    Class::DirectJump,
    Class::IndirectConditionalJump,
    Class::IndirectJump,
    Class::BackwardNotTaken,
];

impl Default for Policy {
    /// 32 instructions, 4 control-flow instructions, all classes but system calls and traps allowed
    /// inside; direct jumps have weight 0.
    fn default() -> Self {
        let mut policy = Self {
            max_instructions: 32,
            max_cfis: 4,
            inside: [true; Class::COUNT],
            weights: [1; Class::COUNT],
            learning: Learning::Nothing,
            keeps_blocks: false,
            meets_from: None,
        };
        policy = policy.with(Class::Syscall, false).with(Class::Interrupt, false);
        policy.with_weight(Class::None, 0).with_weight(Class::DirectJump, 0)
    }
}

impl Policy {
    pub fn new(max_instructions: u32, max_cfis: u32) -> Result<Self, IllegalPolicy> {
        match (max_instructions, max_cfis) {
            (0, _) => Err(IllegalPolicy::NoInstructions),
            (_, 0) => Err(IllegalPolicy::NoCfis),
            _ => Ok(Self { max_instructions, max_cfis, ..Self::default() }),
        }
    }

    /// Sets the thesis's flags; 1 allows a class inside. Traps follow the second flag, as in its
    /// tool.
    pub fn with_flags(mut self, text: &str) -> Result<Self, IllegalPolicy> {
        let illegal = || IllegalPolicy::Flags(text.to_owned());
        let flags: Vec<bool> = text
            .split(',')
            .map(|flag| match flag.trim() {
                "0" => Ok(false),
                "1" => Ok(true),
                _ => Err(illegal()),
            })
            .collect::<Result<_, _>>()?;
        if flags.len() != FLAGS.len() {
            return Err(illegal());
        }
        for (class, inside) in FLAGS.into_iter().zip(flags) {
            self = self.with(class, inside);
        }
        let inside = self.is_inside(Class::ForwardTaken);
        Ok(self.with(Class::Interrupt, inside))
    }

    #[must_use]
    pub fn with(mut self, class: Class, inside: bool) -> Self {
        self.inside[class as usize] = inside;
        self
    }

    #[must_use]
    pub fn with_weight(mut self, class: Class, weight: u32) -> Self {
        self.weights[class as usize] = weight;
        self
    }

    /// Ends a trace where its consistency would fall below `least`. Consistency is the product of
    /// the probabilities, as learned so far, that each branch goes as it did (Hadjipavlou 2025,
    /// section 8.3). Returns whose calls are in the trace are certain.
    pub fn with_least_consistency(self, least: f32) -> Result<Self, IllegalPolicy> {
        if least > 0.0 && least <= 1.0 {
            Ok(Self { learning: Learning::Consistency(least), ..self })
        } else {
            Err(IllegalPolicy::Consistency(least))
        }
    }

    /// Restructures traces by the bias of branches. A biased branch is allowed inside and has
    /// weight 0, but ends the trace when it deviates. For all other branches, the classes decide.
    #[must_use]
    pub fn restructuring(self) -> Self {
        Self { learning: Learning::Biases, ..self }
    }

    /// Starts a new trace with a block that does not fit as a whole.
    #[must_use]
    pub fn keeping_blocks(self) -> Self {
        Self { keeps_blocks: true, ..self }
    }

    /// Ends a trace of at least `least` instructions where other traces begin.
    #[must_use]
    pub fn meeting_from(self, least: u32) -> Self {
        Self { meets_from: Some(least), ..self }
    }

    #[must_use]
    pub fn max_instructions(&self) -> u32 {
        self.max_instructions
    }

    #[must_use]
    pub fn max_cfis(&self) -> u32 {
        self.max_cfis
    }

    #[must_use]
    #[inline]
    pub fn learns(&self) -> bool {
        !matches!(self.learning, Learning::Nothing)
    }

    #[must_use]
    pub fn least_consistency(&self) -> Option<f32> {
        if let Learning::Consistency(least) = self.learning { Some(least) } else { None }
    }

    #[must_use]
    pub fn restructures(&self) -> bool {
        self.learning == Learning::Biases
    }

    #[must_use]
    #[inline]
    pub fn keeps_blocks(&self) -> bool {
        self.keeps_blocks
    }

    #[must_use]
    #[inline]
    pub fn meets_from(&self) -> Option<u32> {
        self.meets_from
    }

    #[must_use]
    #[inline]
    pub fn is_inside(&self, class: Class) -> bool {
        self.inside[class as usize]
    }

    #[must_use]
    #[inline]
    pub fn weight(&self, class: Class) -> u32 {
        self.weights[class as usize]
    }

    /// Returns whether a class has its default weight.
    #[must_use]
    pub fn has_usual_weight(&self, class: Class) -> bool {
        self.weight(class) == Self::default().weight(class)
    }

    /// Returns the flags as the thesis writes them, without commas.
    #[must_use]
    pub fn flags(&self) -> String {
        FLAGS.map(|class| if self.is_inside(class) { '1' } else { '0' }).iter().collect()
    }

    /// Describes all rules apart from limits, flags and weights.
    #[must_use]
    pub fn rules(&self) -> String {
        let learning = match self.learning {
            Learning::Nothing => None,
            Learning::Consistency(least) => Some(format!("consistency {least}")),
            Learning::Biases => Some("restructure".to_owned()),
        };
        let blocks = self.keeps_blocks.then(|| "keep blocks".to_owned());
        let meets = self.meets_from.map(|least| format!("meet {least}"));
        learning.into_iter().chain(blocks).chain(meets).collect::<Vec<_>>().join(", ")
    }

    /// Returns the 32 policies of the first experiment: returns, direct calls, indirect calls,
    /// direct conditional jumps and indirect jumps inside or not; everything else is unchanged.
    #[must_use]
    pub fn first_experiment(self) -> Vec<Self> {
        let make = |bits: u32| {
            let bit = |index: u32| bits >> (4 - index) & 1 == 1;
            let policy = self
                .with(Class::Return, bit(0))
                .with(Class::DirectCall, bit(1))
                .with(Class::IndirectCall, bit(2))
                .with(Class::IndirectJump, bit(4));
            Class::CONDITIONAL.into_iter().fold(policy, |policy, class| policy.with(class, bit(3)))
        };
        (0..32).map(make).collect()
    }

    /// Allows 255 instructions, as in the second experiment.
    #[must_use]
    pub fn long(self) -> Self {
        Self { max_instructions: 255, ..self }
    }

    /// Allows direct conditional jumps inside with weight 2, as in the third experiment.
    #[must_use]
    pub fn two_conditional_jumps(self) -> Self {
        Class::CONDITIONAL.into_iter().fold(self, |policy, class| policy.with(class, true).with_weight(class, 2))
    }

    /// Returns the 16 policies of the fourth experiment: each kind of direct conditional jump
    /// inside or not; everything else is unchanged.
    #[must_use]
    pub fn fourth_experiment(self) -> Vec<Self> {
        let make = |bits: u32| {
            let each = Class::CONDITIONAL.into_iter().enumerate();
            each.fold(self, |policy, (index, class)| policy.with(class, bits >> (3 - index) & 1 == 1))
        };
        (0..16).map(make).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags() {
        let policy = Policy::new(64, 8).unwrap().with_flags("1,0,1,1,0,1,1,1,0,0,1").unwrap();
        assert_eq!(policy.flags(), "10110111001");
        assert!(policy.is_inside(Class::Syscall) && !policy.is_inside(Class::ForwardTaken));
        assert!(!policy.is_inside(Class::IndirectCall) && policy.is_inside(Class::BackwardNotTaken));
        for wrong in ["", "1,0", "1,0,1,1,0,1,1,1,0,0,2", "1,0,1,1,0,1,1,1,0,0,1,1", "10110111001"] {
            assert!(matches!(Policy::default().with_flags(wrong), Err(IllegalPolicy::Flags(_))), "{wrong}");
        }
        assert_eq!(Policy::new(0, 1), Err(IllegalPolicy::NoInstructions));
        assert_eq!(Policy::new(1, 0), Err(IllegalPolicy::NoCfis));
    }

    #[test]
    fn experiments_have_different_policies() {
        for policies in [Policy::default().first_experiment(), Policy::default().fourth_experiment()] {
            for (index, policy) in policies.iter().enumerate() {
                assert!(policies[..index].iter().all(|before| before != policy));
                assert!(!policy.is_inside(Class::Syscall) && policy.weight(Class::DirectJump) == 0);
            }
        }
        assert_eq!(Policy::default().two_conditional_jumps().weight(Class::BackwardTaken), 2);
    }
}
