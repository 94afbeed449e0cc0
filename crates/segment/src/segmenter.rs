//! The traces of one policy, as a tree: from where a trace begins, each control-flow instruction leads to a node by where it went. A trace is a node that traces have
//! ended at, so that it is found by its way and not by a hash of it; as a way is mostly gone as it was gone the last time, most moves are a comparison.

use hashbrown::HashMap;

use crate::class::Class;
use crate::moves::{Code, Move};
use crate::policy::Policy;
use crate::set::{Reason, Trace, TraceSet};

/// No node.
const NONE: u32 = u32::MAX;

/// A way from a node to the next: so many instructions, of which the last has this class, and what comes then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Way {
    next: u64,
    /// Above the eight bits of a [`Class`] or of a [`Cut`].
    instructions: u64,
}

/// In place of a class: how a way ends that does not end with a control-flow instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Cut {
    /// There is no room for more instructions. What comes next is told by its block and its place there.
    Full = 64,
    /// Execution went on elsewhere.
    Elsewhere,
    /// Nothing more was executed.
    End,
}

impl Way {
    #[inline]
    fn new(instructions: u32, class: u8, next: u64) -> Self {
        Self { next, instructions: u64::from(instructions) << 8 | u64::from(class) }
    }

    /// Its instructions.
    fn run(&self) -> u64 {
        self.instructions >> 8
    }
}

#[derive(Clone, Debug)]
struct Node {
    /// The way that was gone last, and where it led.
    last_way: Way,
    last: u32,
    /// Where the next trace begins if one ends here; [`NONE`] if that is not known yet.
    successor: u32,
    /// Traces that have ended here.
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
            way: Way::new(0, 0, address),
            before: NONE,
            instructions: 0,
            cfis: 0,
            reason: Reason::End,
        }
    }
}

/// A trace that a thread is in.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// [`NONE`] before its first instruction.
    node: u32,
    /// Instructions since the last control-flow instruction, and since the start.
    run: u32,
    instructions: u32,
    cfis: u32,
    /// What comes next, as far as anybody knows.
    next: u64,
}

impl Place {
    const NOWHERE: Self = Self { node: NONE, run: 0, instructions: 0, cfis: 0, next: 0 };
}

/// Cuts what threads execute into traces.
#[derive(Clone, Debug)]
pub struct Segmenter {
    policy: Policy,
    nodes: Vec<Node>,
    ways: HashMap<(u32, Way), u32>,
    starts: HashMap<u64, u32>,
    places: HashMap<u32, Place>,
}

