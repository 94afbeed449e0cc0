//! The interface to whatever takes events: a file, an analysis that runs along, or a test.

use std::error::Error;

use entity::{AppPc, BlockId, ThreadId, Tsc};

pub use trace::{AccessDescriptors, CallStackNode, Fragment, Module, ThreadInfo};

/// Takes the events that the recorder drains out of the rings. Each thread's words come in order.
/// The definitions of blocks, fragments and threads come before the words that refer to them.
pub trait Sink {
    type Error: Error + Send + Sync + 'static;

    fn block(&mut self, image: u32, block: BlockId, address: AppPc, code: &[u8]) -> Result<(), Self::Error>;
    fn fragment(&mut self, image: u32, fragment: &Fragment) -> Result<(), Self::Error>;
    /// Defines the data behind the paths of a fragment. Comes only if data is recorded.
    fn access_descriptors(&mut self, image: u32, descriptors: &AccessDescriptors) -> Result<(), Self::Error>;
    fn module(&mut self, image: u32, module: &Module) -> Result<(), Self::Error>;
    fn unmapped(&mut self, image: u32, address: u64, length: u64, tsc: Tsc) -> Result<(), Self::Error>;
    fn thread(&mut self, thread: &ThreadInfo) -> Result<(), Self::Error>;
    /// Adds a node to the tree of call stacks, before the first event that names it. Comes only if
    /// allocations are recorded.
    fn call_stack(&mut self, node: &CallStackNode) -> Result<(), Self::Error> {
        let _ = node;
        Ok(())
    }
    /// Paths and events (see `wire::word`) of one thread, as they stood in a segment of its ring.
    /// `data` is the recorded data behind them, without gaps, as access descriptors and events say.
    /// Words and data come from the target and are not checked.
    fn path(&mut self, image: u32, thread: ThreadId, words: &[u32], data: &[u8]) -> Result<(), Self::Error>;
    /// Returns the number of bytes written so far, or 0 if the sink writes none.
    fn bytes(&self) -> u64 {
        0
    }
    /// Comes after the recorder has taken a segment out of a thread's ring; `waits` says whether
    /// the thread waited for room then. The content of the segment comes to [`Self::path`]
    /// afterwards, or came before if data is recorded.
    fn waited(&mut self, waits: bool) {
        let _ = waits;
    }
    /// Comes now and then while there are no events.
    fn tick(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl<S: Sink> Sink for &mut S {
    type Error = S::Error;

    fn block(&mut self, image: u32, block: BlockId, address: AppPc, code: &[u8]) -> Result<(), Self::Error> {
        S::block(self, image, block, address, code)
    }

    fn fragment(&mut self, image: u32, fragment: &Fragment) -> Result<(), Self::Error> {
        S::fragment(self, image, fragment)
    }

    fn access_descriptors(&mut self, image: u32, descriptors: &AccessDescriptors) -> Result<(), Self::Error> {
        S::access_descriptors(self, image, descriptors)
    }

    fn module(&mut self, image: u32, module: &Module) -> Result<(), Self::Error> {
        S::module(self, image, module)
    }

    fn unmapped(&mut self, image: u32, address: u64, length: u64, tsc: Tsc) -> Result<(), Self::Error> {
        S::unmapped(self, image, address, length, tsc)
    }

    fn thread(&mut self, thread: &ThreadInfo) -> Result<(), Self::Error> {
        S::thread(self, thread)
    }

    fn call_stack(&mut self, node: &CallStackNode) -> Result<(), Self::Error> {
        S::call_stack(self, node)
    }

    fn path(&mut self, image: u32, thread: ThreadId, words: &[u32], data: &[u8]) -> Result<(), Self::Error> {
        S::path(self, image, thread, words, data)
    }

    fn bytes(&self) -> u64 {
        S::bytes(self)
    }

    fn waited(&mut self, waits: bool) {
        S::waited(self, waits);
    }

    fn tick(&mut self) -> Result<(), Self::Error> {
        S::tick(self)
    }
}
