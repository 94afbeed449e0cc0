//! Static blocks: the code a trace refers to, decoded once.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::dense_map::DenseMap;
use entity::{AppPc, BlockId};
use isa::Transfer;
use wire::code::FragmentBlock;

use crate::model::{BlockIndex, Step};

/// No index: more than a table can hold.
pub(crate) const NONE: u32 = u32::MAX;
/// Longest code of a block.
pub(crate) const CODE_BYTES_MAX: usize = 4096;

/// One static block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub address: AppPc,
    /// Address after the last instruction.
    pub end: AppPc,
    pub transfer: Transfer,
    pub id: BlockId,
    pub image: u32,
    lengths_at: u32,
    code_at: u64,
    pub instructions: u16,
}

/// The blocks of a trace, in order of definition.
#[derive(Debug, Default)]
pub struct Blocks {
    nodes: Vec<Node>,
    /// Length of every instruction of every block.
    lengths: Vec<u8>,
    /// Empty in a table that does not keep code.
    code: Vec<u8>,
    drop_code: bool,
    by_id: DenseMap<BlockId, u32>,
    scratch: Vec<u8>,
}

/// Why a definition cannot be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The code of a block is not whole instructions up to the first transfer.
    Code,
    /// The number is in use.
    Twice,
    /// A fragment names a block that is not defined.
    UnknownBlock(BlockId),
    /// Access descriptors are for a fragment that is not defined.
    UnknownPath,
    /// A fragment's lists are inconsistent.
    Fragment,
    /// Access descriptors do not fit their fragment.
    AccessDescriptors,
    /// The table is full.
    Full,
}

/// A static block as analyses see it.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    node: &'a Node,
    code: &'a [u8],
    lengths: &'a [u8],
}

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction<'a> {
    pub address: AppPc,
    pub bytes: &'a [u8],
}

/// The instructions of a block, or those of it that a step executed.
#[derive(Clone, Debug)]
pub struct Instructions<'a> {
    address: AppPc,
    code: &'a [u8],
    lengths: std::slice::Iter<'a, u8>,
}

impl<'a> Block<'a> {
    #[must_use]
    pub fn id(&self) -> BlockId {
        self.node.id
    }

    /// The image of the process that the block belongs to.
    #[must_use]
    pub fn image(&self) -> u32 {
        self.node.image
    }

    #[must_use]
    pub fn address(&self) -> AppPc {
        self.node.address
    }

    /// Address after the last instruction.
    #[must_use]
    pub fn end(&self) -> AppPc {
        self.node.end
    }

    /// Address of the last instruction.
    #[must_use]
    pub fn last(&self) -> AppPc {
        let length = self.lengths.last().copied().unwrap_or(0);
        AppPc::new(self.node.end.get().wrapping_sub(u64::from(length)))
    }

    #[must_use]
    pub fn code(&self) -> &'a [u8] {
        self.code
    }

    /// Length in bytes of every instruction.
    #[must_use]
    pub fn lengths(&self) -> &'a [u8] {
        self.lengths
    }

    #[must_use]
    pub fn instruction_count(&self) -> u32 {
        u32::from(self.node.instructions)
    }

    /// How control leaves the last instruction.
    #[must_use]
    pub fn transfer(&self) -> Transfer {
        self.node.transfer
    }

    /// All instructions of the block.
    #[must_use]
    pub fn instructions(&self) -> Instructions<'a> {
        Instructions { address: self.node.address, code: self.code, lengths: self.lengths.iter() }
    }
}

impl<'a> Iterator for Instructions<'a> {
    type Item = Instruction<'a>;

    #[inline]
    fn next(&mut self) -> Option<Instruction<'a>> {
        let length = usize::from(*self.lengths.next()?);
        let (bytes, rest) = self.code.split_at_checked(length)?;
        let instruction = Instruction { address: self.address, bytes };
        self.address = self.address + length as u64;
        self.code = rest;
        Some(instruction)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.lengths.size_hint()
    }
}

impl ExactSizeIterator for Instructions<'_> {}

impl Blocks {
    /// A table for a writer, which has no use for the code itself.
    pub(crate) fn without_code() -> Self {
        Self { drop_code: true, ..Self::default() }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The block that a step refers to; `None` for an index of another trace.
    #[must_use]
    #[inline]
    pub fn get(&self, index: BlockIndex) -> Option<Block<'_>> {
        let node = self.node(index.0)?;
        Some(Block { node, code: self.code_of(node), lengths: self.lengths(node) })
    }

