//! The errors of writing and reading, in words that say what is wrong and where.

use std::path::PathBuf;

use entity::{AppPc, BlockId, FragmentId, PathId, ThreadId};

use crate::InstructionIndex;
use crate::container::ChunkKind;

/// A recording could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("cannot create {path}: {source}")]
    Create { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot rename {from} to {to}: {source}")]
    Rename { from: PathBuf, to: PathBuf, source: std::io::Error },
    #[error(
        "block {id} at {address:#x}: {length} bytes are no block of whole instructions that ends at its first transfer"
    )]
    Block { id: BlockId, address: AppPc, length: usize },
    #[error("block {id} is defined twice")]
    BlockTwice { id: BlockId },
    #[error("the fragment of path {fragment} makes no sense")]
    Fragment { fragment: FragmentId },
    #[error("path {path} is defined twice")]
    PathTwice { path: PathId },
    #[error("the fragment of path {fragment} names block {block}, which is not defined")]
    UnknownBlock { fragment: FragmentId, block: BlockId },
    #[error("the access descriptors of path {fragment} make no sense")]
    AccessDescriptors { fragment: FragmentId },
    #[error("the data of thread {thread} is {bytes} bytes, its paths need {needed}")]
    Data { thread: ThreadId, bytes: u64, needed: u64 },
    #[error("there are too many definitions")]
    Full,
    #[error("thread {thread} recorded {word:#x}, which is neither a path that is defined nor an event")]
    UnknownWord { thread: ThreadId, word: u32 },
    #[error("thread {thread} has a path but was never announced")]
    UnknownThread { thread: ThreadId },
    #[error("the compressing thread ended unexpectedly")]
    WorkerGone,
}

/// A trace could not be read, or a part of it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read {path}: {reason}")]
    Open { path: PathBuf, reason: String },
    #[error("{path} is not a Trackway trace")]
    NotATrace { path: PathBuf },
    #[error("{path} has format version {version}, this program reads version {supported}")]
    Version { path: PathBuf, version: u16, supported: u16 },
    #[error("there is no thread {thread} in this trace")]
    NoThread { thread: ThreadId },
    #[error("memory accesses were not recorded in this trace")]
    NoData,
    #[error("thread {thread} executed {available} instructions, there is no number {wanted}")]
    PastEnd { thread: ThreadId, wanted: InstructionIndex, available: u64 },
    #[error("instruction {wanted} of thread {thread} is in a damaged part of the file")]
    Missing { thread: ThreadId, wanted: InstructionIndex },
    #[error("{kind} chunk at byte {offset}: {problem}")]
    Chunk { kind: ChunkKind, offset: u64, problem: Problem },
}

impl From<codec::DecodeError> for Problem {
    fn from(error: codec::DecodeError) -> Self {
        match error {
            codec::DecodeError::Malformed(reason) => Self::Decompress(reason),
            codec::DecodeError::UnknownCodec(number) => Self::Codec(number),
        }
    }
}

/// What is wrong with a chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("{length} bytes are announced but the file ends after {available}")]
    Truncated { length: u64, available: u64 },
    #[error("the checksum of its {length} bytes is wrong")]
    Checksum { length: u64 },
    #[error("its header is damaged")]
    Header,
    #[error("codec {0} is unknown")]
    Codec(u8),
    #[error("it does not decompress: {0}")]
    Decompress(&'static str),
    #[error("the decompressed bytes have a wrong checksum (definitions it needs may be missing)")]
    RawChecksum,
    #[error("it holds {bytes} bytes, the paths need {needed}")]
    DataLength { bytes: u64, needed: u64 },
    #[error("the paths it belongs to are not all defined")]
    Undefined,
    #[error("its data is missing")]
    DataMissing,
    #[error("it is the data of path chunk number {path}, which is missing")]
    PathMissing { path: u32 },
    #[error("a record at byte {at} of its content is malformed")]
    Record { at: usize },
    #[error("{count} definitions in it are unusable, the first is that of {first}")]
    Definitions { count: u64, first: String },
}
