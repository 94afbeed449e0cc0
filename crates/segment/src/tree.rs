//! All ways that traces went, as a tree: from where a trace begins, each control-flow instruction leads to a node by where it went. A trace is a node that traces have
//! ended at, so that it is found by its way and not by a hash of it; as a way is mostly gone as it was gone the last time, most moves are a comparison.

use hashbrown::HashMap;

use crate::class::Class;
use crate::set::{Reason, Stretch, Trace};

/// No node.
pub const NONE: u32 = u32::MAX;

/// A way from a node to the next: so many instructions, of which the last has this class, whether and why the trace ends there, and what comes then. (A policy that
/// learns may let a trace end where it let it go on before.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Way {
    next: u64,
    /// Above the eight bits of a [`Reason`] and those of a [`Class`] or of a [`Ending`].
    instructions: u64,
}

/// In place of a class: how a way ends that does not end with a control-flow instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ending {
    /// There is no room for more instructions. What comes next is told by its block and its place there.
    Full = 64,
    /// Execution went on elsewhere.
    Elsewhere,
    /// Nothing more was executed.
    End,
}

impl Way {
    #[inline]
    pub fn new(instructions: u32, class: u8, end: Option<Reason>, next: u64) -> Self {
        let end = end.map_or(0, |reason| u64::from(reason.code()));
        Self { next, instructions: u64::from(instructions) << 16 | end << 8 | u64::from(class) }
    }

    /// Its instructions.
    fn run(&self) -> u32 {
        (self.instructions >> 16) as u32
    }

    fn ends_with(&self, class: Class) -> bool {
        self.instructions as u8 == class as u8
    }
}

#[derive(Clone, Debug)]
struct Node {
    /// The way that was gone last, and where it led.
    last_way: Way,
    last: u32,
    /// Where the next trace begins if one ends here; [`NONE`] if that is not known yet.
    successor: u32,
    /// Traces that have ended here; at the beginning of traces, those that began there behind another.
    occurrences: u64,
    /// The way here; at the beginning of a trace, `next` is where it begins.
    way: Way,
    before: u32,
    /// Of the whole trace.
    instructions: u32,
    cfis: u32,
    reason: Reason,
}

impl Node {
    fn start(address: u64) -> Self {
        Self {
            last_way: Way::default(),
            last: NONE,
            successor: NONE,
            occurrences: 0,
            way: Way::new(0, 0, None, address),
            before: NONE,
            instructions: 0,
            cfis: 0,
            reason: Reason::End,
        }
    }

    fn is_trace(&self) -> bool {
        self.before != NONE && self.occurrences > 0
    }
}

/// What two nodes have in common if the same trace ends at both: where execution goes on behind a trace, and which way its last branch goes, is no part of it.
type Identity = (u32, u32, Reason);

#[derive(Clone, Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    ways: HashMap<(u32, Way), u32>,
    /// By image and address.
    starts: HashMap<(u32, u64), u32>,
    /// Of where traces begin, if it is not the first.
    images: HashMap<u32, u32>,
    /// Numbers of traces, whatever made them end, and those of the traces that end at nodes; only for traces that somebody asked for.
    numbers: HashMap<(u32, u32), u32>,
    numbered: Vec<u32>,
}

