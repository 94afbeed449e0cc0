//! All paths of traces, as a tree. From the start of a trace, each control-flow instruction leads
//! to a child node by its target. A trace is a node where traces ended, so it is found by its exact
//! path and not by a hash. Most paths repeat the previous one, so advancing is mostly a comparison.

use hashbrown::HashMap;
use trace::AppPc;

use crate::class::Class;
use crate::set::{EndReason, InstructionRun, SegmentTrace};

/// No node.
pub const NONE: u32 = u32::MAX;

/// An edge to a child node: number of instructions, class of the last one, whether and why the
/// trace ends there, and the next address. (A learning policy may end a trace where it let it
/// continue before.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Edge {
    /// The next address; for [`EdgeEnd::Full`], block and index.
    next: u64,
    /// The number of instructions, above eight bits of an [`EndReason`] and eight bits of a
    /// [`Class`] or an [`EdgeEnd`].
    packed: u64,
}

/// End of an edge without a control-flow instruction; replaces the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EdgeEnd {
    /// The trace is full. The next instruction is given by block and index.
    Full = 64,
    /// Execution continued elsewhere.
    Discontinuity,
    /// End of execution.
    End,
}

impl Edge {
    #[inline]
    pub fn new(instructions: u32, class: u8, end: Option<EndReason>, next: u64) -> Self {
        let end = end.map_or(0, |reason| u64::from(reason.code()));
        Self { next, packed: u64::from(instructions) << 16 | end << 8 | u64::from(class) }
    }

    /// Returns the number of instructions.
    fn instructions(&self) -> u32 {
        (self.packed >> 16) as u32
    }

    fn ends_with(&self, class: Class) -> bool {
        self.packed as u8 == class as u8
    }
}

#[derive(Clone, Debug)]
struct Node {
    /// The last taken edge and its child.
    last_edge: Edge,
    last: u32,
    /// Start node of the next trace if one ends here; [`NONE`] if not known yet.
    successor: u32,
    /// Traces that ended here; at a start node, traces that began here after another one.
    occurrences: u64,
    /// The edge to this node; at a start node, `next` is its address.
    edge: Edge,
    parent: u32,
    /// Length of the trace up to this node.
    instructions: u32,
    cfis: u32,
    reason: EndReason,
}

impl Node {
    fn start(address: AppPc) -> Self {
        Self {
            last_edge: Edge::default(),
            last: NONE,
            successor: NONE,
            occurrences: 0,
            edge: Edge::new(0, 0, None, address.get()),
            parent: NONE,
            instructions: 0,
            cfis: 0,
            reason: EndReason::End,
        }
    }

    fn is_trace(&self) -> bool {
        self.parent != NONE && self.occurrences > 0
    }
}

/// Identity of a trace that ends at several nodes: its successor and the direction of its last
/// branch do not belong to it.
type Identity = (u32, u32, EndReason);

#[derive(Clone, Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    edges: HashMap<(u32, Edge), u32>,
    /// By image and address.
    starts: HashMap<(u32, AppPc), u32>,
    /// Images of start nodes, if not the first image.
    images: HashMap<u32, u32>,
    /// Numbers of traces, whatever ended them, and the numbers of nodes; only for traces that an
    /// observer has asked for.
    numbers: HashMap<(u32, u32), u32>,
    numbered: Vec<u32>,
}

/// Length of a trace so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Length {
    pub instructions: u32,
    pub cfis: u32,
}

impl Tree {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Advances from a node along an edge.
    #[inline]
    pub fn advance(&mut self, from: u32, edge: Edge, length: Length) -> u32 {
        let node = &self.nodes[from as usize];
        if node.last_edge == edge && node.last != NONE { node.last } else { self.find(from, edge, length) }
    }

    #[inline(never)]
    fn find(&mut self, from: u32, edge: Edge, Length { instructions, cfis }: Length) -> u32 {
        let new = self.nodes.len() as u32;
        let to = *self.edges.entry((from, edge)).or_insert(new);
        if to == new {
            self.nodes.push(Node { edge, parent: from, instructions, cfis, ..Node::start(AppPc::NONE) });
        }
        let node = &mut self.nodes[from as usize];
        (node.last_edge, node.last) = (edge, to);
        to
    }

    /// Returns the start node of an address in an image.
    pub fn start(&mut self, image: u32, address: AppPc) -> u32 {
        let new = self.nodes.len() as u32;
        let start = *self.starts.entry((image, address)).or_insert(new);
        if start == new {
            self.nodes.push(Node::start(address));
            if image > 0 {
                self.images.insert(start, image);
            }
        }
        start
    }

