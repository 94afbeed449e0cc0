//! The control-flow graph of a function, made of the blocks that a trace has of it.
//!
//! A *node* is straight-line code that control enters at its beginning only. Blocks of a trace
//! begin where a thread happened to arrive, so one block may contain the beginning of another one;
//! a [`FlowGraph`] cuts them into nodes. Code that was never executed comes from the program's
//! file, if that is still there: without it, a loop that was left in the middle would not be seen
//! to go back. The edges are those that the code shows. Calls and system calls lead to the
//! instruction behind them. Indirect jumps, and calls that were left by an exception, lead to where
//! the execution has shown them to go: [`IndirectTargets`].
//!
//! Some calls never return, those of `exit` for example, and compilers put any other code behind
//! them. So a call behind which nothing was executed leads there only if nothing else does, or if
//! it closes a loop around a node that it cannot be reached without.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use entity::AppPc;
use isa::Transfer;
use trace::Block;

use crate::loops::{Graph, LoopForest};

/// Where the indirect jumps of an execution went, and exceptions that were thrown in calls: pairs
/// of the address behind the jump or call and the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndirectTargets(BTreeSet<(AppPc, AppPc)>);

impl IndirectTargets {
    /// Adds the target of a jump or call that ends at `end`.
    pub fn insert(&mut self, end: AppPc, target: AppPc) {
        self.0.insert((end, target));
    }

    /// Adds all that another set has.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    fn of(&self, end: AppPc) -> impl Iterator<Item = AppPc> {
        self.0.range((end, AppPc::new(0))..=(end, AppPc::new(u64::MAX))).map(|&(_, target)| target)
    }
}

/// Code of a function from its file.
#[derive(Clone, Debug)]
pub(crate) struct CodeRange {
    pub start: AppPc,
    pub bytes: Vec<u8>,
}

impl CodeRange {
    /// Returns the code from an address on, if it is in the range.
    pub(crate) fn from(&self, address: AppPc) -> Option<&[u8]> {
        self.bytes.get(usize::try_from(address - self.start).ok()?..).filter(|bytes| !bytes.is_empty())
    }
}

/// The control-flow graph of a function and its loops.
#[derive(Clone, Debug, Default)]
pub struct FlowGraph {
    /// First and last address of every node, in ascending order.
    nodes: Vec<Range<AppPc>>,
    pub graph: Graph,
    pub forest: LoopForest,
}

/// What is known of the code of a function.
struct Code {
    /// For the start of every instruction: the end of the block that contains it, and how control
    /// leaves that block.
    instructions: BTreeMap<AppPc, (AppPc, Transfer)>,
    /// Where nodes begin.
    leaders: BTreeSet<AppPc>,
    /// For the end of each call that may not return, where code begins behind it.
    doubtful: BTreeMap<AppPc, AppPc>,
}