    /// All blocks in order of definition.
    pub fn iter(&self) -> impl Iterator<Item = Block<'_>> {
        self.nodes.iter().map(|node| Block { node, code: self.code_of(node), lengths: self.lengths(node) })
    }

    /// The instructions that `step` executed.
    #[must_use]
    #[inline]
    pub fn instructions(&self, step: &Step) -> Instructions<'_> {
        self.executed(step).unwrap_or(Instructions { address: AppPc::NONE, code: &[], lengths: [].iter() })
    }

    #[inline]
    fn executed(&self, step: &Step) -> Option<Instructions<'_>> {
        let node = self.node(step.block().0)?;
        let (first, count) = (step.first() as usize, step.instructions() as usize);
        let lengths = self.lengths(node);
        let executed = lengths.get(first..first.checked_add(count)?)?;
        if first == 0 {
            return Some(Instructions { address: node.address, code: self.code_of(node), lengths: executed.iter() });
        }
        let skipped: usize = lengths.get(..first)?.iter().map(|&length| usize::from(length)).sum();
        let address = node.address + skipped as u64;
        Some(Instructions { address, code: self.code_of(node).get(skipped..)?, lengths: executed.iter() })
    }

    #[inline]
    pub(crate) fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    #[inline]
    pub(crate) fn lengths(&self, node: &Node) -> &[u8] {
        let start = node.lengths_at as usize;
        self.lengths.get(start..start + usize::from(node.instructions)).unwrap_or(&[])
    }

    #[inline]
    fn code_of(&self, node: &Node) -> &[u8] {
        let start = usize::try_from(node.code_at).unwrap_or(usize::MAX);
        let length = usize::try_from(node.end - node.address).unwrap_or(usize::MAX);
        self.code.get(start..start.saturating_add(length)).unwrap_or(&[])
    }

    /// The index of the block with number `id`.
    #[inline]
    pub(crate) fn by_id(&self, id: BlockId) -> Option<u32> {
        self.by_id.get(id)
    }

    /// Returns how many instructions of `node` come before the address `pc`, which is that of one
    /// of them or the node's end.
    pub(crate) fn instructions_before(&self, node: &Node, pc: AppPc) -> Option<u16> {
        let wanted = pc - node.address;
        let mut offset = 0;
        for (count, &length) in (0u16..).zip(self.lengths(node)) {
            if offset == wanted {
                return Some(count);
            }
            offset += u64::from(length);
        }
        (offset == wanted).then_some(node.instructions)
    }

    pub(crate) fn add(&mut self, image: u32, id: BlockId, address: AppPc, code: &[u8]) -> Result<(), Refusal> {
        let index = u32::try_from(self.nodes.len()).ok().filter(|&index| index < NONE).ok_or(Refusal::Full)?;
        let lengths_at = u32::try_from(self.lengths.len()).map_err(|_| Refusal::Full)?;
        if id.get() > FragmentBlock::BLOCK_MAX || code.len() > CODE_BYTES_MAX {
            return Err(Refusal::Code);
        }
        let mut lengths = std::mem::take(&mut self.scratch);
        let scanned = scan(address, code, &mut lengths);
        let instructions = u16::try_from(lengths.len()).unwrap_or(0);
        let transfer = scanned.ok_or(Refusal::Code)?;
        if !self.by_id.insert(id, index) {
            return Err(Refusal::Twice);
        }
        self.lengths.extend_from_slice(&lengths);
        self.scratch = lengths;
        let code_at = self.code.len() as u64;
        if !self.drop_code {
            self.code.extend_from_slice(code);
        }
        let end = address + code.len() as u64;
        self.nodes.push(Node { address, end, transfer, id, image, lengths_at, code_at, instructions });
        Ok(())
    }
}

/// Decodes a block: fills `lengths` and returns the transfer at its end. `None` as for
/// `isa::shape`.
fn scan(address: AppPc, code: &[u8], lengths: &mut Vec<u8>) -> Option<Transfer> {
    lengths.clear();
    let mut decoder = isa::decoder(address, code);
    let mut last = None;
    let mut total = 0;
    while decoder.can_decode() {
        if last.is_some_and(Transfer::ends_block) {
            return None;
        }
        let instruction = decoder.decode();
        last = Some(if instruction.is_invalid() { Transfer::Trap } else { isa::transfer(&instruction) });
        lengths.push(u8::try_from(instruction.len()).ok()?);
        total += instruction.len();
    }
    last.filter(|_| total == code.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::model::Terminator;

    fn add(blocks: &mut Blocks, id: u32, address: u64, code: &[u8]) -> Result<(), Refusal> {
        blocks.add(0, BlockId::new(id), AppPc::new(address), code)
    }

    #[test]
    fn bad_blocks_are_refused() {
        let mut blocks = Blocks::default();
        assert_eq!(add(&mut blocks, 7, 0x1000, &[0x90, 0xc3]), Ok(()));
        assert_eq!(add(&mut blocks, 7, 0x2000, &[0xc3]), Err(Refusal::Twice));
        assert_eq!(add(&mut blocks, 8, 0x2000, &[0xc3, 0xc3]), Err(Refusal::Code));
        assert_eq!(add(&mut blocks, 9, 0x2000, &[]), Err(Refusal::Code));
        assert_eq!(add(&mut blocks, 10, 0x2000, &[0x90; CODE_BYTES_MAX + 1]), Err(Refusal::Code));
        assert_eq!(add(&mut blocks, 11, 0x2000, &[0x90; CODE_BYTES_MAX]), Ok(()));
        assert_eq!((blocks.by_id(BlockId::new(11)), blocks.by_id(BlockId::new(8))), (Some(1), None));
    }

    #[test]
    fn a_step_gives_its_instructions() {
        let mut blocks = Blocks::default();
        add(&mut blocks, 0, 0x1000, &[0x90, 0x66, 0x90, 0x0f, 0x05]).unwrap();
        let step = Step::new(0, 3, Terminator::Syscall, AppPc::new(0x1005));
        let all: Vec<_> = blocks.instructions(&step).map(|i| (i.address.get(), i.bytes.len())).collect();
        assert_eq!(all, [(0x1000, 1), (0x1001, 2), (0x1003, 2)]);
        let rest: Vec<_> = blocks.instructions(&step.skip(1)).map(|i| i.address.get()).collect();
        assert_eq!(rest, [0x1001, 0x1003]);
        let block = blocks.get(BlockIndex(0)).unwrap();
        assert_eq!((block.last(), block.transfer()), (AppPc::new(0x1003), Transfer::Syscall));
        let addresses = [0x1000, 0x1001, 0x1002, 0x1003, 0x1005, 0x1006].map(AppPc::new);
        let before = addresses.map(|pc| blocks.instructions_before(block.node, pc));
        assert_eq!(before, [Some(0), Some(1), None, Some(2), Some(3), None]);
    }
}
