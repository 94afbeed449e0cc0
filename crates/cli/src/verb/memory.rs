//! `trackway memory`: memory accesses compressed to a file of their own.

mod compress;
mod expand;
mod streams;

use std::path::Path;

use memory::{MemoryCodec, MemoryTrace, MemoryTraceError};

use crate::arguments::memory::Memory;
use crate::failure::Failure;
use crate::output::Stopped;

pub fn run(arguments: &Memory) -> Result<u8, Stopped> {
    match arguments {
        Memory::Compress(arguments) => compress::run(arguments),
        Memory::Expand(arguments) => expand::run(arguments),
        Memory::Streams(arguments) => streams::run(arguments),
    }
}

fn open(file: &Path) -> Result<MemoryTrace, Failure> {
    MemoryTrace::open(file).map_err(|error| failure(file, &error))
}

fn failure(file: &Path, error: &MemoryTraceError) -> Failure {
    let failure = match error {
        MemoryTraceError::Open { .. } => Failure::new(error.to_string()),
        _ => Failure::new(format!("cannot read {}: {error}", file.display())),
    };
    match error {
        MemoryTraceError::NotAMemoryTrace => failure.hint("memory traces are made by `trackway memory compress`"),
        _ => failure,
    }
}

/// Fails if the accesses are not stored as regular sections.
fn require_sections(trace: &MemoryTrace, file: &Path) -> Result<(), Failure> {
    match trace.codec() {
        MemoryCodec::Prsd => Ok(()),
        codec => Err(Failure::new(format!("{} is compressed with the codec {codec}", file.display()))
            .hint("`trackway memory compress --codec prsd` keeps what is needed")),
    }
}
