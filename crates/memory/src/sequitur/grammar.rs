//! The grammar under construction, and how it keeps its invariants.

use super::arena::{Arena, Node, Value};
use super::digrams::Digrams;
use super::repetition::Repetition;
use super::rules::{GrammarSymbol, Rules, SymbolRun};

/// What the grammar knows of a rule besides its runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// The guard of its ring.
    pub guard: u32,
    /// Counts of all runs of the rule.
    pub uses: u64,
    /// The first terminal that it generates. A rule generates the same for all its life.
    pub first_terminal: u32,
}

/// The number of the start rule and of its guard.
const START: u32 = 0;

/// A grammar that grows by a terminal at a time. See the module for its invariants.
///
/// ```
/// use trackway_memory::sequitur::Grammar;
///
/// let mut grammar = Grammar::new();
/// for _ in 0..1000 {
///     [1, 2, 2, 2, 3].into_iter().for_each(|terminal| grammar.push(terminal));
/// }
/// assert!(grammar.size() <= 8);
/// let rules = grammar.take();
/// assert_eq!(rules.terminals().count(), 5000);
/// assert!(rules.terminals().take(7).eq([1, 2, 2, 2, 3, 1, 2]));
/// ```
#[derive(Clone, Debug)]
pub struct Grammar {
    pub(super) arena: Arena,
    pub(super) rules: Vec<Rule>,
    free_rules: Vec<u32>,
    pub(super) digrams: Digrams,
    /// First nodes of digrams that may be new. A node that has changed or gone since does no harm.
    unchecked: Vec<u32>,
    pub(super) repetition: Repetition,
    length: u64,
}

impl Default for Grammar {
    fn default() -> Self {
        Self::new()
    }
}

impl Grammar {
    #[must_use]
    pub fn new() -> Self {
        let mut grammar = Self {
            arena: Arena::default(),
            rules: Vec::new(),
            free_rules: Vec::new(),
            digrams: Digrams::default(),
            unchecked: Vec::new(),
            repetition: Repetition::default(),
            length: 0,
        };
        grammar.clear();
        grammar
    }

