//! The sink that writes a trace file.

use std::path::{Path, PathBuf};

use capture::Sink;
use trace::{
    AccessDescriptors, AppPc, BlockId, CallStackNode, Exit, Fragment, Module, ProcessInfo, Recording, Summary,
    ThreadId, ThreadInfo, Tsc, WriteError, Writer,
};

/// A trace file that takes events until it is finished.
pub struct FileSink {
    writer: Writer,
    path: PathBuf,
}

impl FileSink {
    /// Creates the file. It has `.part` appended to its name until [`Self::finish`].
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: &Path, recording: &Recording) -> Result<Self, WriteError> {
        Ok(Self { writer: Writer::create(path, recording)?, path: path.to_owned() })
    }

    /// Writes the list of processes and completes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self, exit: Exit, processes: &[ProcessInfo]) -> Result<Summary, WriteError> {
        processes.iter().try_for_each(|process| self.writer.process(process))?;
        self.writer.finish(exit)
    }

    /// Removes the partial file, to which nothing was recorded.
    pub fn discard(self) {
        // If that fails, an empty file is left, which does no harm.
        let _ = std::fs::remove_file(trace::partial_path(&self.path));
    }
}

impl Sink for FileSink {
    type Error = WriteError;

    fn block(&mut self, image: u32, block: BlockId, address: AppPc, code: &[u8]) -> Result<(), WriteError> {
        self.writer.block(image, block, address, code)
    }

    fn fragment(&mut self, image: u32, fragment: &Fragment) -> Result<(), WriteError> {
        self.writer.fragment(image, fragment)
    }

    fn access_descriptors(&mut self, _: u32, descriptors: &AccessDescriptors) -> Result<(), WriteError> {
        self.writer.access_descriptors(descriptors)
    }

    fn module(&mut self, image: u32, module: &Module) -> Result<(), WriteError> {
        self.writer.module(image, module)
    }

    fn unmapped(&mut self, image: u32, address: u64, length: u64, tsc: Tsc) -> Result<(), WriteError> {
        self.writer.unmapped(image, address, length, tsc)
    }

    fn thread(&mut self, thread: &ThreadInfo) -> Result<(), WriteError> {
        self.writer.thread(thread)
    }

    fn call_stack(&mut self, node: &CallStackNode) -> Result<(), WriteError> {
        self.writer.call_stack(node)
    }

    fn path(&mut self, image: u32, thread: ThreadId, words: &[u32], data: &[u8]) -> Result<(), WriteError> {
        self.writer.path_with_data(image, thread, words, data)
    }

    fn bytes(&self) -> u64 {
        self.writer.file_bytes()
    }

    fn waited(&mut self, waits: bool) {
        self.writer.waited(waits);
    }

    fn tick(&mut self) -> Result<(), WriteError> {
        self.writer.tick()
    }
}
