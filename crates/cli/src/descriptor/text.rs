//! The disassembly of instructions, made when it is first needed.

use std::collections::HashMap;

use trace::{AppPc, Block, BlockIndex, Blocks};

use crate::disassembly::Disassembler;

pub struct DisassemblyCache {
    disassembler: Disassembler,
    /// One text per instruction of each block.
    blocks: Vec<Option<Box<[Box<str>]>>>,
    /// Texts of single instructions, by address.
    single: HashMap<AppPc, Option<Box<str>>>,
}

impl DisassemblyCache {
    pub fn new() -> Self {
        Self { disassembler: Disassembler::new(), blocks: Vec::new(), single: HashMap::new() }
    }

    /// Returns one text per instruction of the block.
    pub fn of(&mut self, blocks: &Blocks, index: BlockIndex) -> &[Box<str>] {
        if self.blocks.len() < blocks.len() {
            self.blocks.resize(blocks.len(), None);
        }
        let Some(entry) = self.blocks.get_mut(index.0 as usize) else { return &[] };
        let disassembler = &mut self.disassembler;
        entry.get_or_insert_with(|| match blocks.get(index) {
            Some(block) => disassemble(disassembler, &block),
            None => Box::default(),
        })
    }

    /// Returns the text of the last instruction of the block.
    pub fn last(&mut self, blocks: &Blocks, index: BlockIndex) -> Option<&str> {
        self.of(blocks, index).last().map(|text| &**text)
    }

    /// Returns the text of the instruction of the block at `address`.
    pub fn in_block(&mut self, blocks: &Blocks, index: BlockIndex, address: AppPc) -> Option<&str> {
        let number = blocks.get(index)?.instructions().position(|own| own.address == address)?;
        self.of(blocks, index).get(number).map(|text| &**text)
    }

    /// Returns the text of the instruction at `address`, in whichever block it is.
    pub fn at(&mut self, blocks: &Blocks, address: AppPc) -> Option<&str> {
        if !self.single.contains_key(&address) {
            let indices = (0..u32::try_from(blocks.len()).unwrap_or(u32::MAX)).map(BlockIndex);
            let holds = |&index: &BlockIndex| {
                blocks.get(index).is_some_and(|block| (block.address()..block.end()).contains(&address))
            };
            let text = indices.filter(holds).find_map(|index| self.in_block(blocks, index, address).map(Box::from));
            self.single.insert(address, text);
        }
        self.single.get(&address)?.as_deref()
    }
}

fn disassemble(disassembler: &mut Disassembler, block: &Block) -> Box<[Box<str>]> {
    let mut text = String::new();
    let texts = block.instructions().map(|instruction| {
        text.clear();
        disassembler.append(instruction.address, instruction.bytes, &mut text);
        text.as_str().into()
    });
    texts.collect()
}