    /// Removes everything, but keeps the memory.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.rules.clear();
        self.free_rules.clear();
        self.digrams.clear();
        self.repetition.clear();
        self.length = 0;
        let guard = self.arena.add_guard(START);
        self.rules.push(Rule { guard, uses: 0, first_terminal: 0 });
    }

    /// Returns the number of terminals.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the number of runs in all rules, by which memory is bounded. Terminals that are
    /// being compared with a repeated rule are not among them.
    #[must_use]
    pub fn size(&self) -> usize {
        self.arena.run_count()
    }

    /// Returns about how many bytes the grammar takes, with those that [`Self::clear`] keeps.
    #[must_use]
    pub fn memory(&self) -> usize {
        let rules = self.rules.capacity() * size_of::<Rule>() + self.free_rules.capacity() * size_of::<u32>();
        self.arena.memory() + self.digrams.memory() + rules
    }

    /// Returns the number of rules, with the start rule.
    #[must_use]
    pub fn rule_count(&self) -> usize {
        self.rules.len() - self.free_rules.len()
    }

    /// Appends a terminal.
    #[inline]
    pub fn push(&mut self, terminal: u32) {
        self.length += 1;
        if self.repetition.step(terminal) {
            return;
        }
        self.push_slow(terminal);
    }

    /// Returns the rules that generate everything that was pushed, and removes everything.
    pub fn take(&mut self) -> Rules {
        self.abandon_repetition();
        while self.close_last() {}
        let rules = self.extract();
        self.clear();
        rules
    }

    #[inline]
    fn push_slow(&mut self, terminal: u32) {
        if self.repetition.is_active() {
            if self.continue_repetition(terminal) {
                return;
            }
            self.abandon_repetition();
        }
        let (value, last) = (Value::terminal(terminal), self.last());
        if self.arena.value(last) == value {
            self.arena.grow_run(last, 1);
        } else {
            self.push_other(terminal);
        }
    }

    /// Appends a terminal that does not continue the last run.
    fn push_other(&mut self, terminal: u32) {
        loop {
            if self.begin_repetition(terminal) {
                return;
            }
            if !self.close_last() {
                break;
            }
        }
        self.insert(Value::terminal(terminal), 1, self.last(), START);
    }

    /// Appends a run of any symbol.
    fn append(&mut self, value: Value, count: u64) {
        while self.arena.value(self.last()) != value {
            if !self.close_last() {
                self.insert(value, count, self.last(), START);
                return;
            }
        }
        self.grow_run(self.last(), count);
    }

    /// Returns the last node of the start rule: its guard if it is empty.
    #[inline]
    pub(super) fn last(&self) -> u32 {
        self.arena.previous(START)
    }

    /// Compares the open digram with all others, because its last run is complete. Returns whether
    /// the start rule has another end now, whose digram is open again.
    fn close_last(&mut self) -> bool {
        let node = self.arena.previous(self.last());
        if !self.arena.is_run(node) {
            return false;
        }
        let equal = self.digrams.insert(&self.arena, node).filter(|&old| old != node);
        if let Some(old) = equal {
            self.unify(node, old);
            self.check_all();
        }
        equal.is_some()
    }

    fn check_all(&mut self) {
        while let Some(node) = self.unchecked.pop() {
            self.check(node);
        }
    }

    /// Restores the invariants of runs and of digrams at the digram that begins at `node`.
    fn check(&mut self, node: u32) {
        let next = self.arena.next(node);
        if !self.arena.is_run(node) || !self.arena.is_run(next) {
            return;
        }
        if self.arena.value(node) == self.arena.value(next) {
            self.merge(node, next);
        } else if next != self.last()
            && let Some(old) = self.digrams.insert(&self.arena, node)
            && old != node
        {
            self.unify(node, old);
        }
    }

    /// Makes one run of two adjacent runs of a symbol.
    fn merge(&mut self, node: u32, next: u32) {
        self.forget_digram(self.arena.previous(node));
        self.forget_digram(next);
        let behind = self.arena.next(next);
        let count = self.arena.node(next).count;
        self.arena.grow_run(node, count);
        self.arena.link(node, behind);
        self.arena.remove(next);
        self.unchecked.extend([node, self.arena.previous(node)]);
    }

    /// Replaces two equal digrams by a rule: by an existing one if one of the digrams is all of it.
    fn unify(&mut self, new: u32, old: u32) {
        let rule = if let Some(rule) = self.whole_rule(old) {
            self.replace(new, rule);
            rule
        } else {
            let rule = self.whole_rule(new).unwrap_or_else(|| self.add_rule(new));
            self.replace(old, rule);
            let body = self.arena.next(self.rules[rule as usize].guard);
            if body != new {
                self.replace(new, rule);
            }
            self.digrams.insert(&self.arena, body);
            rule
        };
        let guard = self.rules[rule as usize].guard;
        self.inline_if_used_once(self.arena.next(guard));
        self.inline_if_used_once(self.arena.previous(guard));
    }

    /// Returns the rule, other than the start rule, that a digram is all of.
    fn whole_rule(&self, node: u32) -> Option<u32> {
        let behind = self.arena.next(self.arena.next(node));
        let rule = self.arena.value(self.arena.previous(node)).as_guard()?;
        (rule != START && !self.arena.is_run(behind)).then_some(rule)
    }

    /// Adds a rule whose runs are a copy of a digram.
    fn add_rule(&mut self, digram: u32) -> u32 {
        let rule = self.free_rules.pop().unwrap_or(self.rules.len() as u32);
        let guard = self.arena.add_guard(rule);
        let [first, second] = [digram, self.arena.next(digram)].map(|node| *self.arena.node(node));
        let added = Rule { guard, uses: 0, first_terminal: self.first_terminal(first.value) };
        match self.rules.get_mut(rule as usize) {
            Some(unused) => *unused = added,
            None => self.rules.push(added),
        }
        let first = self.insert(first.value, first.count, guard, guard);
        self.insert(second.value, second.count, first, guard);
        rule
    }

    pub(super) fn first_terminal(&self, value: Value) -> u32 {
        match value.symbol() {
            Some(GrammarSymbol::Terminal(terminal)) => terminal,
            Some(GrammarSymbol::Rule(rule)) => self.rules[rule as usize].first_terminal,
            None => unreachable!("only runs generate terminals"),
        }
    }

    /// Replaces a digram by a rule.
    fn replace(&mut self, digram: u32, rule: u32) {
        let second = self.arena.next(digram);
        let (left, right) = (self.arena.previous(digram), self.arena.next(second));
        [left, digram, second].into_iter().for_each(|node| self.forget_digram(node));
        self.remove(digram);
        self.remove(second);
        let node = self.insert(Value::rule(rule), 1, left, right);
        self.unchecked.extend([node, left]);
    }

    /// Puts the runs of a rule in the place of its only use, if `node` is that.
    fn inline_if_used_once(&mut self, node: u32) {
        let rule = self.arena.value(node).as_rule().filter(|&rule| self.rules[rule as usize].uses == 1);
        let Some(rule) = rule else { return };
        let guard = self.rules[rule as usize].guard;
        let (first, last) = (self.arena.next(guard), self.arena.previous(guard));
        let (left, right) = (self.arena.previous(node), self.arena.next(node));
        self.forget_digram(left);
        self.forget_digram(node);
        self.remove(node);
        self.arena.remove(guard);
        self.free_rules.push(rule);
        self.arena.link(left, first);
        self.arena.link(last, right);
        self.unchecked.extend([last, left]);
    }

    /// Removes a digram from the index, before one of its runs changes.
    #[inline]
    fn forget_digram(&mut self, node: u32) {
        if self.arena.is_run(node) && self.arena.is_run(self.arena.next(node)) {
            self.digrams.remove(&self.arena, node);
        }
    }

    #[inline]
    fn insert(&mut self, value: Value, count: u64, left: u32, right: u32) -> u32 {
        self.add_uses(value, count);
        self.arena.insert(value, count, left, right)
    }

    pub(super) fn grow_run(&mut self, node: u32, count: u64) {
        self.add_uses(self.arena.value(node), count);
        self.arena.grow_run(node, count);
    }

    fn remove(&mut self, node: u32) {
        let &Node { value, count, .. } = self.arena.node(node);
        self.remove_uses(value, count);
        self.arena.remove(node);
    }

    #[inline]
    fn add_uses(&mut self, value: Value, count: u64) {
        if let Some(rule) = value.as_rule() {
            self.rules[rule as usize].uses += count;
        }
    }

    #[inline]
    fn remove_uses(&mut self, value: Value, count: u64) {
        if let Some(rule) = value.as_rule() {
            self.rules[rule as usize].uses -= count;
        }
    }

    /// Appends what a repetition has compared, as runs, and ends it.
    fn abandon_repetition(&mut self) {
        let matched = self.take_matched();
        // Rules must outlive the appending of the runs before them.
        matched.iter().for_each(|&(value, count)| self.add_uses(value, count));
        for &(value, count) in &matched {
            self.append(value, count);
            self.remove_uses(value, count);
        }
        self.repetition.end(matched);
    }

    fn extract(&self) -> Rules {
        let mut rules = Rules::default();
        if self.length == 0 {
            return rules;
        }
        let mut numbers = vec![None; self.rules.len()];
        // The rules that are being read, each with its next node. A rule is complete before those
        // that use it.
        let mut open = vec![self.arena.next(START)];
        while let Some(next) = open.last_mut() {
            let &Node { value, next: behind, .. } = self.arena.node(*next);
            if let Some(rule) = value.as_rule().filter(|&rule| numbers[rule as usize].is_none()) {
                open.push(self.arena.next(self.rules[rule as usize].guard));
            } else if let Some(rule) = value.as_guard() {
                numbers[rule as usize] = Some(rules.rule_count() as u32);
                rules.add_rule(self.runs(behind, &numbers)).expect("no rule is empty");
                open.pop();
            } else {
                *next = behind;
            }
        }
        rules
    }

    /// Returns the runs of a rule from a node on, under the new numbers of rules.
    fn runs(&self, node: u32, numbers: &[Option<u32>]) -> impl Iterator<Item = SymbolRun> {
        let mut next = node;
        std::iter::from_fn(move || {
            let &Node { value, count, next: behind, .. } = self.arena.node(next);
            next = behind;
            let symbol = match value.symbol()? {
                GrammarSymbol::Rule(rule) => GrammarSymbol::Rule(numbers[rule as usize]?),
                terminal @ GrammarSymbol::Terminal(_) => terminal,
            };
            Some(SymbolRun { symbol, count })
        })
    }
}

#[cfg(test)]
mod tests;
