//! The control-flow graph of a function, made of the blocks that a trace has of it.
//!
//! A *node* is straight-line code that control enters at its beginning only. Blocks of a trace
//! begin where a thread happened to arrive, so one block may contain the beginning of another one;
//! a [`FlowGraph`] cuts them into nodes. Code that was never executed comes from the program's
//! file, if that is still there: without it, a loop that was left in the middle would not be seen
//! to go back. The edges are those that the code shows. Calls and system calls lead to the
//! instruction behind them. Indirect jumps lead to where the execution has shown them to go:
//! [`IndirectTargets`].
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use entity::AppPc;
use isa::Transfer;
use trace::Block;

use crate::loops::{Graph, LoopForest};

/// Where the indirect jumps of an execution went: pairs of the address behind the jump and the
/// target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndirectTargets(BTreeSet<(AppPc, AppPc)>);

impl IndirectTargets {
    /// Adds the target of a jump that ends at `end`.
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
        let code = Code::of(ranges, blocks, file, targets);
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
        flow.forest = LoopForest::of(&graph);
        flow.graph = graph;
        flow
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
    fn of(ranges: &[Range<AppPc>], blocks: &[Block<'_>], file: &[CodeRange], targets: &IndirectTargets) -> Self {
        let mut code = Self { instructions: BTreeMap::new(), leaders: BTreeSet::new() };
        let mut waiting = Vec::new();
        for block in blocks {
            waiting.push(block.address());
            waiting.extend(successors(block.transfer(), block.end(), targets));
            for instruction in block.instructions() {
                code.instructions.entry(instruction.address).or_insert((block.end(), block.transfer()));
            }
        }
        let is_inside = |leader: AppPc| ranges.iter().any(|range| range.contains(&leader));
        while let Some(leader) = waiting.pop() {
            if !is_inside(leader) || code.leaders.contains(&leader) {
                continue;
            }
            if !code.instructions.contains_key(&leader) {
                waiting.extend(code.add_from_file(leader, file, targets));
            }
            if code.instructions.contains_key(&leader) {
                code.leaders.insert(leader);
            }
        }
        code
    }

    /// Adds the instructions from an address on, up to a transfer, as the file has them. Returns
    /// where control goes from there.
    fn add_from_file(&mut self, start: AppPc, file: &[CodeRange], targets: &IndirectTargets) -> Vec<AppPc> {
        let Some(bytes) = file.iter().find_map(|range| range.from(start)) else { return Vec::new() };
        let mut starts = Vec::new();
        for instruction in &mut isa::decoder(start, bytes) {
            if instruction.is_invalid() {
                break;
            }
            starts.push(AppPc::new(instruction.ip()));
            let (end, transfer) = (AppPc::new(instruction.next_ip()), isa::transfer(&instruction));
            if transfer.ends_block() || self.instructions.contains_key(&end) {
                for start in starts {
                    self.instructions.entry(start).or_insert((end, transfer));
                }
                return successors(transfer, end, targets).collect();
            }
        }
        // Data, or code that ends in the middle of an instruction.
        Vec::new()
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
            Some(&(end, transfer)) if span.end == end => successors(transfer, end, targets).collect(),
            _ => vec![span.end],
        }
    }
}

/// Returns where control can go, within the function, from a block that ends at `end`.
fn successors(transfer: Transfer, end: AppPc, targets: &IndirectTargets) -> impl Iterator<Item = AppPc> {
    let (direct, goes_on) = match transfer {
        Transfer::Conditional { target } => (Some(target), true),
        Transfer::Jump { target } => (Some(target), false),
        Transfer::Next | Transfer::Call { .. } | Transfer::IndirectCall | Transfer::Syscall => (None, true),
        Transfer::IndirectJump | Transfer::Return | Transfer::Trap => (None, false),
    };
    let indirect = (transfer == Transfer::IndirectJump).then(|| targets.of(end));
    direct.into_iter().chain(goes_on.then_some(end)).chain(indirect.into_iter().flatten())
}
