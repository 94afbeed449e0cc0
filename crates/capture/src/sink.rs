//! Where recorded events go: a file, an analysis that runs along, or a test.

use std::error::Error;

pub use trace::{AccessDescriptors, Fragment, Module, ThreadInfo};

/// Takes what the rings deliver. For each thread, words come in order; what they name has come
/// before them.
pub trait Sink {
    type Error: Error + Send + Sync + 'static;

    fn block(&mut self, image: u32, block: u32, address: u64, code: &[u8]) -> Result<(), Self::Error>;
    fn fragment(&mut self, image: u32, fragment: &Fragment) -> Result<(), Self::Error>;
    /// What the data behind the paths of a fragment is; comes only if data is recorded.
    fn access_descriptors(&mut self, image: u32, descriptors: &AccessDescriptors) -> Result<(), Self::Error>;
    fn module(&mut self, image: u32, module: &Module) -> Result<(), Self::Error>;
    fn unmapped(&mut self, image: u32, address: u64, length: u64, tsc: u64) -> Result<(), Self::Error>;
    fn thread(&mut self, thread: &ThreadInfo) -> Result<(), Self::Error>;
    /// Paths and events (see `wire::word`), as they stood in a segment of the thread's ring, and
    /// the data behind them, if it is recorded: what plans and events say, one after the other.
    /// They come from the target unchecked.
    fn path(&mut self, image: u32, thread: u32, words: &[u32], data: &[u8]) -> Result<(), Self::Error>;
    /// Bytes written so far, if that means anything.
    fn bytes(&self) -> u64 {
        0
    }
    /// Comes after a segment was taken out of a thread's ring: whether the thread was waiting for
    /// room then. What the segment held comes to [`Self::path`] afterwards, or has come before if
    /// data is recorded.
    fn waited(&mut self, waits: bool) {
        let _ = waits;
    }
    /// Comes now and then while there is nothing else.
    fn tick(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl<S: Sink> Sink for &mut S {
    type Error = S::Error;

    fn block(&mut self, image: u32, block: u32, address: u64, code: &[u8]) -> Result<(), Self::Error> {
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

    fn unmapped(&mut self, image: u32, address: u64, length: u64, tsc: u64) -> Result<(), Self::Error> {
        S::unmapped(self, image, address, length, tsc)
    }

    fn thread(&mut self, thread: &ThreadInfo) -> Result<(), Self::Error> {
        S::thread(self, thread)
    }

    fn path(&mut self, image: u32, thread: u32, words: &[u32], data: &[u8]) -> Result<(), Self::Error> {
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
