//! The event model: recordings, threads, steps and events. Every source of traces produces these
//! and every analysis consumes them. Nothing here knows files or the encoding of paths.

use std::fmt;
use std::ops::Range;

use entity::{AppPc, FragmentId, ThreadId, Tsc};
use wire::code::{AccessDescriptor, FragmentBlock, FragmentExit};

use crate::access::Access;
use crate::allocation::{MappingCall, RoutineCall, RoutineKind};

/// What is known about a recording before the first instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// The command line of the target.
    pub command: Vec<String>,
    /// Process number of the target.
    pub pid: u32,
    /// Frequency of the timestamp counter; 0 if unknown.
    pub tsc_hz: u64,
    /// Wall-clock time of the start, nanoseconds since 1970.
    pub start_unix_nanos: u64,
    /// Timestamp counter at the same moment.
    pub start_tsc: Tsc,
    /// Name of the host.
    pub host: String,
    /// Model name of the processor.
    pub cpu: String,
    /// Kernel name and release.
    pub system: String,
    /// Name and version of the program that recorded.
    pub recorder: String,
    /// The options that restricted what was recorded, as on the command line.
    pub options: Vec<String>,
    /// What was recorded beside control flow.
    pub data: DataMode,
}

/// What is recorded beside control flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataMode {
    #[default]
    None,
    /// The address of every memory operand.
    Addresses,
    /// Its value, too.
    Values,
}

impl DataMode {
    /// Returns the number of the mode in `wire::Control::data`.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::None => wire::DATA_NONE,
            Self::Addresses => wire::DATA_ADDRESSES,
            Self::Values => wire::DATA_VALUES,
        }
    }

    pub(crate) fn from_number(number: u64) -> Option<Self> {
        [Self::None, Self::Addresses, Self::Values].into_iter().find(|mode| u64::from(mode.number()) == number)
    }
}

impl fmt::Display for DataMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Addresses => "addresses",
            Self::Values => "values",
        })
    }
}

/// A file that was mapped executable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    pub address: u64,
    pub length: u64,
    pub file_offset: u64,
    pub path: String,
    pub tsc: Tsc,
}

/// A thread of the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadInfo {
    pub thread: ThreadId,
    pub os_tid: u32,
    pub parent: Option<ThreadId>,
    /// The image of the process (0 after launch, plus one with every exec) that the thread started
    /// in.
    pub image: u32,
}

/// A fragment: blocks along a hot path, and its exits, as the engine announces it; see
/// `wire::code::FRAGMENT`. One execution from its head to one of its exits is a *path*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    pub fragment: FragmentId,
    /// In the order of execution.
    pub blocks: &'a [FragmentBlock],
    /// In the order of the numbers of their paths.
    pub exits: &'a [FragmentExit],
}

/// How to decode the memory accesses of a fragment from the data behind its paths; see
/// `wire::code::ACCESS_DESCRIPTORS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessDescriptors<'a> {
    pub fragment: FragmentId,
    /// For each exit, the bytes of data behind its word.
    pub lengths: &'a [u32],
    /// In the order of execution.
    pub accesses: &'a [AccessDescriptor],
}

/// Names a call stack of a trace: the node of its innermost return address. See
/// [`crate::Trace::call_stack`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallStackId(pub u32);

impl CallStackId {
    /// The empty stack, of the first function of a thread.
    pub const EMPTY: Self = Self(0);
}

/// A node in the tree of call stacks: a return address, on top of another call stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallStackNode {
    /// Its own number, from 1.
    pub id: CallStackId,
    /// The call stack below.
    pub below: CallStackId,
    pub address: AppPc,
}

/// A process of the family that the recorded one belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    pub pid: u32,
    /// The process that made it; `None` for the one that the recording began with.
    pub parent: Option<u32>,
    /// Timestamp counter when it was made; for the first, when its recording began.
    pub tsc: Tsc,
    /// Its command line when it was first seen.
    pub command: Vec<String>,
}

/// How the target ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// It had not ended, and continued without being recorded.
    Detached,
    #[default]
    Unknown,
}

