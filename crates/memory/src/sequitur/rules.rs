//! A finished grammar: its rules as runs, the terminals that they generate, and their form in
//! bytes.
//!
//! A rule uses earlier rules only, and the start rule is the last one. So a grammar that is read
//! from bytes has no cycle, whatever the bytes are.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::borrow::Borrow;

use crate::FormatError;
use codec::bytes::{ByteReader, put_varint};

/// A terminal or the number of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarSymbol {
    Terminal(u32),
    Rule(u32),
}

/// A symbol and how often it is repeated, at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolRun {
    pub symbol: GrammarSymbol,
    pub count: u64,
}

/// The rules of a grammar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The runs of all rules, one behind the other.
    runs: Vec<SymbolRun>,
    rules: Vec<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    /// Where its runs end.
    end: usize,
    /// The number of its terminals.
    length: u64,
}

impl Rules {
    #[must_use]
    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// Returns the number of runs in all rules.
    #[must_use]
    pub fn size(&self) -> usize {
        self.runs.len()
    }

    /// Returns the number of terminals that the start rule generates.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.rules.last().map_or(0, |start| start.length)
    }

    /// Returns the runs of a rule, by its number.
    #[must_use]
    pub fn rule(&self, rule: usize) -> Option<&[SymbolRun]> {
        self.range(rule).and_then(|range| self.runs.get(range))
    }

    fn range(&self, rule: usize) -> Option<std::ops::Range<usize>> {
        let start = rule.checked_sub(1).and_then(|before| self.rules.get(before)).map_or(0, |before| before.end);
        self.rules.get(rule).map(|rule| start..rule.end)
    }

    /// Returns the rules by their numbers, the start rule last.
    pub fn iter(&self) -> impl Iterator<Item = &[SymbolRun]> {
        (0..self.rules.len()).map_while(|rule| self.rule(rule))
    }

    /// Generates the terminals.
    #[must_use]
    pub fn terminals(&self) -> Terminals<&Self> {
        Terminals { runs: self.terminal_runs(), terminal: 0, repeats: 0, left: self.length() }
    }

    /// Generates the terminals in runs. A run may have the same terminal as the one before it.
    #[must_use]
    pub fn terminal_runs(&self) -> TerminalRuns<&Self> {
        TerminalRuns::new(self)
    }

    /// As [`Self::terminal_runs`], with the rules in it.
    #[must_use]
    pub fn into_terminal_runs(self) -> TerminalRuns<Self> {
        TerminalRuns::new(self)
    }

    /// Returns rules that generate those terminals for which `is_wanted` returns true, in their
    /// order. A rule that generates none of them is empty, and no other rule uses it.
    #[must_use]
    pub fn filtered(&self, is_wanted: impl Fn(u32) -> bool) -> Self {
        let mut filtered = Self::default();
        for runs in self.iter() {
            let mut wanted = runs.to_vec();
            wanted.retain(|run| filtered.generates(run.symbol, &is_wanted));
            // `None` stands for an empty rule: fewer terminals than before can be counted.
            let _ = filtered.add_rule(wanted.into_iter());
        }
        filtered
    }

    /// Returns whether a symbol generates any terminal that is wanted.
    fn generates(&self, symbol: GrammarSymbol, is_wanted: impl Fn(u32) -> bool) -> bool {
        match symbol {
            GrammarSymbol::Terminal(terminal) => is_wanted(terminal),
            GrammarSymbol::Rule(rule) => self.rules.get(rule as usize).is_some_and(|rule| rule.length > 0),
        }
    }

    /// Adds a rule, which may use the rules before it. Returns `None` if it is empty, uses others
    /// or generates more terminals than a number can count.
    pub(super) fn add_rule(&mut self, runs: impl Iterator<Item = SymbolRun>) -> Option<()> {
        let mut length = 0u64;
        for run in runs {
            let (symbol, one) = match run.symbol {
                GrammarSymbol::Terminal(_) => (run.symbol, 1),
                GrammarSymbol::Rule(rule) => (self.resolved(rule), self.rules.get(rule as usize)?.length),
            };
            length = length.checked_add(one.checked_mul(run.count)?)?;
            self.runs.push(SymbolRun { symbol, count: run.count });
        }
        self.rules.push(Rule { end: self.runs.len(), length });
        (length > 0).then_some(())
    }

    /// Returns what a rule stands for: its only symbol if it has no other. So every rule that is
    /// entered generates several terminals, and a chain of names does not make each of them slow.
    fn resolved(&self, rule: u32) -> GrammarSymbol {
        match self.rule(rule as usize) {
            Some(&[SymbolRun { symbol, count: 1 }]) => symbol,
            _ => GrammarSymbol::Rule(rule),
        }
    }

    /// Appends the rules in their form as bytes: the number of rules, and for each rule the number
    /// of its runs and the runs. A run is a varint and, if its count is not one, a second one. The
    /// lowest bit says that the symbol is a rule, the next one that there is a count. A rule is
    /// stored as the distance to the rule that uses it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.rules.len() as u64);
        for (number, runs) in self.iter().enumerate() {
            put_varint(out, runs.len() as u64);
            runs.iter().for_each(|run| put_run(out, run, number as u64));
        }
    }

    /// Reads rules that [`Self::encode`] has written, up to the end of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        read_rules(bytes).ok_or(FormatError("grammar"))
    }
}