impl FlowGraph {
    /// Makes the graph of a function whose code is in `ranges`, from its blocks and its file.
    pub(crate) fn of(
        ranges: &[Range<AppPc>],
        entry: AppPc,
        blocks: &[Block<'_>],
        file: &[CodeRange],
        targets: &IndirectTargets,
    ) -> Self {
        let code = Code::of(ranges, entry, blocks, file, targets);
        let nodes: Vec<Range<AppPc>> = code.leaders.iter().map(|&start| start..code.node_end(start)).collect();
        let mut flow = Self { nodes, ..Self::default() };
        let mut graph = Graph::new(u32::try_from(flow.nodes.len()).unwrap_or(0));
        if let Some(node) = flow.node_at(entry) {
            graph.add_entry(node);
        }
        for (node, span) in (0u32..).zip(&flow.nodes) {
            for successor in code.successors(span, targets) {
                if let Some(successor) = flow.node_at(successor) {
                    graph.add_edge(node, successor);
                }
            }
        }
        for (node, successor) in flow.doubtful_edges(&code, &graph) {
            graph.add_edge(node, successor);
        }
        flow.forest = LoopForest::of(&graph);
        flow.graph = graph;
        flow
    }

    /// Returns the edges of calls that may not return, as far as they close loops.
    fn doubtful_edges(&self, code: &Code, graph: &Graph) -> Vec<(u32, u32)> {
        let edge = |(node, span): (u32, &Range<AppPc>)| {
            let behind = self.node_at(code.behind_doubtful_call(span)?)?;
            graph.dominates(behind, node).then_some((node, behind))
        };
        (0u32..).zip(&self.nodes).filter_map(edge).collect()
    }

    /// Returns where the nodes begin to which no way from the function's entry is known.
    pub(crate) fn unreached_code(&self, entry: AppPc) -> impl Iterator<Item = AppPc> {
        let unreached = self.node_at(entry).into_iter().flat_map(|entry| self.graph.unreached_from(entry));
        unreached.filter_map(|node| Some(self.span(node)?.start))
    }

    /// Returns the addresses of a node's first byte and of the byte behind it.
    #[must_use]
    pub fn span(&self, node: u32) -> Option<&Range<AppPc>> {
        self.nodes.get(node as usize)
    }

    /// Returns the node that begins at an address.
    #[must_use]
    pub fn node_at(&self, start: AppPc) -> Option<u32> {
        let node = self.nodes.binary_search_by_key(&start, |span| span.start).ok()?;
        u32::try_from(node).ok()
    }

    /// Returns the nodes that a block passes through, in the order of execution.
    #[must_use]
    pub fn nodes_of(&self, block: Range<AppPc>) -> Vec<u32> {
        let mut nodes = Vec::new();
        let mut at = block.start;
        while at < block.end
            && let Some(node) = self.node_at(at)
            && let Some(span) = self.span(node)
        {
            nodes.push(node);
            at = span.end;
        }
        nodes
    }
}

impl Code {
    fn of(
        ranges: &[Range<AppPc>],
        entry: AppPc,
        blocks: &[Block<'_>],
        file: &[CodeRange],
        targets: &IndirectTargets,
    ) -> Self {
        let mut code = Self { instructions: BTreeMap::new(), leaders: BTreeSet::new(), doubtful: BTreeMap::new() };
        let starts: BTreeSet<AppPc> = blocks.iter().map(Block::address).collect();
        let mut search = LeaderSearch { file, targets, waiting: vec![entry], undecided: BTreeSet::new() };
        for block in blocks {
            let (end, transfer) = (block.end(), block.transfer());
            for instruction in block.instructions() {
                code.instructions.entry(instruction.address).or_insert((end, transfer));
            }
            match is_call(transfer) && starts.contains(&end) {
                true => search.waiting.push(end),
                false => search.follow(&mut code, end, transfer),
            }
        }
        search.waiting.extend(starts);
        let is_inside = |leader: AppPc| ranges.iter().any(|range| range.contains(&leader));
        while let Some(leader) = search.next(&mut code) {
            if !is_inside(leader) || code.leaders.contains(&leader) {
                continue;
            }
            if !code.instructions.contains_key(&leader)
                && let Some((end, transfer)) = code.add_from_file(leader, file)
            {
                search.follow(&mut code, end, transfer);
            }
            if code.instructions.contains_key(&leader) {
                code.leaders.insert(leader);
            }
        }
        code
    }

    /// Adds the instructions from an address on, up to a transfer, as the file has them. Returns
    /// where they end and how control leaves them. There are none in data, nor in code that ends in
    /// the middle of an instruction.
    fn add_from_file(&mut self, start: AppPc, file: &[CodeRange]) -> Option<(AppPc, Transfer)> {
        let bytes = file.iter().find_map(|range| range.from(start))?;
        let mut starts = Vec::new();
        for instruction in &mut isa::decoder(start, bytes) {
            if instruction.is_invalid() {
                return None;
            }
            starts.push(AppPc::new(instruction.ip()));
            let (end, transfer) = (AppPc::new(instruction.next_ip()), isa::transfer(&instruction));
            if transfer.ends_block() || self.instructions.contains_key(&end) {
                for start in starts {
                    self.instructions.entry(start).or_insert((end, transfer));
                }
                return Some((end, transfer));
            }
        }
        None
    }

    /// Returns where a node ends: at the next one, if an instruction of its own block begins there,
    /// or with the block.
    fn node_end(&self, start: AppPc) -> AppPc {
        let Some(&(end, _)) = self.instructions.get(&start) else { return start };
        let behind = self.leaders.range(start + 1..).copied().take_while(|&leader| leader < end);
        let is_next = |&leader: &AppPc| self.instructions.get(&leader).is_some_and(|&(other, _)| other == end);
        behind.into_iter().find(is_next).unwrap_or(end)
    }

    fn successors(&self, span: &Range<AppPc>, targets: &IndirectTargets) -> Vec<AppPc> {
        match self.instructions.get(&span.start) {
            Some(&(end, _)) if span.end == end && self.doubtful.contains_key(&end) => targets.of(end).collect(),
            Some(&(end, transfer)) if span.end == end => successors(transfer, end, targets).collect(),
            _ => vec![span.end],
        }
    }

    /// Returns where code begins behind a node whose call may not return.
    fn behind_doubtful_call(&self, span: &Range<AppPc>) -> Option<AppPc> {
        self.doubtful.get(&span.end).copied()
    }
}

/// Addresses that may be leaders.
struct LeaderSearch<'c> {
    file: &'c [CodeRange],
    targets: &'c IndirectTargets,
    waiting: Vec<AppPc>,
    /// The ends of calls that may not return.
    undecided: BTreeSet<AppPc>,
}

impl LeaderSearch<'_> {
    /// Adds where control can go from code that ends at an address.
    fn follow(&mut self, code: &mut Code, end: AppPc, transfer: Transfer) {
        if is_call(transfer) {
            code.doubtful.insert(end, behind_padding(end, self.file));
            self.undecided.insert(end);
        } else {
            self.waiting.extend(successors(transfer, end, self.targets));
        }
    }