/// How long a trace is so far.
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

    /// Goes on from a node.
    #[inline]
    pub fn go(&mut self, from: u32, way: Way, length: Length) -> u32 {
        let node = &self.nodes[from as usize];
        if node.last_way == way && node.last != NONE { node.last } else { self.find(from, way, length) }
    }

    #[inline(never)]
    fn find(&mut self, from: u32, way: Way, Length { instructions, cfis }: Length) -> u32 {
        let new = self.nodes.len() as u32;
        let to = *self.ways.entry((from, way)).or_insert(new);
        if to == new {
            self.nodes.push(Node { way, before: from, instructions, cfis, ..Node::start(0) });
        }
        let node = &mut self.nodes[from as usize];
        (node.last_way, node.last) = (way, to);
        to
    }

    /// The node that traces from an address of an image begin at.
    pub fn start(&mut self, image: u32, address: u64) -> u32 {
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

    /// A trace ends at a node, and the next one begins in the same image at what `next` gives, which is asked for only the first time. Gives the node that it begins
    /// at, and its address.
    #[inline]
    pub fn end(&mut self, at: u32, reason: Reason, image: u32, next: impl FnOnce() -> u64) -> (u32, u64) {
        if self.nodes[at as usize].successor == NONE {
            self.nodes[at as usize].successor = self.start(image, next());
        }
        let node = &mut self.nodes[at as usize];
        node.occurrences += 1;
        node.reason = reason;
        let successor = node.successor;
        (successor, self.nodes[successor as usize].way.next)
    }

    /// A trace ends at a node, and nothing comes behind it.
    pub fn end_for_good(&mut self, at: u32) {
        let node = &mut self.nodes[at as usize];
        (node.occurrences, node.reason) = (node.occurrences + 1, Reason::End);
    }

    /// A trace begins at this node.
    pub fn begin(&mut self, start: u32) {
        self.nodes[start as usize].occurrences += 1;
    }

    /// How many traces began here, as far as [`Tree::begin`] was told.
    pub fn begun_at(&self, image: u32, address: u64) -> u64 {
        self.starts.get(&(image, address)).map_or(0, |&start| self.nodes[start as usize].occurrences)
    }

    /// The number of the trace that has just ended at a node, from 0 in the order in which they were asked for. Why it ended does not matter.
    pub fn number(&mut self, node: u32) -> u32 {
        let place = node as usize;
        if let Some(&number) = self.numbered.get(place).filter(|&&number| number != NONE) {
            return number;
        }
        let Node { before, way, .. } = &self.nodes[place];
        let new = self.numbers.len() as u32;
        let number = *self.numbers.entry((*before, way.run())).or_insert(new);
        self.numbered.resize(self.nodes.len(), NONE);
        self.numbered[place] = number;
        number
    }

    /// Nodes from this one back to where its trace begins.
    fn back(&self, node: u32) -> impl Iterator<Item = &Node> {
        self.back_places(node).map(|place| &self.nodes[place as usize])
    }

    fn back_places(&self, node: u32) -> impl Iterator<Item = u32> {
        let before = |&place: &u32| Some(self.nodes[place as usize].before).filter(|&before| before != NONE);
        std::iter::successors(Some(node), before)
    }

    fn image(&self, node: u32) -> u32 {
        let start = self.back_places(node).last();
        start.and_then(|start| self.images.get(&start)).copied().unwrap_or(0)
    }

    pub fn instructions(&self, node: u32) -> u32 {
        self.nodes[node as usize].instructions
    }

    pub fn begins_at(&self, node: u32) -> u64 {
        self.back(node).last().map_or(0, |start| start.way.next)
    }

    /// Calls on the way to a node, less its returns.
    pub fn calls(&self, node: u32) -> i32 {
        let calls = |node: &Node| {
            let is = |class| i32::from(node.before != NONE && node.way.ends_with(class));
            is(Class::DirectCall) + is(Class::IndirectCall) - is(Class::Return)
        };
        self.back(node).map(calls).sum()
    }

    pub fn stretches(&self, node: u32) -> Vec<Stretch> {
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut run = 0;
        for (place, node) in self.back(node).enumerate() {
            // What comes behind the trace does not belong to it.
            if place > 0 {
                stretches.push(Stretch { address: node.way.next, instructions: run });
            }
            run = node.way.run();
        }
        stretches.reverse();
        stretches
    }

    /// All traces.
    pub fn traces(&self) -> Vec<Trace> {
        let mut places: HashMap<Identity, usize> = HashMap::new();
        let mut traces: Vec<Trace> = Vec::new();
        for (place, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_trace()) {
            let known = *places.entry((node.before, node.way.run(), node.reason)).or_insert(traces.len());
            match traces.get_mut(known) {
                Some(trace) => trace.occurrences += node.occurrences,
                None => traces.push(Trace {
                    image: self.image(place as u32),
                    stretches: self.stretches(place as u32),
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