const IS_RULE: u64 = 1;
const HAS_COUNT: u64 = 2;
const FLAG_BITS: u32 = 2;

fn put_run(out: &mut Vec<u8>, run: &SymbolRun, rule: u64) {
    let (number, is_rule) = match run.symbol {
        GrammarSymbol::Terminal(terminal) => (terminal.into(), 0),
        GrammarSymbol::Rule(used) => (rule - 1 - u64::from(used), IS_RULE),
    };
    let has_count = if run.count > 1 { HAS_COUNT } else { 0 };
    put_varint(out, number << FLAG_BITS | has_count | is_rule);
    if run.count > 1 {
        put_varint(out, run.count - 2);
    }
}

fn read_rules(bytes: &[u8]) -> Option<Rules> {
    let mut bytes = ByteReader::new(bytes);
    let mut rules = Rules::default();
    for rule in 0..bytes.varint()? {
        let mut unread = bytes.varint()?;
        let mut is_whole = true;
        let runs = std::iter::from_fn(|| {
            unread = unread.checked_sub(1)?;
            let run = read_run(&mut bytes, rule);
            is_whole = run.is_some();
            run
        });
        rules.add_rule(runs)?;
        is_whole.then_some(())?;
    }
    bytes.is_empty().then_some(rules)
}

fn read_run(bytes: &mut ByteReader<'_>, rule: u64) -> Option<SymbolRun> {
    let first = bytes.varint()?;
    let number = first >> FLAG_BITS;
    let symbol = if first & IS_RULE == 0 {
        GrammarSymbol::Terminal(number.try_into().ok()?)
    } else {
        GrammarSymbol::Rule(rule.checked_sub(number)?.checked_sub(1)?.try_into().ok()?)
    };
    let count = if first & HAS_COUNT == 0 { 1 } else { bytes.varint()?.checked_add(2)? };
    Some(SymbolRun { symbol, count })
}

/// The terminals of a grammar with their numbers of repetitions.
#[derive(Clone, Debug)]
pub struct TerminalRuns<R = Rules> {
    rules: R,
    /// The rules around the position, the outermost first.
    open: Vec<OpenRule>,
}

#[derive(Clone, Debug)]
struct OpenRule {
    /// Its runs.
    range: std::ops::Range<usize>,
    next: usize,
    /// How often it comes again.
    repeats: u64,
}

impl<R: Borrow<Rules>> Iterator for TerminalRuns<R> {
    type Item = (u32, u64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let open = self.open.last_mut()?;
            if let Some(run) = self.rules.borrow().runs.get(open.next).filter(|_| open.next < open.range.end) {
                open.next += 1;
                match run.symbol {
                    GrammarSymbol::Terminal(terminal) => return Some((terminal, run.count)),
                    GrammarSymbol::Rule(rule) => self.enter(rule as usize, run.count - 1)?,
                }
            } else if open.repeats > 0 {
                open.repeats -= 1;
                open.next = open.range.start;
            } else {
                self.open.pop();
            }
        }
    }
}

impl<R: Borrow<Rules>> TerminalRuns<R> {
    fn new(rules: R) -> Self {
        let all: &Rules = rules.borrow();
        let start = all.range(all.rules.len().wrapping_sub(1));
        let open = start.map(|range| OpenRule { range: range.clone(), next: range.start, repeats: 0 });
        Self { rules, open: open.into_iter().collect() }
    }

    fn enter(&mut self, rule: usize, repeats: u64) -> Option<()> {
        let range = self.rules.borrow().range(rule)?;
        self.open.push(OpenRule { next: range.start, range, repeats });
        Some(())
    }
}

/// The terminals of a grammar.
#[derive(Clone, Debug)]
pub struct Terminals<R = Rules> {
    runs: TerminalRuns<R>,
    terminal: u32,
    /// How often the terminal comes again.
    repeats: u64,
    /// How many terminals follow.
    left: u64,
}

