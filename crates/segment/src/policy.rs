//! When a trace ends (Hadjipavlou 2025, sections 5.2, 5.3 and 6.2).

use thiserror::Error;

use crate::class::Class;

/// When a trace ends, and how much each class of control-flow instructions counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    max_instructions: u32,
    max_cfis: u32,
    /// Whether a class may stand inside a trace; otherwise it is the last of it.
    inside: [bool; Class::COUNT],
    weights: [u32; Class::COUNT],
    learning: Learning,
    keeps_blocks: bool,
    meets_from: Option<u32>,
}

/// What is learned of branches while traces are made, and used for those that come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Learning {
    #[default]
    Nothing,
    /// A trace ends where it would become less probable than this.
    Consistency(f32),
    /// Each branch is judged by itself.
    Habits,
}

/// A policy that makes no traces.
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

/// The thesis's eleven flags, in order. The second was once that of interrupts.
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
    /// 32 instructions, 4 control-flow instructions, everything but system calls and traps inside; direct jumps do not count.
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

    /// Takes the thesis's flags, 1 for what may stand inside. Traps go with the second, as in its tool.
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

    /// A trace ends where its consistency would fall below `least`: the product of how probable it is, as far as has been seen, that each of its branches goes as it
    /// did (Hadjipavlou 2025, section 8.3). Returns whose calls are in the trace are certain.
    pub fn with_least_consistency(self, least: f32) -> Result<Self, IllegalPolicy> {
        if least > 0.0 && least <= 1.0 {
            Ok(Self { learning: Learning::Consistency(least), ..self })
        } else {
            Err(IllegalPolicy::Consistency(least))
        }
    }

    /// Traces are made anew as branches become known: one that mostly goes the same way stands inside and does not count, and ends the trace when it goes another way. Of
    /// others, and of those that were not seen often enough yet, the classes decide.
    #[must_use]
    pub fn restructuring(self) -> Self {
        Self { learning: Learning::Habits, ..self }
    }

    /// A block that does not fit as a whole begins the next trace.
    #[must_use]
    pub fn keeping_blocks(self) -> Self {
        Self { keeps_blocks: true, ..self }
    }

    /// A trace of at least so many instructions ends where other traces begin.
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
        self.learning == Learning::Habits
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

    /// Whether a class counts as much as it does unless told.
    #[must_use]
    pub fn has_usual_weight(&self, class: Class) -> bool {
        self.weight(class) == Self::default().weight(class)
    }

    /// The flags as the thesis writes them, without commas.
    #[must_use]
    pub fn flags(&self) -> String {
        FLAGS.map(|class| if self.is_inside(class) { '1' } else { '0' }).iter().collect()
    }

    /// What it has beside limits, flags and weights, in words.
    #[must_use]
    pub fn rules(&self) -> String {
        let learning = match self.learning {
            Learning::Nothing => None,
            Learning::Consistency(least) => Some(format!("consistency {least}")),
            Learning::Habits => Some("restructure".to_owned()),
        };
        let blocks = self.keeps_blocks.then(|| "keep blocks".to_owned());
        let meets = self.meets_from.map(|least| format!("meet {least}"));
        learning.into_iter().chain(blocks).chain(meets).collect::<Vec<_>>().join(", ")
    }

    /// The 32 of the first experiment: returns, direct calls, indirect calls, direct conditional jumps and indirect jumps inside or not, everything else as it is.
    #[must_use]
    pub fn first_experiment(self) -> Vec<Self> {
        let make = |bits: u32| {
            let bit = |place: u32| bits >> (4 - place) & 1 == 1;
            let policy = self
                .with(Class::Return, bit(0))
                .with(Class::DirectCall, bit(1))
                .with(Class::IndirectCall, bit(2))
                .with(Class::IndirectJump, bit(4));
            Class::CONDITIONAL.into_iter().fold(policy, |policy, class| policy.with(class, bit(3)))
        };
        (0..32).map(make).collect()
    }

    /// With up to 255 instructions, as in the second experiment.
    #[must_use]
    pub fn long(self) -> Self {
        Self { max_instructions: 255, ..self }
    }

    /// With direct conditional jumps inside, each counting twice, as in the third experiment.
    #[must_use]
    pub fn two_conditional_jumps(self) -> Self {
        Class::CONDITIONAL.into_iter().fold(self, |policy, class| policy.with(class, true).with_weight(class, 2))
    }

    /// The 16 of the fourth experiment: each kind of direct conditional jump inside or not, everything else as it is.
    #[must_use]
    pub fn fourth_experiment(self) -> Vec<Self> {
        let make = |bits: u32| {
            let each = Class::CONDITIONAL.into_iter().enumerate();
            each.fold(self, |policy, (place, class)| policy.with(class, bits >> (3 - place) & 1 == 1))
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
            for (place, policy) in policies.iter().enumerate() {
                assert!(policies[..place].iter().all(|before| before != policy));
                assert!(!policy.is_inside(Class::Syscall) && policy.weight(Class::DirectJump) == 0);
            }
        }
        assert_eq!(Policy::default().two_conditional_jumps().weight(Class::BackwardTaken), 2);
    }
}