    /// Ends a trace at a node. The next trace begins in the same image at `next`, which is
    /// evaluated only the first time. Returns its start node and address.
    #[inline]
    pub fn end(&mut self, at: u32, reason: EndReason, image: u32, next: impl FnOnce() -> AppPc) -> (u32, AppPc) {
        if self.nodes[at as usize].successor == NONE {
            self.nodes[at as usize].successor = self.start(image, next());
        }
        let node = &mut self.nodes[at as usize];
        node.occurrences += 1;
        node.reason = reason;
        let successor = node.successor;
        (successor, AppPc::new(self.nodes[successor as usize].edge.next))
    }

    /// Ends a trace at a node without a successor.
    pub fn end_last(&mut self, at: u32) {
        let node = &mut self.nodes[at as usize];
        (node.occurrences, node.reason) = (node.occurrences + 1, EndReason::End);
    }

    /// Counts a trace that begins at this node.
    pub fn count_start(&mut self, start: u32) {
        self.nodes[start as usize].occurrences += 1;
    }

    /// Returns how many traces began at an address, as counted by [`Tree::count_start`].
    pub fn starts_at(&self, image: u32, address: AppPc) -> u64 {
        self.starts.get(&(image, address)).map_or(0, |&start| self.nodes[start as usize].occurrences)
    }

    /// Returns the number of the trace that has just ended at a node, from 0 in the order of
    /// requests. The reason of the end does not matter.
    pub fn number(&mut self, node: u32) -> u32 {
        let index = node as usize;
        if let Some(&number) = self.numbered.get(index).filter(|&&number| number != NONE) {
            return number;
        }
        let Node { parent, edge, .. } = &self.nodes[index];
        let new = self.numbers.len() as u32;
        let number = *self.numbers.entry((*parent, edge.instructions())).or_insert(new);
        self.numbered.resize(self.nodes.len(), NONE);
        self.numbered[index] = number;
        number
    }

    /// Returns the nodes from this one back to the start node.
    fn ancestors(&self, node: u32) -> impl Iterator<Item = &Node> {
        self.ancestor_indices(node).map(|index| &self.nodes[index as usize])
    }

    fn ancestor_indices(&self, node: u32) -> impl Iterator<Item = u32> {
        let parent = |&index: &u32| Some(self.nodes[index as usize].parent).filter(|&parent| parent != NONE);
        std::iter::successors(Some(node), parent)
    }

    fn image(&self, node: u32) -> u32 {
        let start = self.ancestor_indices(node).last();
        start.and_then(|start| self.images.get(&start)).copied().unwrap_or(0)
    }

    pub fn instructions(&self, node: u32) -> u32 {
        self.nodes[node as usize].instructions
    }

    pub fn start_address(&self, node: u32) -> AppPc {
        self.ancestors(node).last().map_or(AppPc::NONE, |start| AppPc::new(start.edge.next))
    }

    /// Returns the number of calls on the path to a node, minus its returns.
    pub fn calls(&self, node: u32) -> i32 {
        let calls = |node: &Node| {
            let is = |class| i32::from(node.parent != NONE && node.edge.ends_with(class));
            is(Class::DirectCall) + is(Class::IndirectCall) - is(Class::Return)
        };
        self.ancestors(node).map(calls).sum()
    }

    pub fn runs(&self, node: u32) -> Vec<InstructionRun> {
        let mut runs: Vec<InstructionRun> = Vec::new();
        let mut run_length = 0;
        for (index, node) in self.ancestors(node).enumerate() {
            // The successor does not belong to the trace.
            if index > 0 {
                runs.push(InstructionRun { address: AppPc::new(node.edge.next), instructions: run_length });
            }
            run_length = node.edge.instructions();
        }
        runs.reverse();
        runs
    }

    /// Returns all traces.
    pub fn traces(&self) -> Vec<SegmentTrace> {
        let mut indices: HashMap<Identity, usize> = HashMap::new();
        let mut traces: Vec<SegmentTrace> = Vec::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_trace()) {
            let known = *indices.entry((node.parent, node.edge.instructions(), node.reason)).or_insert(traces.len());
            match traces.get_mut(known) {
                Some(trace) => trace.occurrences += node.occurrences,
                None => traces.push(SegmentTrace {
                    image: self.image(index as u32),
                    runs: self.runs(index as u32),
                    instructions: node.instructions,
                    cfis: node.cfis,
                    reason: node.reason,
                    occurrences: node.occurrences,
                }),
            }
        }
        traces
    }
}
