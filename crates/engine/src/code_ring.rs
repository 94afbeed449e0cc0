//! The code ring: how the engine announces blocks, fragments, access descriptors and modules to the
//! recorder.
//!
//! A record is appended under the engine's lock, before any thread can execute the code that it
//! describes. The record formats are in [`wire::code`].

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use entity::{AppPc, BlockId, FragmentId};
use wire::code::{
    AccessDescriptorsRecord, BlockRecord, FragmentBlock, FragmentExit, FragmentRecord, Header, ModuleRecord, Payload,
    UnmapRecord,
};
use wire::{CODE_RING_BYTES, Control};

use crate::engine::Engine;
use crate::fragment::Fragment;
use crate::translate::{SourceBlock, TranslatedBlock, Translation};
use crate::{ring, sys};

impl Engine {
    /// Appends a record to the code ring, waiting for room.
    pub(crate) fn append_code<P: Payload>(&mut self, payload: P) {
        let control = self.control();
        let length = payload.length();
        let total = (size_of::<Header>() + length).next_multiple_of(8);
        if !wait_for_room(control, total) {
            return;
        }
        let mut head = control.code_head.load(Ordering::Relaxed);
        let end = head + total as u64;
        let mut put = |bytes: &[u8]| self.put_code(&mut head, bytes);
        put(&P::KIND.to_le_bytes());
        put(&(length as u32).to_le_bytes());
        payload.write(&mut put);
        control.code_head.store(end, Ordering::SeqCst);
    }

    /// Writes bytes at the position `head`, for which [`Self::append_code`] has waited. It is not
    /// inlined, because it is called for every field and is not hot.
    #[inline(never)]
    fn put_code(&self, head: &mut u64, bytes: &[u8]) {
        let ring = (core::ptr::from_ref(self.control()) as usize + wire::CODE_RING_OFFSET) as *mut u8;
        let position = *head as usize % CODE_RING_BYTES;
        let (first, second) = bytes.split_at(bytes.len().min(CODE_RING_BYTES - position));
        // SAFETY: the ring lies behind the control page, in the same mapping. Both parts lie inside
        // the ring, in room that the recorder has given back.
        unsafe {
            core::ptr::copy_nonoverlapping(first.as_ptr(), ring.add(position), first.len());
            core::ptr::copy_nonoverlapping(second.as_ptr(), ring, second.len());
        }
        *head += bytes.len() as u64;
    }

    /// Returns the number of a block. A new block gets the next number and is announced.
    pub(crate) fn block_number(&mut self, block: &SourceBlock, length: usize) -> BlockId {
        // The code of a checked block may have changed since it got its number.
        if let Some(number) = self.blocks.get(block.address)
            && !block.check
            && self.block_lengths.get(block.address) == Some(length as u32)
        {
            return BlockId::new(number);
        }
        self.block_lengths.insert(block.address, length as u32);
        let number = BlockId::new(self.control().next_block.fetch_add(1, Ordering::Relaxed));
        self.announce_block(block.address, number, &block.code[..length]);
        self.blocks.insert(block.address, number.get());
        number
    }

    pub(crate) fn announce_block(&mut self, address: AppPc, block: BlockId, code: &[u8]) {
        self.append_code(BlockRecord { address, block, code });
    }

    pub(crate) fn announce_fragment(&mut self, fragment: &Fragment, translation: &Translation, source: &[SourceBlock]) {
        let blocks = source.iter().zip(&translation.blocks);
        let blocks: Vec<FragmentBlock> = blocks
            .map(|(block, &TranslatedBlock { length, taken })| {
                FragmentBlock::new(self.block_number(block, length as usize), taken)
            })
            .collect();
        let exits = translation.exits.iter();
        self.append_code(FragmentRecord {
            fragment: fragment.id,
            is_uninstrumented: fragment.uninstrumented,
            blocks: blocks.into_iter(),
            exits: exits.map(|exit| FragmentExit::new(exit.blocks, exit.terminator)),
        });
    }

    pub(crate) fn announce_descriptors(&mut self, fragment: FragmentId, translation: &Translation) {
        self.append_code(AccessDescriptorsRecord {
            fragment,
            lengths: translation.exits.iter().map(|exit| exit.data),
            accesses: translation.accesses.iter().copied(),
        });
    }

    pub fn announce_unmap(&mut self, address: u64, length: u64) {
        self.append_code(UnmapRecord { address, length, tsc: sys::tsc() });
    }

    pub fn announce_module(&mut self, address: u64, length: u64, file_offset: u64, path: &[u8]) {
        self.append_code(ModuleRecord { address, length, file_offset, tsc: sys::tsc(), path });
    }
}

/// How often a waiting thread checks that the recorder is alive.
const PATIENCE_MILLISECONDS: u64 = 100;

/// Waits until the code ring has room for so many bytes. False if there is no recorder.
fn wait_for_room(control: &Control, bytes: usize) -> bool {
    loop {
        let tail = control.code_tail.load(Ordering::SeqCst);
        let used = control.code_head.load(Ordering::Relaxed) - tail;
        if used as usize + bytes <= CODE_RING_BYTES {
            return true;
        }
        if !ring::has_recorder(control) {
            return false;
        }
        ring::ring_doorbell(control);
        control.code_waiting.store(1, Ordering::SeqCst);
        sys::futex_wait_low_half(&control.code_tail, tail as u32, PATIENCE_MILLISECONDS);
        control.code_waiting.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use wire::code::{Definition, TERMINATOR_NOT_TAKEN, TERMINATOR_TAKEN};

    use super::*;
    use crate::testing::{BRANCH, engine, page, records};

    #[test]
    fn a_block_and_its_paths_are_announced() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH)]);
        let index = engine.find(code, false).unwrap();
        assert_eq!(engine.find(code, true), Ok(index));
        let records = records(&engine);
        let [Definition::Block(block), Definition::Fragment(fragment)] = &records[..] else { panic!("{records:?}") };
        assert_eq!((block.address, block.code), (code, &BRANCH[..]));
        let id = engine.fragment(index).id;
        assert_eq!((fragment.fragment, fragment.is_uninstrumented), (id, false));
        assert!(fragment.blocks.eq([FragmentBlock::new(block.block, false)]));
        let terminators = [TERMINATOR_NOT_TAKEN, TERMINATOR_TAKEN];
        assert!(fragment.exits.eq(terminators.map(|terminator| FragmentExit::new(1, terminator))));
        assert_eq!(engine.control().next_path.load(Ordering::Relaxed), id.path(1).get());
    }
}
