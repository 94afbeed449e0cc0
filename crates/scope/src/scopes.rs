//! The selected functions of a trace: where a block belongs, and which nodes it passes through.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use entity::AppPc;
use isa::Transfer;
use trace::{Block, BlockIndex, Blocks, Step};

use crate::flow::{CodeRange, FlowGraph, IndirectTargets};

/// A function whose scopes are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedFunction {
    pub name: String,
    /// The image of the process that it belongs to.
    pub image: u32,
    pub entry: AppPc,
    /// Its code. Compilers split functions, so that there may be several ranges.
    pub ranges: Vec<Range<AppPc>>,
    /// Where its code is in a file, with what was never executed.
    pub file: Option<CodeFile>,
}

/// A file that has the code of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeFile {
    pub path: PathBuf,
    /// Where each range of the function begins in the file.
    pub offsets: Vec<u64>,
}

impl SelectedFunction {
    /// Reads the code of each range; `None` without a file, or if the file has changed since
    /// `blocks` were executed.
    fn read_code(&self, blocks: &[Block<'_>]) -> Option<Vec<CodeRange>> {
        let CodeFile { path, offsets } = self.file.as_ref()?;
        let file = File::open(path).ok()?;
        let read = |(range, &offset): (&Range<AppPc>, &u64)| {
            let length = usize::try_from(range.end - range.start).ok().filter(|&length| length <= CODE_MAX)?;
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, offset).ok()?;
            Some(CodeRange { start: range.start, bytes })
        };
        let code: Vec<CodeRange> = self.ranges.iter().zip(offsets).map(read).collect::<Option<_>>()?;
        let is_in_file = |block: &Block<'_>| {
            code.iter().any(|range| range.from(block.address()).is_some_and(|bytes| bytes.starts_with(block.code())))
        };
        // A block may go on behind the function.
        let is_whole = |block: &&Block<'_>| {
            self.ranges.iter().any(|range| range.contains(&block.address()) && block.end() <= range.end)
        };
        blocks.iter().filter(is_whole).all(is_in_file).then_some(code)
    }
}

/// The largest range of a function whose code is read.
const CODE_MAX: usize = 16 << 20;

/// Names a function: its position among those given to [`Scopes::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// The functions of a trace, their graphs and their loops.
#[derive(Clone, Debug, Default)]
pub struct Scopes {
    functions: Vec<(SelectedFunction, FlowGraph)>,
    /// By the index of the block.
    blocks: Vec<BlockScope>,
    /// The nodes of all blocks, in the order of execution.
    nodes: Vec<u32>,
}

/// What following a thread needs to know of a block.
#[derive(Clone, Debug)]
pub(crate) struct BlockScope {
    pub function: Option<FunctionId>,
    /// Whether it begins at the function's entry.
    pub is_entry: bool,
    pub address: AppPc,
    pub end: AppPc,
    pub transfer: Transfer,
    nodes: Range<u32>,
}

impl BlockScope {
    fn has_indirect_jump(&self) -> bool {
        self.function.is_some() && self.transfer == Transfer::IndirectJump
    }
}

/// The ranges of all functions of all images, for searching.
struct RangeTable(Vec<(u32, Range<AppPc>, FunctionId)>);

impl RangeTable {
    fn of(functions: &[SelectedFunction]) -> Self {
        let mut ranges: Vec<_> = (0..)
            .zip(functions)
            .flat_map(|(id, function)| {
                function.ranges.iter().map(move |range| (function.image, range.clone(), FunctionId(id)))
            })
            .collect();
        ranges.sort_by_key(|(image, range, _)| (*image, range.start));
        Self(ranges)
    }

    fn function_at(&self, image: u32, pc: AppPc) -> Option<FunctionId> {
        let after = self.0.partition_point(|(other, range, _)| (*other, range.start) <= (image, pc));
        let (other, range, function) = self.0.get(after.checked_sub(1)?)?;
        (*other == image && range.contains(&pc)).then_some(*function)
    }
}

