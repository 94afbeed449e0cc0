//! The comparison of terminals with another instance of the rule that ends the start rule.
//!
//! A complete instance adds one to the count of that rule's run. If a terminal differs, the runs
//! that were compared until then are appended, as they would have been without the comparison.

use super::arena::Value;
use super::grammar::Grammar;
use super::rules::GrammarSymbol;

/// A position among the terminals of a rule. It is not active while no terminal is expected.
#[derive(Clone, Debug, Default)]
pub struct Repetition {
    terminal: u32,
    /// How often the terminal is still expected.
    left: u64,
    /// The runs around the position, the outermost first. The last is that of the terminal.
    open: Vec<OpenRun>,
    /// The memory of the last result of [`Grammar::take_matched`].
    buffer: Vec<(Value, u64)>,
}

/// A run that is not complete.
#[derive(Clone, Copy, Debug)]
struct OpenRun {
    node: u32,
    /// How often its rule is still expected, with the present instance.
    left: u64,
}

impl Repetition {
    /// Compares a terminal that is not the last one of its run. Returns false if nothing changed
    /// because it is another one.
    #[inline]
    pub fn step(&mut self, terminal: u32) -> bool {
        let is_inside = self.left > 1 && terminal == self.terminal;
        self.left -= u64::from(is_inside);
        is_inside
    }

    #[inline]
    pub fn is_active(&self) -> bool {
        self.left > 0
    }

    pub fn clear(&mut self) {
        self.left = 0;
        self.open.clear();
    }

    /// Ends the comparison and takes a vector back.
    pub fn end(&mut self, mut buffer: Vec<(Value, u64)>) {
        self.clear();
        buffer.clear();
        self.buffer = buffer;
    }
}

impl Grammar {
    /// Begins a comparison with the rule that ends the start rule, if it begins with `terminal`.
    pub(super) fn begin_repetition(&mut self, terminal: u32) -> bool {
        let Some(rule) = self.arena.value(self.last()).as_rule().map(|rule| self.rules[rule as usize]) else {
            return false;
        };
        rule.first_terminal == terminal && {
            self.descend(self.arena.next(rule.guard));
            self.continue_repetition(terminal)
        }
    }

    /// Compares a terminal. Returns false if nothing changed because it is another one.
    #[inline]
    pub(super) fn continue_repetition(&mut self, terminal: u32) -> bool {
        if terminal != self.repetition.terminal {
            return false;
        }
        self.repetition.left -= 1;
        if self.repetition.left == 0 && !self.advance_to_terminal() && !self.advance() {
            self.grow_run(self.last(), 1);
        }
        true
    }

    /// Goes on behind a complete run of a terminal, if another terminal follows in the same rule.
    #[inline]
    fn advance_to_terminal(&mut self) -> bool {
        let Some(open) = self.repetition.open.last_mut() else { return false };
        let next = self.arena.next(open.node);
        let run = self.arena.node(next);
        let Some(GrammarSymbol::Terminal(terminal)) = run.value.symbol() else { return false };
        open.node = next;
        (self.repetition.terminal, self.repetition.left) = (terminal, run.count);
        true
    }

    /// Goes on behind a complete run. Returns false if the rule is complete.
    fn advance(&mut self) -> bool {
        while let Some(complete) = self.repetition.open.pop() {
            let next = self.arena.next(complete.node);
            if self.arena.is_run(next) {
                self.descend(next);
                return true;
            }
            // The instance of the rule around it is complete.
            if let Some(around) = self.repetition.open.last_mut() {
                around.left -= 1;
                if around.left > 0 {
                    let node = around.node;
                    self.descend(self.first_inside(node));
                    return true;
                }
            }
        }
        false
    }

    /// Goes to the first terminal of a run.
    fn descend(&mut self, mut node: u32) {
        loop {
            let run = *self.arena.node(node);
            self.repetition.open.push(OpenRun { node, left: run.count });
            if run.value.as_rule().is_none() {
                self.repetition.terminal = self.first_terminal(run.value);
                self.repetition.left = run.count;
                return;
            }
            node = self.first_inside(node);
        }
    }

    /// Returns the first node of the rule of a run.
    fn first_inside(&self, node: u32) -> u32 {
        let rule = self.arena.value(node).as_rule().expect("an open run around another one is one of a rule");
        self.arena.next(self.rules[rule as usize].guard)
    }

    /// Returns the runs that were compared: before each open run those before it, and its complete
    /// repetitions.
    pub(super) fn take_matched(&mut self) -> Vec<(Value, u64)> {
        let mut matched = std::mem::take(&mut self.repetition.buffer);
        let mut around = self.last();
        for (depth, open) in self.repetition.open.iter().enumerate() {
            let mut node = self.first_inside(around);
            while node != open.node {
                matched.push((self.arena.value(node), self.arena.node(node).count));
                node = self.arena.next(node);
            }
            let is_terminal = depth + 1 == self.repetition.open.len();
            let left = if is_terminal { self.repetition.left } else { open.left };
            let complete = self.arena.node(node).count - left;
            matched.extend((complete > 0).then_some((self.arena.value(node), complete)));
            around = node;
        }
        matched
    }
}
