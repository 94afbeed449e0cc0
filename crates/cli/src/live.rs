//! Analyses of a program while it runs, without a trace file. A verb implements [`Receiver`];
//! [`run`] captures the program into it, over a [`trace::LiveTrace`].

use std::fmt;

use capture::{CaptureOptions, Sink};
use trace::{AccessDescriptors, AppPc, BlockId, Exit, Fragment, LiveTrace, Module, ThreadId, ThreadInfo, Tsc};

use crate::failure::Failure;
use crate::output::Stopped;

/// Takes the execution of a program.
pub trait Receiver {
    /// Takes a new thread.
    fn thread(&mut self, thread: &ThreadInfo) -> Result<(), Stopped>;
    /// Takes words of a thread: gives them to `live`, and takes the batches that come out.
    fn path(&mut self, live: &mut LiveTrace, words: ThreadWords<'_>) -> Result<(), Stopped>;
    /// Takes the last batches of `live`: the program has exited, or runs on natively.
    fn finish(&mut self, live: &mut LiveTrace) -> Result<(), Stopped>;
    /// Returns the size of the result, which a limit may bound; more than any limit if it is
    /// enough.
    fn bytes(&self) -> u64 {
        0
    }
}

/// Words and data of a thread, as the recorder delivers them.
#[derive(Clone, Copy)]
pub struct ThreadWords<'e> {
    pub image: u32,
    pub thread: ThreadId,
    pub words: &'e [u32],
    pub data: &'e [u8],
}

/// Runs a program, or attaches to one, and returns how it ended.
pub fn run(options: &CaptureOptions, live: LiveTrace, receiver: &mut impl Receiver) -> Result<Exit, Stopped> {
    let mut tracer = Tracer { live, receiver };
    let outcome = capture::capture(options, &mut tracer).map_err(Failure::from)?;
    if let Some(TracerError(stopped)) = outcome.failure {
        return Err(stopped);
    }
    tracer.receiver.finish(&mut tracer.live)?;
    for warning in &outcome.report.warnings {
        eprintln!("trackway: {warning}");
    }
    Ok(outcome.exit)
}

struct Tracer<'r, R> {
    live: LiveTrace,
    receiver: &'r mut R,
}

/// Why the receiver takes no more events.
#[derive(Debug)]
struct TracerError(Stopped);

impl fmt::Display for TracerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Stopped::Gone => f.write_str("nobody reads any more"),
            Stopped::Failed(failure) => f.write_str(&failure.sentence),
        }
    }
}

impl std::error::Error for TracerError {}

impl From<trace::WriteError> for TracerError {
    fn from(error: trace::WriteError) -> Self {
        Self(Failure::new(error.to_string()).into())
    }
}

impl<R: Receiver> Sink for Tracer<'_, R> {
    type Error = TracerError;

    fn block(&mut self, image: u32, block: BlockId, address: AppPc, code: &[u8]) -> Result<(), TracerError> {
        Ok(self.live.block(image, block, address, code)?)
    }

    fn fragment(&mut self, image: u32, fragment: &Fragment) -> Result<(), TracerError> {
        Ok(self.live.fragment(image, fragment)?)
    }

    fn access_descriptors(&mut self, _: u32, descriptors: &AccessDescriptors) -> Result<(), TracerError> {
        Ok(self.live.access_descriptors(descriptors)?)
    }

    fn module(&mut self, _: u32, _: &Module) -> Result<(), TracerError> {
        Ok(())
    }

    fn unmapped(&mut self, _: u32, _: u64, _: u64, _: Tsc) -> Result<(), TracerError> {
        Ok(())
    }

    fn thread(&mut self, thread: &ThreadInfo) -> Result<(), TracerError> {
        self.receiver.thread(thread).map_err(TracerError)
    }

    fn path(&mut self, image: u32, thread: ThreadId, words: &[u32], data: &[u8]) -> Result<(), TracerError> {
        self.receiver.path(&mut self.live, ThreadWords { image, thread, words, data }).map_err(TracerError)
    }

    fn bytes(&self) -> u64 {
        self.receiver.bytes()
    }
}
