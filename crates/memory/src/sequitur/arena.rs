//! The runs of all rules as doubly linked lists in one vector. Links are numbers of nodes. Each
//! rule is a ring that a guard node closes.

use super::rules::GrammarSymbol;

/// The symbol of a node, or its other roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(u64);

const RULE: u64 = 1 << 32;
const GUARD: u64 = 2 << 32;
const FREE: u64 = 3 << 32;

impl Value {
    #[inline]
    pub fn terminal(terminal: u32) -> Self {
        Self(terminal.into())
    }

    #[inline]
    pub fn rule(rule: u32) -> Self {
        Self(RULE | u64::from(rule))
    }

    #[inline]
    pub fn symbol(self) -> Option<GrammarSymbol> {
        match self.0 & !u64::from(u32::MAX) {
            0 => Some(GrammarSymbol::Terminal(self.0 as u32)),
            RULE => Some(GrammarSymbol::Rule(self.0 as u32)),
            _ => None,
        }
    }

    #[inline]
    pub fn as_rule(self) -> Option<u32> {
        (self.0 & !u64::from(u32::MAX) == RULE).then_some(self.0 as u32)
    }

    /// Returns the rule that a guard closes.
    #[inline]
    pub fn as_guard(self) -> Option<u32> {
        (self.0 & !u64::from(u32::MAX) == GUARD).then_some(self.0 as u32)
    }

    /// Returns whether the value is a terminal or a rule.
    #[inline]
    pub fn is_symbol(self) -> bool {
        self.0 < GUARD
    }

    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Node {
    pub value: Value,
    pub count: u64,
    pub previous: u32,
    pub next: u32,
}

/// All nodes. Numbers of nodes are used again after they are removed.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// Nodes that are runs.
    run_count: usize,
}

impl Arena {
    #[inline]
    pub fn node(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    #[inline]
    pub fn value(&self, node: u32) -> Value {
        self.node(node).value
    }

    #[inline]
    pub fn next(&self, node: u32) -> u32 {
        self.node(node).next
    }

    #[inline]
    pub fn previous(&self, node: u32) -> u32 {
        self.node(node).previous
    }

    #[inline]
    pub fn is_run(&self, node: u32) -> bool {
        self.value(node).is_symbol()
    }

    #[inline]
    pub fn run_count(&self) -> usize {
        self.run_count
    }

    /// Returns the bytes that the nodes take, which [`Self::clear`] keeps.
    pub fn memory(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.free.capacity() * size_of::<u32>()
    }

    #[inline]
    pub fn grow_run(&mut self, node: u32, count: u64) {
        self.nodes[node as usize].count += count;
    }

    #[inline]
    pub fn link(&mut self, left: u32, right: u32) {
        self.nodes[left as usize].next = right;
        self.nodes[right as usize].previous = left;
    }

    /// Adds a guard, which is an empty ring.
    pub fn add_guard(&mut self, rule: u32) -> u32 {
        let guard = self.add(Node { value: Value(GUARD | u64::from(rule)), count: 0, previous: 0, next: 0 });
        self.link(guard, guard);
        guard
    }

    /// Adds a run between two neighbours.
    #[inline]
    pub fn insert(&mut self, value: Value, count: u64, left: u32, right: u32) -> u32 {
        self.run_count += 1;
        let node = self.add(Node { value, count, previous: left, next: right });
        self.link(left, node);
        self.link(node, right);
        node
    }

    #[inline]
    fn add(&mut self, node: Node) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.nodes[number as usize] = node;
                number
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("a grammar has fewer than 2^32 runs")
            }
        }
    }

    /// Removes a node and leaves the links of its neighbours to the caller.
    #[inline]
    pub fn remove(&mut self, node: u32) {
        self.run_count -= usize::from(self.is_run(node));
        self.nodes[node as usize].value = Value(FREE);
        self.free.push(node);
    }

    pub fn clear(&mut self) {
        self.nodes.clear();
        self.free.clear();
        self.run_count = 0;
    }
}
