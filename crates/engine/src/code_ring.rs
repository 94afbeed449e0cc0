//! The code ring: how the engine announces blocks, fragments, access descriptors and modules to the
//! recorder.
//!
//! A record is appended under the engine's lock, before any thread can execute the code that it
//! describes. The record formats are in [`wire::code`].

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use wire::{CODE_RING_BYTES, code};

use crate::engine::Engine;
use crate::fragment::Fragment;
use crate::translate::{SourceBlock, TranslatedBlock, TranslatedExit, Translation};
use crate::{ring, sys};

impl Engine {
    /// Appends a record to the code ring, waiting for room.
    pub(crate) fn append_code(&mut self, kind: u32, parts: &[&[u8]]) {
        let control = self.control();
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let total = (size_of::<code::Header>() + length + 7) & !7;
        loop {
            let tail = control.code_tail.load(Ordering::SeqCst);
            let used = control.code_head.load(Ordering::Relaxed) - tail;
            if used as usize + total <= CODE_RING_BYTES {
                break;
            }
            if !ring::has_recorder(control) {
                return;
            }
            ring::ring_doorbell(control);
            control.code_waiting.store(1, Ordering::SeqCst);
            // SAFETY: the low half of the tail, as an atomic of its own; x86 is little-endian.
            let word = unsafe { &*control.code_tail.as_ptr().cast::<core::sync::atomic::AtomicU32>() };
            sys::futex_wait(word, tail as u32, 100);
            control.code_waiting.store(0, Ordering::SeqCst);
        }
        let mut head = control.code_head.load(Ordering::Relaxed);
        let end = head + total as u64;
        self.put_code(&mut head, &kind.to_le_bytes());
        self.put_code(&mut head, &(length as u32).to_le_bytes());
        for part in parts {
            self.put_code(&mut head, part);
        }
        control.code_head.store(end, Ordering::SeqCst);
    }

    pub(crate) fn put_code(&self, head: &mut u64, bytes: &[u8]) {
        let ring = (self.control as usize + wire::CODE_RING_OFFSET) as *mut u8;
        let position = *head as usize % CODE_RING_BYTES;
        let (first, second) = bytes.split_at(bytes.len().min(CODE_RING_BYTES - position));
        // SAFETY: both parts lie inside the ring, in room that the recorder has given back.
        unsafe {
            core::ptr::copy_nonoverlapping(first.as_ptr(), ring.add(position), first.len());
            core::ptr::copy_nonoverlapping(second.as_ptr(), ring, second.len());
        }
        *head += bytes.len() as u64;
    }

    /// Returns the number of a block. A new block gets the next number and is announced.
    pub(crate) fn block_number(&mut self, block: &SourceBlock, length: usize) -> u32 {
        // The code of a checked block may have changed since it got its number.
        if let Some(number) = self.blocks.get(block.address)
            && !block.check
            && self.block_lengths.get(block.address) == Some(length as u32)
        {
            return number;
        }
        self.block_lengths.insert(block.address, length as u32);
        let number = self.control().next_block.fetch_add(1, Ordering::Relaxed);
        self.announce_block(block.address, number, &block.code[..length]);
        self.blocks.insert(block.address, number);
        number
    }

    pub(crate) fn announce_block(&mut self, address: u64, block: u32, bytes: &[u8]) {
        self.append_code(code::BLOCK, &[&address.to_le_bytes(), &block.to_le_bytes(), &[0; 4], bytes]);
    }

    pub(crate) fn announce_fragment(&mut self, fragment: &Fragment, translation: &Translation, source: &[SourceBlock]) {
        let flags = if fragment.uninstrumented { code::UNINSTRUMENTED } else { 0 };
        let counts = [fragment.first_path, translation.blocks.len() as u32, translation.exits.len() as u32, flags];
        let mut words: Vec<u32> = Vec::with_capacity(4 + source.len() + translation.exits.len());
        words.extend_from_slice(&counts);
        for (block, TranslatedBlock { length, taken }) in source.iter().zip(&translation.blocks) {
            let number = self.block_number(block, *length as usize);
            words.push(if *taken { number | code::TAKEN } else { number });
        }
        words.extend(
            translation
                .exits
                .iter()
                .map(|TranslatedExit { blocks, terminator, .. }| u32::from(*blocks) | terminator << 16),
        );
        // SAFETY: any u32 is four bytes, in the order of this machine, which is the ring's.
        let bytes = unsafe { core::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 4) };
        self.append_code(code::FRAGMENT, &[bytes]);
    }

    pub(crate) fn announce_descriptors(&mut self, first_path: u32, translation: &Translation) {
        let counts = [first_path, translation.exits.len() as u32, translation.accesses.len() as u32, 0];
        let words: Vec<u32> = counts.into_iter().chain(translation.exits.iter().map(|exit| exit.data)).collect();
        // SAFETY: any u32 is four bytes, in the order of this machine, which is the ring's;
        // accesses have no padding.
        let (words, accesses) = unsafe {
            let accesses = &translation.accesses;
            (
                core::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 4),
                core::slice::from_raw_parts(
                    accesses.as_ptr().cast::<u8>(),
                    accesses.len() * code::ACCESS_DESCRIPTOR_BYTES,
                ),
            )
        };
        self.append_code(code::ACCESS_DESCRIPTORS, &[words, accesses]);
    }

    pub fn announce_unmap(&mut self, address: u64, length: u64) {
        let fixed = [address.to_le_bytes(), length.to_le_bytes(), sys::tsc().to_le_bytes()];
        self.append_code(code::UNMAP, &[fixed.as_flattened()]);
    }

    pub fn announce_module(&mut self, address: u64, length: u64, file_offset: u64, path: &[u8]) {
        let tsc = sys::tsc().to_le_bytes();
        let fixed = [address.to_le_bytes(), length.to_le_bytes(), file_offset.to_le_bytes(), tsc];
        self.append_code(code::MODULE, &[fixed.as_flattened(), path]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BRANCH, engine, page, records, words};

    #[test]
    fn a_block_and_its_paths_are_announced() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH)]);
        let index = engine.find(code, false).unwrap();
        assert_eq!(engine.find(code, true), Ok(index));
        let records = records(&engine);
        assert_eq!(records.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [code::BLOCK, code::FRAGMENT]);
        let (_, block) = &records[0];
        assert_eq!(block[..8], code.to_le_bytes());
        assert_eq!(block[16..], BRANCH);
        let number = words(&block[8..12])[0];
        let first_path = engine.fragment(index).first_path;
        let exits = [1 | code::TERMINATOR_NOT_TAKEN << 16, 1 | code::TERMINATOR_TAKEN << 16];
        assert_eq!(words(&records[1].1), [first_path, 1, 2, 0, number, exits[0], exits[1]]);
        assert_eq!(engine.control().next_path.load(Ordering::Relaxed), first_path + 1);
    }
}
