//! Grammars one after the other, so that memory is bounded by a number of runs.

use super::grammar::Grammar;
use super::rules::Rules;

/// A grammar that is returned and begun anew when it is too large.
#[derive(Clone, Debug)]
pub struct BoundedGrammars {
    grammar: Grammar,
    size_limit: usize,
}

impl BoundedGrammars {
    /// Returns an empty grammar that may grow to `size_limit` runs.
    #[must_use]
    pub fn new(size_limit: usize) -> Self {
        Self { grammar: Grammar::new(), size_limit }
    }

    /// Appends a terminal. Returns the rules for everything since the last rules, if they have more
    /// runs than allowed.
    #[inline]
    pub fn push(&mut self, terminal: u32) -> Option<Rules> {
        self.grammar.push(terminal);
        (self.grammar.size() > self.size_limit).then(|| self.grammar.take())
    }

    /// Returns about how many bytes the grammar takes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.grammar.memory()
    }

    /// Returns the rules for the rest, if there is any.
    pub fn finish(&mut self) -> Option<Rules> {
        (self.grammar.length() > 0).then(|| self.grammar.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grammars(limit: usize, terminals: impl Iterator<Item = u32>) -> Vec<Rules> {
        let mut bounded = BoundedGrammars::new(limit);
        let mut rules: Vec<Rules> = terminals.filter_map(|terminal| bounded.push(terminal)).collect();
        rules.extend(bounded.finish());
        assert_eq!(bounded.finish(), None);
        rules
    }

    #[test]
    fn a_grammar_is_cut_by_its_size() {
        let different = || 0..10_000u32;
        let rules = grammars(100, different());
        assert!(rules.iter().flat_map(Rules::terminals).eq(different()));
        assert_eq!(rules.len(), 10_000usize.div_ceil(101));
        assert!(rules.iter().all(|rules| rules.size() <= 101));
    }

    #[test]
    fn a_grammar_is_not_cut_by_the_length_of_the_input() {
        let regular = || (0..1_000_000u32).map(|at| at % 10 % 7);
        let rules = grammars(100, regular());
        assert!(rules.len() == 1 && rules[0].terminals().eq(regular()));
    }
}
