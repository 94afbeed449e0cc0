//! The event model and the `.trk` container.
mod bits;
mod block;
mod bytes;

mod container;
mod error;
mod event;
#[doc(hidden)]
pub mod example;
mod fast;
#[doc(hidden)]
pub mod measure;
mod merge;
mod model;
mod numbers;
mod parallel;
mod path;
mod predict;
mod program;
mod record;
mod steps;
mod tally;
mod trace;
mod verify;
mod writer;

pub use block::{Block, Blocks, Instruction, Instructions};
pub use container::{Kind, PathHeader};
pub use error::{Problem, ReadError, WriteError};
pub use merge::Merged;
pub use model::{
    BlockIndex, Counts, Event, Exit, Fragment, Leave, Module, Recording, Step, Summary, ThreadInfo, ThreadSummary,
};
pub use steps::{Batch, Item, Steps};
pub use trace::{Damage, MappedModule, Trace};
pub use verify::Report;
pub use writer::{Codec, Options, Writer, part_name};