impl Scopes {
    /// Makes the graphs of `functions` from the blocks of a trace.
    #[must_use]
    pub fn new(functions: Vec<SelectedFunction>, blocks: &Blocks, targets: &IndirectTargets) -> Self {
        let ranges = RangeTable::of(&functions);
        let mut blocks_of: Vec<Vec<Block<'_>>> = vec![Vec::new(); functions.len()];
        for block in blocks.iter() {
            let function = ranges.function_at(block.image(), block.address());
            if let Some(list) = function.and_then(|FunctionId(id)| blocks_of.get_mut(id as usize)) {
                list.push(block);
            }
        }
        let functions = functions
            .into_iter()
            .zip(blocks_of)
            .map(|(function, blocks)| {
                let code = if blocks.is_empty() { None } else { function.read_code(&blocks) };
                let code = code.unwrap_or_default();
                let flow = FlowGraph::of(&function.ranges, function.entry, &blocks, &code, targets);
                (function, flow)
            })
            .collect();
        let mut scopes = Self { functions, blocks: Vec::with_capacity(blocks.len()), nodes: Vec::new() };
        blocks.iter().for_each(|block| scopes.add_block(&block, &ranges));
        scopes
    }

    fn add_block(&mut self, block: &Block<'_>, ranges: &RangeTable) {
        let function = ranges.function_at(block.image(), block.address());
        let known = function.and_then(|FunctionId(id)| self.functions.get(id as usize));
        let is_entry = known.is_some_and(|(function, _)| function.entry == block.address());
        let start = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        if let Some((_, flow)) = known {
            self.nodes.extend(flow.nodes_of(block.address()..block.end()));
        }
        let end = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.blocks.push(BlockScope {
            function,
            is_entry,
            address: block.address(),
            end: block.end(),
            transfer: block.transfer(),
            nodes: start..end,
        });
    }

    /// Returns the functions, in the order of their [`FunctionId`]s.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = &SelectedFunction> {
        self.functions.iter().map(|(function, _)| function)
    }

    #[must_use]
    pub fn function(&self, FunctionId(id): FunctionId) -> Option<&SelectedFunction> {
        self.functions.get(id as usize).map(|(function, _)| function)
    }

    /// Returns the control-flow graph of a function.
    #[must_use]
    pub fn flow(&self, FunctionId(id): FunctionId) -> Option<&FlowGraph> {
        self.functions.get(id as usize).map(|(_, flow)| flow)
    }

    pub(crate) fn block(&self, BlockIndex(index): BlockIndex) -> Option<&BlockScope> {
        self.blocks.get(index as usize)
    }

    /// Returns whether a selected function has an indirect jump.
    pub(crate) fn has_indirect_jumps(&self) -> bool {
        self.blocks.iter().any(BlockScope::has_indirect_jump)
    }

    /// Returns the code of selected functions to which no way from their entries is known.
    pub(crate) fn unreached_code(&self) -> BTreeSet<AppPc> {
        self.functions.iter().flat_map(|(function, flow)| flow.unreached_code(function.entry)).collect()
    }

    /// Returns the end of a block of a selected function that ends in an indirect jump.
    #[inline]
    pub(crate) fn indirect_jump(&self, block: BlockIndex) -> Option<AppPc> {
        self.block(block).filter(|block| block.has_indirect_jump()).map(|block| block.end)
    }

    /// Returns the nodes that a step has passed through.
    pub(crate) fn nodes_of(&self, block: &BlockScope, step: &Step, blocks: &Blocks) -> &[u32] {
        let nodes = self.nodes.get(block.nodes.start as usize..block.nodes.end as usize).unwrap_or(&[]);
        let is_whole = |block: Block<'_>| step.first() == 0 && step.instructions() == block.instruction_count();
        if nodes.len() <= 1 || blocks.get(step.block()).is_some_and(is_whole) {
            return nodes;
        }
        self.executed_nodes(block, nodes, step, blocks)
    }

    /// Returns those of a block's nodes that a part of it has passed through.
    #[cold]
    fn executed_nodes<'s>(&'s self, block: &BlockScope, nodes: &'s [u32], step: &Step, blocks: &Blocks) -> &'s [u32] {
        let mut executed = blocks.instructions(step).map(|instruction| instruction.address);
        let (Some(first), Some(flow)) = (executed.next(), block.function.and_then(|function| self.flow(function)))
        else {
            return &[];
        };
        let last = executed.last().unwrap_or(first);
        let is_before = |limit: AppPc| move |&node: &u32| flow.span(node).is_some_and(|span| span.end <= limit);
        let (start, end) = (nodes.partition_point(is_before(first)), nodes.partition_point(is_before(last)));
        nodes.get(start..(end + 1).min(nodes.len())).unwrap_or(&[])
    }
}
