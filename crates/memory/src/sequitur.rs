//! SEQUITUR (Nevill-Manning and Witten 1997): a context-free grammar that generates exactly the
//! symbols that were pushed, built in one pass and in linear time. METRIC compresses the order of
//! the access points with it (section 3.1).
//!
//! A *terminal* is a number that the user pushes. A *rule* stands for a sequence of symbols; the
//! *start rule* stands for all of them. A symbol has a *count*, its number of repetitions: a *run*
//! is a symbol with its count. A *digram* is a pair of adjacent runs. The digram of the last two
//! runs of the start rule is *open*: its second run can still grow.
//!
//! [`Grammar`] keeps these invariants after every push:
//!
//! 1. Adjacent runs have different symbols. This is the invariant of runs. It takes the place of
//!    the published exception for overlapping digrams, because no digram overlaps itself.
//! 2. No digram occurs twice, except the open digram. Two digrams are equal if their symbols and
//!    their counts are.
//! 3. Every rule but the start rule is used at least twice, where a run counts as often as it
//!    repeats its symbol.
//!
//! Counts are not in the paper. Without them, N repetitions need log N rules, so that an N×N nest
//! of loops grows with N. With them it is the same few runs for every N, and pushing a repeated
//! terminal is an addition. In return, runs of different lengths share nothing.
//!
//! The open digram is not in the paper either. A run must not be compared before its length is
//! known: `a b b b` would use a rule for `a b b`, although it is the beginning of a longer run. The
//! same goes for a run of a rule. So while the start rule ends in a rule, a *repetition* compares
//! further terminals with another instance of that rule, and nothing changes in the grammar until
//! the instance is complete or differs. Loops therefore cost a comparison per terminal.
//!
//! [`Grammar::take`] returns the [`Rules`], which generate their terminals lazily and have a form
//! in bytes. [`BoundedGrammars`] bounds the memory: it starts another grammar when the present one
//! is too large, however many terminals that took.

mod arena;
mod bounded;
mod digrams;
mod grammar;
mod repetition;
mod rules;

pub use bounded::BoundedGrammars;
pub use grammar::Grammar;
pub use rules::{GrammarSymbol, Rules, SymbolRun, TerminalRuns, Terminals};