impl Segmenter {
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, nodes: Vec::new(), ways: HashMap::new(), starts: HashMap::new(), places: HashMap::new() }
    }

    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Takes what a thread has executed next.
    pub fn moves(&mut self, thread: u32, moves: &[Move], code: &impl Code) {
        let mut place = self.places.get(&thread).copied().unwrap_or(Place::NOWHERE);
        moves.iter().for_each(|step| self.step(&mut place, step, code));
        self.places.insert(thread, place);
    }

    /// Nothing more is executed: what is begun is a trace, too.
    #[must_use]
    pub fn finish(mut self) -> TraceSet {
        let places: Vec<Place> = self.places.drain().map(|(_, place)| place).collect();
        for mut place in places {
            if place.instructions > 0 {
                self.go(&mut place, Cut::End as u8, 0);
                self.end(&mut place, Reason::End);
            }
        }
        TraceSet::new(self.traces())
    }

    #[inline]
    fn step(&mut self, place: &mut Place, step: &Move, code: &impl Code) {
        if place.next != step.first || place.node == NONE {
            self.arrive(place, step.first);
        }
        let (mut left, mut offset) = (step.instructions, step.offset);
        let max = self.policy.max_instructions();
        while left > max - place.instructions {
            let room = max - place.instructions;
            (left, offset) = (left - room, offset + room);
            self.fill(place, room, step.block, offset, code);
        }
        place.run += left;
        place.instructions += left;
        place.next = step.next;
        if step.class != Class::None {
            self.control(place, step);
        } else if place.instructions == max {
            self.fill(place, 0, step.block, offset + left, code);
        }
    }

    /// Execution is at `first`, which is not where it should be, or which is where it begins.
    #[cold]
    fn arrive(&mut self, place: &mut Place, first: u64) {
        if place.node == NONE {
            *place = Place { node: self.start(first), next: first, ..Place::NOWHERE };
        } else if place.instructions == 0 {
            place.node = self.start(first);
        } else {
            self.go(place, Cut::Elsewhere as u8, first);
        }
    }

    /// So many instructions more, and there is no room in the trace; the next one begins with this one of a block.
    fn fill(&mut self, place: &mut Place, room: u32, block: u32, offset: u32, code: &impl Code) {
        place.run += room;
        place.instructions += room;
        self.go(place, Cut::Full as u8, u64::from(block) << 32 | u64::from(offset));
        let node = place.node;
        if self.nodes[node as usize].successor == NONE {
            self.nodes[node as usize].successor = self.start(code.address(block, offset));
        }
        self.end(place, Reason::MaxInstructions);
    }

    /// The last instruction is one of control flow.
    #[inline]
    fn control(&mut self, place: &mut Place, step: &Move) {
        place.cfis += self.policy.weight(step.class);
        self.go(place, step.class as u8, step.next);
        let reason = if !self.policy.is_inside(step.class) {
            Reason::Class(step.class)
        } else if place.cfis >= self.policy.max_cfis() && self.policy.weight(step.class) > 0 {
            Reason::MaxCfis
        } else if place.instructions == self.policy.max_instructions() {
            Reason::MaxInstructions
        } else {
            return;
        };
        if self.nodes[place.node as usize].successor == NONE {
            self.nodes[place.node as usize].successor = self.start(step.next);
        }
        self.end(place, reason);
    }

    /// The trace ends where it is.
    #[inline]
    fn end(&mut self, place: &mut Place, reason: Reason) {
        let node = &mut self.nodes[place.node as usize];
        node.occurrences += 1;
        node.reason = reason;
        *place = Place { node: node.successor, ..Place::NOWHERE };
        place.next = self.nodes.get(place.node as usize).map_or(0, |start| start.way.next);
    }

    /// Goes on in the tree.
    #[inline]
    fn go(&mut self, place: &mut Place, class: u8, next: u64) {
        let way = Way::new(place.run, class, next);
        place.run = 0;
        let node = &self.nodes[place.node as usize];
        place.node = if node.last_way == way && node.last != NONE { node.last } else { self.find(place, way) };
    }

    #[inline(never)]
    fn find(&mut self, place: &Place, way: Way) -> u32 {
        let from = place.node;
        let new = self.nodes.len() as u32;
        let to = *self.ways.entry((from, way)).or_insert(new);
        if to == new {
            let &Place { instructions, cfis, .. } = place;
            self.nodes.push(Node { way, before: from, instructions, cfis, ..Node::start(0) });
        }
        let node = &mut self.nodes[from as usize];
        (node.last_way, node.last) = (way, to);
        to
    }

    /// The node that traces from `address` begin at.
    fn start(&mut self, address: u64) -> u32 {
        let new = self.nodes.len() as u32;
        let start = *self.starts.entry(address).or_insert(new);
        if start == new {
            self.nodes.push(Node::start(address));
        }
        start
    }

    /// Where execution goes on behind a trace, and which way its last branch goes, is no part of it: nodes that differ in nothing else are one trace.
    fn traces(&self) -> Vec<Trace> {
        let mut places: HashMap<(u32, u64, Reason), usize> = HashMap::new();
        let mut traces: Vec<Trace> = Vec::new();
        for node in self.nodes.iter().filter(|node| node.occurrences > 0) {
            let place = *places.entry((node.before, node.way.run(), node.reason)).or_insert(traces.len());
            match traces.get_mut(place) {
                Some(trace) => trace.occurrences += node.occurrences,
                None => traces.push(self.trace(node)),
            }
        }
        traces
    }

    fn trace(&self, node: &Node) -> Trace {
        let (mut blocks, mut at) = (Vec::new(), node);
        while let Some(before) = self.nodes.get(at.before as usize) {
            // What comes behind the trace does not belong to it.
            if !std::ptr::eq(at, node) {
                blocks.push(at.way.next);
            }
            at = before;
        }
        blocks.reverse();
        Trace {
            start: at.way.next,
            blocks,
            instructions: node.instructions,
            cfis: node.cfis,
            reason: node.reason,
            occurrences: node.occurrences,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Code in which every instruction has four bytes, and a block's number is the address of its first.
    struct Plain;

    impl Code for Plain {
        fn address(&self, block: u32, place: u32) -> u64 {
            u64::from(block + 4 * place)
        }
    }

    fn step(first: u32, instructions: u32, class: Class, next: u64) -> Move {
        Move { first: first.into(), next, instructions, class, block: first, offset: 0 }
    }

    /// Hadjipavlou 2025, section 5.2: three traces, if a direct jump counts.
    #[test]
    fn the_example_of_section_5_2() {
        let policy = Policy::new(8, 2).unwrap().with(Class::DirectCall, false).with_weight(Class::DirectJump, 1);
        let mut segmenter = Segmenter::new(policy);
        let moves = [
            step(0x100, 2, Class::DirectCall, 0x200),
            step(0x200, 11, Class::DirectJump, 0x300),
            step(0x300, 2, Class::ForwardNotTaken, 0x308),
        ];
        segmenter.moves(0, &moves, &Plain);
        let shown: Vec<_> = segmenter
            .finish()
            .traces()
            .iter()
            .map(|trace| (trace.start, trace.instructions, trace.cfis, trace.reason, trace.occurrences))
            .collect();
        let expected = [
            (0x100, 2, 1, Reason::Class(Class::DirectCall), 1),
            (0x200, 8, 0, Reason::MaxInstructions, 1),
            (0x220, 5, 2, Reason::MaxCfis, 1),
        ];
        assert!(expected.iter().all(|trace| shown.contains(trace)), "{shown:x?}");
        assert_eq!(shown.len(), 3);
    }

    /// One instruction at a time, and a list of everything that was executed.
    #[derive(Debug, Default)]
    struct Naive {
        traces: Vec<(Vec<u64>, Reason)>,
    }

    impl Naive {
        fn run(policy: &Policy, moves: &[Move]) -> Self {
            let (mut naive, mut now, mut cfis) = (Self::default(), Vec::new(), 0);
            for step in moves {
                for place in 0..step.instructions {
                    now.push(step.first + 4 * u64::from(place));
                    let is_last = place + 1 == step.instructions && step.class != Class::None;
                    let weight = if is_last { policy.weight(step.class) } else { 0 };
                    cfis += weight;
                    let reason = if is_last && !policy.is_inside(step.class) {
                        Reason::Class(step.class)
                    } else if weight > 0 && cfis >= policy.max_cfis() {
                        Reason::MaxCfis
                    } else if now.len() as u32 == policy.max_instructions() {
                        Reason::MaxInstructions
                    } else {
                        continue;
                    };
                    naive.traces.push((std::mem::take(&mut now), reason));
                    cfis = 0;
                }
            }
            if !now.is_empty() {
                naive.traces.push((now, Reason::End));
            }
            naive
        }
    }

    /// A random walk through a small program: blocks of one to ten instructions, each with a class and up to three ways on.
    fn walk(seed: &[(u32, u8, u8)], choices: &[u8]) -> Vec<Move> {
        let count = seed.len();
        let first = |block: usize| 0x1000 + 64 * block as u32;
        let mut at = 0;
        choices
            .iter()
            .map(|&choice| {
                let (length, class, spread) = seed[at];
                let class = Class::ALL[usize::from(class) % Class::COUNT];
                let (to, length) = ((at * 7 + usize::from(spread) + usize::from(choice % 3)) % count, 1 + length % 10);
                // Without a branch, somebody else makes execution go on elsewhere.
                let next = if class == Class::None { first(at) + 4 * length } else { first(to) };
                let step = step(first(at), length, class, next.into());
                at = to;
                step
            })
            .collect()
    }

    proptest! {
        /// The same traces as those of a segmenter that nobody could get wrong, each as often; and they are all that was executed.
        #[test]
        fn it_does_what_the_naive_one_does(
            seed in proptest::collection::vec((0u32..10, any::<u8>(), any::<u8>()), 1..12),
            choices in proptest::collection::vec(any::<u8>(), 0..400),
            max_instructions in 1u32..40, max_cfis in 1u32..6, inside in any::<u16>(), heavy in any::<bool>(),
        ) {
            let moves = walk(&seed, &choices);
            let mut policy = Policy::new(max_instructions, max_cfis).unwrap();
            for class in Class::ALL.into_iter().skip(1) {
                policy = policy.with(class, inside >> class as u32 & 1 == 1);
            }
            let policy = if heavy { policy.with_weight(Class::ForwardTaken, 2).with_weight(Class::DirectJump, 1) } else { policy };
            let mut expected: HashMap<(Vec<u64>, Reason), u64> = HashMap::new();
            let naive = Naive::run(&policy, &moves);
            naive.traces.iter().for_each(|trace| *expected.entry(trace.clone()).or_default() += 1);
            let mut segmenter = Segmenter::new(policy);
            for part in moves.chunks(7) {
                segmenter.moves(3, part, &Plain);
            }
            let set = segmenter.finish();
            let executed: u64 = moves.iter().map(|step| u64::from(step.instructions)).sum();
            prop_assert_eq!(set.instructions(), executed);
            let mut shown: HashMap<(u64, u32, Reason), u64> = HashMap::new();
            for trace in set.traces() {
                *shown.entry((trace.start, trace.instructions, trace.reason)).or_default() += trace.occurrences;
            }
            let mut same: HashMap<(u64, u32, Reason), u64> = HashMap::new();
            for ((path, reason), count) in &expected {
                *same.entry((path[0], path.len() as u32, *reason)).or_default() += count;
            }
            prop_assert_eq!(shown, same);
            // The same number of different traces: ways that differ are not taken for one, nor one for several.
            prop_assert_eq!(set.traces().len(), expected.len());
        }
    }
}