/// What was executed, by class. A `rep` instruction counts once; a branch counts when it was
/// executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub instructions: u64,
    /// Executed basic blocks, those interrupted by a signal included.
    pub steps: u64,
    pub conditional_taken: u64,
    pub conditional_not_taken: u64,
    /// Direct jumps and calls.
    pub unconditional_direct: u64,
    /// Indirect jumps and calls, and returns.
    pub unconditional_indirect: u64,
    pub system_calls: u64,
    pub signals: u64,
    /// Words that cannot be decoded; zero in a sound recording.
    pub lost: u64,
    /// Memory accesses, if they were recorded; a read-modify-write counts as one of each.
    pub reads: u64,
    pub writes: u64,
}

impl Counts {
    /// All branches together.
    #[must_use]
    pub fn branches(&self) -> u64 {
        self.conditional_taken + self.conditional_not_taken + self.unconditional_direct + self.unconditional_indirect
    }

    /// Adds `other`; saturates, because headers of a damaged file may hold anything.
    pub fn add(&mut self, other: &Self) {
        self.instructions = self.instructions.saturating_add(other.instructions);
        self.steps = self.steps.saturating_add(other.steps);
        self.conditional_taken = self.conditional_taken.saturating_add(other.conditional_taken);
        self.conditional_not_taken = self.conditional_not_taken.saturating_add(other.conditional_not_taken);
        self.unconditional_direct = self.unconditional_direct.saturating_add(other.unconditional_direct);
        self.unconditional_indirect = self.unconditional_indirect.saturating_add(other.unconditional_indirect);
        self.system_calls = self.system_calls.saturating_add(other.system_calls);
        self.signals = self.signals.saturating_add(other.signals);
        self.lost = self.lost.saturating_add(other.lost);
        self.reads = self.reads.saturating_add(other.reads);
        self.writes = self.writes.saturating_add(other.writes);
    }

    /// Adds the instructions in `part` of a step, and its branch if that is among them.
    pub fn add_step(&mut self, step: &Step, part: Range<u32>) {
        self.instructions += u64::from(part.end - part.start);
        self.steps += 1;
        if part.end == step.instructions() {
            match step.terminator() {
                Terminator::NotTaken => self.conditional_not_taken += 1,
                Terminator::Taken => self.conditional_taken += 1,
                Terminator::Direct => self.unconditional_direct += 1,
                Terminator::Indirect => self.unconditional_indirect += 1,
                Terminator::Syscall | Terminator::Next | Terminator::Interrupted => {}
            }
        }
    }

    /// Adds an event. Signal 0 is none: the path was cut there.
    pub fn add_event(&mut self, event: &Event) {
        match *event {
            Event::Syscall { .. } => self.system_calls += 1,
            Event::Signal { signal, .. } if signal != 0 => self.signals += 1,
            Event::Lost => self.lost += 1,
            _ => {}
        }
    }

    /// Adds a memory access.
    pub fn add_access(&mut self, access: &Access) {
        let sum = if access.is_write() { &mut self.writes } else { &mut self.reads };
        *sum += 1;
    }
}

/// What one thread did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadSummary {
    pub info: ThreadInfo,
    pub counts: Counts,
    /// First and last timestamp of the thread; [`Tsc::NONE`] if it has none.
    pub first_tsc: Tsc,
    pub last_tsc: Tsc,
    /// Path chunks and the bytes of words in them.
    pub chunks: u64,
    pub word_bytes: u64,
    /// Bytes of data before compression.
    pub data_bytes: u64,
}

/// The totals of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub exit: Exit,
    pub totals: Counts,
    /// In order of their numbers.
    pub threads: Vec<ThreadSummary>,
    /// Chunks of any kind.
    pub chunks: u64,
    /// Static blocks defined, and the bytes of their code.
    pub blocks: u64,
    /// Fragments defined.
    pub fragments: u64,
    pub code_bytes: u64,
    pub modules: u64,
    /// Bytes of path words before compression.
    pub word_bytes: u64,
    /// Bytes of data before compression, and what they take in the file.
    pub data_bytes: u64,
    pub stored_data_bytes: u64,
    pub file_bytes: u64,
}