    /// Returns an address to look at. If none is left but those behind calls, the next call returns
    /// that nothing else has led behind.
    fn next(&mut self, code: &mut Code) -> Option<AppPc> {
        self.waiting.pop().or_else(|| {
            let is_reached = |end: &AppPc| code.doubtful.get(end).is_some_and(|behind| code.leaders.contains(behind));
            let end = std::iter::from_fn(|| self.undecided.pop_first()).find(|end| !is_reached(end))?;
            code.doubtful.remove(&end);
            Some(end)
        })
    }
}

/// Returns where code begins at or behind an address, behind instructions that do nothing.
fn behind_padding(start: AppPc, file: &[CodeRange]) -> AppPc {
    let bytes = file.iter().find_map(|range| range.from(start)).unwrap_or(&[]);
    let mut code = isa::decoder(start, bytes).into_iter().skip_while(isa::is_nop);
    code.next().filter(|instruction| !instruction.is_invalid()).map_or(start, |next| AppPc::new(next.ip()))
}

fn is_call(transfer: Transfer) -> bool {
    matches!(transfer, Transfer::Call { .. } | Transfer::IndirectCall)
}

/// Returns where control can go, within the function, from a block that ends at `end`.
fn successors(transfer: Transfer, end: AppPc, targets: &IndirectTargets) -> impl Iterator<Item = AppPc> {
    let (direct, goes_on) = match transfer {
        Transfer::Conditional { target } => (Some(target), true),
        Transfer::Jump { target } => (Some(target), false),
        Transfer::Next | Transfer::Call { .. } | Transfer::IndirectCall | Transfer::Syscall => (None, true),
        Transfer::IndirectJump | Transfer::Return | Transfer::Trap => (None, false),
    };
    let indirect = (transfer == Transfer::IndirectJump || is_call(transfer)).then(|| targets.of(end));
    direct.into_iter().chain(goes_on.then_some(end)).chain(indirect.into_iter().flatten())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// The loops of a function that was never executed: entries, and the first addresses of nodes.
    fn loops(code: &[u8]) -> Vec<(Vec<u64>, Vec<u64>)> {
        let start = AppPc::new(0x1000);
        let range = start..start + code.len() as u64;
        let file = CodeRange { start, bytes: code.to_vec() };
        let flow = FlowGraph::of(&[range], start, &[], &[file], &IndirectTargets::default());
        let offsets = |nodes: &[u32]| nodes.iter().map(|&node| flow.span(node).unwrap().start - start).collect();
        flow.forest.loops().iter().map(|found| (offsets(&found.entries), offsets(&found.nodes))).collect()
    }

    const CALL: [u8; 5] = [0xe8, 0, 1, 0, 0];

    #[test]
    fn nothing_follows_a_call_that_does_not_return() {
        // 0: je 4; 2: jmp 9; 4: call exit; 9: je 4; 11: ret
        let code = [&[0x74, 2, 0xeb, 5][..], &CALL, &[0x74, 0xf9, 0xc3]].concat();
        assert_eq!(loops(&code), []);
        // The same with a gap: 0: je 4; 2: jmp 12; 4: call exit; 9: nop; 12: je 4; 14: ret
        let code = [&[0x74, 2, 0xeb, 8][..], &CALL, &[0x0f, 0x1f, 0, 0x74, 0xf6, 0xc3]].concat();
        assert_eq!(loops(&code), []);
    }

    #[test]
    fn a_loop_may_end_with_a_call() {
        // 0: jmp 7; 2: call; 7: jne 2; 9: ret
        let code = [&[0xeb, 5][..], &CALL, &[0x75, 0xf9, 0xc3]].concat();
        assert_eq!(loops(&code), [(vec![7], vec![2, 7])]);
    }

    #[test]
    fn code_behind_a_call_that_nothing_else_leads_to_is_reached() {
        // 0: call; 5: call; 10: jne 0; 12: ret
        let code = [&CALL[..], &CALL, &[0x75, 0xf4, 0xc3]].concat();
        assert_eq!(loops(&code), [(vec![0], vec![0, 5, 10])]);
        // 0: je 12; 2: call; 7: jne 7; 9: jmp 0; 12: ret
        let code = [&[0x74, 9][..], &CALL, &[0x75, 0xfe, 0xeb, 0xf5, 0x90, 0xc3]].concat();
        assert_eq!(loops(&code), [(vec![0], vec![0, 2, 7, 9]), (vec![7], vec![7])]);
    }
}