impl<R: Borrow<Rules>> Iterator for Terminals<R> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.repeats == 0 {
            (self.terminal, self.repeats) = self.runs.next()?;
        }
        self.repeats -= 1;
        self.left -= 1;
        Some(self.terminal)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left);
        (left.unwrap_or(usize::MAX), left.ok())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns bytes of rules, each given as its runs: number, flags, and perhaps a count.
    fn bytes(rules: &[&[&[u64]]]) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, rules.len() as u64);
        for runs in rules {
            put_varint(&mut out, runs.len() as u64);
            runs.iter().for_each(|run| {
                put_varint(&mut out, run[0] << FLAG_BITS | run[1]);
                run[2..].iter().for_each(|&count| put_varint(&mut out, count));
            });
        }
        out
    }

    #[test]
    fn impossible_rules_are_refused() {
        assert_eq!(Rules::decode(&bytes(&[])), Ok(Rules::default()));
        assert!(Rules::decode(&bytes(&[&[&[7, 0]], &[&[0, IS_RULE]]])).is_ok());
        let refused: [&[&[&[u64]]]; 5] = [
            // No runs.
            &[&[]],
            // A rule that uses itself, one that uses a later one, a terminal that is too large.
            &[&[&[0, IS_RULE]]],
            &[&[&[7, 0]], &[&[1, IS_RULE]]],
            &[&[&[1 << 32, 0]]],
            // More terminals than 64 bits count.
            &[&[&[7, HAS_COUNT, 1 << 40]], &[&[0, IS_RULE | HAS_COUNT, 1 << 40]]],
        ];
        for rules in refused {
            assert_eq!(Rules::decode(&bytes(rules)), Err(FormatError("grammar")), "{rules:?}");
        }
        let whole = bytes(&[&[&[7, HAS_COUNT, 3], &[8, 0]]]);
        assert!((0..whole.len()).all(|end| Rules::decode(&whole[..end]).is_err()));
        assert!(Rules::decode(&[&whole[..], &[0]].concat()).is_err());
        assert!(Rules::decode(&[0xff; 9]).is_err());
    }

    /// Returns a rule for the terminal 7, and as many equal rules behind it.
    fn chain(rule: &[&[u64]], count: usize) -> Rules {
        let first: &[&[u64]] = &[&[7, 0]];
        Rules::decode(&bytes(&[vec![first], vec![rule; count]].concat())).unwrap()
    }

    #[test]
    fn terminals_are_generated_lazily() {
        let rules = chain(&[&[0, IS_RULE | HAS_COUNT, 0]], 62);
        assert_eq!((rules.length(), rules.size()), (1 << 62, 63));
        assert!(rules.terminals().take(1000).eq([7; 1000]));
        assert_eq!(rules.terminals().size_hint(), (1 << 62, Some(1 << 62)));
    }

    #[test]
    fn a_chain_of_rules_is_no_recursion() {
        assert!(chain(&[&[0, IS_RULE]], 100_000).terminals().eq([7]));
        assert!(chain(&[&[0, IS_RULE], &[8, 0]], 100_000).terminals().skip(1).eq(std::iter::repeat_n(8, 100_000)));
    }

    #[test]
    fn another_name_of_a_rule_costs_nothing() {
        let rules = chain(&[&[0, IS_RULE]], 3);
        assert_eq!(rules.rule(3), Some(&[SymbolRun { symbol: GrammarSymbol::Terminal(7), count: 1 }][..]));
    }

    #[test]
    fn filtered_rules_generate_the_wanted_terminals_only() {
        // A = 7 8, B = 8⁵, S = A³ B 9.
        let rules = Rules::decode(&bytes(&[
            &[&[7, 0], &[8, 0]],
            &[&[8, HAS_COUNT, 3]],
            &[&[1, IS_RULE | HAS_COUNT, 1], &[0, IS_RULE], &[9, 0]],
        ]));
        let rules = rules.unwrap();
        assert_eq!(rules.filtered(|_| true), rules);
        let (odd, none) = (rules.filtered(|terminal| terminal % 2 == 1), rules.filtered(|_| false));
        assert!(odd.terminals().eq([7, 7, 7, 9]) && odd.length() == 4);
        assert!(none.terminals().eq([]) && none.length() == 0);
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(0u8..20, 0..50)) {
            if let Ok(rules) = Rules::decode(&bytes) {
                let generated = rules.terminals().take(10_000).count() as u64;
                prop_assert_eq!(generated, rules.length().min(10_000));
                let mut out = Vec::new();
                rules.encode(&mut out);
                prop_assert_eq!(Rules::decode(&out), Ok(rules));
            }
        }
    }
}