impl Summary {
    /// Size of the file over executed instructions; 0 if there are none.
    #[must_use]
    pub fn bits_per_instruction(&self) -> f64 {
        self.bits(self.file_bytes)
    }

    /// Size of the data alone over executed instructions.
    #[must_use]
    pub fn data_bits_per_instruction(&self) -> f64 {
        self.bits(self.stored_data_bytes)
    }

    fn bits(&self, bytes: u64) -> f64 {
        if self.totals.instructions == 0 { 0.0 } else { bytes as f64 * 8.0 / self.totals.instructions as f64 }
    }
}

/// Names a static block of a trace: its place in the order of definition. See
/// [`crate::Blocks::get`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockIndex(pub u32);

/// How a step's block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Terminator {
    /// A conditional branch that was not taken.
    NotTaken = 0,
    /// A conditional branch that was taken.
    Taken = 1,
    /// A direct jump or call.
    Direct = 2,
    /// An indirect jump or call, or a return.
    Indirect = 3,
    /// A system call; [`Event::Syscall`] follows.
    Syscall = 4,
    /// No transfer: the block was cut and execution fell through.
    Next = 5,
    /// A signal came before the instruction at [`Step::next`], and [`Event::Signal`] follows; or
    /// the selection of instructions ends there.
    Interrupted = 6,
}

impl Terminator {
    fn from_bits(bits: u16) -> Self {
        match bits & 7 {
            0 => Self::NotTaken,
            1 => Self::Taken,
            2 => Self::Direct,
            3 => Self::Indirect,
            4 => Self::Syscall,
            5 => Self::Next,
            _ => Self::Interrupted,
        }
    }
}

/// One executed basic block of one thread: a reference to the static block, and the outcome of its
/// terminator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Step {
    next: AppPc,
    block: u32,
    first: u16,
    /// Three bits of [`Terminator`] above thirteen bits of instruction count.
    count_and_terminator: u16,
}

/// Most instructions that a block can have.
pub(crate) const BLOCK_INSTRUCTIONS_MAX: u16 = (1 << 13) - 1;

impl Step {
    pub(crate) fn new(block: u32, count: u16, terminator: Terminator, next: AppPc) -> Self {
        debug_assert!(count <= BLOCK_INSTRUCTIONS_MAX);
        Self { next, block, first: 0, count_and_terminator: count & BLOCK_INSTRUCTIONS_MAX | (terminator as u16) << 13 }
    }

    /// The static block.
    #[must_use]
    pub fn block(&self) -> BlockIndex {
        BlockIndex(self.block)
    }

    /// The first executed instruction of the block: 0, except in a step that a seek cut.
    #[must_use]
    pub fn first(&self) -> u32 {
        u32::from(self.first)
    }

    /// How many instructions were executed, from [`Self::first`] on.
    #[must_use]
    pub fn instructions(&self) -> u32 {
        u32::from(self.count_and_terminator & BLOCK_INSTRUCTIONS_MAX)
    }

    #[must_use]
    pub fn terminator(&self) -> Terminator {
        Terminator::from_bits(self.count_and_terminator >> 13)
    }

    /// Address of the instruction that comes next: the target of a transfer, the instruction after
    /// a system call, the interrupted instruction. [`AppPc::NONE`] if the trace does not
    /// say: an indirect transfer with nothing after it.
    #[must_use]
    pub fn next(&self) -> AppPc {
        self.next
    }

    /// The same step with another instruction behind it.
    #[must_use]
    pub fn with_next(self, next: AppPc) -> Self {
        Self { next, ..self }
    }

    /// The first `count` instructions of the step, with the one at `next` behind them.
    pub(crate) fn cut(self, count: u16, next: AppPc) -> Self {
        let terminator = (Terminator::Interrupted as u16) << 13;
        Self { next, count_and_terminator: count & BLOCK_INSTRUCTIONS_MAX | terminator, ..self }
    }

