//! The event model and the `.trk` container: what a recording is, how a [`Writer`] writes it while
//! the target runs, and how a [`Trace`] reads it.
//!
//! A recorder hands a [`Writer`] static blocks, fragments made of them, and the words that each
//! thread executed (see `wire::word`). A [`Trace`] returns them thread by thread, from any
//! instruction number on ([`Trace::steps`], [`Trace::seek`]), all threads merged by time
//! ([`Trace::merged`]) or in turns ([`Trace::round_robin`]), or chunk by chunk on all cores
//! ([`Trace::par_chunks`]). A [`LiveTrace`] does without the file.
//!
//! # Two views
//!
//! There are two views of what a thread executed. Both are exact, and both come from the same
//! words.
//!
//! **Items** are steps and events. A [`Step`] is one executed basic block of one thread: a
//! reference to the static [`Block`], and the outcome and target of its terminator. [`Event`]s
//! stand between steps. [`Steps`] iterates single [`Item`]s; a [`Batch`] holds a few thousand, with
//! their memory accesses if they were asked for. Use items
//!
//! * to see single instructions, branches or accesses, in order;
//! * to start at an instruction number, or to select a part of an execution;
//! * whenever a few hundred million instructions per second are enough.
//!
//! **Path batches** are runs of path numbers and events, as they were recorded. A [`PathBatch`]
//! gives [`PathItem`]s and a [`PathTable`] with the steps of each path. There are several times
//! fewer paths than steps. Use path batches ([`MergedBatches::next_path_batch`],
//! [`LiveTrace::path_batch`])
//!
//! * if what the analysis needs to know of a path can be prepared once, by path number, and looked
//!   up whenever the path is executed again;
//! * if the analysis has to keep up with a running program;
//! * if it needs no memory accesses. For accesses alone, an [`AccessVisitor`] is as fast
//!   ([`MergedBatches::visit_next`], [`LiveTrace::visit_next`]).
//!
//! The target of an indirect terminator at the end of a path is where the next item begins. Path
//! batches leave that to the caller; steps have it filled in.
//!
//! # What this crate does not know
//!
//! It knows nothing of processes, of where events come from, or of what a trace is used for. The
//! crate `codec` compresses words and data. `docs/format.md` describes the container byte by byte.
//!
//! # Example
//!
//! ```
//! use trackway_trace::{
//!     AppPc, BlockId, Exit, Fragment, FragmentId, InstructionIndex, Item, PathId, Recording, ThreadId, ThreadInfo,
//!     Trace, Writer,
//! };
//! use wire::code::{FragmentBlock, FragmentExit, TERMINATOR_NOT_TAKEN, TERMINATOR_TAKEN};
//! use wire::word;
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("loop.trk");
//! let mut writer = Writer::create(&path, &Recording::default())?;
//! // dec ecx; jnz to itself
//! let (block, fragment) = (BlockId::new(1), FragmentId::new(PathId::new(1)));
//! writer.block(0, block, AppPc::new(0x1000), &[0xff, 0xc9, 0x75, 0xfc])?;
//! let blocks = [FragmentBlock::new(block, false)];
//! let exits = [FragmentExit::new(1, TERMINATOR_TAKEN), FragmentExit::new(1, TERMINATOR_NOT_TAKEN)];
//! writer.fragment(0, &Fragment { fragment, blocks: &blocks, exits: &exits })?;
//! let thread = ThreadId::FIRST;
//! writer.thread(&ThreadInfo { thread, os_tid: 4711, parent: None, image: 0 })?;
//! // It starts, takes the branch twice, falls through.
//! writer.path(0, thread, &[word::event(word::START, 0), 0x1000, 0, 77, 0, 1, 1, 2])?;
//! let summary = writer.finish(Exit::Code(0))?;
//! assert_eq!((summary.totals.conditional_taken, summary.totals.conditional_not_taken), (2, 1));
//!
//! let trace = Trace::open(&path)?;
//! let items: Vec<Item> = trace.seek(thread, InstructionIndex::new(2))?.collect::<Result<_, _>>()?;
//! let Item::Step(step) = items[1] else { panic!("two steps") };
//! assert_eq!((step.instructions(), step.next()), (2, AppPc::new(0x1004)));
//! assert_eq!(trace.blocks().instructions(&step).next().unwrap().bytes, [0xff, 0xc9]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
mod access;
mod access_counter;
mod allocation;
mod batch;
mod batch_builder;
mod block;
mod code_chunk;
mod container;
mod cursor;
mod data;
mod decode;
mod definition;
mod descriptors;
mod error;
mod event;
#[doc(hidden)]
pub mod example;
mod excerpt;
mod instruction_index;
mod ledger;
mod live;
#[doc(hidden)]
pub mod measure;
mod merge;
mod model;
mod open_chunk;
mod parallel;
mod path_batch;
mod program;
mod record;
#[doc(hidden)]
pub mod repair;
mod round_robin;
mod schedule;
mod span;
mod steps;
mod tally;
mod trace;
mod verify;
mod visit;
mod writer;

pub use entity::{AppPc, BlockId, FragmentId, PathId, ThreadId, Tsc};

pub use access::{Access, AccessKind, Accesses};
pub use access_counter::AccessCounter;
pub use allocation::{MappingCall, RoutineCall, RoutineKind};
pub use batch::{Batch, Item};
pub use block::{Block, Blocks, Instruction, Instructions};
pub use container::{ChunkKind, PathHeader};
pub use error::{Problem, ReadError, WriteError};
pub use excerpt::{Excerpt, InstructionWindow};
pub use instruction_index::InstructionIndex;
pub use ledger::{Allocation, AllocationChange, AllocationLedger, OldBlock};
pub use live::LiveTrace;
pub use merge::MergedBatches;
pub use model::{
    AccessDescriptors, BlockIndex, CallStackId, CallStackNode, Counts, DataMode, Event, Exit, Fragment, Module,
    ProcessInfo, Recording, Step, Summary, Terminator, ThreadInfo, ThreadSummary,
};
pub use path_batch::{PathBatch, PathItem, PathItems, PathTable};
pub use round_robin::{RoundRobin, RoundRobinUnit};
pub use steps::Steps;
pub use trace::{Damage, MappedModule, Trace};
pub use verify::{ContinuityCheck, VerifyReport};
pub use visit::{AccessVisitor, Operand};
pub use writer::{Codec, Writer, WriterOptions, create_private, partial_path};
