//! A sink for tests that keeps everything in memory.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use entity::{AppPc, BlockId, FragmentId, PathId, ThreadId, Tsc};
use wire::code::{AccessDescriptor, FragmentBlock, FragmentExit};
use wire::word;

use crate::sink::{AccessDescriptors, Fragment, Module, Sink, ThreadInfo};

#[derive(Debug, Default)]
pub struct MemorySink {
    /// Image, number, address, code.
    pub blocks: Vec<(u32, BlockId, AppPc, Vec<u8>)>,
    /// Image, number, blocks, exits.
    pub fragments: Vec<(u32, FragmentId, Vec<FragmentBlock>, Vec<FragmentExit>)>,
    /// Image, number of the fragment, lengths, accesses.
    pub access_descriptors: Vec<(u32, FragmentId, Vec<u32>, Vec<AccessDescriptor>)>,
    pub modules: Vec<(u32, Module)>,
    pub unmapped: Vec<(u32, u64, u64, Tsc)>,
    pub threads: Vec<ThreadInfo>,
    /// By image and the number of a thread.
    pub paths: BTreeMap<(u32, u32), Vec<u32>>,
    /// The data behind them.
    pub data: BTreeMap<(u32, u32), Vec<u8>>,
    /// Fails from this delivery on.
    pub fails_at_path: Option<usize>,
    /// Sleeps this long at every delivery.
    pub delay: Duration,
    pub path_count: usize,
    pub known: HashSet<PathId>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the disk is full")]
pub struct Full;

impl Sink for MemorySink {
    type Error = Full;

    fn block(&mut self, image: u32, block: BlockId, address: AppPc, code: &[u8]) -> Result<(), Full> {
        self.blocks.push((image, block, address, code.to_vec()));
        Ok(())
    }

    fn fragment(&mut self, image: u32, fragment: &Fragment) -> Result<(), Full> {
        let &Fragment { fragment, blocks, exits } = fragment;
        self.known.extend(fragment.paths().take(exits.len()));
        self.fragments.push((image, fragment, blocks.to_vec(), exits.to_vec()));
        Ok(())
    }

    fn access_descriptors(&mut self, image: u32, descriptors: &AccessDescriptors) -> Result<(), Full> {
        let &AccessDescriptors { fragment, lengths, accesses } = descriptors;
        self.access_descriptors.push((image, fragment, lengths.to_vec(), accesses.to_vec()));
        Ok(())
    }

    fn module(&mut self, image: u32, module: &Module) -> Result<(), Full> {
        self.modules.push((image, module.clone()));
        Ok(())
    }

    fn unmapped(&mut self, image: u32, address: u64, length: u64, tsc: Tsc) -> Result<(), Full> {
        self.unmapped.push((image, address, length, tsc));
        Ok(())
    }

    fn thread(&mut self, thread: &ThreadInfo) -> Result<(), Full> {
        self.threads.push(thread.clone());
        Ok(())
    }

    fn path(&mut self, image: u32, thread: ThreadId, words: &[u32], data: &[u8]) -> Result<(), Full> {
        assert!(self.threads.iter().any(|info| info.thread == thread), "thread {thread} was announced");
        self.check(words);
        std::thread::sleep(self.delay);
        self.path_count += 1;
        if self.fails_at_path.is_some_and(|at| self.path_count > at) {
            return Err(Full);
        }
        self.paths.entry((image, thread.get())).or_default().extend(words);
        self.data.entry((image, thread.get())).or_default().extend(data);
        Ok(())
    }
}

impl MemorySink {
    /// Checks that words name no path that was not defined before. Zeros come from a damaged ring.
    fn check(&self, mut words: &[u32]) {
        while let Some(&first) = words.first() {
            let Some(length) = word::length(first) else { return };
            assert!(word::path(first).is_none_or(|path| self.known.contains(&path)), "path {first} was announced");
            words = &words[length..];
        }
    }
}