    /// The step without its first `count` instructions.
    pub(crate) fn skip(self, count: u16) -> Self {
        let left = (self.count_and_terminator & BLOCK_INSTRUCTIONS_MAX).saturating_sub(count);
        let terminator = self.count_and_terminator & !BLOCK_INSTRUCTIONS_MAX;
        Self { first: self.first.saturating_add(count), count_and_terminator: terminator | left, ..self }
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step")
            .field("block", &self.block)
            .field("first", &self.first)
            .field("instructions", &self.instructions())
            .field("terminator", &self.terminator())
            .field("next", &format_args!("{:#x}", self.next))
            .finish()
    }
}

/// What happened to a thread between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The thread starts at `pc`, or goes on there in a new image.
    Start { pc: AppPc, tsc: Tsc },
    /// A timestamp.
    Time { tsc: Tsc },
    /// The system call that ended the step before, about to be executed.
    Syscall { number: u32, tsc: Tsc },
    /// The thread was interrupted before (or by) the instruction at `pc` and continues at
    /// `handler`. [`AppPc::NONE`] means that it ends here.
    Signal { signal: u8, pc: AppPc, handler: AppPc, tsc: Tsc },
    /// A signal handler has returned to `pc`.
    Resume { pc: AppPc, tsc: Tsc },
    /// The thread has ended, or its process has called exec.
    End { tsc: Tsc },
    /// The system call just made has created a thread.
    Child { thread: ThreadId, os_tid: u32 },
    /// From here on the thread runs natively and is not recorded.
    Detach { tsc: Tsc },
    /// From here on, the base of the thread's fs segment is this.
    FsBase { base: u64 },
    /// Before the instruction at `pc` the thread left the code that is recorded; the next step is
    /// where it came back.
    Gap { pc: AppPc },
    /// The thread is at the entry of an allocation routine, which it has called. Only the outermost
    /// of several calls inside of each other is recorded.
    RoutineEnter { call: RoutineCall, tsc: Tsc },
    /// The allocation routine that was entered last has returned `value`; of `posix_memalign`, the
    /// address that it has stored, or 0.
    RoutineReturn { routine: RoutineKind, value: u64, tsc: Tsc },
    /// The system call just made has mapped, unmapped or moved memory.
    Mapping { call: MappingCall, tsc: Tsc },
    /// The instruction at `pc` has made the memory accesses that belong to this event and is not
    /// complete. Its other accesses, if any, belong to what follows.
    Unfinished { pc: AppPc },
    /// Something was executed here whose definition is missing or damaged.
    Lost,
}

impl Event {
    /// The timestamp, if the event has one.
    #[must_use]
    pub fn tsc(&self) -> Option<Tsc> {
        match *self {
            Self::Start { tsc, .. }
            | Self::Time { tsc }
            | Self::Syscall { tsc, .. }
            | Self::Signal { tsc, .. }
            | Self::Resume { tsc, .. }
            | Self::End { tsc }
            | Self::Detach { tsc }
            | Self::RoutineEnter { tsc, .. }
            | Self::RoutineReturn { tsc, .. }
            | Self::Mapping { tsc, .. } => Some(tsc),
            Self::Child { .. } | Self::FsBase { .. } | Self::Gap { .. } | Self::Unfinished { .. } | Self::Lost => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_sixteen_bytes_and_keeps_its_parts() {
        assert_eq!(size_of::<Step>(), 16);
        for terminator in [0, 1, 2, 3, 4, 5, 6].map(Terminator::from_bits) {
            let step = Step::new(7, BLOCK_INSTRUCTIONS_MAX, terminator, AppPc::new(0x1234));
            assert_eq!(step.terminator(), terminator);
            assert_eq!(step.instructions(), u32::from(BLOCK_INSTRUCTIONS_MAX));
            let rest = step.skip(3);
            assert_eq!(
                (rest.first(), rest.instructions(), rest.terminator()),
                (3, step.instructions() - 3, terminator)
            );
        }
    }

    #[test]
    fn a_cut_path_is_no_signal() {
        let mut counts = Counts::default();
        for signal in [0, 11] {
            counts.add_event(&Event::Signal { signal, pc: AppPc::NONE, handler: AppPc::NONE, tsc: Tsc::NONE });
        }
        assert_eq!(counts.signals, 1);
    }
}
